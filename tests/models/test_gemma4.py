"""Gemma 4: the special entries of its config.json, which of them are refused, and what computes the model."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from each import each
from golden import matching
from machines import cpu, machine
from models.language_models import assert_language_model_is_served
from tiny_models import (
    CONFIGS,
    FAMILIES,
    VOCABULARY,
    Tiny,
    byte_tokenizer,
    prompt_ids,
    save_filled,
    stock_logits,
    stock_reply,
)
from transformers import (
    CONFIG_MAPPING,
    Gemma4Config,
    Gemma4ForConditionalGeneration,
    Gemma4UnifiedForCausalLM,
    Gemma4UnifiedTextConfig,
)
from transformers.models.gemma4.modeling_gemma4 import Gemma4TextRotaryEmbedding

from localspec.choosing.choose import choose
from localspec.cli.show import _installed_facts
from localspec.config import Settings
from localspec.decoding.limits import Limits
from localspec.decoding.tree import DraftTree
from localspec.drafters.s3d import Drafter, S3DOptions
from localspec.engine.engine import Engine
from localspec.engine.loading import load_layers
from localspec.errors import LocalspecError, UsageMistake
from localspec.events import Done
from localspec.families.architecture import TransformerConfig
from localspec.families.model_config import ModelConfig
from localspec.families.rope import Rope
from localspec.models.drafter_kinds import kinds
from localspec.models.registry import named_card
from localspec.models.shape import Shape
from localspec.models.small_model import mask_token
from localspec.native.target import NativeTarget
from localspec.native.threads import Threads
from localspec.nn.target import Target
from localspec.training.trainable import make_drafter
from localspec.weights.stored import read_config

Make = Callable[[str], Tiny]
SMALL = {
    "hidden_size": 48, "intermediate_size": 40, "num_hidden_layers": 6, "num_attention_heads": 4, "head_dim": 16,
    "num_key_value_heads": 2, "vocab_size": VOCABULARY, "max_position_embeddings": 512, "sliding_window": 7,
    "vocab_size_per_layer_input": VOCABULARY, "hidden_size_per_layer_input": 8,
}  # fmt: skip
ALTERNATING = ["sliding_attention", "full_attention"] * 3
OWN_LAYERS, LAYER_INPUTS = (name for name in FAMILIES if name.startswith("gemma4-"))
WHOLE = {"rope_type": "proportional", "rope_theta": 5e4, "partial_rotary_factor": 0.5, "factor": 3.0}
LOCAL = {"rope_type": "default", "rope_theta": 70.0}


@pytest.mark.slow
@each(
    "said",
    [
        {},
        SMALL,
        {**SMALL, "global_head_dim": 24},
        {**SMALL, "attention_k_eq_v": True, "num_global_key_value_heads": 1, "hidden_size_per_layer_input": 0},
        {**SMALL, "num_global_key_value_heads": 1},  # which is of layers whose keys are values
        {**SMALL, "layer_types": ALTERNATING, "num_kv_shared_layers": 3, "use_double_wide_mlp": True},
        {
            **SMALL,
            "layer_types": ["full_attention", "sliding_attention"] * 3,
        },  # the last has no window whatever is said
        {**SMALL, "rope_parameters": {"full_attention": WHOLE, "sliding_attention": LOCAL}},
        {**SMALL, "attention_bias": True, "tie_word_embeddings": False, "final_logit_softcapping": 30.0},
        {**SMALL, "use_bidirectional_attention": "vision", "rms_norm_eps": 1e-5, "eos_token_id": [1, 106]},
    ],
)
@each("saved", [False, True])
def test_a_config_is_read_as_its_class_reads_it(said: dict[str, Any], saved: bool) -> None:
    content = {"model_type": "gemma4_text", **said}
    stock = CONFIG_MAPPING["gemma4_text"].from_dict(json.loads(json.dumps(content)))
    content = json.loads(json.dumps(stock.to_dict())) if saved else content
    config = ModelConfig.of(content)
    for name in (
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "max_position_embeddings",
        "rms_norm_eps",
        "eos_token_id",
    ):
        assert getattr(config, name) == getattr(stock, name), name
    windows = [stock.sliding_window if kind == "sliding_attention" else None for kind in stock.layer_types]
    assert [*config.sliding_windows] == windows
    sizes = TransformerConfig.of(config)
    for layer, theirs in enumerate(stock.per_layer_config):
        ours, shares = sizes.sizes_of(layer), stock.kv_sharing_modes[layer] == "reuse"
        assert (ours.num_kv_heads, ours.head_dim) == (theirs.num_key_value_heads, theirs.head_dim), layer
        assert (ours.keys_of is not None) == shares
        assert ours.intermediate_size == stock.intermediate_size * (2 if shares and stock.use_double_wide_mlp else 1)
        assert ours.keys_are_values == (stock.attention_k_eq_v and windows[layer] is None)
        if ours.keys_of is not None:
            assert stock.kv_sharing_modes[ours.keys_of] == "store"
            assert stock.layer_types[ours.keys_of] == stock.layer_types[layer]
    assert sizes.logit_cap == (stock.final_logit_softcapping or 0) and sizes.query_scalar == 1
    assert sizes.per_layer_inputs[0] == stock.hidden_size_per_layer_input
    rope, theirs = Rope.of(config, 512), Gemma4TextRotaryEmbedding(stock)
    np.testing.assert_allclose(rope.inv_freq, theirs.full_attention_inv_freq.numpy(), rtol=1e-6)
    assert rope.local is not None
    np.testing.assert_allclose(rope.local.inv_freq, theirs.sliding_attention_inv_freq.numpy(), rtol=1e-6)
    shape = Shape.of(content)
    assert shape is not None and shape.tied == stock.tie_word_embeddings
    assert (shape.layer_sizes, shape.layer_inputs) == (sizes.layer_sizes, sizes.per_layer_inputs)
    assert (shape.num_kv_heads, shape.head_dim) == (sizes.num_kv_heads, sizes.head_dim)


@each(
    "wrong",
    [
        {"enable_moe_block": True},
        {"use_bidirectional_attention": "all"},
        {"hidden_size_per_layer_input": -1},
        {"vocab_size_per_layer_input": VOCABULARY - 1},
        {"final_logit_softcapping": 0},
        {"attention_k_eq_v": 1},
        {"num_kv_shared_layers": 6},
        {"num_kv_shared_layers": -1},
        {"num_kv_shared_layers": "a"},
        {"layer_types": ["sliding_attention"] * 6, "num_kv_shared_layers": 1},
        {"global_head_dim": 15},
        {"global_head_dim": None},
        {"attention_k_eq_v": True, "num_global_key_value_heads": 3},
        {"per_layer_config": {"5": {"head_dim": 8}, "1": {"head_dim": 8}}},
        {"per_layer_config": [1]},
        {"per_layer_config": {"5": {"intermediate_size": 8}}},
        {"sliding_window": None},
        {"rope_parameters": [1]},
    ],
)
def test_what_is_not_possible_is_a_value_error(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        ModelConfig.of({"model_type": "gemma4_text", **SMALL, **wrong})


@pytest.mark.slow
def test_its_own_layers_draft_if_they_are_independent_and_are_refused_otherwise(tiny: Make) -> None:
    assert "mask" in Drafter.tensor_specs(tiny(OWN_LAYERS).target, S3DOptions())
    target = tiny(LAYER_INPUTS).target
    with pytest.raises(UsageMistake, match=matching("s3d_drafts_some_model_s_own")):
        Drafter.tensor_specs(target, S3DOptions())
    with pytest.raises(UsageMistake, match=matching("s3d_drafts_some_model_s_own_2")):
        make_drafter("s3d", target, {})


def test_the_drafter_layers_is_refused_before_anything_is_measured(tiny: Make) -> None:
    class Layers:
        drafter = "layers"

    with pytest.raises(UsageMistake, match=matching("layers_drafts_some_model_s_own")):
        load_layers(Layers(), tiny(LAYER_INPUTS).target, None, None)  # type: ignore[arg-type]


def test_a_small_model_with_inputs_of_each_layer_cannot_draft_in_parallel(tiny: Make) -> None:
    for name, refused in ((LAYER_INPUTS, True), (OWN_LAYERS, False)):
        content = json.loads((tiny(name).path / "config.json").read_text())
        config = ModelConfig.of({**content, "pard_token": 7})
        if refused:
            with pytest.raises(LocalspecError, match=matching("which_mask_token_none")):
                mask_token(config, tiny(name).path)
        else:
            assert mask_token(config, tiny(name).path) == 7


@pytest.mark.slow
@each("name", [name for name in CONFIGS if name.startswith("gemma4-")])
def test_the_cpu_engine_computes_it_and_show_lists_what_drafts_for_it(tiny: Make, name: str) -> None:
    card, here = named_card(str(tiny(name).path)), machine(cpu())
    choice = choose(card, Settings(), here)
    assert (choice.engine, choice.quantize) == ("native", "int8")
    for packing in ("int8", "int4"):
        assert choose(card, Settings(quantize=packing), here).quantize == packing
    facts = _installed_facts(card)
    assert [*facts["drafters"]] == [
        kind for kind in kinds("nothing", "probe") if kind != "layers" or name == OWN_LAYERS
    ]


@pytest.mark.slow
@each("name", [OWN_LAYERS, LAYER_INPUTS])
@each("small", ["", "llama-grouped-dynamic"])
def test_the_engine_answers_what_the_stock_model_says(tiny: Make, name: str, small: str) -> None:
    model, told = tiny(name), list[str]()
    drafter = f"draft_model:{tiny(small).path}" if small else "phrases"
    settings = Settings(drafter=drafter, device="cpu", dtype="fp32", quantize="none", context=256, draft_max=6)
    engine = Engine.open(settings, named_card(str(model.path)), notice=told.append)
    assert (engine.choice.engine, engine.choice.precision, engine.choice.quantize) == ("native", "fp32", "none")
    assert not told
    prompt = prompt_ids(20, seed=23)
    *_, done = engine.session.generate(prompt, engine.sampling(Settings(temperature=0.0)), Limits(20))
    assert isinstance(done, Done) and list(done.statistics.token_ids) == stock_reply(model.stock, prompt, 20)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a tiny Gemma 4 as published: its language model has a config and a prefix."""
    path = tmp_path_factory.mktemp("gemma") / "pictures"
    eyes = {
        "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 2, "head_dim": 8, "patch_size": 4, "position_embedding_size": 64,
    }  # fmt: skip
    inner = CONFIGS[LAYER_INPUTS]().to_dict()
    config = Gemma4Config(
        text_config=inner, vision_config=eyes, image_token_id=319, video_token_id=318, audio_token_id=317
    )
    return save_filled(Gemma4ForConditionalGeneration(config), path, byte_tokenizer())


@pytest.mark.slow
def test_of_a_model_that_reads_pictures_the_language_model_is_served(pictures: Path) -> None:
    target, found = assert_language_model_is_served(pictures, Gemma4ForConditionalGeneration)
    language = sum(parameter.numel() for parameter in target.transformer.parameters())
    assert found.parameters == language, "without what sees"
    assert read_config(found).per_layer_inputs == (8, VOCABULARY + 10)


@pytest.mark.parametrize("name", ["gemma4_unified-grouped-keys-as-values-capped"])
def test_under_other_names_it_is_computed_as_the_others_are(tmp_path: Path, name: str) -> None:
    config = Gemma4UnifiedTextConfig(
        hidden_size=48, intermediate_size=40, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        head_dim=16, global_head_dim=24, num_global_key_value_heads=1, attention_k_eq_v=True, vocab_size=VOCABULARY,
        max_position_embeddings=512, sliding_window=7, final_logit_softcapping=8.0,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"],
    )  # fmt: skip
    path = save_filled(Gemma4UnifiedForCausalLM(config), tmp_path / name, byte_tokenizer())
    stock = Gemma4UnifiedForCausalLM.from_pretrained(path, attn_implementation="eager", dtype=torch.float32).eval()
    tokens = prompt_ids(40)
    want = stock_logits(stock, tokens)
    for engine in (Target.load(path), NativeTarget.open(path, packing="fp32", threads=Threads(1))):
        ours = torch.as_tensor(engine.forward(DraftTree.chain(tokens), engine.cache(64)).logits.numpy())
        assert (ours - want).abs().max() < 1e-4 * want.abs().max()
    outer = {"architectures": ["Gemma4UnifiedForConditionalGeneration"], "model_type": "gemma4_unified"}
    inner = {"model_type": "gemma4_unified_text", "num_hidden_layers": 48, "hidden_size": 3840}
    found = ModelConfig.of({**outer, "text_config": inner, "vision_config": {"hidden_size": 8}})
    assert (found.model_type, found.per_layer_inputs, found.sliding_window) == ("gemma4_unified_text", (0, 0), 1024)
