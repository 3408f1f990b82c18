"""Published DFlash drafters: what is refused, with files that the tests write."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from drafters.test_dflash import config_of, published, tensors_of
from drafters.test_dspark import FORMS, spark_config, spark_tensors
from each import each
from golden import matching
from tiny_models import FAMILIES, Tiny

from localspec.errors import LocalspecError, NotHere
from localspec.models.drafter_cards import read_drafter
from localspec.published_heads import kind_of_heads, why_not_read
from localspec.training.dflash_files import read_published
from localspec.training.published_files import convert
from localspec.weights.checkpoint import inspect

Make = Callable[[str], Tiny]
LLAMA = FAMILIES[0]
ABOUT = {"name": "tiny", "published": {"repo": "org/head", "commit": "c"}}


def test_it_is_converted_once_and_in_the_precision_of_its_files(tiny: Make, tmp_path: Path) -> None:
    model = tiny(LLAMA)
    config = config_of(model.stock.config)
    tensors = {f"model.{name}": one.bfloat16() for name, one in tensors_of(config).items()}
    path = published(tmp_path / "head", config, tensors)
    convert("dflash", path, model.path, tmp_path / "made", ABOUT)
    card = read_drafter(tmp_path / "made")
    assert card.kind == "dflash" and card.bytes < 2 * card.parameters + 4096
    before = (tmp_path / "made" / "drafter" / "drafter.json").stat().st_mtime_ns
    convert("dflash", path, model.path, tmp_path / "made", ABOUT)
    assert (tmp_path / "made" / "drafter" / "drafter.json").stat().st_mtime_ns == before


@each(
    "config, tensors, said",
    [
        ({"vocab_size": 400}, {}, matching("made_model_48_channels_400_tokens")),
        ({"hidden_size": 64}, {}, matching("made_model_64_channels")),
        ({"num_target_layers": 36}, {}, matching("made_model_36_layers_one_3")),
        (
            {"dflash_config": {"target_layer_ids": [1, 9], "mask_token_id": 3}, "num_target_layers": None},
            {},
            "reads the states 2,10 .* this model has 3 layers",
        ),
        (
            {"dflash_config": {"target_layer_ids": ["x"], "mask_token_id": 3}},
            {},
            "target_layer_ids .* must be numbers of layers",
        ),
        ({"dflash_config": {"target_layer_ids": [1]}}, {}, "names no mask_token_id"),
        ({"dflash_config": {"target_layer_ids": [1], "mask_token_id": 320}}, {}, "the mask token 320, .* 320 tokens"),
        ({"dflash_config": {"target_layer_ids": [1], "mask_token_id": True}}, {}, "mask = True"),
        (
            {"dflash_config": {"target_layer_ids": [1], "mask_token_id": 3, "use_swa": True}},
            {},
            matching("says_use_swa_true_which_localspec"),
        ),
        ({"block_size": 1}, {}, "block = 1"),
        ({"is_causal": "x"}, {}, "is_causal = 'x'"),
        ({"model_type": "llama"}, {}, matching("of_the_family_llama")),
        ({"hidden_act": "gelu"}, {}, "gelu"),
        ({"num_attention_heads": 3}, {}, matching("num_attention_heads_3_multiple")),
        ({}, {"fc.weight": torch.zeros(48, 99)}, r"'fc.weight' .* has the shape \[48, 99\] \(expected: \[48, 96\]\)"),
        ({}, {"layers.1.mlp.up_proj.weight": None}, "'layers.1.mlp.up_proj.weight' .* is missing"),
        ({}, {"layers.0.attention_conv.base_kernel": torch.zeros(2)}, matching("part_dflash_s_layers")),
        ({}, {"norm.weight": torch.full((48,), float("nan"))}, "'norm.weight' .* NaN"),
        ({}, {"norm.weight": torch.ones(48, dtype=torch.int64)}, matching("of_the_type_int64_and")),
        ({}, {"norm.weight": torch.ones(48).to(torch.float8_e4m3fn)}, matching("type_float8_e4m3fn")),
        ({}, {"fc.weight": torch.tensor(1.0)}, "'fc.weight' .* a single number"),
    ],
)
def test_what_belongs_to_another_model_or_is_of_another_form_is_refused_in_a_sentence(
    tiny: Make, tmp_path: Path, config: dict[str, Any], tensors: dict[str, Any], said: str
) -> None:
    model = tiny(LLAMA)
    whole = config_of(model.stock.config)
    own = {**tensors_of(whole), **tensors}
    path = published(tmp_path, {**whole, **config}, {name: one for name, one in own.items() if one is not None})
    with pytest.raises(LocalspecError, match=said) as refused:
        read_published(path, model.target)
    assert "\n" not in str(refused.value)


def test_a_pickle_is_never_run_and_damage_is_reported(tiny: Make, tmp_path: Path) -> None:
    model = tiny(LLAMA)
    path = published(tmp_path, config_of(model.stock.config))
    (path / "model.safetensors").write_bytes(b"x" * 99)
    with pytest.raises(LocalspecError, match=matching("model_safetensors_is_damaged")):
        read_published(path, model.target)
    (path / "model.safetensors").rename(path / "pytorch_model.bin")
    with pytest.raises(LocalspecError, match=matching("pickle_only_pytorch_model_bin")):
        read_published(path, model.target)
    (path / "config.json").write_text("{}")
    with pytest.raises(NotHere, match=matching("of_no_dflash_drafter")):
        read_published(path, model.target)


@each(
    "config, tensors, said",
    [
        ({"vocab_size": 400}, {}, matching("made_model_48_channels_400_tokens")),
        ({"markov_head_type": "gated"}, {}, "says markov_head_type = gated, which localspec does not compute"),
        ({"target_layer_ids": [-2, 1]}, {}, "target_layer_ids .* must be numbers of layers"),
        (
            {"markov_rank": 7},
            {},
            r"'markov_head.markov_w1.weight' of the DSpark .* \[320, 6\] \(expected: \[320, 7\]\)",
        ),
        ({}, {"confidence_head.proj.weight": None}, "'confidence_head.proj.weight' of the DSpark .* is missing"),
        ({}, {"markov_head.gate_proj.weight": torch.zeros(2, 2)}, "'markov_head.gate_proj.weight' .* is a tensor that"),
        ({"dflash_config": {"projector_type": "domino"}}, {}, "says projector_type = domino"),
    ],
)
def test_a_dspark_drafter_of_another_form_is_refused_in_a_sentence(
    tiny: Make, tmp_path: Path, config: dict[str, Any], tensors: dict[str, Any], said: str
) -> None:
    model = tiny(LLAMA)
    whole = spark_config(model.stock.config, **FORMS[0])
    own = {**spark_tensors(whole), **tensors}
    path = published(tmp_path, {**whole, **config}, {name: one for name, one in own.items() if one is not None})
    with pytest.raises(LocalspecError, match=said) as refused:
        read_published(path, model.target)
    assert "\n" not in str(refused.value)


def test_a_confidence_without_a_bias_gets_none(tiny: Make, tmp_path: Path) -> None:
    model = tiny(LLAMA)
    whole = spark_config(model.stock.config, **FORMS[0])
    tensors = spark_tensors(whole)
    del tensors["confidence_head.proj.bias"]
    found = read_published(published(tmp_path, whole, tensors), model.target)
    assert found.tensors()["confidence.bias"].tolist() == [0.0]


@each(
    "config, said",
    [
        (
            {"architectures": ["DFlash2DraftModel"], "model_type": "qwen3"},
            "a DFlash drafter of the second version, .* use a DSpark drafter or a DFlash drafter of the first version",
        ),
        ({"architectures": ["Gemma4AssistantForCausalLM"]}, r"a drafter \(assistant\), which is not a model by itself"),
        ({"architectures": ["Gemma4UnifiedAssistantForCausalLM"]}, matching("drafter_and_no_model_by_itself")),
        (
            {"architectures": ["DFlashDraftModel"], "speculators_model_type": "dflash"},
            matching("a_vocabulary_of_its_own"),
        ),
        ({"architectures": ["X"], "speculators_model_type": "peagle"}, r"\(P-EAGLE\).* use an EAGLE-3 head"),
        ({"architectures": ["X"], "speculators_model_type": "dspark"}, "in the format of speculators"),
        (
            {"architectures": ["X"], "speculators_model_type": "mtp"},
            "of the kind 'mtp' in the format of speculators, which localspec does not read; use another",
        ),
        (
            {"architectures": ["Gemma4DSparkModel"], "model_type": "gemma4_text"},
            "a DSpark drafter with Gemma layers",
        ),
        ({"architectures": ["DFlashDraftModel"], "model_type": "qwen3"}, matching("drafter_and_no_model_by_itself")),
        ({"architectures": ["Qwen3DSparkModel"], "model_type": "qwen3"}, matching("drafter_and_no_model_by_itself")),
    ],
)
def test_a_drafter_that_is_not_read_says_why_where_a_model_is_expected(
    tmp_path: Path, config: dict[str, Any], said: str
) -> None:
    path = published(tmp_path, config, {"a": torch.zeros(1)})
    with pytest.raises(LocalspecError, match=said) as refused:
        inspect(path)
    assert "\n" not in str(refused.value)
    assert (why_not_read(config) is None) == (kind_of_heads(config) is not None)
