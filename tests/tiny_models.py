"""Tiny random models of every family in the Hugging Face layout, for ours and the stock model, and reference loops."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    Gemma4TextConfig,
    Glm4Config,
    GptOssConfig,
    GraniteConfig,
    GraniteMoeHybridConfig,
    LlamaConfig,
    LogitsProcessorList,
    Ministral3Config,
    MinPLogitsWarper,
    MistralConfig,
    Phi3Config,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    SmolLM3Config,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from localspec.decoding.sampling import Sampling
from localspec.models import tokenizer_trial
from localspec.models.tokenizer import TOKENIZER_FILES
from localspec.models.tokenizer import Tokenizer as OurTokenizer
from localspec.nn.target import Target

VOCABULARY = 320  # more than the tokenizer has: padded, as many real ones are
SPECIAL = ["<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"]
END = SPECIAL.index("<|end|>")
TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_TEXTS = ["the cat sat on the mat and the dog sat on the log", "one two three four five", "über allen Gipfeln ist Ruh"]


def byte_tokenizer(size: int = 300) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE: all bytes, a few merges, five special tokens, a chat template. Specials come first."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(_TEXTS * 20, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=SPECIAL[1:4],
        chat_template=TEMPLATE,
    )


def word_tokenizer(words: Sequence[str]) -> PreTrainedTokenizerFast:
    """Return a tokenizer with one id for each word and no special tokens, for small vocabularies."""
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token=words[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def as_ours(tokenizer: PreTrainedTokenizerFast) -> OurTokenizer:
    """Return the same tokenizer, written to files and read back without transformers."""
    with TemporaryDirectory() as path:
        tokenizer.save_pretrained(path)
        return OurTokenizer.open(trusted(Path(path)))


_SHAPE = {
    "hidden_size": 48,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": END,
    "pad_token_id": 0,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.5}
_DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
_YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 128}
_GROWING = {
    **_YARN,
    "original_max_position_embeddings": 8,
    "llama_4_scaling_beta": 0.4,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
_GRANITE = {
    "embedding_multiplier": 6.0, "attention_multiplier": 0.2, "residual_multiplier": 0.6, "logits_scaling": 0.4,
}  # fmt: skip
_TIED_GRANITE = {**_GRANITE, "embedding_multiplier": 0.4, "residual_multiplier": 1.5, "tie_word_embeddings": True}
_DENSE = {
    "num_local_experts": 0, "shared_intermediate_size": 40, "layer_types": ["full_attention"] * 3, "mamba_n_heads": 8,
}  # fmt: skip
_GEMMA4 = {
    "sliding_window": 7,
    "rope_parameters": {
        "full_attention": {"rope_type": "proportional", "rope_theta": 50000.0, "partial_rotary_factor": 0.5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
    },
    "vocab_size_per_layer_input": VOCABULARY + 10,
}
_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "partial_rotary_factor": 1.0,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
    "long_factor": [1.0, 2.0, 3.0, 5.0, 8.0, 13.0],
    "original_max_position_embeddings": 64,
}


def _config(kind: type, **unlike: Any) -> Callable[[], Any]:
    return lambda: kind(**{**_SHAPE, **unlike})


# Every family with many, grouped and one key head; tied and not; windows shorter than the texts; biases, norms and rotations
# where the family has them.
CONFIGS: dict[str, Callable[[], Any]] = {
    "llama-many-heads-biases-llama3": _config(
        LlamaConfig, num_key_value_heads=4, attention_bias=True, mlp_bias=True, rope_parameters=_LLAMA3
    ),
    "llama-grouped-dynamic": _config(
        LlamaConfig, num_key_value_heads=2, max_position_embeddings=128, rope_parameters=_DYNAMIC
    ),
    "llama-one-key-head-tied-linear": _config(
        LlamaConfig, num_key_value_heads=1, tie_word_embeddings=True, rope_parameters=_LINEAR
    ),
    "mistral-many-heads-no-window": _config(MistralConfig, num_key_value_heads=4, sliding_window=None),
    "mistral-grouped-window-wide-heads": _config(MistralConfig, num_key_value_heads=2, sliding_window=6, head_dim=20),
    "mistral-one-key-head-window-tied-yarn": _config(
        MistralConfig, num_key_value_heads=1, sliding_window=16, tie_word_embeddings=True, rope_parameters=_YARN
    ),
    "qwen2-many-heads-mixed-window-tied": _config(
        Qwen2Config,
        num_key_value_heads=4,
        tie_word_embeddings=True,
        use_sliding_window=True,
        sliding_window=7,
        max_window_layers=1,
    ),
    "qwen2-grouped-yarn": _config(Qwen2Config, num_key_value_heads=2, rope_parameters=_YARN),
    "qwen2-one-key-head": _config(Qwen2Config, num_key_value_heads=1),
    "qwen3-many-heads-tied-llama3": _config(
        Qwen3Config, num_key_value_heads=4, head_dim=12, tie_word_embeddings=True, rope_parameters=_LLAMA3
    ),
    "qwen3-grouped-mixed-window-wide-heads": _config(
        Qwen3Config,
        num_key_value_heads=2,
        head_dim=24,
        use_sliding_window=True,
        sliding_window=9,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),
    "qwen3-one-key-head-biases": _config(Qwen3Config, num_key_value_heads=1, head_dim=12, attention_bias=True),
    "phi3-many-heads-longrope": _config(
        Phi3Config,
        num_key_value_heads=4,
        max_position_embeddings=256,
        original_max_position_embeddings=64,
        rope_parameters=_LONGROPE,
    ),
    "phi3-grouped-window-partial-rotary": _config(
        Phi3Config,
        num_key_value_heads=2,
        sliding_window=8,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
    ),
    "phi3-one-key-head-tied": _config(Phi3Config, num_key_value_heads=1, tie_word_embeddings=True),
    "gemma3-many-heads-no-window": _config(
        Gemma3TextConfig,
        num_key_value_heads=4,
        head_dim=12,
        tie_word_embeddings=False,
        layer_types=["full_attention"] * 3,
    ),
    "gemma3-grouped-mixed-window-linear": _config(
        Gemma3TextConfig,
        num_key_value_heads=2,
        head_dim=16,
        sliding_window=7,
        query_pre_attn_scalar=10,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters={
            "full_attention": {"rope_type": "linear", "rope_theta": 50000.0, "factor": 4.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        },
    ),
    "gemma3-one-key-head-untied-biases": _config(
        Gemma3TextConfig,
        num_key_value_heads=1,
        head_dim=20,
        sliding_window=9,
        attention_bias=True,
        tie_word_embeddings=False,
        layer_types=["full_attention", "sliding_attention", "full_attention"],
    ),
    "smollm3-many-heads-untied-every-second-unrotated": _config(
        SmolLM3Config, num_key_value_heads=4, tie_word_embeddings=False, no_rope_layer_interval=2, rope_parameters=_YARN
    ),
    "smollm3-grouped-unrotated-window": _config(
        SmolLM3Config, num_key_value_heads=2, no_rope_layers=[1, 0, 1], use_sliding_window=True, sliding_window=7
    ),
    "smollm3-one-key-head-biases-rotated-window": _config(
        SmolLM3Config,
        num_key_value_heads=1,
        attention_bias=True,
        mlp_bias=True,
        no_rope_layers=[0, 1, 0, 1],
        use_sliding_window=True,
        sliding_window=9,
        layer_types=["full_attention", "sliding_attention", "sliding_attention"],
    ),
    "granite-many-heads-biases-untied": _config(
        GraniteConfig, num_key_value_heads=4, attention_bias=True, mlp_bias=True, logits_scaling=3.0
    ),
    "granite-grouped-multipliers-tied": _config(
        GraniteConfig, num_key_value_heads=2, rope_parameters=_LINEAR, **_TIED_GRANITE
    ),
    "granitemoehybrid-grouped-rotated": _config(
        GraniteMoeHybridConfig, num_key_value_heads=2, position_embedding_type="rope", **_GRANITE, **_DENSE
    ),
    "granitemoehybrid-one-key-head-unrotated-tied-biases": _config(
        GraniteMoeHybridConfig, num_key_value_heads=1, attention_bias=True, **_TIED_GRANITE, **_DENSE
    ),
    "ministral3-grouped-growing-queries": _config(
        Ministral3Config, num_key_value_heads=2, head_dim=16, rope_parameters=_GROWING
    ),
    "ministral3-one-key-head-window-tied": _config(
        Ministral3Config,
        num_key_value_heads=1,
        head_dim=12,
        sliding_window=9,
        tie_word_embeddings=True,
        rope_parameters={**_YARN, "llama_4_scaling_beta": 0.0},
    ),
    "gemma4-many-heads-untied-keys-as-values-capped": _config(
        Gemma4TextConfig,
        **_GEMMA4,
        num_key_value_heads=4,
        head_dim=12,
        global_head_dim=20,
        num_global_key_value_heads=2,
        attention_k_eq_v=True,
        hidden_size_per_layer_input=0,
        final_logit_softcapping=8.0,
        tie_word_embeddings=False,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"],
    ),
    "gemma4-one-key-head-shared-double-wide-layer-inputs": _config(
        Gemma4TextConfig,
        **_GEMMA4,
        num_key_value_heads=1,
        head_dim=8,
        global_head_dim=12,
        hidden_size_per_layer_input=8,
        num_kv_shared_layers=2,
        use_double_wide_mlp=True,
        num_hidden_layers=4,
        layer_types=["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
    ),
    "gemma4-grouped-untied-biases-layer-inputs": _config(
        Gemma4TextConfig,
        **{
            **_GEMMA4,
            "rope_parameters": {
                "full_attention": {"rope_type": "proportional", "rope_theta": 50000.0, "factor": 2.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            },
        },
        num_key_value_heads=2,
        head_dim=12,
        global_head_dim=12,
        hidden_size_per_layer_input=12,
        attention_bias=True,
        tie_word_embeddings=False,
        final_logit_softcapping=20.0,
        layer_types=["full_attention", "sliding_attention", "full_attention"],
    ),
    "glm4-grouped-half-rotated": _config(
        Glm4Config,
        num_key_value_heads=2,
        head_dim=16,
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0, "partial_rotary_factor": 0.5},
    ),
    "glm4-one-key-head-tied-no-biases-all-rotated": _config(
        Glm4Config,
        num_key_value_heads=1,
        head_dim=12,
        attention_bias=False,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0, "partial_rotary_factor": 1.0},
    ),
}
# Weights whose greedy texts do not repeat themselves for long: a model that repeats one word proves little.
SEEDS = dict(
    zip(
        CONFIGS,
        (6, 2, 3, 0, 0, 0, 0, 0, 2, 0, 1, 5, 0, 0, 1, 10, 12, 2, 1, 0, 8, 0, 9, 0, 13, 0, 7, 18, 24, 2, 5, 10),
        strict=True,
    )
)
# A family with some recurrent layers: it reads only chains, so its tests are in tests/nn/test_recurrent.py.
RECURRENT: dict[str, Callable[[], Any]] = {
    "qwen3_5-grouped-shared-keys-interval": _config(
        Qwen3_5TextConfig, num_hidden_layers=5, num_key_value_heads=2, head_dim=16, full_attention_interval=3,
        linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=12,
    ),
    "qwen3_5-many-heads-biases-tied-half-rotated": _config(
        Qwen3_5TextConfig, num_hidden_layers=4, num_key_value_heads=4, head_dim=12, attention_bias=True,
        tie_word_embeddings=True, linear_num_key_heads=3, linear_num_value_heads=3, linear_key_head_dim=10,
        linear_value_head_dim=6, linear_conv_kernel_dim=3,
        layer_types=["full_attention", "linear_attention", "linear_attention", "full_attention"],
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0, "partial_rotary_factor": 0.5},
    ),
    "qwen3_5-one-key-head-long-convolution-yarn": _config(
        Qwen3_5TextConfig, num_hidden_layers=3, num_key_value_heads=1, head_dim=16, linear_num_key_heads=1,
        linear_num_value_heads=2, linear_key_head_dim=8, linear_value_head_dim=8, linear_conv_kernel_dim=6,
        layer_types=["linear_attention", "full_attention", "linear_attention"],
        rope_parameters={**_YARN, "partial_rotary_factor": 0.25},
    ),
}  # fmt: skip
SEEDS |= dict.fromkeys(RECURRENT, 0)
# Families with experts, whose drafters are fewer (tests/nn/test_experts.py).
MIXTURES: dict[str, Callable[[], Any]] = {
    "qwen3_moe-grouped-normalised": _config(
        Qwen3MoeConfig, hidden_size=64, num_key_value_heads=2, head_dim=16, num_experts=8, num_experts_per_tok=3,
        moe_intermediate_size=32, norm_topk_prob=True,
    ),
    "qwen3_moe-one-key-head-tied-biases-all-weighed": _config(
        Qwen3MoeConfig, hidden_size=32, num_key_value_heads=1, head_dim=12, num_experts=5, num_experts_per_tok=2,
        moe_intermediate_size=48, norm_topk_prob=False, attention_bias=True, tie_word_embeddings=True,
    ),
}  # fmt: skip
MIXTURES["gemma4-grouped-experts-with-an-mlp"] = _config(
    Gemma4TextConfig, **_GEMMA4, hidden_size=64, num_key_value_heads=2, head_dim=12, global_head_dim=20,
    hidden_size_per_layer_input=0, enable_moe_block=True, num_experts=6, top_k_experts=2, moe_intermediate_size=32,
    layer_types=["sliding_attention", "sliding_attention", "full_attention"],
)  # fmt: skip
SEEDS |= dict.fromkeys(MIXTURES, 0)
RECURRENT_MIXTURES: dict[str, Callable[[], Any]] = {
    "qwen3_5_moe-grouped-shared-expert": _config(
        Qwen3_5MoeTextConfig, hidden_size=64, num_hidden_layers=4, num_key_value_heads=2, head_dim=16,
        linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=12,
        num_experts=6, num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=40,
    ),
}  # fmt: skip
SEEDS |= dict.fromkeys(RECURRENT_MIXTURES, 0)
# A family whose weights are read only from GGUF, so here only the CPU engine computes it, from memory.
FROM_GGUF: dict[str, Callable[[], Any]] = {
    "gpt_oss-grouped-alternating-windows": _config(
        GptOssConfig, hidden_size=64, intermediate_size=32, num_hidden_layers=4, num_key_value_heads=2, head_dim=16,
        num_local_experts=6, num_experts_per_tok=2, sliding_window=7, swiglu_limit=0.6,
        rope_parameters={**_YARN, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False},
    ),
}  # fmt: skip
# One of each family. Together they have everything in which layers differ.
FAMILIES = [
    "llama-many-heads-biases-llama3",
    "mistral-grouped-window-wide-heads",
    "qwen2-many-heads-mixed-window-tied",
    "qwen3-grouped-mixed-window-wide-heads",
    "phi3-grouped-window-partial-rotary",
    "gemma3-grouped-mixed-window-linear",
    "smollm3-grouped-unrotated-window",
    "granite-grouped-multipliers-tied",
    "granitemoehybrid-grouped-rotated",
    "ministral3-grouped-growing-queries",
    "gemma4-many-heads-untied-keys-as-values-capped",
    "gemma4-one-key-head-shared-double-wide-layer-inputs",
    "glm4-grouped-half-rotated",
]
LATER = FAMILIES[6:]  # for tests that name some families and not all
# Those whose layers read inputs of a token, and so need all others.
WITH_LAYER_INPUTS = [name for name in CONFIGS if name.endswith("layer-inputs")]
DRAFTING = [name for name in CONFIGS if name not in WITH_LAYER_INPUTS]  # with their own layers
DRAFTING_FAMILIES = [name for name in FAMILIES if name in DRAFTING]
SHARDED = "llama-many-heads-biases-llama3"
LONGROPE = "phi3-many-heads-longrope"
DYNAMIC = "llama-grouped-dynamic"


@dataclass(frozen=True)
class Tiny:
    """A directory, the stock model that transformers reads from it, and ours."""

    path: Path
    stock: Any
    target: Target


def write(path: Path, config: Any, tokenizer: Any, seed: int, shard: str = "1GB", spread: float = 0.18) -> Path:
    """Return a model with random weights, as `save_filled` has them."""
    return save_filled(AutoModelForCausalLM.from_config(config), path, tokenizer, seed, shard, spread)


def filled(model: Any, seed: int, spread: float = 0.18) -> Any:
    """Give a model random weights, also in norms and biases: if they were ones and zeros, leaving them out would not show."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, spread, generator=generator)
            else:
                # states that forget quickly would hide errors in them
                mean = -2.0 if name.endswith("A_log") else 0.0 if name.endswith("bias") else 1.0
                parameter.normal_(mean, 0.3, generator=generator)
        for name, buffer in model.named_buffers():
            if name.endswith("layer_scalar"):
                buffer.normal_(1.0, 0.3, generator=generator)
    return model


def by_expert(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return tensors with a matrix for each expert, as in files, instead of one for all experts."""
    found: dict[str, Any] = {}
    for name, tensor in state.items():
        before, _, last = name.rpartition(".experts.")
        linear, _, bias = last.partition("_proj")
        if not before or linear not in ("gate_up", "down"):
            found[name] = tensor
            continue
        in_turns = f"{before}.experts.down_proj_bias" in state  # gpt-oss: transposed, a row of gate, a row of up
        for number, one in enumerate(tensor):
            if in_turns and not bias:
                one = one.T
            half = len(one) // 2
            halves = (one[::2], one[1::2]) if in_turns else (one[:half], one[half:])
            parts = {"down": one} if linear == "down" else dict(zip(("gate", "up"), halves, strict=True))
            kind = "bias" if bias else "weight"
            found |= {f"{before}.experts.{number}.{part}_proj.{kind}": matrix for part, matrix in parts.items()}
    return found


def save_filled(
    model: Any, path: Path, tokenizer: Any, seed: int = 0, shard: str = "1GB", spread: float = 0.18
) -> Path:
    filled(model, seed, spread)
    model.save_pretrained(path, max_shard_size=shard)
    tokenizer.save_pretrained(path)
    return trusted(path)


def trusted(path: Path) -> Path:
    """Let this process use the tokenizer of a tiny model without its trial in a child process, which takes longer."""
    names = (name for name in (*TOKENIZER_FILES, "config.json") if (path / name).is_file())
    tokenizer_trial._tried[tokenizer_trial._mark({name: (path / name).read_bytes() for name in names})] = ""
    return path


def read(path: Path, context: int | None = None) -> Tiny:
    """Return both models of a directory, in fp32."""
    stock = AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager", dtype=torch.float32).eval()
    return Tiny(path, stock, Target.load(path, context=context))


def prompt_ids(length: int, seed: int = 0) -> list[int]:
    """Return random ids without special ones."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(len(SPECIAL), 300, (length,), generator=generator).tolist()


@torch.no_grad()
def stock_logits(stock: Any, tokens: Sequence[int]) -> torch.Tensor:
    """Return logits [tokens, vocabulary] of the stock model, computed without a cache."""
    logits: torch.Tensor = stock(torch.tensor([list(tokens)]), use_cache=False).logits[0]
    return logits


def stock_reply(stock: Any, prompt: Sequence[int], count: int, stops: Sequence[int] = (END,)) -> list[int]:
    """Decode greedily in the simplest way, without our code: read the whole text again for every token."""
    return list(_stock_reply(stock, tuple(prompt), count, tuple(stops)))


@cache
def _stock_reply(stock: Any, prompt: tuple[int, ...], count: int, stops: tuple[int, ...]) -> list[int]:
    tokens = list(prompt)
    while len(tokens) < len(prompt) + count:
        logits = stock_logits(stock, tokens)[-1]
        token, (first, second) = int(logits.argmax()), logits.topk(2).values.tolist()
        # Sums in another order differ by a millionth: this far from a tie they cannot change the choice.
        assert first - second > 2e-5 * logits.abs().max(), "a near-tie proves nothing; take another seed"
        if token in stops:
            break
        tokens.append(token)
    return tokens[len(prompt) :]


def stock_distribution(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Return the distribution from which transformers' own generate() would draw, [..., vocabulary]."""
    steps: list[Any] = [TemperatureLogitsWarper(sampling.temperature)]
    if sampling.top_k:
        steps.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        steps.append(TopPLogitsWarper(sampling.top_p))
    if sampling.min_p:
        steps.append(MinPLogitsWarper(sampling.min_p))
    rows = logits.view(-1, logits.shape[-1]).float()
    scores: torch.Tensor = LogitsProcessorList(steps)(torch.zeros(len(rows), 1, dtype=torch.long), rows)
    return scores.softmax(-1).view(logits.shape)


def copied(model: Tiny, path: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Path:
    """Return a copy of a model's directory with other tensors."""
    path.mkdir()
    for file in model.path.iterdir():
        if file.suffix != ".safetensors":
            (path / file.name).write_bytes(file.read_bytes())
    save_file(
        change(load_file(model.path / "model.safetensors")), path / "model.safetensors", metadata={"format": "pt"}
    )
    return path
