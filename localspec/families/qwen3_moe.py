"""Qwen3 with a mixture of experts in the place of each MLP, such as Qwen3-30B-A3B."""

from collections.abc import Mapping
from typing import Any

from localspec.families.family import (
    EXPERTS,
    EXPERTS_IN_GGUF,
    IN_GGUF,
    IN_SAFETENSORS,
    KEYS_IN_GGUF,
    Family,
    Gguf,
    GgufFile,
    NotComputed,
    from_gguf,
    read_experts,
)
from localspec.families.qwen2 import DEFAULTS


def _read(found: Mapping[str, Any]) -> dict[str, Any]:
    if found["decoder_sparse_step"] != 1 or found["mlp_only_layers"]:
        raise NotComputed("layers without experts between layers with experts")
    normalised = found["norm_topk_prob"] is True
    # transformers 5 writes `num_local_experts`, and `num_experts` is then only a default
    found = {**found, "num_experts": found.get("num_local_experts", found["num_experts"])}
    sizes = read_experts(found, "num_experts", "num_experts_per_tok", "moe_intermediate_size", normalised)
    return {"experts": sizes}


def _from_gguf(content: Mapping[str, Any], file: GgufFile) -> dict[str, Any]:
    sizes = from_gguf(file, "num_experts", "num_experts_per_tok", "moe_intermediate_size")
    return {**sizes, "norm_topk_prob": True}  # as llama.cpp computes this architecture; the file does not say it


QWEN3_MOE = Family(
    model_type="qwen3_moe",
    classes={"Qwen3MoeForCausalLM": "qwen3_moe"},
    defaults={
        **DEFAULTS, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 24, "num_key_value_heads": 4,
        "decoder_sparse_step": 1, "moe_intermediate_size": 768, "num_experts_per_tok": 8, "num_experts": 128,
        "norm_topk_prob": False, "mlp_only_layers": [],
    },
    not_read=("mlp_bias",),
    leaves_out=True,
    read=_read,
    arithmetic={"qk_norm": True},
    tensors={**IN_SAFETENSORS, **EXPERTS},
    gguf=Gguf("qwen3moe", config=_from_gguf, keys=KEYS_IN_GGUF, tensors={**IN_GGUF, **EXPERTS_IN_GGUF}),
    nearest={"Qwen3Moe": "qwen3-30b-a3b-2507"},
)  # fmt: skip
