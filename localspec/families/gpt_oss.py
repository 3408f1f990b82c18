"""gpt-oss: mixtures of experts with biases and a clamped gate, windows in every second layer, attention with sinks.

A sink is a score of each head that counts in the softmax but has no value, so it only makes the other weights smaller.
The experts were published in MXFP4, which is a type of blocks in GGUF. localspec does not read their form in
safetensors, in which rows of gate and up alternate.
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
    by_pattern,
    check,
    from_gguf,
    number,
    read_experts,
)

# The output of the clamped gate for a gate g and an up u is g σ(_ALPHA g) (u + 1), where g is first limited to at most
# _LIMIT, and u to ±_LIMIT.
_ALPHA, _LIMIT = 1.702, 7.0


def _types(layers: int) -> tuple[str, ...]:
    """Return the kinds of layers: windows in the first, the third, and so on."""
    return by_pattern(layers, 2)


def _read(config: Mapping[str, Any]) -> dict[str, Any]:
    check(config, "swiglu_limit", lambda value: number(value) and 0 < value < 1e6)
    if config["swiglu_alpha"] != _ALPHA:
        raise NotComputed(f"a gate with swiglu_alpha = {str(config['swiglu_alpha'])[:40]}")
    return {
        "layer_types": config["layer_types"] or _types(config["num_hidden_layers"]),
        "experts": read_experts(config, "num_local_experts", "num_experts_per_tok", "intermediate_size"),
        "gate_limit": float(config["swiglu_limit"]),
    }


def _from_gguf(content: Mapping[str, Any], file: GgufFile) -> dict[str, Any]:
    sizes = from_gguf(file, "num_local_experts", "num_experts_per_tok", "intermediate_size")
    rope = content["rope_parameters"]
    types = [*_types(content["num_hidden_layers"])]
    return {
        **sizes,
        "layer_types": types if content["sliding_window"] else ["full_attention"] * len(types),
        "attention_bias": True,
        "mlp_bias": True,
        # the file lacks `truncate`; the published config.json has this value
        "rope_parameters": {**rope, "truncate": False} if rope["rope_type"] == "yarn" else rope,
    }


GPT_OSS = Family(
    model_type="gpt_oss",
    classes={"GptOssForCausalLM": "gpt_oss"},
    defaults={
        "vocab_size": 201088, "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 36,
        "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "max_position_embeddings": 131072,
        "sliding_window": 128, "rms_norm_eps": 1e-5, "num_local_experts": 128, "num_experts_per_tok": 4,
        "swiglu_alpha": _ALPHA, "swiglu_limit": _LIMIT, "attention_bias": True, "mlp_bias": True,
        "rope_theta": 150000.0,
    },
    not_read=("use_sliding_window", "max_window_layers", "mlp_bias"),
    leaves_out=True,
    read=_read,
    arithmetic={"activation": "clamped", "sinks": True},
    tensors={**IN_SAFETENSORS, **EXPERTS, "router.weight": ("mlp.router.weight",), "sinks": ("self_attn.sinks",)},
    gguf_only="ggml-org/gpt-oss-20b-GGUF",
    gguf=Gguf(
        "gpt-oss",
        config=_from_gguf,
        keys=KEYS_IN_GGUF,
        left_to_config=("feed_forward_length",),
        tensors={
            **IN_GGUF,
            **EXPERTS_IN_GGUF,
            "post_attention_layernorm": ("post_attention_norm.weight",),
            "sinks": ("attn_sinks.weight",),
        },
        windows=True,
    ),
    sampling=(Sampled("gpt-oss", r"gpt-?oss", 1.0, 1.0),),  # card of gpt-oss-20b
)  # fmt: skip
