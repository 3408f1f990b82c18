"""Qwen2, Qwen2.5 and Qwen3.

Qwen2 is Llama with biases of queries, keys and values, and windows from some layer on. Qwen3 has no biases, but norms
of each query and each key. Some Qwen3 models, such as Qwen3-30B-A3B, have a mixture of experts in place of each MLP.
"""

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
    Sampled,
    from_gguf,
    read_experts,
)

DEFAULTS = {
    "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016, "num_key_value_heads": 32,
    "max_position_embeddings": 32768, "use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28,
}  # fmt: skip

QWEN2 = Family(
    model_type="qwen2",
    classes={"Qwen2ForCausalLM": "qwen2"},
    defaults=DEFAULTS,
    not_read=("attention_bias", "mlp_bias"),
    arithmetic={"qkv_bias": True},
    gguf=Gguf("qwen2"),
    sampling=(
        Sampled("QwQ", "qwq", 0.6, 0.95),  # card of QwQ-32B
        Sampled("Qwen2.5", r"qwen-?2\.5", 0.7, 0.8, 20),  # config of Qwen2.5-7B-Instruct
    ),
)

QWEN3 = Family(
    model_type="qwen3",
    classes={"Qwen3ForCausalLM": "qwen3"},
    defaults={**DEFAULTS, "head_dim": 128},
    not_read=("mlp_bias",),
    arithmetic={"qk_norm": True},
    gguf=Gguf("qwen3"),
    sampling=(
        Sampled("Qwen3", r"qwen-?3(?!\.?\d|b\b)", 0.6, 0.95, 20, answering=(0.7, 0.8, 20)),
    ),  # card of Qwen3-0.6B
    nearest={"Qwen": "qwen3-4b"},
)


def _read(config: Mapping[str, Any]) -> dict[str, Any]:
    if config["decoder_sparse_step"] != 1 or config["mlp_only_layers"]:
        raise NotComputed("layers without experts between layers with experts")
    normalised = config["norm_topk_prob"] is True
    # transformers 5 writes `num_local_experts`, and `num_experts` is then only a default
    config = {**config, "num_experts": config.get("num_local_experts", config["num_experts"])}
    sizes = read_experts(config, "num_experts", "num_experts_per_tok", "moe_intermediate_size", normalised)
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
