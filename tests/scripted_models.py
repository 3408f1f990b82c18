"""Models in the Hugging Face layout with known replies: real models, made quickly and without training."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import save_file

SPECIALS = ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>")
ASSISTANT, END = 258, 259  # their ids: those of the 256 bytes come first, a byte's own value each
TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
FRAME = 3  # tokens that TEMPLATE puts around one user message; a system message has two more


class Script(NamedTuple):
    """A scripted model: its directory, and the token ids and the text that its whole reply must be."""

    path: Path
    ids: list[int]
    text: str


def scripted_model(
    path: Path,
    reply: Sequence[bytes],
    *,
    again: int | None = None,
    follows: Mapping[int, int] | None = None,
    sharpness: float = 30.0,
    context: int = 1_000_000,
    generation: Mapping[str, Any] | None = None,
    template: str = TEMPLATE,
) -> Script:
    """Return a model that answers every prompt with `reply`, one token a piece.

    Each piece is one token with its own id, so pieces may be equal, and may hold bytes that are no character. After the
    last one comes the end, or piece number `again`, for ever. `follows` maps single ids to the ids that come after them
    instead. `sharpness` is the logit of the one right token; all others have 0.
    """
    ids = list(range(256 + len(SPECIALS), 256 + len(SPECIALS) + len(reply)))
    size = 256 + len(SPECIALS) + len(reply)
    after = np.full(size, ids[0] if ids else END)
    after[ids] = [*ids[1:], END if again is None else ids[again]] if ids else []
    for token, next_token in (follows or {}).items():
        after[token] = next_token
    head = np.zeros((size, size), np.float32)
    head[after, np.arange(size)] = sharpness / size**0.5  # the norm makes sqrt(size) of the one that is 1
    weights = {
        **_layer(0, size, lambda *shape: np.zeros(shape, np.float32)),
        "model.embed_tokens.weight": np.eye(size, dtype=np.float32),
        "lm_head.weight": head,
    }
    _write(path, weights, size, reply, context, 1, generation or {}, template)
    return Script(path, ids, b"".join(reply).decode("utf-8", "replace"))


def random_model(path: Path, *, context: int = 512, generation: Mapping[str, Any] | None = None) -> Path:
    """Return a model of two random layers over single bytes, which writes long nonsense."""
    noise = np.random.default_rng(5)
    size, width = 256 + len(SPECIALS), 16

    def some(*shape: int) -> np.ndarray:
        return noise.normal(0, 0.3, shape).astype(np.float32)

    weights = {**_layer(0, width, some), **_layer(1, width, some)}
    weights |= {"model.embed_tokens.weight": some(size, width), "lm_head.weight": some(size, width)}
    _write(path, weights, width, [], context, 2, generation or {})
    return path


def _layer(index: int, width: int, make: Any) -> dict[str, np.ndarray]:
    """Return a layer with one head of two channels and an MLP of two."""
    name = f"model.layers.{index}."
    return {
        **{f"{name}self_attn.{part}_proj.weight": make(2, width) for part in "qkv"},
        f"{name}self_attn.o_proj.weight": make(width, 2),
        f"{name}mlp.gate_proj.weight": make(2, width),
        f"{name}mlp.up_proj.weight": make(2, width),
        f"{name}mlp.down_proj.weight": make(width, 2),
        f"{name}input_layernorm.weight": np.ones(width, np.float32),
        f"{name}post_attention_layernorm.weight": np.ones(width, np.float32),
    }


def _write(
    path: Path,
    weights: dict[str, np.ndarray],
    width: int,
    pieces: Sequence[bytes],
    context: int,
    layers: int,
    generation: Mapping[str, Any],
    template: str = TEMPLATE,
) -> None:
    path.mkdir(parents=True)
    save_file({**weights, "model.norm.weight": np.ones(width, np.float32)}, path / "model.safetensors")
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 256 + len(SPECIALS) + len(pieces),
        "hidden_size": width, "intermediate_size": 2, "num_hidden_layers": layers, "num_attention_heads": 1,
        "num_key_value_heads": 1, "head_dim": 2, "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "max_position_embeddings": context, "tie_word_embeddings": False, "bos_token_id": None, "eos_token_id": END,
    }  # fmt: skip
    (path / "config.json").write_text(json.dumps(config))
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": END, "do_sample": False, **generation}))
    (path / "chat_template.jinja").write_text(template, "utf-8")
    names = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|end|>",
        "clean_up_tokenization_spaces": False,
    }
    (path / "tokenizer_config.json").write_text(json.dumps(names))
    _tokenizer(pieces).save(str(path / "tokenizer.json"))


def _tokenizer(pieces: Sequence[bytes]) -> Any:
    """Return a tokenizer that encodes byte by byte. A piece is its bytes and a private mark, which decoding removes."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    names = _byte_names()
    vocabulary = {name: byte for byte, name in enumerate(names)}
    vocabulary |= {special: 256 + n for n, special in enumerate(SPECIALS)}
    for n, piece in enumerate(pieces):
        vocabulary["".join(names[byte] for byte in piece) + chr(0xE000 + n)] = 256 + len(SPECIALS) + n
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.Sequence([decoders.Replace(Regex("[\ue000-\uf8ff]"), ""), decoders.ByteLevel()])
    tokenizer.add_special_tokens([AddedToken(special, special=True) for special in SPECIALS])
    return tokenizer


def _byte_names() -> list[str]:
    """Return the spelling of each byte in byte-level BPE: printable ones unchanged, the others from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]
