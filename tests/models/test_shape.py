"""The size of a model, from its config.json."""

from typing import Any

import pytest
from each import each
from tiny_models import CONFIGS
from transformers import AutoModelForCausalLM

from localspec.families.architecture import TransformerConfig
from localspec.families.model_config import ModelConfig
from localspec.models.registry import cards
from localspec.models.shape import Shape
from localspec.paths import Paths

LLAMA = {
    "num_hidden_layers": 16, "hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128256, "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
}  # fmt: skip

# What the hub's pages, papers and safetensors headers give.
PUBLISHED = {
    "qwen3-30b-a3b-2507": 30_532_122_624, "gpt-oss-20b": 20_914_757_184, "qwen3.5-35b-a3b": 35_000_000_000,
    "gemma-4-26b-a4b-it": 25_200_000_000,
    "phi3-s3d": 3_821_079_552, "phi3-medusa": 3_821_079_552, "llama3.2-1b": 1_235_814_400,
    "llama3.2-3b": 3_212_749_824, "mistral-7b": 7_248_023_552, "mistral-7b-medusa": 7_241_732_096,
    "llama3.1-8b": 8_030_261_248, "phi4-mini": 3_836_021_760, "phi4": 14_659_507_200,
    "smollm2-135m": 134_515_008, "qwen2.5-coder-0.5b": 494_032_768,
    "smollm2-360m": 361_821_120, "smollm2-1.7b": 1_711_376_384, "deepseek-r1-qwen-7b": 7_615_616_512,
    "qwen2.5-coder-1.5b": 1_543_714_304, "qwen2.5-coder-7b": 7_615_616_512, "qwen3-4b-2507": 4_022_468_096,
    "qwen3-14b": 14_768_307_200,
    "gemma-3-270m-it": 268_098_176, "gemma-3-1b-it": 999_885_952, "gemma-3-4b-it": 3_880_263_168,
    "gemma-3-12b-it": 11_766_034_176,  # for the last two only the language model
    "smollm3-3b": 3_075_098_624, "granite-3.2-2b": 2_533_531_648, "granite-3.2-8b": 8_170_848_256,
    "granite-4.0-micro": 3_402_836_480, "ministral-3-3b": 3_429_006_336,  # for the last only the language model
    "qwen2.5-0.5b": 494_032_768, "qwen2.5-1.5b": 1_543_714_304, "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512, "qwen3-0.6b": 596_049_920, "qwen3-1.7b": 1_720_574_976, "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3.5-0.8b": 752_393_024, "qwen3.5-2b": 1_880_000_000, "qwen3.5-4b": 4_210_000_000,
    "qwen3.5-9b": 8_950_000_000, "gemma-4-e2b-it": 4_650_000_000, "gemma-4-e4b-it": 7_460_000_000,
    "gemma-4-12b-it": 11_910_000_000,  # of these as llama.cpp counts those of their GGUF files, mostly in three digits
}  # fmt: skip


@pytest.mark.slow
@each("name", CONFIGS)
def test_parameters_are_those_of_the_stock_model_but_for_biases_and_norms_of_heads_and_outputs(name: str) -> None:
    config = CONFIGS[name]()
    shape = Shape.of(config.to_dict())
    assert shape is not None
    stock = AutoModelForCausalLM.from_config(config)
    small = (
        "bias",
        "q_norm.weight",
        "k_norm.weight",
        "pre_feedforward_layernorm.weight",
        "post_feedforward_layernorm.weight",
        "post_self_attn_layernorm.weight",
        "post_mlp_layernorm.weight",
        "per_layer_input_norm.weight",
        "per_layer_projection_norm.weight",
    )
    counted = sum(part.numel() for name, part in stock.named_parameters() if not name.endswith(small))
    assert shape.parameters == counted
    matrices = sum(part.numel() for name, part in stock.named_parameters() if _of_layers(name, part))
    assert shape.layers == matrices and shape.layer == matrices // shape.num_layers
    assert shape.matrices == matrices + stock.get_output_embeddings().weight.numel()
    assert shape.embedding == stock.get_input_embeddings().weight.numel()
    assert shape.rows == sum(len(part) for name, part in stock.named_parameters() if _of_layers(name, part))


@each("name", CONFIGS)
def test_keys_and_values_are_those_that_a_cache_of_this_model_keeps(name: str) -> None:
    content = CONFIGS[name]().to_dict()
    shape, kept = Shape.of(content), TransformerConfig.of(ModelConfig.of(content)).cache_shapes
    assert shape is not None
    assert shape.cached(3, 2) == 3 * 2 * 2 * sum(heads * channels for heads, channels in filter(None, kept))
    assert shape.cached_in_last(shape.cached(3, 2)) == 3 * 2 * 2 * shape.num_kv_heads * shape.head_dim


def _of_layers(name: str, part: Any) -> bool:
    return part.ndim == 2 and (".layers." in name or "per_layer_model_projection" in name)


def test_a_config_json_is_read_by_its_own_names() -> None:
    shape = Shape.of(LLAMA)
    assert shape == Shape(16, 2048, 8192, 32, 8, 64, 128256, 131072, tied=True)
    assert shape.parameters == 1_235_814_400


def test_what_a_config_json_may_leave_out_follows_from_the_rest() -> None:
    bare = {name: value for name, value in LLAMA.items() if name not in ("head_dim", "num_key_value_heads")}
    del bare["tie_word_embeddings"]
    assert Shape.of(bare) == Shape(16, 2048, 8192, 32, 32, 64, 128256, 131072, tied=False)
    wide = Shape.of({**LLAMA, "head_dim": 128})
    assert wide is not None and wide.head_dim == 128, "what it says comes first"
    assert Shape.of({**LLAMA, "head_dim": None}) == Shape.of(LLAMA)


@each("name", [name for name in LLAMA if name not in ("tie_word_embeddings", "head_dim")])
@each("wrong", [0, -1, 2.0, True, "8", [8]])
def test_what_cannot_be_a_size_makes_no_shape(name: str, wrong: Any) -> None:
    assert Shape.of({**LLAMA, name: wrong}) is None


@each("name", ["num_hidden_layers", "hidden_size", "vocab_size", "max_position_embeddings"])
def test_what_is_missing_makes_no_shape(name: str) -> None:
    assert Shape.of({key: value for key, value in LLAMA.items() if key != name}) is None
    assert Shape.of({}) is None


def test_registered_sizes_are_the_published_ones(tmp_path: Any) -> None:
    shapes = {name: card.entry.shape for name, card in cards(Paths(tmp_path)).items() if card.entry}
    found = {name: shape.parameters for name, shape in shapes.items() if shape}
    assert found.keys() == PUBLISHED.keys()
    for name, parameters in found.items():
        # Some have biases, or norms that are not counted, and E2B keys and values that its last layers do not use.
        # Of two mixtures only rounded numbers are published.
        begins = {
            "qwen3.5-35b": 1e-2,
            "gpt-oss": 4e-4,
            "gemma-4-e2b": 6e-3,
            "gemma-4": 2e-3,
            "qwen3.5": 2e-3,
            "gemma": 2e-4,
            "qwen": 1e-4,
            "deepseek": 1e-4,
        }
        within = next((part for start, part in begins.items() if name.startswith(start)), 0)
        assert parameters == pytest.approx(PUBLISHED[name], rel=within, abs=0), name
