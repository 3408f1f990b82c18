"""Gemma 3: norms of queries and keys, norms after attention and MLP, GELU, and two rotations.

The factor of a norm is one plus its weight. Embeddings are multiplied by the square root of their width. Scores are
divided by the square root of a number in config.json. One in six layers attends to the whole text; the others have a
window, and a rotation with another base.

In GGUF, 1 is already added to the weights of norms. GGUF files do not have the pattern of layers. Those made before
November 2026 also lack two values that are built into llama.cpp: the base of layers with a window, and the divisor of
the scores.
"""

import math
from collections.abc import Mapping
from typing import Any

from localspec.families.family import (
    IN_GGUF,
    IN_SAFETENSORS,
    Family,
    Gguf,
    GgufFile,
    Sampled,
    by_pattern,
    check,
    number,
    positive,
    two_rotations,
)

_PATTERN, _LOCAL_BASE = 6, 1e4
OUTPUT_NORMS = {
    "o_norm": ("post_attention_layernorm.weight",),
    "post_attention_layernorm": ("pre_feedforward_layernorm.weight",),
    "down_norm": ("post_feedforward_layernorm.weight",),
}
OUTPUT_NORMS_IN_GGUF = {"o_norm": ("post_attention_norm.weight",), "down_norm": ("post_ffw_norm.weight",)}
_SOFT_CAPS = ("final_logit_softcapping", "attn_logit_softcapping")


def _read(config: Mapping[str, Any]) -> dict[str, Any]:
    if config.get("use_bidirectional_attention"):
        raise ValueError("use_bidirectional_attention is set, but localspec reads texts only from left to right")
    check(config, "query_pre_attn_scalar", lambda value: number(value) and 0 < value < math.inf)
    types = config["layer_types"]
    if types is None:
        check(config, "sliding_window_pattern", positive)
        types = by_pattern(config["num_hidden_layers"], config["sliding_window_pattern"])
    fields = {
        "layer_types": types,
        "query_pre_attn_scalar": float(config["query_pre_attn_scalar"]),
        "soft_caps": any(config.get(name) is not None for name in _SOFT_CAPS),
        "embedding_multiplier": config["hidden_size"] ** 0.5,
    }
    return fields | two_rotations({**config, **fields}, {}, {"rope_theta": config["rope_local_base_freq"]})


def _from_gguf(content: Mapping[str, Any], file: GgufFile) -> dict[str, Any]:
    layers, heads = content["num_hidden_layers"], content["num_attention_heads"]
    # llama.cpp knows the 27B by its number of layers: its scores are divided by the width of all heads together.
    scalar = content["hidden_size"] // heads if layers == 62 else content["head_dim"]
    slides = file.by_layer("attention.sliding_window_pattern") or [_PATTERN]
    if len(slides) == 1 and positive(slides[0]):
        types = by_pattern(layers, slides[0])
    elif len(slides) == layers:
        types = tuple("sliding_attention" if windowed else "full_attention" for windowed in slides)
    else:
        raise ValueError(f"attention.sliding_window_pattern has {len(slides)} values for {layers} layers")
    if content["sliding_window"] is None:
        types = ("full_attention",) * layers
    local = {"rope_type": "default", "rope_theta": file.number("rope.freq_base_swa") or _LOCAL_BASE}
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": scalar,
        "layer_types": [*types],
        "rope_parameters": {"full_attention": content["rope_parameters"], "sliding_attention": local},
    }


GEMMA3 = Family(
    model_type="gemma3_text",
    classes={"Gemma3ForCausalLM": "gemma3_text", "Gemma3ForConditionalGeneration": "gemma3"},
    defaults={
        "vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 131072,
        "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True, "sliding_window": 4096,
        "query_pre_attn_scalar": 256, "rope_theta": 1e6, "rope_local_base_freq": _LOCAL_BASE,
        "sliding_window_pattern": _PATTERN, "eos_token_id": 1,
    },
    not_read=("hidden_act", "mlp_bias", "use_sliding_window", "max_window_layers"),
    keys={"hidden_act": "hidden_activation"},
    leaves_out=True,
    read=_read,
    arithmetic={"qk_norm": True, "activation": "gelu", "output_norms": True, "norm_offset": 1.0},
    tensors={**IN_SAFETENSORS, **OUTPUT_NORMS},
    gguf=Gguf(
        "gemma3",
        config=_from_gguf,
        keys={"rope.freq_base_swa": lambda value: number(value) and 1 < value <= 1e12,
              "attention.sliding_window_pattern": lambda value: value in (0, 1) or positive(value)},
        tensors={**IN_GGUF, **OUTPUT_NORMS_IN_GGUF},
        changes=dict.fromkeys(
            ("output_norm", "attn_norm", "attn_q_norm", "attn_k_norm", "post_attention_norm", "ffn_norm",
             "post_ffw_norm"), "plus one",
        ),
        windows=True,
    ),
    sampling=(Sampled("Gemma 3", r"gemma-?3(?!\d|b\b)", 1.0, 0.95, 64),),  # the Gemma team's advice
    nearest={"Gemma": "gemma-3-4b-it"},
)  # fmt: skip
