"""Qwen3.5, 3.6 and 3.8: three of four layers have a recurrent state instead of attention (Gated DeltaNet).

Attention layers have norms of queries and keys, a rotation of a quarter of each head, and a gate on their output. The
gate is projected with the queries: a head's query, its gate, the next head's query. The factor of a norm is one plus
its weight, except for the norm of the values of a recurrent layer. The files include a layer that predicts a token
further ahead (`mtp.*`), which is not part of the model.

In GGUF, 1 is already added to the weights of norms. A decay is stored as -exp of its logarithm. Value heads have
another order: heads that share a key head are `num_key_heads` apart, not consecutive. The layer that predicts further
ahead is counted as the last layer.

Some models (35B-A3B) have a mixture of experts in the place of each MLP, and a shared expert that every token passes.
The shared expert is computed as an MLP. Its output is multiplied by σ(w · h), where h is its input and w is
`shared_gate`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from localspec.families.family import (
    EXPERTS,
    EXPERTS_IN_GGUF,
    IN_GGUF,
    IN_SAFETENSORS,
    KEYS_IN_GGUF,
    LINEAR,
    Change,
    DeltaNet,
    Family,
    Gguf,
    GgufFile,
    by_pattern,
    check,
    from_gguf,
    number,
    positive,
    read_experts,
)

_SIZES = (
    "linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim",
    "linear_conv_kernel_dim",
)  # fmt: skip
_TILED = "_tiled_value_heads"  # key of the config.json that localspec writes for a GGUF file


def _read(config: Mapping[str, Any]) -> dict[str, Any]:
    types = config["layer_types"]
    if types is None:
        check(config, "full_attention_interval", positive)
        types = by_pattern(config["num_hidden_layers"], config["full_attention_interval"], LINEAR)
    for name in _SIZES:
        check(config, name, positive)
    if config["linear_num_value_heads"] % config["linear_num_key_heads"]:
        raise ValueError(
            f"linear_num_value_heads = {config['linear_num_value_heads']} is not a multiple of linear_num_key_heads = "
            f"{config['linear_num_key_heads']}"
        )
    key_heads, value_heads, key_dim, value_dim, taps = (config[name] for name in _SIZES)
    layers, tiled = tuple(kind == LINEAR for kind in types), config.get(_TILED) is True
    sizes = DeltaNet(layers, key_heads, value_heads, key_dim, value_dim, taps, tiled)
    return {"layer_types": types, "delta": sizes if any(sizes.layers) else None}


def _from_gguf(content: Mapping[str, Any], file: GgufFile) -> dict[str, Any]:
    layers = content["num_hidden_layers"] - (file.number("nextn_predict_layers") or 0)
    every = file.number("full_attention_interval") or 4
    flags = (file.by_layer("attention.recurrent_layers") or [])[:layers]
    types = [LINEAR if recurrent else "full_attention" for recurrent in flags] or [*by_pattern(layers, every, LINEAR)]
    sizes = {name: file.number(f"ssm.{gguf_name}") for name, gguf_name in zip(_SIZES, _SIZES_IN_GGUF, strict=True)}
    if missing := next((key for key, value in sizes.items() if not value), None):
        raise ValueError(f"the file has no value for {missing}")
    heads, inner = sizes["linear_num_value_heads"], sizes["linear_value_head_dim"]
    if inner % heads:
        raise ValueError(f"ssm.inner_size = {inner} is not a multiple of ssm.time_step_rank = {heads}")
    return {
        **sizes,
        "num_hidden_layers": layers,
        "layer_types": types,
        "linear_value_head_dim": inner // heads,
        _TILED: True,
    }


# The last but one is the number of channels of all heads together.
_SIZES_IN_GGUF = ("group_count", "time_step_rank", "state_size", "inner_size", "conv_kernel")
_PLUS_ONE: Mapping[str, Change] = dict.fromkeys(
    (
        "output_norm",
        "attn_norm",
        "attn_q_norm",
        "attn_k_norm",
        "post_attention_norm",
        "nextn.enorm",
        "nextn.hnorm",
        "nextn.shared_head_norm",
    ),
    "plus one",
)
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
    leaves_out=True,
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
    ahead={
        "fc.weight": ("mtp.fc.weight",),
        "embedding_norm": ("mtp.pre_fc_norm_embedding.weight",),
        "state_norm": ("mtp.pre_fc_norm_hidden.weight",),
        "norm": ("mtp.norm.weight",),
    },
    gguf=Gguf(
        "qwen35",
        config=_from_gguf,
        keys={
            **{f"ssm.{name}": positive for name in _SIZES_IN_GGUF},
            "full_attention_interval": positive,
            "attention.recurrent_layers": lambda value: value in (0, 1),
            "nextn_predict_layers": lambda value: value in (0, 1),
            "rope.dimension_sections": number,  # of pictures and sounds; in text all three count the same positions
        },
        tensors={
            **IN_GGUF,
            "post_attention_layernorm": ("post_attention_norm.weight",),
            "delta.in_proj.weight": ("attn_qkv.weight", "ssm_beta.weight", "ssm_alpha.weight", "attn_gate.weight"),
            "delta.conv": ("ssm_conv1d.weight",),
            "delta.dt_bias": ("ssm_dt.bias",),
            "delta.A_log": ("ssm_a",),
            "delta.value_norm": ("ssm_norm.weight",),
            "delta.out_proj.weight": ("ssm_out.weight",),
        },
        changes={**_PLUS_ONE, "ssm_a": "-exp"},
        ahead={
            "fc.weight": ("nextn.eh_proj.weight",),
            "embedding_norm": ("nextn.enorm.weight",),
            "state_norm": ("nextn.hnorm.weight",),
            "norm": ("nextn.shared_head_norm.weight",),
        },
    ),
)  # fmt: skip


_SHARED = "expert_shared_feed_forward_length"


def _read_moe(config: Mapping[str, Any]) -> dict[str, Any]:
    sizes = read_experts(config, "num_experts", "num_experts_per_tok", "moe_intermediate_size")
    return {**QWEN35.read(config), "experts": replace(sizes, dense=True, gated=True)}


def _moe_from_gguf(content: Mapping[str, Any], file: GgufFile) -> dict[str, Any]:
    sizes = from_gguf(file, "num_experts", "num_experts_per_tok", "moe_intermediate_size")
    if not (shared := file.number(_SHARED)):
        raise ValueError("the file lacks the width of the shared expert")
    assert QWEN35.gguf is not None
    return {**QWEN35.gguf.config(content, file), **sizes, "intermediate_size": shared,
            "shared_expert_intermediate_size": shared}  # fmt: skip


assert QWEN35.gguf is not None
QWEN35_MOE = replace(
    QWEN35,
    model_type="qwen3_5_moe_text",
    classes={"Qwen3_5MoeForCausalLM": "qwen3_5_moe_text", "Qwen3_5MoeForConditionalGeneration": "qwen3_5_moe"},
    defaults={
        **QWEN35.defaults, "hidden_size": 2048, "num_hidden_layers": 40, "num_key_value_heads": 2,
        "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512, "num_experts_per_tok": 8,
        "num_experts": 256,
    },
    keys={"intermediate_size": "shared_expert_intermediate_size"},
    read=_read_moe,
    tensors={
        **QWEN35.tensors,
        **EXPERTS,
        "gate_up_proj.weight": ("mlp.shared_expert.gate_proj.weight", "mlp.shared_expert.up_proj.weight"),
        "down_proj.weight": ("mlp.shared_expert.down_proj.weight",),
        "shared_gate": ("mlp.shared_expert_gate.weight",),
    },
    gguf=replace(
        QWEN35.gguf,
        architecture="qwen35moe",
        config=_moe_from_gguf,
        keys={**QWEN35.gguf.keys, **KEYS_IN_GGUF, _SHARED: positive},
        left_to_config=("feed_forward_length",),
        tensors={
            **QWEN35.gguf.tensors,
            **EXPERTS_IN_GGUF,
            "gate_up_proj.weight": ("ffn_gate_shexp.weight", "ffn_up_shexp.weight"),
            "down_proj.weight": ("ffn_down_shexp.weight",),
            "shared_gate": ("ffn_gate_inp_shexp.weight",),
        },
    ),
)  # fmt: skip
