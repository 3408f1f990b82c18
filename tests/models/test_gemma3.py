"""Gemma 3: the special entries of its config.json, and the language model inside one that also reads pictures."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from chat_templates import GEMMA3, write_tokenizer
from each import each
from golden import matching
from models.language_models import assert_language_model_is_served
from safetensors.torch import load_file, save_file
from tiny_models import VOCABULARY, byte_tokenizer, prompt_ids, save_filled, stock_logits
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, Gemma3Config, Gemma3ForConditionalGeneration
from transformers.models.gemma3.modeling_gemma3 import Gemma3RotaryEmbedding

from localspec.decoding.tree import DraftTree
from localspec.errors import LocalspecError
from localspec.families.architecture import TransformerConfig
from localspec.families.model_config import ModelConfig
from localspec.families.rope import Rope
from localspec.families.table import ARCHITECTURES
from localspec.models.chat_tokenizer import ChatTokenizer
from localspec.models.messages import Message
from localspec.models.registry import cards
from localspec.models.shape import Shape
from localspec.models.tokenizer import Tokenizer
from localspec.native.target import NativeTarget
from localspec.nn.target import Target
from localspec.paths import Paths
from localspec.training.published_files import stored_matrix
from localspec.weights.checkpoint import inspect
from localspec.weights.stored import read_config

SMALL = {
    "hidden_size": 48, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 4, "head_dim": 16,
    "num_key_value_heads": 2, "vocab_size": VOCABULARY, "max_position_embeddings": 512, "sliding_window": 7,
    "query_pre_attn_scalar": 16, "sliding_window_pattern": 2,
}  # fmt: skip
LINEAR = {"rope_type": "linear", "factor": 8.0}


@each(
    "said",
    [
        {},
        SMALL,
        {**SMALL, "num_hidden_layers": 9, "sliding_window_pattern": 3},
        {**SMALL, "layer_types": ["full_attention", "sliding_attention", "full_attention"]},
        {**SMALL, "rope_theta": 5e5, "rope_local_base_freq": 500.0, "rope_scaling": LINEAR},
        {**SMALL, "rope_scaling": {"type": "linear", "factor": 2}},
        {**SMALL, "rope_parameters": {"full_attention": {**LINEAR, "rope_theta": 3e4}, "sliding_attention": {}}},
        {**SMALL, "rope_parameters": {"sliding_attention": {"rope_type": "default", "rope_theta": 77.0}}},
        {**SMALL, "attention_bias": True, "tie_word_embeddings": False, "eos_token_id": [1, 106]},
        {**SMALL, "hidden_act": "silu", "mlp_bias": True, "rms_norm_eps": 1e-5},
    ],
)
def test_a_config_is_read_as_its_class_reads_it(said):
    content = {"model_type": "gemma3_text", **said}
    stock = CONFIG_MAPPING["gemma3_text"].from_dict(json.loads(json.dumps(content)))
    ours = ModelConfig.of(content)
    for name in [
        *SMALL.keys() - {"sliding_window_pattern"},
        "rms_norm_eps",
        "tie_word_embeddings",
        "attention_bias",
        "eos_token_id",
    ]:
        assert getattr(ours, name) == getattr(stock, name), name
    assert ours.hidden_act == stock.hidden_activation and not ours.mlp_bias
    windows = [stock.sliding_window if kind == "sliding_attention" else None for kind in stock.layer_types]
    assert [*ours.sliding_windows] == windows
    rope, theirs = Rope.of(ours, 512), Gemma3RotaryEmbedding(stock)
    if "full_attention" in stock.layer_types:
        np.testing.assert_allclose(rope.inv_freq, theirs.full_attention_inv_freq.numpy(), rtol=1e-6)
    if "sliding_attention" in stock.layer_types:
        np.testing.assert_allclose(rope.local.inv_freq, theirs.sliding_attention_inv_freq.numpy(), rtol=1e-6)
    shape = Shape.of(content)
    assert shape is not None and shape.tied == stock.tie_word_embeddings
    assert (shape.num_layers, shape.num_kv_heads, shape.context) == (
        stock.num_hidden_layers, stock.num_key_value_heads, stock.max_position_embeddings,
    )  # fmt: skip


@each(
    "name, inner",
    [
        ("gemma-3-4b-it", {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34}),
        (
            "gemma-3-12b-it",
            {
                "hidden_size": 3840, "intermediate_size": 15360, "num_hidden_layers": 48, "num_attention_heads": 16,
                "num_key_value_heads": 8,
            },
        ),
    ],
)  # fmt: skip
def test_what_a_config_that_is_published_leaves_out_is_what_the_registry_says(tmp_path: Path, name, inner):
    inner |= {"model_type": "gemma3_text", "rope_scaling": LINEAR, "sliding_window": 1024}
    content = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "text_config": inner}
    shape, config = Shape.of({**content, "vision_config": {"hidden_size": 1152}}), ModelConfig.of(content)
    assert shape == cards(Paths(tmp_path))[name].entry.shape
    assert (config.contexts, config.sliding_windows[:6]) == ((131072, 131072), (*[1024] * 5, None))
    rope = Rope.of(config, 1000)
    assert rope.inv_freq[0] == 1 / 8 and rope.local is not None and rope.local.inv_freq[0] == 1


@each(
    "wrong",
    [
        {"sliding_window": None},
        {"sliding_window": 0},
        {"sliding_window_pattern": 0},
        {"query_pre_attn_scalar": 0},
        {"query_pre_attn_scalar": "a"},
        {"hidden_activation": None},
        {"use_bidirectional_attention": True},
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0}},
        {"rope_parameters": [1]},
        {"rope_parameters": {"full_attention": 3}},
        {"rope_local_base_freq": -1.0},
        {"rope_scaling": "x"},
        {"layer_types": ["full_attention"]},
    ],
)
def test_what_is_not_possible_is_a_value_error(wrong):
    with pytest.raises(ValueError, match=r"\w"):
        ModelConfig.of({"model_type": "gemma3_text", **SMALL, **wrong})


@each(
    "said, named",
    [
        ({"final_logit_softcapping": 30.0}, "hyperbolic tangent"),
        ({"attn_logit_softcapping": 50.0}, "hyperbolic tangent"),
        ({"hidden_activation": "gelu"}, "'gelu'"),
        ({"hidden_activation": "silu"}, "'silu'"),
    ],
)
def test_what_is_not_computed_is_refused(said, named):
    with pytest.raises(LocalspecError, match=named):
        TransformerConfig.of(ModelConfig.of({"model_type": "gemma3_text", **SMALL, **said}))


def test_rotations_of_two_widths_are_refused():
    rotations = {"full_attention": {**LINEAR, "partial_rotary_factor": 0.5}}
    with pytest.raises(LocalspecError, match=matching("n8_channels_some_layers_16_others")):
        Rope.of(ModelConfig.of({"model_type": "gemma3_text", **SMALL, "rope_parameters": rotations}), 64)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a tiny model that also reads pictures, as published: its language model has a config and a prefix."""
    path = tmp_path_factory.mktemp("gemma") / "pictures"
    eyes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    inner = {**SMALL, "rope_scaling": LINEAR, "eos_token_id": 1}
    config = Gemma3Config(
        text_config=inner, vision_config={**eyes, "image_size": 28, "patch_size": 14}, image_token_index=319,
        boi_token_index=317, eoi_token_index=318, mm_tokens_per_image=1, eos_token_id=[1, 4],
    )  # fmt: skip
    save_filled(Gemma3ForConditionalGeneration(config), path, byte_tokenizer())
    parts = ("language_model.", "vision_tower.", "multi_modal_projector.")
    assert all(name.startswith(parts) for name in load_file(path / "model.safetensors"))
    return path


@pytest.mark.slow
def test_of_a_model_that_reads_pictures_the_language_model_is_served(pictures: Path, tmp_path: Path):
    target, _ = assert_language_model_is_served(pictures, Gemma3ForConditionalGeneration)
    assert target.stop_tokens >= {1, 4}, "what the whole model says comes before what its part says"
    target.save(tmp_path)  # the language model by itself
    alone = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager", dtype=torch.float32).eval()
    assert type(alone).__name__ == "Gemma3ForCausalLM"
    tokens = prompt_ids(40)
    ours = target.forward(DraftTree.chain(tokens), target.cache(64)).logits.rows
    assert (stock_logits(alone, tokens) - ours).abs().max() < 2e-5 * ours.abs().max()


def test_what_reads_pictures_is_not_counted(pictures: Path):
    found = inspect(pictures)
    shape = Shape.of(found.config)
    assert found.context == 512 and shape is not None
    assert found.embedding == VOCABULARY * 48
    small = 3 * (2 * 48 + 2 * 16)
    assert found.parameters == shape.parameters + small
    assert read_config(found).model_type == "gemma3_text"


def test_later_names_of_the_same_tensors_are_read(pictures: Path, tmp_path: Path):
    later = shutil.copytree(pictures, tmp_path / "later")
    weights = load_file(pictures / "model.safetensors")
    renamed = {
        name.replace("language_model.model.", "model.language_model.")
        if name.startswith("language_model.")
        else f"model.{name}": tensor
        for name, tensor in weights.items()
    }
    save_file(renamed, later / "model.safetensors", metadata={"format": "pt"})
    one, other = Target.load(pictures), Target.load(later)
    for ours, theirs in zip(one.transformer.parameters(), other.transformer.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_what_converts_heads_finds_the_vocabulary(pictures: Path):
    weights = load_file(pictures / "model.safetensors")
    assert torch.equal(
        stored_matrix(pictures, ("lm_head.weight", "model.embed_tokens.weight")),
        weights["language_model.model.embed_tokens.weight"],
    )


def test_a_system_prompt_begins_the_first_turn_and_a_turns_end_ends_a_reply(tmp_path: Path):
    chat = ChatTokenizer(Tokenizer.open(write_tokenizer(tmp_path, GEMMA3)))
    messages = [Message(role="system", content="Be brief."), Message(role="user", content="Who are you?")]
    text = "<s><start_of_turn>user\nBe brief.\n\nWho are you?<end_of_turn>\n<start_of_turn>model\n"
    assert chat.render(messages) == text
    assert chat.encode(messages, 1000).count(1) == 1, "the template brings the mark of the beginning"
    said = json.loads((tmp_path / "config.json").read_text())["eos_token_id"]
    assert chat.stop_tokens((said, None)) == {2, chat.tokenizer.get_vocab()["<end_of_turn>"]}
    assert chat.thinks == "no" and chat.thinking is None


@pytest.mark.slow
@each("dtype, scale", [(torch.float32, 48**0.5), (torch.bfloat16, 6.9375)])
def test_embeddings_are_scaled_by_a_root_that_has_as_many_digits_as_they_have(pictures: Path, dtype, scale):
    target = Target.load(pictures, dtype=dtype)
    ids = torch.arange(40)
    stock = Gemma3ForConditionalGeneration.from_pretrained(pictures, dtype=dtype).model.language_model.embed_tokens
    with torch.no_grad():
        assert torch.equal(target.embed(ids), stock(ids))
    packed = NativeTarget.open(pictures, packing="bf16" if dtype == torch.bfloat16 else "fp32")
    rows = target.transformer.embed_tokens[:40].float().numpy()
    np.testing.assert_allclose(packed.model.embed(range(40)), rows * np.float32(scale), rtol=1e-6)


def test_the_nearest_model_of_what_is_refused_is_registered(tmp_path: Path):
    from localspec.families import table

    names = {*table._NEAREST.values(), table.ANY}
    known = cards(Paths(tmp_path))
    assert names <= known.keys()
    for name in names:
        assert known[name].entry.architecture in ARCHITECTURES
