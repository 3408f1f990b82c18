"""Granite 3 and dense Granite 4: Llama with four multipliers.

A Granite 4 without experts and recurrent layers is a Granite 3 with other names, gate and up in one tensor, and with or
without a rotation. In GGUF both are `granite`, with gate and up as two tensors. Without a rotation, the file has
`rope.scaling.finetuned = false`.
"""

from collections.abc import Mapping
from typing import Any

from localspec.families.family import (
    IN_SAFETENSORS,
    PAIRS,
    Family,
    Gguf,
    GgufFile,
    NotComputed,
    check,
    number,
    positive,
)

_MULTIPLIERS = ("embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling")


def _read(config: Mapping[str, Any]) -> dict[str, Any]:
    for name in _MULTIPLIERS:
        check(config, name, lambda value: number(value) and 1e-3 <= value <= 1e5)
    multipliers: dict[str, Any] = {name: float(config[name]) for name in _MULTIPLIERS if name != "attention_multiplier"}
    return {**multipliers, "query_pre_attn_scalar": float(config["attention_multiplier"]) ** -2}


def _read_4(config: Mapping[str, Any]) -> dict[str, Any]:
    fields = _read(config)
    if config["num_local_experts"]:
        raise NotComputed(f"experts (num_local_experts = {str(config['num_local_experts'])[:40]})")
    types = config["layer_types"] or config.get("layers_block_type") or ["mamba"] * config["num_hidden_layers"]
    fields["layer_types"] = tuple("full_attention" if kind == "attention" else str(kind) for kind in types)
    if recurrent := {"mamba", "linear_attention"} & {*fields["layer_types"]}:
        kind = min(recurrent)
        raise NotComputed(f"recurrent layers ({kind})")
    if config["position_embedding_type"] not in (None, "rope", "nope"):
        raise ValueError(f"position_embedding_type = {str(config['position_embedding_type'])[:40]} is not possible")
    fields["unrotated"] = (config["position_embedding_type"] != "rope",) * config["num_hidden_layers"]
    return fields


def _from_gguf(content: Mapping[str, Any], file: GgufFile) -> dict[str, Any]:
    multipliers = {
        "embedding_multiplier": file.number("embedding_scale") or 1.0,
        "attention_multiplier": file.number("attention.scale") or content["head_dim"] ** -0.5,
        "residual_multiplier": file.number("residual_scale") or 1.0,
        "logits_scaling": file.number("logit_scale") or 1.0,
    }
    if file.by_layer("rope.scaling.finetuned") != [False]:
        return multipliers
    return {
        **multipliers,
        "architectures": [next(iter(GRANITE_4.classes))],
        "model_type": GRANITE_4.model_type,
        "shared_intermediate_size": content["intermediate_size"],
        "num_local_experts": 0,
        "layer_types": ["attention"] * content["num_hidden_layers"],
        "position_embedding_type": "nope",
    }


# Converters write the sizes of recurrent layers into files of a dense Granite 4, which has none.
_UNUSED = tuple(f"ssm.{name}" for name in ("conv_kernel", "state_size", "group_count", "time_step_rank", "inner_size"))
_SCALES = ("embedding_scale", "attention.scale", "residual_scale", "logit_scale")
_GGUF = Gguf(
    "granite",
    config=_from_gguf,
    keys=dict.fromkeys(_SCALES, lambda value: value == 0 or (number(value) and 1e-3 <= value <= 1e5))
    | dict.fromkeys(_UNUSED, positive)
    | {"rope.scaling.finetuned": lambda value: isinstance(value, bool)},
    changes=PAIRS,
)
_DEFAULTS = {
    "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "max_position_embeddings": 2048,
    "embedding_multiplier": 1.0, "attention_multiplier": 1.0, "residual_multiplier": 1.0, "logits_scaling": 1.0,
    "eos_token_id": 2,
}  # fmt: skip
GRANITE = Family(
    model_type="granite",
    classes={"GraniteForCausalLM": "granite"},
    defaults=_DEFAULTS,
    not_read=("sliding_window", "use_sliding_window", "max_window_layers", "layer_types"),
    read=_read,
    gguf=_GGUF,
    nearest={"Granite": "granite-4.0-micro"},
)
GRANITE_4 = Family(
    model_type="granitemoehybrid",
    classes={"GraniteMoeHybridForCausalLM": "granitemoehybrid"},
    defaults={
        **_DEFAULTS, "shared_intermediate_size": 1024, "num_local_experts": 8, "position_embedding_type": None,
    },
    not_read=("intermediate_size", "mlp_bias", "sliding_window", "use_sliding_window", "max_window_layers"),
    keys={"intermediate_size": "shared_intermediate_size"},
    read=_read_4,
    tensors={
        **IN_SAFETENSORS,
        "gate_up_proj.weight": ("shared_mlp.input_linear.weight",),
        "down_proj.weight": ("shared_mlp.output_linear.weight",),
    },
    gguf=_GGUF,
)  # fmt: skip
