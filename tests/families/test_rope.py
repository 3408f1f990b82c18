"""Frequencies are those of the Hugging Face code, over every kind of scaling, many sizes, bases and contexts."""

import numpy as np
import pytest
import torch
from each import each
from golden import matching
from transformers import CONFIG_MAPPING
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding

from localspec.errors import LocalspecError
from localspec.families.model_config import ModelConfig
from localspec.families.rope import Rope

ORIGINAL = "original_max_position_embeddings"
YARN = {"rope_type": "yarn", "factor": 4.0, ORIGINAL: 512}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, ORIGINAL: 512}
SCALINGS = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 3.0},
    "linear by a whole number": {"rope_type": "linear", "factor": 7},
    "dynamic": {"rope_type": "dynamic", "factor": 2.5},
    "yarn": YARN,
    "yarn, not truncated": {**YARN, "truncate": False, "beta_fast": 16, "beta_slow": 2},
    "yarn, mscale": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.2},
    "yarn, attention": {**YARN, "attention_factor": 1.3},
    "yarn without its original context": {"rope_type": "yarn", "factor": 1.5},
    "llama3": LLAMA3,
    "llama3 by whole numbers": {**LLAMA3, "factor": 32, "low_freq_factor": 1, "high_freq_factor": 5, ORIGINAL: 8192},
    "longrope": {"rope_type": "longrope", ORIGINAL: 512},
    "longrope, factor": {"rope_type": "longrope", ORIGINAL: 512, "factor": 3.0},
    "longrope, attention": {"rope_type": "longrope", ORIGINAL: 512, "attention_factor": 1.19},
}


def content(family, head_dim, theta, scaling):
    rope = {**scaling, "rope_theta": theta}
    if rope["rope_type"] == "longrope":
        half = int(head_dim * scaling.get("partial_rotary_factor", 1.0)) // 2
        rope |= {"short_factor": [1 + 0.07 * i for i in range(half)], "long_factor": [1 + 1.9 * i for i in range(half)]}
    return {
        "model_type": family, "hidden_size": 4 * head_dim, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": head_dim, "max_position_embeddings": 2048, "rope_parameters": rope,
        **({ORIGINAL: rope[ORIGINAL]} if family == "phi3" and ORIGINAL in rope else {}),
    }  # fmt: skip


def stock_rope(said, context):
    config = CONFIG_MAPPING[said["model_type"]].from_dict(said)
    kind = config.rope_parameters["rope_type"]
    if kind == "default":
        embedding = Phi3RotaryEmbedding if said["model_type"] == "phi3" else LlamaRotaryEmbedding
        return embedding.compute_default_rope_parameters(config)
    return ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len=context)


def units_apart(ours, theirs):
    """Units in the last place between two arrays of positive fp32 numbers."""
    return np.abs(ours.view(np.int32).astype(np.int64) - theirs.view(np.int32))


@pytest.mark.slow
@each("name", SCALINGS)
def test_frequencies_are_those_of_the_hugging_face_code(name):
    """Its power is a unit away from the true one now and then, which the steps after it can double."""
    apart = []
    for family in ("llama", "qwen3", "phi3") if name in ("default", "longrope") else ("llama", "mistral"):
        for head_dim in (8, 12, 80, 128):
            for theta in (10000, 5e5, 150000.5):
                said = content(family, head_dim, theta, SCALINGS[name])
                for context in (16, 512, 513, 2048, 5000):
                    ours, (theirs, attention_scaling) = (
                        Rope.of(ModelConfig.of(said), context),
                        stock_rope(said, context),
                    )
                    assert ours.inv_freq.dtype == np.float32 and ours.rotary_dim == 2 * len(theirs) == head_dim
                    assert ours.attention_scaling == attention_scaling
                    apart.append(units_apart(ours.inv_freq, theirs.numpy()))
    apart = np.concatenate(apart)
    assert apart.max() <= (4 if name == "llama3" else 2)  # where a ramp subtracts numbers of one size
    assert (apart == 0).mean() > 0.99


@each("part", [0.25, 0.5, 0.75, 1.0])
@each("name", ["default", "linear", "dynamic", "yarn", "llama3", "longrope"])
def test_a_part_of_a_head_is_rotated_where_the_stock_model_does(name, part):
    family = "phi3" if name in ("default", "longrope") else "llama"
    said = content(family, 32, 10000.0, {**SCALINGS[name], "partial_rotary_factor": part})
    ours, (theirs, _) = Rope.of(ModelConfig.of(said), 256), stock_rope(said, 256)
    assert ours.rotary_dim == 2 * len(theirs) == 32 * part
    assert units_apart(ours.inv_freq, theirs.numpy()).max() <= 2


def test_a_family_that_rotates_whole_heads_does_so_whatever_its_file_says():
    said = content("llama", 32, 10000.0, {"rope_type": "default", "partial_rotary_factor": 0.5})
    assert Rope.of(ModelConfig.of(said), 256).rotary_dim == 32


@each(
    "rope, named",
    [
        ({"rope_type": "spiral"}, "spiral"),
        ({"rope_type": ["linear"]}, "linear"),
        ({"rope_type": "llama3", "factor": 2.0}, "low_freq_factor"),
        ({"rope_type": "llama3", "factor": 2.0, "low_freq_factor": "a", "high_freq_factor": 4}, "rope_parameters"),
        ({"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 0, "high_freq_factor": 4}, "zero"),
        ({"rope_type": "longrope", "short_factor": [1.0]}, "long_factor|short_factor|factors"),
        (
            {"rope_type": "longrope", "short_factor": [1.0] * 3, "long_factor": [1.0] * 3},
            "longrope needs 4 factors, but has 3",
        ),
        ({"rope_type": "longrope", "short_factor": ["a"] * 4, "long_factor": [1.0] * 4}, "rope_parameters"),
        ({"rope_type": "longrope", "short_factor": [0.0] * 4, "long_factor": [0.0] * 4}, "finite"),
        ({"rope_type": "yarn", "factor": 2.0, "beta_fast": "a"}, "rope_parameters"),
        ({"rope_type": "yarn", "factor": 2.0, "rope_theta": 1.0}, "zero"),
        ({"rope_type": "yarn", "factor": 2.0, "attention_factor": float("nan")}, "impossible factor nan"),
        ({"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 2.0}, matching("n16_channels_heads_8")),
        ({"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.1}, "0 channels"),
    ],
)
def test_parameters_that_cannot_be_used_are_named(rope, named):
    said = {"model_type": "llama", "hidden_size": 32, "num_attention_heads": 4, "rope_parameters": rope}
    with pytest.raises(LocalspecError, match=named):
        Rope.of(ModelConfig.of(said), 64)
