"""Our results against llama.cpp, where it is installed: the same ids of a text, and the logits of the same model."""

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_models
from chat_templates import CHATML, LLAMA3, METASPACE, PHI3, QWEN3, write_tokenizer
from each import each
from gguf_files import BLOCKS as WRITTEN
from gguf_files import metadata_of, stored, tokenizer_of, write_model, written
from transformers import LlamaConfig, Phi3Config, Qwen3Config
from weights.test_gguf_model import CONFIGS as FAMILIES
from weights.test_gguf_model import SHAPE, packed
from weights.test_gguf_tokens import DEMO, TEXTS, converted, pieces

from localspec.families.rope import Rope
from localspec.native.cache import cache_format
from localspec.native.model import NativeModel
from localspec.native.threads import Threads
from localspec.weights.gguf_file import BLOCKS as READ
from localspec.weights.gguf_file import floats, read
from localspec.weights.gguf_metadata import Metadata
from localspec.weights.gguf_model import GgufModel
from localspec.weights.gguf_tokens import ends
from localspec.weights.gguf_weights import gguf_recipe, gguf_source

llama_cpp = pytest.importorskip("llama_cpp", reason="needs llama-cpp-python")


def their_ids(file: Path, texts: list[str]) -> list[list[int]]:
    from llama_cpp_model import ids_of

    return ids_of(file, texts)


@pytest.mark.parametrize(
    ("name", "pre"), [(LLAMA3, "llama-bpe"), (CHATML, "qwen2"), ("demo", "smollm"), (PHI3, ""), (METASPACE, "")]
)
def test_texts_have_the_ids_that_llama_cpp_gives_them(tmp_path, name, pre):
    path = DEMO if name == "demo" else write_tokenizer(tmp_path, name)
    said = tokenizer_of(path, pre) if pre else pieces(path)
    ours = converted(
        {key: np.array(one) if key.endswith(("_type", "scores")) else one for key, one in said.items()}, path
    )
    plain = {key: one.tolist() if isinstance(one, np.ndarray) else one for key, one in said.items()}
    shape = {"context_length": 64, "embedding_length": 64, "block_count": 1, "feed_forward_length": 64}
    plain |= {"general.architecture": "llama", "llama.attention.head_count": 4}
    plain |= {f"llama.{key}": one for key, one in shape.items()} | {"llama.attention.layer_norm_rms_epsilon": 1e-5}
    (tmp_path / "a.gguf").write_bytes(written(plain, {}))
    # It neither composes characters nor knows the characters of newer Unicode, and it reads C strings.
    texts = [text for text in TEXTS if text and "\0" not in text and "e\u0301" not in text and "½" not in text]
    for text, ids in zip(texts, their_ids(tmp_path / "a.gguf", texts), strict=True):
        assert ours.encode(text, True) == ids, repr(text)


@pytest.mark.parametrize(
    ("name", "pre"), [(LLAMA3, "llama-bpe"), (CHATML, "qwen2"), (QWEN3, "qwen2"), ("demo", "smollm"), (PHI3, ""), (METASPACE, "")]
)  # fmt: skip
def test_replies_end_where_llama_cpp_ends_them(tmp_path, name, pre):
    from llama_cpp_model import library

    path = DEMO if name == "demo" else write_tokenizer(tmp_path, name)
    said = tokenizer_of(path, pre) if pre else pieces(path)
    plain = {key: one.tolist() if isinstance(one, np.ndarray) else one for key, one in said.items()}
    (tmp_path / "a.gguf").write_bytes(written({"general.architecture": "llama", **plain}, {}))
    settings = library().llama_model_default_params()
    settings.vocab_only = True
    model = library().llama_model_load_from_file(str(tmp_path / "a.gguf").encode(), settings)
    vocabulary = library().llama_model_get_vocab(model)
    theirs = {
        index for index in range(len(plain["tokenizer.ggml.tokens"])) if library().llama_vocab_is_eog(vocabulary, index)
    }
    library().llama_model_free(model)
    assert {*ends(Metadata(read(tmp_path / "a.gguf").metadata))} == theirs


CONFIGS: dict[str, Any] = {
    "llama": (LlamaConfig, {"rope_parameters": tiny_models._LLAMA3}),
    "qwen3": (Qwen3Config, {"head_dim": 32, "tie_word_embeddings": True}),
    "phi3": (Phi3Config, {"sliding_window": None}),
}


def made(path: Path, kind: Any, unlike: dict[str, Any]) -> Path:
    return tiny_models.write(path, kind(**{**SHAPE, **unlike}), tiny_models.byte_tokenizer(), 0, spread=0.08)


def assert_near_llama_cpp(file: Path, packing: str, allowed: float) -> None:
    from llama_cpp_model import Gguf

    source, tokens = gguf_source(GgufModel.open(file)), tiny_models.prompt_ids(100)
    held = packed(source, packing, gguf_recipe(source, packing))
    engine = NativeModel(held.sizes, Rope.of(source.config, 128), held.tensors, Threads(1), cache_format(packing))
    ours = engine.forward(tokens, None, engine.cache(128))[0].numpy()
    peer = Gguf(file, source.config.vocab_size, 128)
    theirs = np.array(peer.logits(tokens, 0))
    peer.close()
    assert abs(ours - theirs).max() < allowed * abs(theirs).max(), file.name


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_logits_are_those_of_llama_cpp(tmp_path, name):
    """Random models magnify every rounding: a fifth of the largest logit is far less than a swapped weight costs."""
    path = made(tmp_path / "model", *CONFIGS[name])
    for form, packing, allowed in (("F16", "fp32", 0.02), ("Q8_0", "int8", 0.2), ("Q6_K", "int8", 0.2)):
        assert_near_llama_cpp(write_model(tmp_path / f"{form}.gguf", path, form), packing, allowed)


SCALED: dict[str, Any] = {
    "llama-biases-llama3": {"llama__rope__scaling__factor": 2.0, "llama__rope__scaling__attn_factor": 1.2},
    "llama-tied-linear": {"llama__rope__scaling__type": None},
    "mistral-wide-heads": {"llama__rope__scale_linear": 4.0, "llama__rope__scaling__attn_factor": 0.8},
    "qwen2-tied-yarn": {"qwen2__rope__scaling__attn_factor": 1.1},
    "qwen3-wide-heads": {"qwen3__rope__scaling__factor": 8.0},
    "phi3-longrope": {"phi3__rope__scaling__factor": 2.0},
}


@pytest.mark.parametrize("name", SCALED)
def test_positions_are_scaled_as_by_llama_cpp(tmp_path, name):
    """In fp32, where another rotation is far larger than rounding."""
    path = made(tmp_path / "model", *FAMILIES[name])
    assert_near_llama_cpp(write_model(tmp_path / "a.gguf", path, "F16", **SCALED[name]), "fp32", 0.02)


def test_metadata_that_the_tests_write_is_what_llama_cpp_reads(tmp_path):
    """Otherwise the tests would only prove that we read our own files."""
    path = tmp_path / "model"
    tiny_models.write(path, LlamaConfig(**SHAPE), tiny_models.byte_tokenizer(), 0)
    from llama_cpp_model import library

    model = library().llama_model_load_from_file(
        str(write_model(tmp_path / "a.gguf", path, "Q4_K")).encode(), library().llama_model_default_params()
    )
    said = metadata_of(path, "gpt-2")
    assert model and library().llama_model_n_embd(model) == said["llama.embedding_length"]
    assert library().llama_model_n_head_kv(model) == said["llama.attention.head_count_kv"]
    library().llama_model_free(model)


@each("kind", WRITTEN)
def test_numbers_are_those_that_llama_cpp_finds_in_the_same_blocks(kind):
    if kind == "F32":
        return  # it has no function for existing files
    plain = {"F16": "ggml_fp16_to_fp32_row", "BF16": "ggml_bf16_to_fp32_row"}
    library = ctypes.CDLL(str(next((Path(llama_cpp.__file__).parent / "lib").glob("*ggml-base*"))))
    unpack = getattr(library, plain.get(kind, f"dequantize_row_{kind.lower().replace('_k', '_K')}"))
    content = stored(kind, np.random.default_rng(3).normal(0, 0.05, (16, 1024)).astype(np.float32)).content
    found, source = np.empty(16 * 1024, np.float32), np.frombuffer(content, np.uint8)
    unpack(ctypes.c_void_p(source.ctypes.data), ctypes.c_void_p(found.ctypes.data), ctypes.c_int64(found.size))
    ours = floats(READ[WRITTEN[kind][0]], content)
    np.testing.assert_array_equal(ours, found)
