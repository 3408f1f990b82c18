"""SmolLM3, Granite and Ministral 3: the special entries of their config.json, and which of them are refused."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from each import each
from golden import matching
from models.language_models import assert_language_model_is_served
from tiny_models import CONFIGS, VOCABULARY, byte_tokenizer, save_filled
from transformers import CONFIG_MAPPING, Mistral3Config, Mistral3ForConditionalGeneration
from transformers.models.ministral3.modeling_ministral3 import get_llama_4_attn_scale

from localspec.errors import LocalspecError
from localspec.families.architecture import TransformerConfig
from localspec.families.model_config import ModelConfig
from localspec.families.rope import Rope
from localspec.families.table import supported, text_config
from localspec.models.shape import Shape
from localspec.nn.rotary import RotaryEmbedding
from localspec.nn.target import Target
from localspec.weights.checkpoint import Checkpoint, inspect
from localspec.weights.stored import read_config

SMALL = {
    "hidden_size": 48, "intermediate_size": 40, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": VOCABULARY, "max_position_embeddings": 512,
}  # fmt: skip
DENSE = {"num_local_experts": 0, "layer_types": ["attention"] * 4, "shared_intermediate_size": 24}


@each("family", ["smollm3", "granite", "ministral3"])
def test_what_a_config_leaves_out_is_as_its_class_has_it(family):
    stock, ours = CONFIG_MAPPING[family](), ModelConfig.of({"model_type": family})
    for name in (
        "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "tie_word_embeddings", "eos_token_id",
    ):  # fmt: skip
        assert getattr(ours, name) == getattr(stock, name), name
    said = {
        name: value for name, value in stock.rope_parameters.items() if name not in ("type", "max_position_embeddings")
    }
    assert said.items() <= dict(ours.rope_parameters).items()


@each(
    "said, unrotated",
    [
        ({}, [0, 0, 0, 1]),
        ({"no_rope_layer_interval": 2}, [0, 1, 0, 1]),
        ({"no_rope_layers": [0, 1, 1, 0, 1]}, [1, 0, 0, 1]),
        ({"no_rope_layers": [1, 1, 0, 1], "use_sliding_window": True, "sliding_window": 9}, [0, 0, 1, 0]),
    ],
)
def test_of_smollm3_the_layers_that_are_not_rotated_are_its_classs_and_windows_are_theirs(said, unrotated):
    content = {"model_type": "smollm3", **SMALL, **said}
    stock, ours = CONFIG_MAPPING["smollm3"].from_dict(json.loads(json.dumps(content))), ModelConfig.of(content)
    assert [not one for one in stock.no_rope_layers[:4]] == [*map(bool, unrotated)] == [*ours.unrotated]
    windows = [stock.sliding_window if kind == "sliding_attention" else None for kind in stock.layer_types]
    assert [*ours.sliding_windows] == windows
    sizes, rope = TransformerConfig.of(ours), Rope.of(ours, 512)
    assert [sizes.is_local(layer) for layer in range(4)] == [*map(bool, unrotated)]
    assert rope.local is not None and not rope.local.inv_freq.any() and rope.inv_freq.all()


def test_granites_multipliers_are_switches_of_the_transformer():
    said = {
        "embedding_multiplier": 12, "attention_multiplier": 1 / 64, "residual_multiplier": 0.22, "logits_scaling": 8,
    }  # fmt: skip
    sizes = TransformerConfig.of(ModelConfig.of({"model_type": "granite", **SMALL, **said}))
    assert (sizes.embed_scale, sizes.query_scalar, sizes.residual_scale, sizes.logit_scale) == (12, 4096, 0.22, 1 / 8)
    plain = TransformerConfig.of(ModelConfig.of({"model_type": "llama", **SMALL}))
    assert (plain.embed_scale, plain.query_scalar, plain.residual_scale, plain.logit_scale) == (1, 0, 1, 1)
    assert plain.local_layers == ()


def test_of_granite_4_the_shared_expert_is_the_mlp():
    content = {"model_type": "granitemoehybrid", **SMALL, **DENSE, "position_embedding_type": "rope"}
    config, shape = ModelConfig.of(content), Shape.of(content)
    assert config.intermediate_size == 24 and shape is not None and shape.intermediate_size == 24
    assert not any(config.unrotated) and config.sliding_windows == (None,) * 4
    assert all(ModelConfig.of({**content, "position_embedding_type": None}).unrotated)
    named = {name: value for name, value in content.items() if name != "layer_types"}
    assert ModelConfig.of({**named, "layers_block_type": ["attention"] * 4}).sliding_windows == (None,) * 4


@each(
    "family, wrong",
    [
        ("smollm3", {"no_rope_layers": [1, 1]}),
        ("smollm3", {"no_rope_layers": 3}),
        ("smollm3", {"no_rope_layers": ["a"] * 4}),
        ("smollm3", {"no_rope_layer_interval": 0}),
        ("granite", {"residual_multiplier": 0}),
        ("granite", {"logits_scaling": -1.0}),
        ("granite", {"attention_multiplier": "x"}),
        ("granite", {"embedding_multiplier": float("inf")}),
        ("granitemoehybrid", {**DENSE, "num_local_experts": 8}),
        ("granitemoehybrid", {**DENSE, "position_embedding_type": "alibi"}),
        ("granitemoehybrid", {**DENSE, "shared_intermediate_size": None}),
        ("ministral3", {"rope_parameters": {"rope_type": "default", "llama_4_scaling_beta": 0.1}}),
        ("ministral3", {"rope_parameters": {"rope_type": "default", "llama_4_scaling_beta": "x"}}),
    ],
)
def test_what_is_not_possible_is_a_value_error(family, wrong):
    with pytest.raises(ValueError, match=r"\w"):
        ModelConfig.of({"model_type": family, **SMALL, **wrong})


@each(
    "said, has",
    [
        ({"layer_types": ["mamba", *["attention"] * 3]}, r"recurrent layers \(mamba\)"),
        ({"layer_types": None}, r"recurrent layers \(mamba\)"),
        ({"layer_types": ["linear_attention", *["full_attention"] * 3]}, r"recurrent layers \(linear_attention\)"),
        ({"num_local_experts": 8}, r"experts \(num_local_experts = 8\)"),
    ],
)
def test_of_granite_4_what_is_not_computed_is_refused_with_the_nearest_model(tmp_path: Path, said, has):
    content = {"model_type": "granitemoehybrid", **SMALL, **DENSE, **said}
    there = Checkpoint(tmp_path, content, "GraniteMoeHybridForCausalLM", (), 10**6, 10**6)
    with pytest.raises(LocalspecError, match=f"has {has}, which .*; the nearest supported model is granite-4.0-micro:"):
        read_config(there)


@each(
    "refused, nearest",
    [
        ("Qwen3NextForCausalLM", "qwen3-4b"),
        ("Odd", "qwen3-4b"),
        ("Gemma3nForConditionalGeneration", "gemma-3-4b-it"),
        ("GraniteMoeForCausalLM", "granite-4.0-micro"),
        ("MinistralForCausalLM", "ministral-3-3b"),
    ],
)
def test_what_is_refused_names_the_nearest_model_that_is_not(tmp_path: Path, refused, nearest):
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [refused], "model_type": "any"}))
    with pytest.raises(
        LocalspecError, match=f"{refused}.* is not supported; .*the nearest supported model is {nearest}:"
    ):
        inspect(tmp_path)
    assert nearest in supported(refused)


def test_queries_grow_as_the_stock_models_do_and_not_below_the_first_length():
    stock = CONFIGS["ministral3-grouped-growing-queries"]()
    config, positions = ModelConfig.of(stock.to_dict()), torch.arange(200)
    rope = Rope.of(config, 190)
    want = get_llama_4_attn_scale(positions[None], 0.4, 8)[0, 0]
    found = RotaryEmbedding(rope, "cpu").query_factors(positions, torch.float32)
    assert found is not None
    torch.testing.assert_close(found[..., 0], want, rtol=1e-6, atol=0)
    assert Rope.of(config, 8).query_factors is None, "all of a short context is before that"
    assert RotaryEmbedding(Rope.of(config, 8), "cpu").query_factors(positions, torch.float32) is None


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a tiny Ministral 3 as published: its language model has a config and a prefix."""
    path = tmp_path_factory.mktemp("ministral") / "pictures"
    eyes = {
        "model_type": "pixtral", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
        "num_attention_heads": 2, "head_dim": 8, "image_size": 28, "patch_size": 14,
    }  # fmt: skip
    inner = CONFIGS["ministral3-grouped-growing-queries"]().to_dict()
    config = Mistral3Config(text_config=inner, vision_config=eyes, image_token_index=319, tie_word_embeddings=False)
    return save_filled(Mistral3ForConditionalGeneration(config), path, byte_tokenizer())


@pytest.mark.slow
def test_of_a_model_that_reads_pictures_the_language_model_is_served(pictures: Path):
    assert_language_model_is_served(pictures, Mistral3ForConditionalGeneration)


@pytest.mark.slow
def test_a_head_is_tied_where_the_whole_says_so_and_the_language_model_does_not(pictures: Path, tmp_path: Path):
    """The stock model reads it of the whole, and its files have no head then."""
    config = Mistral3Config.from_pretrained(pictures)
    config.tie_word_embeddings, config.text_config.tie_word_embeddings = True, False
    path = save_filled(Mistral3ForConditionalGeneration(config), tmp_path / "tied", byte_tokenizer())
    said = json.loads((path / "config.json").read_text())
    assert said["tie_word_embeddings"] is True and said["text_config"]["tie_word_embeddings"] is False
    assert_language_model_is_served(path, Mistral3ForConditionalGeneration)


def test_a_language_model_inside_that_is_not_known_is_refused(pictures: Path, tmp_path: Path):
    other = shutil.copytree(pictures, tmp_path / "other")
    content = json.loads((other / "config.json").read_text())
    content["text_config"]["model_type"] = "odd"
    (other / "config.json").write_text(json.dumps(content))
    with pytest.raises(LocalspecError, match=matching("mistral3_is_not_one_of")):
        Target.load(other)


def test_mistral_small_is_a_mistral_inside():
    inner = {**SMALL, "model_type": "mistral", "sliding_window": None}
    said = text_config(
        {"architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3", "text_config": inner}
    )
    assert (said["model_type"], said["architectures"]) == ("mistral", ["MistralForCausalLM"])
    assert ModelConfig.of(said).num_hidden_layers == 4
