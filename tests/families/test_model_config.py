"""config.json is read as the Hugging Face config classes read it, without them."""

import json
from types import SimpleNamespace

import pytest
from each import each
from golden import matching
from transformers import CONFIG_MAPPING

from localspec.errors import LocalspecError
from localspec.families.generation_config import LEFT_OUT, read_generation_config
from localspec.families.model_config import ModelConfig
from localspec.weights.stored import read_config

FAMILIES = ["llama", "mistral", "qwen2", "qwen3", "phi3"]
SAME = [
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "max_position_embeddings", "hidden_act", "rms_norm_eps", "tie_word_embeddings", "eos_token_id",
]  # fmt: skip
SMALL = {
    "vocab_size": 320, "hidden_size": 48, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512,
}  # fmt: skip
FACTORS = {"short_factor": [1.0] * 6, "long_factor": [2.0] * 6}


def windows(config):
    """Return, for each layer, which positions the stock model's masks show."""
    if config.model_type == "llama":
        return (None,) * config.num_hidden_layers
    if config.model_type in ("mistral", "phi3"):
        return (config.sliding_window,) * config.num_hidden_layers
    return tuple(config.sliding_window if kind == "sliding_attention" else None for kind in config.layer_types)


def compare(content):
    """Our reading of a config.json, after it was held against that of the family's class."""
    stock, ours = (
        CONFIG_MAPPING[content["model_type"]].from_dict(json.loads(json.dumps(content))),
        ModelConfig.of(content),
    )
    for name in SAME:
        assert getattr(ours, name) == getattr(stock, name), name
    assert ours.head_dim == (getattr(stock, "head_dim", None) or stock.hidden_size // stock.num_attention_heads)
    assert ours.sliding_windows == windows(stock)
    if content["model_type"] in ("llama", "qwen3"):
        assert ours.attention_bias == stock.attention_bias
    assert ours.mlp_bias == (content["model_type"] == "llama" and stock.mlp_bias)
    stock.standardize_rope_params()  # as the stock model does before it computes with them
    for name, value in ours.rope_parameters.items():
        assert stock.rope_parameters[name] == value, name
    assert ours.content == content
    return ours


@each("family", FAMILIES)
def test_what_a_file_leaves_out_is_what_the_family_has(family):
    config = compare({"model_type": family})
    assert config.vocab_size > 30000 and config.contexts == (config.max_position_embeddings,) * 2


@each("family", FAMILIES)
@each(
    "said",
    [
        {**SMALL, "tie_word_embeddings": True, "rms_norm_eps": 1e-4, "eos_token_id": [3, 4]},
        {**SMALL, "num_key_value_heads": 4, "head_dim": 20, "eos_token_id": None},
        {**SMALL, "attention_bias": True, "mlp_bias": True, "sliding_window": 7},
        {**SMALL, "sliding_window": 7, "use_sliding_window": True, "max_window_layers": 1},
        {**SMALL, "sliding_window": None},
        {**SMALL, "rope_theta": 5e5, "partial_rotary_factor": 0.5},
        {**SMALL, "rope_parameters": {"rope_type": "default", "rope_theta": 7e4}},
        {**SMALL, "rope_scaling": None, "rope_theta": 77},
    ],
)
def test_what_a_file_says_is_read_as_the_familys_class_reads_it(family, said):
    compare({"model_type": family, **said})


@each("family", ["llama", "mistral", "qwen2", "qwen3"])
@each(
    "rope",
    [
        {"type": "linear", "factor": 3.0},
        {"rope_type": "dynamic", "factor": 2},
        {"rope_type": "yarn", "factor": 4.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "attention_factor": 1.5},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1,
            "high_freq_factor": 4,
            "original_max_position_embeddings": 64,
        },
    ],
)
@each("more", [{}, {"original_max_position_embeddings": 96}])
def test_scaled_positions_are_read_wherever_a_file_has_them(family, rope, more):
    for key in ("rope_scaling", "rope_parameters"):
        compare({"model_type": family, **SMALL, "head_dim": 12, "rope_theta": 3e4, key: rope, **more})


@each("kind", ["su", "yarn", "longrope"])
def test_phi3_calls_one_scaling_by_several_names(kind):
    rope = {"type": kind, **FACTORS}
    content = {"model_type": "phi3", **SMALL, "original_max_position_embeddings": 128, "rope_scaling": rope}
    config = ModelConfig.of(content)
    assert config.rope_parameters["rope_type"] == "longrope" and config.contexts == (128, 512)
    if kind != "longrope":
        rope["original_max_position_embeddings"] = 128  # the stock class asks for it under the older names
    compare(content)


def test_a_dynamic_model_can_be_given_more_than_its_own_context():
    content = {"model_type": "llama", **SMALL, "rope_scaling": {"type": "dynamic", "factor": 2.5}}
    assert ModelConfig.of(content).contexts == (512, 1280)


@each(
    "wrong",
    [
        {"model_type": "gemma2"},
        {"model_type": None},
        {"model_type": ["llama"]},
        {"vocab_size": "a"},
        {"hidden_size": 0},
        {"hidden_size": -4},
        {"num_hidden_layers": 1.5},
        {"num_hidden_layers": True},
        {"num_attention_heads": None},
        {"num_key_value_heads": 3},
        {"head_dim": 0},
        {"head_dim": [8]},
        {"num_attention_heads": 49},
        {"hidden_size": 2**31},
        {"max_position_embeddings": 0},
        {"rms_norm_eps": "1"},
        {"rms_norm_eps": float("nan")},
        {"rms_norm_eps": -1.0},
        {"tie_word_embeddings": 1},
        {"attention_bias": None},
        {"hidden_act": 3},
        {"sliding_window": -1},
        {"sliding_window": 1.0},
        {"layer_types": ["full_attention"]},
        {"layer_types": "aaa"},
        {"layer_types": [1, 2, 3]},
        {"rope_scaling": [1]},
        {"rope_scaling": "linear"},
        {"rope_scaling": {"type": "linear"}},
        {"rope_scaling": {"type": "linear", "factor": 0}},
        {"rope_scaling": {"type": "dynamic", "factor": 1e308}},
        {"rope_scaling": {"type": "dynamic", "factor": 2**22}},
        {"rope_scaling": {"type": "linear", "factor": "4"}},
        {"rope_theta": 0},
        {"rope_theta": "x"},
        {"rope_theta": float("inf")},
        {"partial_rotary_factor": -0.5},
        {"rope_parameters": {"full_attention": {"rope_type": "default"}}},
        {"rope_scaling": {"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 0}},
    ],
)
def test_what_is_not_possible_is_reported_in_a_sentence(wrong):
    content = {"model_type": "qwen3", **SMALL, "use_sliding_window": True, **wrong}
    with pytest.raises(ValueError, match=str(next(iter(wrong))).partition("_")[0]):
        ModelConfig.of(content)
    checkpoint = SimpleNamespace(path="the directory", config=content, parameters=10**9)
    with pytest.raises(
        LocalspecError, match=f"{matching('the_config_json_in_the_directory')}.*{matching('fetch_the_model_again_or')}"
    ):
        read_config(checkpoint)


def test_generation_configs_are_read_and_checked(tmp_path):
    assert read_generation_config(tmp_path) == {}
    file = tmp_path / "generation_config.json"
    file.write_text('{"temperature": 0.5, "eos_token_id": 3}')
    assert read_generation_config(tmp_path)["temperature"] == 0.5
    for wrong in ("{", "\x00"):
        file.write_text(wrong)
        with pytest.raises(LocalspecError, match=r"generation_config\.json"):
            read_generation_config(tmp_path)


@each(
    "wrong, left_out",
    [
        ('"temperature": -1', "temperature = -1"),
        ('"temperature": 1e30', "temperature = 1e+30"),
        ('"temperature": NaN', "temperature = nan"),
        ('"top_k": 1.5', "top_k = 1.5"),
        ('"top_k": 1e30', "top_k = 1e+30"),
        ('"top_k": Infinity', "top_k = inf"),
        ('"top_p": 0', "top_p = 0"),
        ('"top_p": true', "top_p = True"),
        ('"min_p": "a"', "min_p = a"),
    ],
)
def test_a_sampling_that_cannot_be_is_left_out(tmp_path, wrong, left_out):
    (tmp_path / "generation_config.json").write_text("{" + wrong + ', "eos_token_id": 3}')
    assert read_generation_config(tmp_path) == {"eos_token_id": 3, LEFT_OUT: [left_out]}


def test_what_was_left_out_is_never_read_from_a_file(tmp_path):
    (tmp_path / "generation_config.json").write_text('{"%s": 5, "top_k": 3}' % LEFT_OUT)  # noqa: UP031
    assert read_generation_config(tmp_path) == {"top_k": 3}


def test_a_negative_top_k_is_off(tmp_path):
    (tmp_path / "generation_config.json").write_text('{"top_k": -1}')
    assert read_generation_config(tmp_path) == {"top_k": 0}
