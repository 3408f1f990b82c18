"""Headers of GGUF files with mistakes by a seed: other values, other types, other bytes."""

import random
import struct
from collections.abc import Callable
from pathlib import Path

from gguf_alterations import ARRAY, FORMS, KINDS, TEXT, Header, text, typed

from localspec.config import Settings
from localspec.engine.reply_settings import requested_sampling
from localspec.errors import LocalspecError
from localspec.families.generation_config import generation_config
from localspec.families.rope import Rope
from localspec.models.chat_tokenizer import ChatTokenizer
from localspec.models.tokenizer import Tokenizer
from localspec.weights.gguf_model import GgufModel
from localspec.weights.gguf_weights import gguf_source
from localspec.weights.source import PackingSource

LONGEST = 700  # characters of a sentence
_NUMBERS = (0, 1, 2, 3, 7, 64, 255, 2**31 - 1, 2**32 - 1)
_REALS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-30, 1e30, -1e30, float("nan"), float("inf"), float("-inf"))
_TEXTS = ("", "none", "linear", "yarn", "longrope", "llama", "gpt2", "qwen2", "a" * 5000, b"\xff\xfe", "{{ 1 / 0 }}",
          "{% for m in messages %}{{ m.content }}{% endfor %}", "\0", "\n", "{{ raise_exception('no') }}")  # fmt: skip
_ADDED = (
    "rope.scaling.factor", "rope.scaling.type", "rope.scaling.attn_factor", "rope.scale_linear", "rope.freq_base_swa",
    "rope.scaling.original_context_length", "attention.sliding_window", "attention.key_length_swa", "expert_count",
    "attention.causal", "attention.scale", "logit_scale", "vocab_size", "unheard.of", "tensor_data_layout",
    "rope.dimension_sections", "rope.scaling.yarn_beta_fast", "embedding_length_out",
)  # fmt: skip
_ADDED_ELSEWHERE = (
    "general.sampling.temp", "general.sampling.top_k", "general.sampling.top_p", "general.sampling.min_p",
    "general.sampling.penalty_repeat", "general.license", "general.name", "general.author", "split.count",
    "tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_eos_token", "tokenizer.ggml.add_space_prefix",
    "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id", "tokenizer.ggml.fim_pad_token_id",
    "tokenizer.ggml.unknown_token_id", "tokenizer.ggml.padding_token_id", "tokenizer.ggml.pre", "someone.else",
)  # fmt: skip


def opened(file: Path, compute: Callable[[PackingSource], None] = lambda _: None) -> str | None:
    """Return the sentence that a file ends in; None for a model that could be run.

    `compute` runs it as far as its weights allow.
    """
    try:
        model = GgufModel.open(file)
        source = gguf_source(model)
        chat = ChatTokenizer(Tokenizer.decoded(source.texts, file))
        for sentence in model.notices(chat.added_marks()):
            assert "\n" not in sentence and sentence.endswith(".")
        generation = generation_config(source.texts["generation_config.json"], file)
        requested_sampling(Settings(), generation, "a")
        chat.stop_tokens((generation["eos_token_id"],))
        Rope.of(source.config, source.config.contexts[0])
        compute(source)
        chat.encode([{"role": "user", "content": "Hello"}], source.config.vocab_size)
    except LocalspecError as error:
        sentence = str(error)
    else:
        return None
    assert "\n" not in sentence and sentence.endswith(".") and len(sentence) < LONGEST
    return sentence


def mutated(header: Header, chance: random.Random) -> bytes:
    """Return a header with one to three mistakes."""
    architecture = header.keys["general.architecture"][12:].decode()
    changes: dict[str, bytes | None] = {}
    for _ in range(chance.choice((1, 1, 2, 3))):
        key = chance.choice([*header.keys, *_ADDED_ELSEWHERE, *(f"{architecture}.{name}" for name in _ADDED)])
        old = header.keys.get(key)
        kinds: list[Callable[[], bytes | None]] = [lambda: None, lambda: _anything(chance)]
        if old is not None:
            kinds += 2 * [lambda old=old: _damaged(old, chance)]  # type: ignore[misc]
        changes[key] = chance.choice(kinds)()
    content = bytearray(header.altered(changes))
    if chance.random() < 0.25:
        for _ in range(chance.choice((1, 2, 8))):
            at = chance.randrange(4, len(content))
            content[at] = chance.choice((0, 1, 127, 255, chance.randrange(256)))
    return bytes(content)


def _anything(chance: random.Random) -> bytes:
    """Return a value of any type."""
    what = chance.random()
    if what < 0.3:
        return typed(chance.choice(("f32", "f64")), chance.choice(_REALS[:6]))
    if what < 0.45:
        return typed("f32", chance.choice(_REALS[8:])) if chance.random() < 0.5 else typed("f32", 1e30)
    if what < 0.6:
        return typed(chance.choice(("u32", "u64")), chance.choice(_NUMBERS))
    if what < 0.7:
        return typed(chance.choice(("i32", "i64")), chance.choice((-1, -(2**31), 5)))
    if what < 0.8:
        return typed("text", chance.choice(_TEXTS))
    if what < 0.85:
        return typed("bool", chance.random() < 0.5)
    if what < 0.93:
        return typed(chance.choice(("i32s", "f32s")), [chance.choice((0, 1, 3, -1))] * chance.choice((0, 1, 2, 400)))
    return typed("texts", [chance.choice(("a", "a b", b"\xff", ""))] * chance.choice((0, 1, 3)))


def _damaged(value: bytes, chance: random.Random) -> bytes:
    """Return a value of the same kind with a mistake: an array that is cut or has another entry, another number."""
    (kind,) = struct.unpack_from("<I", value)
    if kind == TEXT:
        return typed("text", chance.choice(_TEXTS) if chance.random() < 0.5 else value[12:] + b"\xff")
    if kind != ARRAY:
        name = next(name for name, number in KINDS.items() if number == kind)
        if name == "bool":
            return typed(name, not value[4])
        return typed(name, chance.choice(_REALS[:6]) if name[0] == "f" else chance.choice((0, 1, 3, 100)))
    of, count = struct.unpack_from("<IQ", value, 4)
    if of != TEXT:
        size = struct.calcsize(FORMS[of])
        if chance.random() < 0.3:
            count = chance.randrange(count + 1)
            return struct.pack("<IIQ", ARRAY, of, count) + value[16 : 16 + count * size]
        content = bytearray(value)
        for _ in range(chance.choice((1, 5))):
            at = 16 + size * chance.randrange(count)
            content[at : at + size] = chance.choice(
                (bytes(size), b"\xff" * size, struct.pack("<q", 4)[:size], value[16 : 16 + size])
            )
        return bytes(content)
    texts = _texts(value)
    for _ in range(chance.choice((1, 3))):
        at = chance.randrange(len(texts)) if texts else 0
        texts[at : at + 1] = [[], [b""], [b"a a"], [b"\xc3"], texts[at - 1 : at], [b"x" * 2000], [b"</s>"]][
            chance.randrange(7)
        ]
    texts = texts[: chance.choice((len(texts), len(texts), len(texts) // 2, 0))]
    return struct.pack("<IIQ", ARRAY, TEXT, len(texts)) + b"".join(map(text, texts))


def _texts(value: bytes) -> list[bytes]:
    found, at = [], 16
    while at < len(value):
        (length,) = struct.unpack_from("<Q", value, at)
        found.append(value[at + 8 : at + 8 + length])
        at += 8 + length
    return found


def write(file: Path, header: bytes, data: bytes, size: int = 0) -> None:
    """Write a file of this header and the bytes of its tensors, and nothing up to `size`."""
    file.write_bytes(header + data)
    with file.open("rb+") as stream:
        stream.truncate(max(size, len(header) + len(data)))
