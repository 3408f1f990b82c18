"""Phi-3 and Phi-4: Llama with fused projections, a rotation of a part of each head, and LongRoPE under several names.

In GGUF the factors of LongRoPE are two separate tensors. The tokenizer drops blanks after the marks of turns.
"""

from collections.abc import Mapping
from typing import Any

from localspec.families.family import IN_GGUF, IN_SAFETENSORS, ORIGINAL, Family, Gguf, GgufFile


def _read(config: Mapping[str, Any]) -> dict[str, Any]:
    scaling = config.get("rope_scaling") or config.get("rope_parameters")
    if isinstance(scaling, dict) and scaling.get("rope_type", scaling.get("type")) in ("su", "yarn"):
        return {"rope_scaling": {**scaling, "rope_type": "longrope"}}
    return {}


def _from_gguf(content: Mapping[str, Any], file: GgufFile) -> dict[str, Any]:
    return {ORIGINAL: content["rope_parameters"].get(ORIGINAL) or content["max_position_embeddings"]}


PHI3 = Family(
    model_type="phi3",
    classes={"Phi3ForCausalLM": "phi3"},
    defaults={
        "vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192, "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5, "eos_token_id": 32000, ORIGINAL: 4096,
    },
    not_read=("attention_bias", "mlp_bias", "use_sliding_window", "max_window_layers", "layer_types"),
    read=_read,
    partial_rotary=True,
    tensors={
        **IN_SAFETENSORS,
        "qkv_proj.weight": ("self_attn.qkv_proj.weight",),
        "gate_up_proj.weight": ("mlp.gate_up_proj.weight",),
    },
    gguf=Gguf(
        "phi3",
        config=_from_gguf,
        tensors={**IN_GGUF, "qkv_proj.weight": ("attn_qkv.weight",), "gate_up_proj.weight": ("ffn_up.weight",)},
        windows=True,
    ),
    nearest={"Phi": "phi4-mini"},
)  # fmt: skip
