"""Gemma 4: a Gemma 3 whose layers differ from each other.

Layers without a window differ in the number and width of heads, and the last layers read keys and values of earlier
layers. Values have a norm, and one projection may make both keys and values. The output of a layer is multiplied by a
number. In small models each layer has an additional input, which is looked up by the token's id. The 26B-A4B has
experts in each layer in addition to the MLP. The factor of a norm is its weight, not one plus its weight.

In GGUF, an array says which layers have a window. The rotation of the others is in `rope_freqs.weight`, the divisors of
frequencies: channels that are not rotated have the divisor 1e30.

The 12B has another model type, `gemma4_unified`, but the same arithmetic.

In names below, `whole` stands for layers without a window and `local` for layers with one. `num_key_value_heads`,
`head_dim` and `rope_parameters` of a ModelConfig are those of layers without a window.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from localspec.families.family import (
    EXPERTS_IN_GGUF,
    IN_GGUF,
    IN_SAFETENSORS,
    KEYS_IN_GGUF,
    Family,
    Gguf,
    GgufFile,
    LayerSizes,
    by_pattern,
    check,
    from_gguf,
    number,
    positive,
    read_experts,
    two_rotations,
)
from localspec.families.gemma3 import OUTPUT_NORMS, OUTPUT_NORMS_IN_GGUF


def _read(config: Mapping[str, Any]) -> dict[str, Any]:
    # "vision": attention in both directions only within images, which localspec does not read
    check(config, "use_bidirectional_attention", lambda value: value in (None, "vision"))
    width, cap = config["hidden_size_per_layer_input"] or 0, config["final_logit_softcapping"]
    check(config, "hidden_size_per_layer_input", lambda value: not value or positive(value))
    if width and not (
        positive(config["vocab_size_per_layer_input"]) and config["vocab_size_per_layer_input"] >= config["vocab_size"]
    ):
        raise ValueError(
            f"vocab_size_per_layer_input is {str(config['vocab_size_per_layer_input'])[:40]}; it must be an integer of "
            f"at least vocab_size = {config['vocab_size']}"
        )
    check(config, "final_logit_softcapping", lambda value: value is None or (number(value) and 0 < value < 1e6))
    for name in ("attention_k_eq_v", "use_double_wide_mlp"):
        check(config, name, lambda value: isinstance(value, bool))
    types = config["layer_types"] or by_pattern(config["num_hidden_layers"], 6)
    types = (*types[:-1], "full_attention")  # whatever the file says of the last layer, as in transformers
    whole = _whole_heads(config, types)
    fields = {
        "layer_types": types,
        "query_pre_attn_scalar": 1.0,
        "num_key_value_heads": whole[0],
        "head_dim": whole[1],
        "layer_sizes": _layers(config, types, whole),
        "per_layer_inputs": (width, config["vocab_size_per_layer_input"] if width else 0),
        "logit_cap": float(cap or 0.0),
        "embedding_multiplier": config["hidden_size"] ** 0.5,
    }
    if config["enable_moe_block"]:
        sizes = read_experts(config, "num_experts", "top_k_experts", "moe_intermediate_size")
        fields["experts"] = replace(sizes, dense=True, norms=True)
    rotation = {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6}
    return fields | two_rotations({**config, **fields}, rotation, {"rope_theta": 1e4})


def _whole_heads(config: Mapping[str, Any], types: Sequence[str]) -> tuple[int, int]:
    """Return (key heads, channels of a head) of layers without a window.

    Published files have separate keys for these sizes. Files that transformers saved have a table `per_layer_config`.
    Raises ValueError for impossible sizes.
    """
    heads, by_layer = config["num_key_value_heads"], config.get("per_layer_config")
    if by_layer is None:
        key_heads = config["num_global_key_value_heads"] if config["attention_k_eq_v"] else None
        sizes = {
            "num_key_value_heads": heads if key_heads is None else key_heads,
            "head_dim": config["global_head_dim"],
        }
    else:
        whole_layers = {str(layer) for layer, kind in enumerate(types) if kind == "full_attention"}
        tables = list(by_layer.values()) if isinstance(by_layer, dict) else [None]
        possible = all(isinstance(table, dict) and table == tables[0] for table in tables)
        # the table's keys are numbers of layers, perhaps with leading zeros; an empty table changes nothing
        if not possible or {str(name).lstrip("0") or "0" for name in by_layer} not in (whole_layers, set()):
            raise ValueError("per_layer_config: layers without a window must have the same sizes")
        sizes = {"num_key_value_heads": heads, "head_dim": config["head_dim"]} | (tables[0] or {} if tables else {})
    if unknown := sizes.keys() - {"num_key_value_heads", "head_dim"}:
        key = min(map(str, unknown))
        raise ValueError(f"per_layer_config sets {key!r:.40} for some layers, but it must be the same in all layers")
    for name in sizes:
        check(sizes, name, positive)
    if config["num_attention_heads"] % sizes["num_key_value_heads"] or sizes["head_dim"] % 2:
        raise ValueError(
            f"layers without a window have num_key_value_heads = {sizes['num_key_value_heads']} and head_dim = "
            f"{sizes['head_dim']}, but the first must divide num_attention_heads = {config['num_attention_heads']}, "
            "and the second must be even"
        )
    return sizes["num_key_value_heads"], sizes["head_dim"]


def _layers(config: Mapping[str, Any], types: Sequence[str], whole: tuple[int, int]) -> tuple[LayerSizes, ...]:
    """Return the sizes of each layer. Raises ValueError if layers cannot share keys and values as the file says."""
    shared, width = config["num_kv_shared_layers"], config["intermediate_size"]
    first = len(types) - shared if type(shared) is int else -1
    if not 0 < first <= len(types) or (shared and {*types[:first]} != {*types}):
        raise ValueError(f"num_kv_shared_layers = {str(shared)[:40]} is not possible")
    layers = []
    for layer, kind in enumerate(types):
        local = kind == "sliding_attention"
        heads, head_dim = (config["num_key_value_heads"], config["head_dim"]) if local else whole
        source = max(index for index in range(first) if types[index] == kind) if layer >= first else None
        inner = 2 * width if source is not None and config["use_double_wide_mlp"] else width
        layers.append(LayerSizes(heads, head_dim, inner, source, config["attention_k_eq_v"] and not local))
    return tuple(layers)


def _from_gguf(content: Mapping[str, Any], file: GgufFile) -> dict[str, Any]:
    layers, whole_dim = content["num_hidden_layers"], content["head_dim"]
    slides = file.by_layer("attention.sliding_window_pattern") or []
    if len(slides) != layers:
        raise ValueError(f"attention.sliding_window_pattern has {len(slides)} values for {layers} layers")
    keys, widths = ((file.by_layer(key) or [None]) for key in ("attention.head_count_kv", "feed_forward_length"))
    keys, widths = (numbers * layers if len(numbers) == 1 else numbers for numbers in (keys, widths))
    if len(keys) != layers or len(widths) != layers:
        raise ValueError(
            f"head_count_kv has {len(keys)} and feed_forward_length {len(widths)} numbers for {layers} layers"
        )
    whole = next((layer for layer, windowed in enumerate(slides) if not windowed), layers - 1)
    local = next((layer for layer, windowed in enumerate(slides) if windowed), whole)
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "layer_types": ["sliding_attention" if windowed else "full_attention" for windowed in slides],
        "sliding_window": content["sliding_window"] or file.number("attention.sliding_window"),
        "num_key_value_heads": keys[local],
        "num_global_key_value_heads": keys[whole],
        "head_dim": file.number("attention.key_length_swa"),
        "global_head_dim": whole_dim,
        "attention_k_eq_v": f"blk.{whole}.attn_v.weight" not in file.shapes,
        "intermediate_size": widths[0],
        "use_double_wide_mlp": widths[-1] != widths[0],
        "num_kv_shared_layers": file.number("attention.shared_kv_layers") or 0,
        "hidden_size_per_layer_input": file.number("embedding_length_per_layer_input") or 0,
        "vocab_size_per_layer_input": file.shapes.get(_LAYER_TABLE, [0])[0],
        "final_logit_softcapping": file.number("final_logit_softcapping") or None,
        **_experts_from_gguf(file),
        "rope_parameters": {
            "full_attention": _proportional(content["rope_parameters"]["rope_theta"], file),
            "sliding_attention": {"rope_type": "default", "rope_theta": file.number("rope.freq_base_swa") or 1e4},
        },
    }


def _experts_from_gguf(file: GgufFile) -> dict[str, Any]:
    if not file.number("expert_count"):
        return {"enable_moe_block": False}
    return {"enable_moe_block": True, **from_gguf(file, "num_experts", "top_k_experts", "moe_intermediate_size")}


def _proportional(theta: float, file: GgufFile) -> dict[str, Any]:
    """Return the `rope_parameters` of layers without a window, from the divisors in the tensor `rope_freqs.weight`."""
    factors = file.factors("rope_freqs.weight") if "rope_freqs.weight" in file.shapes else [1.0]
    rotated = [factor for factor in factors if factor < _UNROTATED]
    unrotated = factors[len(rotated) :]
    if len({*rotated}) != 1 or not all(factor >= _UNROTATED for factor in unrotated):
        raise ValueError("rope_freqs.weight must be one number for all rotated channels, and 1e30 for the others")
    return {
        "rope_type": "proportional",
        "rope_theta": theta,
        "partial_rotary_factor": len(rotated) / len(factors),
        "factor": rotated[0],
    }


_LAYER_TABLE, _UNROTATED = "per_layer_token_embd.weight", 1e20
_WIDTH = "attention.key_length_swa", "attention.value_length_swa", "rope.dimension_count_swa"
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
        "num_experts": None, "top_k_experts": None, "moe_intermediate_size": None,
        "final_logit_softcapping": None, "use_bidirectional_attention": None, "eos_token_id": 1,
    },
    not_read=("hidden_act", "mlp_bias", "use_sliding_window", "max_window_layers", "rope_theta", "rope_scaling"),
    keys={"hidden_act": "hidden_activation"},
    leaves_out=True,
    experts_together=True,
    read=_read,
    arithmetic={
        "qk_norm": True, "activation": "gelu", "output_norms": True, "value_norm": True, "layer_scalars": True,
    },
    tensors={
        **IN_SAFETENSORS,
        **OUTPUT_NORMS,
        "router.weight": ("router.proj.weight",),
        "router_norm": ("router.scale",),
        "expert_scale": ("router.per_expert_scale",),
        "experts.gate_up_proj.weight": ("experts.{}.gate_proj.weight", "experts.{}.up_proj.weight"),
        "experts.down_proj.weight": ("experts.{}.down_proj.weight",),
        "expert_norm": ("pre_feedforward_layernorm_2.weight",),
        "mlp_out_norm": ("post_feedforward_layernorm_1.weight",),
        "expert_out_norm": ("post_feedforward_layernorm_2.weight",),
        "embed_tokens_per_layer": ("model.embed_tokens_per_layer.weight",),
        "per_layer_model_projection.weight": ("model.per_layer_model_projection.weight",),
        "per_layer_projection_norm": ("model.per_layer_projection_norm.weight",),
        "per_layer_input_gate.weight": ("per_layer_input_gate.weight",),
        "per_layer_projection.weight": ("per_layer_projection.weight",),
        "per_layer_norm": ("post_per_layer_input_norm.weight",),
        "layer_scalar": ("layer_scalar",),
    },
    gguf=Gguf(
        "gemma4",
        config=_from_gguf,
        keys={
            **dict.fromkeys(_WIDTH, positive),
            "rope.freq_base_swa": lambda value: number(value) and 1 < value <= 1e12,
            "attention.sliding_window_pattern": lambda value: value in (0, 1),
            "attention.shared_kv_layers": lambda value: value == 0 or positive(value),
            "embedding_length_per_layer_input": lambda value: value == 0 or positive(value),
            "final_logit_softcapping": lambda value: number(value) and 0 <= value < 1e6,
            **KEYS_IN_GGUF,
            "expert_count": lambda value: value == 0 or positive(value),
        },
        left_to_config=("attention.head_count_kv", "feed_forward_length"),
        tensors={
            **IN_GGUF,
            **OUTPUT_NORMS_IN_GGUF,
            **EXPERTS_IN_GGUF,
            "router_norm": ("ffn_gate_inp.scale",),
            "expert_scale": ("ffn_down_exps.scale",),
            "expert_norm": ("pre_ffw_norm_2.weight",),
            "mlp_out_norm": ("post_ffw_norm_1.weight",),
            "expert_out_norm": ("post_ffw_norm_2.weight",),
            "embed_tokens_per_layer": (_LAYER_TABLE,),
            "per_layer_model_projection.weight": ("per_layer_model_proj.weight",),
            "per_layer_projection_norm": ("per_layer_proj_norm.weight",),
            "per_layer_input_gate.weight": ("inp_gate.weight",),
            "per_layer_projection.weight": ("proj.weight",),
            "per_layer_norm": ("post_norm.weight",),
            "layer_scalar": ("layer_output_scale.weight",),
        },
        windows=True,
    ),
)  # fmt: skip
UNIFIED = replace(
    GEMMA4,
    model_type="gemma4_unified_text",
    classes={
        "Gemma4UnifiedForCausalLM": "gemma4_unified_text", "Gemma4UnifiedForConditionalGeneration": "gemma4_unified",
    },
    defaults={
        **GEMMA4.defaults, "hidden_size_per_layer_input": 0, "max_position_embeddings": 262144, "sliding_window": 1024,
    },
)  # fmt: skip
