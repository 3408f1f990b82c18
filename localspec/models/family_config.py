"""What SmolLM3, Granite and Ministral 3 say in a config.json in ways of their own; whether values there are possible.

`found` is what a file says, with what its family leaves out. ValueError, with a clause, tells what is not possible.
"""

from collections.abc import Callable, Mapping
from typing import Any

ORIGINAL = "original_max_position_embeddings"


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
        raise ValueError(f"num_local_experts = {str(found['num_local_experts'])[:40]}: experts are not computed here")
    names_now = {"attention": "full_attention", "mamba": "linear_attention"}
    types = found["layer_types"] or found.get("layers_block_type") or ["linear_attention"] * found["num_hidden_layers"]
    said["layer_types"] = tuple(names_now.get(str(one), str(one)) for one in types)
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
