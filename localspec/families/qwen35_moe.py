"""Qwen3.5 and 3.6 with experts (35B-A3B): a mixture in the place of each MLP, plus an expert that every token passes.

The latter is the shared expert, computed as an MLP. Its output is multiplied by σ(w · h), where h is its input and w is
`shared_gate`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from localspec.families.family import (
    EXPERTS,
    EXPERTS_IN_GGUF,
    KEYS_IN_GGUF,
    GgufFile,
    from_gguf,
    positive,
    read_experts,
)
from localspec.families.qwen35 import QWEN35

_SHARED = "expert_shared_feed_forward_length"


def _read(found: Mapping[str, Any]) -> dict[str, Any]:
    sizes = read_experts(found, "num_experts", "num_experts_per_tok", "moe_intermediate_size")
    return {**QWEN35.read(found), "experts": replace(sizes, dense=True, gated=True)}


def _from_gguf(content: Mapping[str, Any], file: GgufFile) -> dict[str, Any]:
    sizes = from_gguf(file, "num_experts", "num_experts_per_tok", "moe_intermediate_size")
    if not (shared := file.number(_SHARED)):
        raise ValueError("it lacks the width of its shared expert")
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
    read=_read,
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
        config=_from_gguf,
        keys={**QWEN35.gguf.keys, **KEYS_IN_GGUF, _SHARED: positive},
        own=("feed_forward_length",),
        tensors={
            **QWEN35.gguf.tensors,
            **EXPERTS_IN_GGUF,
            "gate_up_proj.weight": ("ffn_gate_shexp.weight", "ffn_up_shexp.weight"),
            "down_proj.weight": ("ffn_down_shexp.weight",),
            "shared_gate": ("ffn_gate_inp_shexp.weight",),
        },
    ),
)  # fmt: skip
