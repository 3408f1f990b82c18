"""Qwen3.5, 3.6 and 3.8: three layers of four have a recurrent state in the place of attention (Gated DeltaNet).

Layers that attend have norms of each query and key, a quarter of a head rotated, and a gate on what they give, whose
inputs are projected with the queries: a head's query, its gate, the next head's query. Norms multiply by one plus their
weight, but for the norm of the values of a recurrent layer. A layer that predicts a token further ahead is in the
files (`mtp.*`) and no part of the model.
"""

from collections.abc import Mapping
from typing import Any

from localspec.families.delta_net import LINEAR, DeltaNet
from localspec.families.family import IN_SAFETENSORS, Family
from localspec.families.reading import by_pattern, check, positive

_SIZES = (
    "linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim",
    "linear_conv_kernel_dim",
)  # fmt: skip


def _read(found: Mapping[str, Any]) -> dict[str, Any]:
    types = found["layer_types"]
    if types is None:
        check(found, "full_attention_interval", positive)
        types = by_pattern(found["num_hidden_layers"], found["full_attention_interval"], LINEAR)
    for name in _SIZES:
        check(found, name, positive)
    if found["linear_num_value_heads"] % found["linear_num_key_heads"]:
        raise ValueError(
            f"linear_num_value_heads = {found['linear_num_value_heads']} is not a multiple of linear_num_key_heads = "
            f"{found['linear_num_key_heads']}"
        )
    sizes = DeltaNet(tuple(kind == LINEAR for kind in types), *(found[name] for name in _SIZES))
    return {"layer_types": types, "delta": sizes if any(sizes.layers) else None}


QWEN35 = Family(
    model_type="qwen3_5_text",
    classes={"Qwen3_5ForCausalLM": "qwen3_5_text", "Qwen3_5ForConditionalGeneration": "qwen3_5"},
    defaults={
        "vocab_size": 248320, "hidden_size": 4096, "intermediate_size": 12288, "num_attention_heads": 16,
        "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 32768, "partial_rotary_factor": 0.25,
        "full_attention_interval": 4, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
        "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
    },
    not_read=("mlp_bias", "sliding_window", "use_sliding_window", "max_window_layers"),
    read=_read,
    arithmetic={"qk_norm": True, "norm_offset": 1.0, "gated": True},
    partial_rotary=True,
    tensors={
        **IN_SAFETENSORS,
        "delta.in_proj.weight": tuple(f"linear_attn.in_proj_{name}.weight" for name in ("qkv", "b", "a", "z")),
        "delta.conv": ("linear_attn.conv1d.weight",),
        "delta.dt_bias": ("linear_attn.dt_bias",),
        "delta.A_log": ("linear_attn.A_log",),
        "delta.value_norm": ("linear_attn.norm.weight",),
        "delta.out_proj.weight": ("linear_attn.out_proj.weight",),
    },
)  # fmt: skip
