"""The sizes that a drafter's own layers take from their target: every field is considered, also new ones."""

from dataclasses import fields, replace

import pytest

from localspec.drafters import eagle3, parallelspec
from localspec.families.architecture import TransformerConfig
from localspec.families.family import DeltaNet, LayerSizes, MixtureSizes

# A target with something in each field that no other target's plain layer has.
TARGET = TransformerConfig(
    family="gemma4_text", vocab_size=320, hidden_size=48, intermediate_size=64, num_heads=4, num_kv_heads=2, head_dim=16,
    rms_norm_eps=1e-5, sliding_windows=(None, 7), tied=False, qkv_bias=True, o_bias=True, mlp_bias=True, qk_norm=True,
    activation="gelu", output_norms=True, norm_offset=1.0, embed_scale=7.0, query_scalar=10.0, residual_scale=0.5,
    logit_scale=0.25, local_layers=(False, True), layer_sizes=(LayerSizes(2, 16, 64), LayerSizes(1, 32, 64)),
    per_layer_inputs=(8, 320), value_norm=True, layer_scalars=True, logit_cap=20.0, gated=True,
    interleaved=True, borrows=True,
    delta=DeltaNet((True, False), 1, 1, 8, 8, 4), experts=MixtureSizes(4, 2, 16), gate_limit=7.0, sinks=True,
)  # fmt: skip
WIDTHS = {"hidden_size", "intermediate_size", "num_heads", "num_kv_heads", "head_dim", "rms_norm_eps"}
ALIKE = WIDTHS | {
    "family", "qkv_bias", "o_bias", "mlp_bias", "qk_norm", "activation", "output_norms", "norm_offset", "embed_scale",
    "query_scalar", "residual_scale", "logit_scale", "value_norm", "layer_scalars", "logit_cap", "gated",
    "interleaved", "borrows", "experts", "gate_limit", "sinks",
}  # fmt: skip


def kept(found: TransformerConfig) -> set[str]:
    return {one.name for one in fields(found) if getattr(found, one.name) == getattr(TARGET, one.name)}


def test_a_layer_of_eagle3_has_the_widths_of_its_target_and_nothing_else_of_it() -> None:
    found, rope = eagle3.layer_of(TARGET, eagle3.Eagle3Options(), 128)
    assert kept(found) == WIDTHS and rope is None


@pytest.mark.parametrize("layers", [1, 3])
def test_layers_of_parallelspec_are_like_the_last_of_its_target(layers: int) -> None:
    found = parallelspec.layers_of(TARGET, parallelspec.ParallelSpecOptions(layers=layers))
    assert kept(found) == ALIKE
    assert found == replace(
        TARGET, vocab_size=0, tied=True, sliding_windows=(7,) * layers, local_layers=(True,) * layers,
        layer_sizes=(LayerSizes(1, 32, 64),) * layers, per_layer_inputs=(0, 0), delta=None,
    )  # fmt: skip


def test_a_new_field_is_given_a_value_here_that_is_not_its_own() -> None:
    """Otherwise the test could not see what becomes of the field."""
    usual = {one.name: one.default for one in fields(TARGET)}
    assert [name for name, value in usual.items() if getattr(TARGET, name) == value] == []
