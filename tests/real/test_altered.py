"""SmolLM2 with other metadata, compared with llama.cpp: the same prompts, ends and probabilities, or a refusal.

The comparison needs the package llama-cpp-python. The refusals do not.
"""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_alterations import Header, typed
from real.reference import divergence
from real.texts import DOCUMENT
from transformers.utils.chat_template_utils import render_jinja_template

from localspec.errors import LocalspecError
from localspec.families.architecture import TransformerConfig
from localspec.families.generation_config import generation_config
from localspec.families.rope import Rope
from localspec.models.chat_tokenizer import ChatTokenizer
from localspec.models.tokenizer import Tokenizer
from localspec.native.cache import cache_format
from localspec.native.model import NativeModel
from localspec.native.threads import Threads
from localspec.weights.gguf_model import GgufModel
from localspec.weights.gguf_weights import gguf_recipe, gguf_source
from localspec.weights.opened import PackedModel
from localspec.weights.packed_file import Origin

POSITIONS = 200
ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Name three primes.\n\n  Why these?"}]
PLAIN = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}{{ '<|im_start|>assistant\n' }}"
BEGINS = "{{ bos_token }}" + PLAIN
Changes = dict[str, bytes | None]


def number(key: str, kind: str, value: object) -> Changes:
    return {f"llama.{key}": typed(kind, value)}


def types(header: Header, kind: int, *ids: int) -> Changes:
    several = [kind if token in ids else one for token, one in enumerate(header.numbers("tokenizer.ggml.token_type"))]
    return {"tokenizer.ggml.token_type": typed("i32s", several)}


def renamed(header: Header, names: dict[int, str]) -> Changes:
    several = [names.get(token, one) for token, one in enumerate(header.texts("tokenizer.ggml.tokens"))]
    return {"tokenizer.ggml.tokens": typed("texts", several)}


def token(role: str, index: int, kind: str = "u32") -> Changes:
    return {f"tokenizer.ggml.{role}_token_id": typed(kind, index)}


def adds(role: str, value: bool = True) -> Changes:
    return {f"tokenizer.ggml.add_{role}": typed("bool", value)}


def template(content: str) -> Changes:
    return {"tokenizer.chat_template": typed("text", content)}


YARN = {**number("rope.scaling.type", "text", "yarn"), **number("rope.scaling.factor", "f32", 4.0)}
ALTERED: dict[str, Callable[[Header], Changes]] = {
    "as it is": lambda file: {},
    # positions
    "a factor without a type": lambda file: number("rope.scaling.factor", "f32", 4.0),
    "an older factor": lambda file: number("rope.scale_linear", "f32", 2.0),
    "linear": lambda file: {**number("rope.scaling.type", "text", "linear"), **number("rope.scaling.factor", "f32", 2.5)},
    "a factor that is off": lambda file: {**number("rope.scaling.type", "text", "none"), **number("rope.scaling.factor", "f32", 4.0)},
    "a factor of 0": lambda file: number("rope.scaling.factor", "f32", 0.0),
    "yarn": lambda file: YARN,
    "yarn from 2048": lambda file: {**YARN, **number("rope.scaling.original_context_length", "u32", 2048)},
    "yarn and a scale": lambda file: {**YARN, **number("rope.scaling.attn_factor", "f32", 0.9)},
    "yarn without a factor": lambda file: number("rope.scaling.type", "text", "yarn"),
    "yarn of its usual betas": lambda file: {**YARN, **number("rope.scaling.yarn_beta_fast", "f32", 32.0), **number("rope.scaling.yarn_beta_slow", "f32", 1.0)},
    "a scale": lambda file: number("rope.scaling.attn_factor", "f32", 1.1),
    "a scale and a factor": lambda file: {**number("rope.scaling.attn_factor", "f32", 1.1), **number("rope.scaling.factor", "f32", 2.0)},
    "longrope without factors": lambda file: {**number("rope.scaling.type", "text", "longrope"), **number("rope.scaling.factor", "f32", 2.0)},
    "another base": lambda file: number("rope.freq_base", "f32", 50000.0),
    "no base": lambda file: {"llama.rope.freq_base": None},
    "no channels to rotate": lambda file: {"llama.rope.dimension_count": None},
    # arithmetic
    "another epsilon": lambda file: number("attention.layer_norm_rms_epsilon", "f32", 1e-3),
    "an epsilon of 0": lambda file: number("attention.layer_norm_rms_epsilon", "f32", 0.0),
    "no size of heads": lambda file: {"llama.attention.key_length": None, "llama.attention.value_length": None},
    "its size of heads": lambda file: {**number("attention.key_length", "u32", 64), **number("attention.value_length", "u32", 64)},
    "another epsilon of other norms": lambda file: number("attention.layer_norm_epsilon", "f32", 0.5),
    "a window as long as the context": lambda file: number("attention.sliding_window", "u32", 8192),
    "no experts": lambda file: {**number("expert_count", "u32", 0), **number("expert_used_count", "u32", 0)},
    "another size of the vocabulary": lambda file: number("vocab_size", "u32", 7),
    "a layout": lambda file: number("tensor_data_layout", "text", "Meta AI original pth"),
    # marks
    "another end": lambda file: token("eos", 0),
    "an end of turns": lambda file: token("eot", 17),
    "an end of messages": lambda file: token("eom", 17),
    "a mark of repositories": lambda file: token("fim_rep", 5),
    "a mark of files": lambda file: token("fim_sep", 6),
    "a padding that fills": lambda file: token("fim_pad", 7),
    "no padding": lambda file: token("padding", 2**32 - 1),
    "padding beyond": lambda file: token("padding", 10**6),
    "marks by name": lambda file: renamed(file, {5: "<|file_sep|>", 6: "<|eom_id|>", 7: "<|fim_pad|>", 8: "[EOS]"}),
    "marks within replies": lambda file: renamed(file, {5: "<|return|>", 6: "<|call|>", 7: "<|end|>"}),
    "an end that is an ordinary token here": lambda file: renamed(file, {5: "<|tool_response>", 6: "</s>"}),
    "marks of user-defined types": lambda file: types(file, 4, 1, 2),
    "a beginning": lambda file: {**adds("bos_token"), **token("bos", 0)},
    "a beginning that is written": lambda file: {**adds("bos_token"), **token("bos", 0), **template(BEGINS)},
    "a beginning that only the template writes": lambda file: {**adds("bos_token", False), **token("bos", 0), **template(BEGINS)},
    "an end of prompts": lambda file: adds("eos_token"),
    "no space before": lambda file: adds("space_prefix", False),
    "a space before": lambda file: adds("space_prefix"),
    # what is for people, and what is not UTF-8
    "an author in Latin-1": lambda file: {"general.author": typed("text", b"Andr\xe9")},
    "a name in Latin-1": lambda file: {"general.name": typed("text", b"Mod\xe8le")},
    "a name with Phi": lambda file: {"general.name": typed("text", "SmolLM2 tuned on phi-4 answers")},
    "sampling": lambda file: {"general.sampling.temp": typed("f32", 0.7), "general.sampling.top_k": typed("i32", -1)},
    "sampling that cannot be": lambda file: {"general.sampling.temp": typed("f32", float("nan")), "general.sampling.top_p": typed("f32", 1e30)},
    "padding that is a word": lambda file: token("padding", 500),
    "an unknown token that is a word": lambda file: token("unknown", 338),
    "an end that is a word": lambda file: token("eos", 29),
    "merges twice": lambda file: {"tokenizer.ggml.merges": typed("texts", (merges := file.texts("tokenizer.ggml.merges")) + merges[::-1])},
    "another splitting": lambda file: {"tokenizer.ggml.pre": typed("text", "qwen2")},
    "a splitting that begins": lambda file: {"tokenizer.ggml.pre": typed("text", "llama-bpe")},
    "heads by layer": lambda file: {**number("attention.head_count", "u32s", [9] * 30), **number("attention.head_count_kv", "u32s", [3] * 30)},
    "pooling": lambda file: number("pooling_type", "u32", 3),
    "a key of others": lambda file: {"someone.else.s": typed("u32", 4)},
    "other templates": lambda file: {"tokenizer.chat_template.tool_use": typed("text", "{{ 1 / 0 }}")},
}  # fmt: skip
REFUSED: dict[str, Callable[[Header], Changes]] = {
    "rope.scaling.factor": lambda file: number("rope.scaling.factor", "f32", -2.0),
    "rope.scaling.factor ": lambda file: number("rope.scaling.factor", "f32", float("nan")),
    "rope.scaling.type": lambda file: number("rope.scaling.type", "text", "dynamic"),
    "rope.scaling.alpha": lambda file: number("rope.scaling.alpha", "f32", 1000.0),
    "rope.scaling.yarn_beta_fast": lambda file: {**YARN, **number("rope.scaling.yarn_beta_fast", "f32", 8.0)},
    "rope.scaling.yarn_attn_factor": lambda file: {**YARN, **number("rope.scaling.yarn_attn_factor", "f32", 2.0)},
    "rope.freq_base": lambda file: number("rope.freq_base", "f32", 0.0),
    "rope.freq_base ": lambda file: number("rope.freq_base", "f32", 1e30),
    "rope.freq_base_swa": lambda file: number("rope.freq_base_swa", "f32", 10.0),
    "rope.dimension_count": lambda file: number("rope.dimension_count", "u32", 32),
    "rope.dimension_count ": lambda file: number("rope.dimension_count", "u32", 0),
    "rope.dimension_sections": lambda file: number("rope.dimension_sections", "i32s", [16, 8, 8, 0]),
    "rope.something": lambda file: number("rope.something", "f32", 1.0),
    "attention.key_length": lambda file: number("attention.key_length", "u32", 0),
    "attention.value_length": lambda file: number("attention.value_length", "u32", 32),
    "attention.head_count_kv": lambda file: number("attention.head_count_kv", "u32", 0),
    "attention.head_count_kv ": lambda file: number("attention.head_count_kv", "f32", 3.0),
    "attention.head_count": lambda file: number("attention.head_count", "text", "9"),
    "attention.layer_norm_rms_epsilon": lambda file: number("attention.layer_norm_rms_epsilon", "f32", 1e30),
    "attention.layer_norm_rms_epsilon ": lambda file: number("attention.layer_norm_rms_epsilon", "f32", -1e-5),
    "attention.scale": lambda file: number("attention.scale", "f32", 0.5),
    "attention.causal": lambda file: number("attention.causal", "bool", False),
    "logit_scale": lambda file: number("logit_scale", "f32", 0.25),
    "final_logit_softcapping": lambda file: number("final_logit_softcapping", "f32", 30.0),
    "expert_count": lambda file: number("expert_count", "u32", 8),
    "context_length": lambda file: number("context_length", "u32", 0),
    "block_count": lambda file: number("block_count", "i32", -30),
    "feed_forward_length": lambda file: number("feed_forward_length", "bool", True),
    "new_attention": lambda file: number("new_attention", "bool", True),
    "tensor_data_layout": lambda file: number("tensor_data_layout", "text", "jploski"),
}  # fmt: skip


@dataclass(frozen=True)
class Read:
    """The results of a program for a file."""

    prompt: list[int]
    ends: set[int]
    logits: np.ndarray


@pytest.fixture(scope="module")
def header(published: Callable[[str], Path]) -> Header:
    return Header(published("smollm2"))


@pytest.fixture(scope="module")
def altered(header: Header, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Changes], Path]:
    """altered(changes): a file with other metadata, in the place of the last one."""
    file = tmp_path_factory.mktemp("altered") / "a.gguf"
    return lambda changes: header.write(file, changes)


@pytest.fixture(scope="module")
def packed(published: Callable[[str], Path]) -> PackedModel:
    source = gguf_source(GgufModel.open(published("smollm2")))
    return PackedModel.in_memory(
        source.header(Origin("a", "0" * 40), gguf_recipe(source, "int8")), source.filler({}), 2, lambda *_: None
    )


@pytest.fixture(scope="module")
def ours(packed: PackedModel, published: Callable[[str], Path]) -> Callable[[Path, list[int]], Read]:
    """ours(file, tokens): return localspec's results for a file; its weights are those of the unaltered one."""

    def read(file: Path, tokens: list[int]) -> Read:
        source = gguf_source(GgufModel.open(file))
        chat = ChatTokenizer(Tokenizer.decoded(source.texts, file))
        generation = generation_config(source.texts["generation_config.json"], file)
        ends = chat.stop_tokens((generation["eos_token_id"],))
        rope, sizes = Rope.of(source.config, source.config.contexts[0]), TransformerConfig.of(source.config)
        model = NativeModel(sizes, rope, packed.tensors, Threads(1), cache_format("int8"))
        logits = model.forward(tokens, None, model.cache(len(tokens)))[0].numpy()
        return Read(chat.encode(ASKED, sizes.vocab_size), {*ends}, logits)

    return read


@pytest.fixture(scope="module")
def theirs() -> Callable[[Path, list[int]], Read]:
    """theirs(file, tokens): return llama.cpp's results for a file."""
    pytest.importorskip("llama_cpp", reason="needs llama-cpp-python")
    from llama_cpp_model import Gguf, library

    def read(file: Path, tokens: list[int]) -> Read:
        header = Header(file)
        count = len(header.texts("tokenizer.ggml.tokens"))
        loaded = Gguf(file, count, 512, flash=False)
        try:
            vocabulary = library().llama_model_get_vocab(loaded._model)
            special = {name: _piece(library(), vocabulary, name) for name in ("bos", "eos")}
            prompt = _as_llama_server(library(), vocabulary, header, special)
            ends = {index for index in range(count) if library().llama_vocab_is_eog(vocabulary, index)}
            return Read(prompt, ends, loaded.logits(tokens, 0).copy())
        finally:
            loaded.close()

    return read


def _piece(library: Any, vocabulary: Any, role: str) -> str:
    index = getattr(library, f"llama_vocab_{role}")(vocabulary)
    return "" if index < 0 else library.llama_vocab_get_text(vocabulary, index).decode()


def _as_llama_server(library: Any, vocabulary: Any, header: Header, special: dict[str, str]) -> list[int]:
    """Return a prompt as llama-server makes it: it first removes from the template's text the tokens that it adds."""
    source = header.keys["tokenizer.chat_template"][12:].decode()
    names = {f"{role}_token": one for role, one in special.items()}
    (text,), _ = render_jinja_template([[*ASKED]], chat_template=source, add_generation_prompt=True, **names)
    if library.llama_vocab_get_add_bos(vocabulary):
        text = text.removeprefix(special["bos"])
    if library.llama_vocab_get_add_eos(vocabulary):
        text = text.removesuffix(special["eos"])
    ids = (ctypes.c_int32 * (len(text.encode()) + 16))()
    found = library.llama_tokenize(vocabulary, text.encode(), len(text.encode()), ids, len(ids), True, True)
    return [*ids[:found]]


@pytest.fixture(scope="module")
def tokens(published: Callable[[str], Path]) -> list[int]:
    file = published("smollm2")
    return Tokenizer.decoded(GgufModel.open(file).texts, file).encode(DOCUMENT, False)[: POSITIONS + 1]


@pytest.fixture(scope="module")
def usual(
    published: Callable[[str], Path],
    ours: Callable[[Path, list[int]], Read],
    theirs: Callable[[Path, list[int]], Read],
    tokens: list[int],
) -> Callable[[], float]:
    """usual(): the mean divergence of the unaltered file."""

    @cache
    def measured() -> float:
        file = published("smollm2")
        return apart(theirs(file, tokens), ours(file, tokens))

    return measured


def apart(one: Read, other: Read) -> float:
    """Return the mean divergence over the positions after the first, which has massive activations."""
    return float(divergence(one.logits[1:], other.logits[1:]).mean())


@pytest.mark.parametrize("name", ALTERED)
def test_a_file_that_is_read_is_what_llama_cpp_reads(
    name: str,
    header: Header,
    altered: Callable[[Changes], Path],
    ours: Callable[[Path, list[int]], Read],
    theirs: Callable[[Path, list[int]], Read],
    tokens: list[int],
    usual: Callable[[], float],
) -> None:
    file = altered(ALTERED[name](header))
    one, other = theirs(file, tokens), ours(file, tokens)
    found = apart(one, other)
    print(f"{name}: KL {found:.4f} of {usual():.4f}, ends {sorted(other.ends)}, {len(other.prompt)} tokens of a prompt")
    assert other.prompt == one.prompt
    assert other.ends == one.ends
    assert found <= 2 * usual()


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_be_computed_otherwise_is_refused_by_its_name(
    name: str, header: Header, altered: Callable[[Changes], Path]
) -> None:
    file = altered(REFUSED[name](header))
    with pytest.raises(LocalspecError) as error:
        gguf_source(GgufModel.open(file))
    sentence = str(error.value)
    print(f"{name}: {sentence}")
    assert f"llama.{name.strip()}" in sentence or name.strip() in ("rope.dimension_count", "attention.value_length")
    assert sentence.endswith(".") and "\n" not in sentence and len(sentence) < 500
