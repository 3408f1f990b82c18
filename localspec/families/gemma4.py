"""Gemma 4: a Gemma 3 whose layers differ.

Layers without a window have heads of their own, and the last layers read keys and values of earlier ones. Values are
normed, one projection may make keys and values, what a layer gives is multiplied by a number, and in small models each
layer reads an input by the token's id. Norms multiply by their weight, without one in addition.

Sizes of the model are those of layers without a window, which have the rotation of the model too.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from localspec.families.family import IN_SAFETENSORS, Family
from localspec.families.gemma3 import OUTPUT_NORMS
from localspec.families.layer_sizes import LayerSizes
from localspec.families.reading import NotComputed, by_pattern, check, number, positive, two_rotations


def _read(found: Mapping[str, Any]) -> dict[str, Any]:
    if found["enable_moe_block"]:
        raise NotComputed("experts (enable_moe_block)")
    check(found, "use_bidirectional_attention", lambda value: value in (None, "vision"))  # texts: from left to right
    width, cap = found["hidden_size_per_layer_input"] or 0, found["final_logit_softcapping"]
    check(found, "hidden_size_per_layer_input", lambda value: not value or positive(value))
    if width and not (
        positive(found["vocab_size_per_layer_input"]) and found["vocab_size_per_layer_input"] >= found["vocab_size"]
    ):
        raise ValueError(
            f"vocab_size_per_layer_input = {str(found['vocab_size_per_layer_input'])[:40]} is not possible"
        )
    check(found, "final_logit_softcapping", lambda value: value is None or (number(value) and 0 < value < 1e6))
    for name in ("attention_k_eq_v", "use_double_wide_mlp"):
        check(found, name, lambda value: isinstance(value, bool))
    types = found["layer_types"] or by_pattern(found["num_hidden_layers"], 6)
    types = (*types[:-1], "full_attention")
    whole = _whole_heads(found, types)
    said = {
        "layer_types": types,
        "query_pre_attn_scalar": 1.0,
        "num_key_value_heads": whole[0],
        "head_dim": whole[1],
        "layer_sizes": _layers(found, types, whole),
        "per_layer_inputs": (width, found["vocab_size_per_layer_input"] if width else 0),
        "logit_cap": float(cap or 0.0),
        "embedding_multiplier": found["hidden_size"] ** 0.5,
    }
    rotation = {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6}
    return said | two_rotations({**found, **said}, rotation, {"rope_theta": 1e4})


def _whole_heads(found: Mapping[str, Any], types: Sequence[str]) -> tuple[int, int]:
    """Return (key heads, channels of a head) of layers without a window, as published files or saved ones say it."""
    heads, told = found["num_key_value_heads"], found.get("per_layer_config")
    if told is None:
        own = found["num_global_key_value_heads"] if found["attention_k_eq_v"] else None
        said = {"num_key_value_heads": heads if own is None else own, "head_dim": found["global_head_dim"]}
    else:
        at = {str(layer) for layer, kind in enumerate(types) if kind == "full_attention"}
        tables = list(told.values()) if isinstance(told, dict) else [None]
        possible = all(isinstance(one, dict) and one == tables[0] for one in tables)
        if not possible or {str(name).lstrip("0") or "0" for name in told} not in (at, set()):
            raise ValueError("per_layer_config: layers without a window are alike here, and so are those with one")
        said = {"num_key_value_heads": heads, "head_dim": found["head_dim"]} | (tables[0] or {} if tables else {})
    if unknown := said.keys() - {"num_key_value_heads", "head_dim"}:
        raise ValueError(
            f"per_layer_config tells of {min(map(str, unknown))!r:.40}, which is the same in all layers here"
        )
    for name in said:
        check(said, name, positive)
    if found["num_attention_heads"] % said["num_key_value_heads"] or said["head_dim"] % 2:
        raise ValueError(f"heads of layers without a window, {said}, are not possible")
    return said["num_key_value_heads"], said["head_dim"]


def _layers(found: Mapping[str, Any], types: Sequence[str], whole: tuple[int, int]) -> tuple[LayerSizes, ...]:
    shared, wide = found["num_kv_shared_layers"], found["intermediate_size"]
    first = len(types) - shared if type(shared) is int else -1
    if not 0 < first <= len(types) or (shared and {*types[:first]} != {*types}):
        raise ValueError(f"num_kv_shared_layers = {str(shared)[:40]} is not possible")
    layers = []
    for layer, kind in enumerate(types):
        local = kind == "sliding_attention"
        heads, head_dim = (found["num_key_value_heads"], found["head_dim"]) if local else whole
        source = max(one for one in range(first) if types[one] == kind) if layer >= first else None
        inner = 2 * wide if source is not None and found["use_double_wide_mlp"] else wide
        layers.append(LayerSizes(heads, head_dim, inner, source, found["attention_k_eq_v"] and not local))
    return tuple(layers)


GEMMA4 = Family(
    model_type="gemma4_text",
    classes={"Gemma4ForCausalLM": "gemma4_text", "Gemma4ForConditionalGeneration": "gemma4"},
    defaults={
        "vocab_size": 262144, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 30,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "global_head_dim": 512,
        "num_global_key_value_heads": None, "max_position_embeddings": 131072,
        "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True, "sliding_window": 512,
        "vocab_size_per_layer_input": 262144, "hidden_size_per_layer_input": 256, "attention_k_eq_v": False,
        "num_kv_shared_layers": 0, "use_double_wide_mlp": False, "enable_moe_block": False,
        "final_logit_softcapping": None, "use_bidirectional_attention": None, "eos_token_id": 1,
    },
    not_read=("hidden_act", "mlp_bias", "use_sliding_window", "max_window_layers", "rope_theta", "rope_scaling"),
    keys={"hidden_act": "hidden_activation"},
    read=_read,
    arithmetic={
        "qk_norm": True, "activation": "gelu", "output_norms": True, "value_norm": True, "layer_scalars": True,
    },
    tensors={
        **IN_SAFETENSORS,
        **OUTPUT_NORMS,
        "embed_tokens_per_layer": ("model.embed_tokens_per_layer.weight",),
        "per_layer_model_projection.weight": ("model.per_layer_model_projection.weight",),
        "per_layer_projection_norm": ("model.per_layer_projection_norm.weight",),
        "per_layer_input_gate.weight": ("per_layer_input_gate.weight",),
        "per_layer_projection.weight": ("per_layer_projection.weight",),
        "per_layer_norm": ("post_per_layer_input_norm.weight",),
        "layer_scalar": ("layer_scalar",),
    },
)  # fmt: skip
