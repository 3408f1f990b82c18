"""The files are held against transformers through llama.cpp itself, where that is installed."""

from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import tiny_models
import torch
from tiny_models import _LINEAR, _LLAMA3, _SHAPE
from transformers import LlamaConfig, MistralConfig, Phi3Config, Qwen2Config, Qwen3Config

from localspec import Limits
from localspec.bench import gguf_file, peers
from localspec.errors import LocalspecError
from localspec.models.model_config import ModelConfig

# Rows of 64 and 96 numbers, for q8_0 packs 32 at a time; the head of "odd" is as wide as it likes.
SHAPE = {**_SHAPE, "hidden_size": 64, "intermediate_size": 96}
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 256,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7],
    "long_factor": [1.0, 2.0, 3.0, 5.0, 8.0, 13.0, 14.0, 15.0],
}  # fmt: skip
HALF = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
CONFIGS = {
    "llama-grouped-biases-llama3": (LlamaConfig, {"num_key_value_heads": 2, "attention_bias": True, "mlp_bias": True, "rope_parameters": _LLAMA3}),
    "llama-one-key-head-tied-linear": (LlamaConfig, {"num_key_value_heads": 1, "tie_word_embeddings": True, "rope_parameters": _LINEAR}),
    "llama-odd": (LlamaConfig, {"num_key_value_heads": 4, "intermediate_size": 40}),
    "mistral-grouped-wide-heads": (MistralConfig, {"num_key_value_heads": 2, "head_dim": 32, "sliding_window": None}),
    "qwen2-grouped-tied": (Qwen2Config, {"num_key_value_heads": 2, "tie_word_embeddings": True}),
    "qwen3-grouped-wide-heads": (Qwen3Config, {"num_key_value_heads": 2, "head_dim": 32}),
    "phi3-many-heads-longrope": (Phi3Config, {"num_key_value_heads": 4, "sliding_window": None, "original_max_position_embeddings": 256, "rope_parameters": LONGROPE}),
    "phi3-grouped-partial-rotary": (Phi3Config, {"num_key_value_heads": 2, "sliding_window": None, "rope_parameters": HALF}),
}  # fmt: skip
installed = pytest.mark.skipif(not (find_spec("llama_cpp") and find_spec("gguf")), reason="needs the extra 'peers'")


@installed
@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_llama_cpp_computes_what_the_stock_model_does(name, tmp_path):
    kind, unlike = CONFIGS[name]
    tiny = tiny_models.read(
        tiny_models.write(
            tmp_path / "model", kind(**{**SHAPE, **unlike}), tiny_models.byte_tokenizer(), 0, shard="20KB"
        )
    )
    card = SimpleNamespace(name="tiny", path=tiny.path)
    engine = SimpleNamespace(target=tiny.target, choice=SimpleNamespace(device="cpu", target=card))
    tokens = tiny_models.prompt_ids(200)
    expected = tiny_models.stock_logits(tiny.stock, tokens)
    # So small a model feels every bit: 2 % and 30 % of the largest logit are far below what any exchanged weight costs.
    for precision, allowed, agreeing in (("f16", 0.02, 0.97), ("q8_0", 0.3, 0.8)):
        gguf_file.check(tiny.target.config, 256)
        peer = peers.LlamaCpp(engine, Limits(8), precision, 256)
        found = torch.from_numpy(peer.logits(tokens, 0).copy())
        assert (found - expected).abs().max() < allowed * expected.abs().max()
        assert (found.argmax(-1) == expected.argmax(-1)).float().mean() > agreeing
        peer.close()


def read(config) -> ModelConfig:
    return ModelConfig.of({**config.to_dict(), "num_key_value_heads": 2})


def test_what_it_cannot_be_given_is_refused_by_name():
    def refused(config, room: int = 320) -> str:
        with pytest.raises(LocalspecError) as error:
            gguf_file.check(read(config), room)
        return str(error.value)

    assert "yarn" in refused(Qwen2Config(**SHAPE, rope_parameters=tiny_models._YARN))
    assert "llama3" in refused(Qwen3Config(**SHAPE, rope_parameters=_LLAMA3))
    windowed = MistralConfig(**SHAPE, sliding_window=319)
    assert "319" in refused(windowed)
    gguf_file.check(read(windowed), 319)
    gguf_file.check(read(LlamaConfig(**SHAPE, sliding_window=6)), 320)  # a key of another family, which nothing reads
