"""What SmolLM3, Granite, Ministral 3 and Gemma 4 say in a config.json in ways of their own; whether it is possible.

`found` is what a file says, with what its family leaves out. ValueError, with a clause, tells what is not possible.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

ORIGINAL = "original_max_position_embeddings"


class NotComputed(ValueError):
    """What a model of a family that is read may have, and no model that is served has: `has` names it."""

    def __init__(self, has: str) -> None:
        super().__init__(f"{has}, which localspec does not compute")


@dataclass(frozen=True)
class LayerSizes:
    """What a layer has where layers of a model differ, in channels.

    `keys_of` is the layer whose keys and values it reads, None where it has its own. With `keys_are_values` one
    projection makes both.
    """

    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    keys_of: int | None = None
    keys_are_values: bool = False

    @property
    def projected(self) -> int:
        """Heads of keys and values that its projection makes beside the queries."""
        return 0 if self.keys_of is not None else self.num_kv_heads * (1 if self.keys_are_values else 2)


def check(values: Mapping[str, Any], name: str, possible: Callable[[Any], bool], where: str = "") -> None:
    """Raises ValueError, with a clause, where the value of a key is not possible."""
    if not possible(values[name]):
        raise ValueError(f"{where}{name} = {str(values[name])[:40]} is not possible")


def number(value: object) -> bool:
    """Whether this is a number, and not a truth value."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def positive(value: object) -> bool:
    """Whether this is a number of things that fits the library."""
    return type(value) is int and 1 <= value < 2**31


def of_smollm3(found: Mapping[str, Any]) -> dict[str, Any]:
    """Some layers of SmolLM3 are not rotated: 0 in `no_rope_layers`, or every so manieth; windows are theirs alone."""
    count, rotated = found["num_hidden_layers"], found["no_rope_layers"]
    if rotated is None:
        check(found, "no_rope_layer_interval", positive)
        rotated = [(layer + 1) % found["no_rope_layer_interval"] for layer in range(count)]
    if not isinstance(rotated, list) or len(rotated) < count or not all(number(one) for one in rotated):
        raise ValueError(f"no_rope_layers = {str(rotated)[:40]} is not possible")
    types = found["layer_types"] or tuple("full_attention" if one else "sliding_attention" for one in rotated[:count])
    return {"unrotated": tuple(not one for one in rotated[:count]), "layer_types": types}


def of_granite(found: Mapping[str, Any]) -> dict[str, Any]:
    """Four multipliers. Of Granite 4 what has neither experts nor recurrent layers is a Granite 3 with other names."""
    names = ("embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling")
    for name in names:
        check(found, name, lambda value: number(value) and 1e-3 <= value <= 1e5)
    said: dict[str, Any] = {name: float(found[name]) for name in names if name != "attention_multiplier"}
    said["query_pre_attn_scalar"] = float(found["attention_multiplier"]) ** -2
    if found["model_type"] == "granite":
        return said
    if found["num_local_experts"]:
        raise NotComputed(f"experts (num_local_experts = {str(found['num_local_experts'])[:40]})")
    types = found["layer_types"] or found.get("layers_block_type") or ["mamba"] * found["num_hidden_layers"]
    said["layer_types"] = tuple("full_attention" if one == "attention" else str(one) for one in types)
    if recurrent := {"mamba", "linear_attention"} & {*said["layer_types"]}:
        raise NotComputed(f"recurrent layers ({recurrent.pop()})")
    if found["position_embedding_type"] not in (None, "rope", "nope"):
        raise ValueError(f"position_embedding_type = {str(found['position_embedding_type'])[:40]} is not possible")
    said["unrotated"] = (found["position_embedding_type"] != "rope",) * found["num_hidden_layers"]
    return said


def query_growth(found: Mapping[str, Any]) -> tuple[float, int] | None:
    """How Ministral 3 lets queries grow beyond the length that it was first trained with."""
    rope = found["rope_parameters"]
    beta = rope.get("llama_4_scaling_beta")
    if not beta:
        return None
    if not number(beta) or not 0 < beta < 100 or not positive(rope.get(ORIGINAL)):
        raise ValueError(f"rope_parameters: llama_4_scaling_beta = {str(beta)[:40]} is not possible")
    return float(beta), rope[ORIGINAL]


def of_gemma4(found: Mapping[str, Any]) -> dict[str, Any]:
    """Layers without a window have heads of their own; the last ones read the keys and values of earlier ones.

    Sizes of the model are those of layers without a window, which have the rotation of the model too.
    """
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
    return {
        "layer_types": types,
        "query_pre_attn_scalar": 1.0,
        "num_key_value_heads": whole[0],
        "head_dim": whole[1],
        "layer_sizes": _gemma4_layers(found, types, whole),
        "per_layer_inputs": (width, found["vocab_size_per_layer_input"] if width else 0),
        "logit_cap": float(cap or 0.0),
    }


def by_pattern(layers: int, every: int) -> tuple[str, ...]:
    """Kinds of layers, of which every so manieth has no window."""
    return tuple("sliding_attention" if layer % every else "full_attention" for layer in range(1, layers + 1))


def _whole_heads(found: Mapping[str, Any], types: Sequence[str]) -> tuple[int, int]:
    """(key heads, channels of a head) of layers without a window: published files and saved ones say it differently."""
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


def _gemma4_layers(found: Mapping[str, Any], types: Sequence[str], whole: tuple[int, int]) -> tuple[LayerSizes, ...]:
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
