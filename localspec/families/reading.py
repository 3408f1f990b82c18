"""Shared code of families for config.json: checks of values, kinds of layers by a pattern, rotations.

`found` is the content of a file with the family's defaults. Impossible values raise ValueError, whose message is a
clause.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

ORIGINAL = "original_max_position_embeddings"
MOST_POSITIONS = 2**31  # limit of the library


class NotComputed(ValueError):
    """An error: the model has a property (`has`) that its family allows and localspec does not compute."""

    def __init__(self, has: str) -> None:
        super().__init__(f"{has}, which localspec does not compute")


def check(values: Mapping[str, Any], name: str, possible: Callable[[Any], bool], where: str = "") -> None:
    """Raise ValueError if the value of a key is impossible. Its message is a clause."""
    if not possible(values[name]):
        raise ValueError(f"{where}{name} = {str(values[name])[:40]} is not possible")


def number(value: object) -> bool:
    """Return whether this is a number and not a Boolean."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def positive(value: object) -> bool:
    """Return whether this is a positive integer that fits in the compiled library's 32 bits."""
    return type(value) is int and 1 <= value < 2**31


def by_pattern(layers: int, every: int, others: str = "sliding_attention") -> tuple[str, ...]:
    """Return kinds of layers: the last of each `every` layers attends to the whole text, the rest are `others`."""
    return tuple(others if layer % every else "full_attention" for layer in range(1, layers + 1))


def rope_parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rotation of positions, from the keys of older and newer files."""
    said = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(said, dict) or any(isinstance(value, dict) for value in said.values()):
        raise ValueError("the rope_parameters differ by layer, which localspec does not compute for this family")
    theta, part = config.get("rope_theta"), config.get("partial_rotary_factor")
    rope = {"rope_theta": 10000.0 if theta is None else theta}
    rope |= {} if part is None else {"partial_rotary_factor": part}
    rope |= {name: value for name, value in said.items() if value is not None}
    rope["rope_type"] = rope.get("rope_type", rope.get("type", "default"))
    if rope["rope_type"] in ("llama3", "yarn", "longrope"):
        rope.setdefault(ORIGINAL, config["max_position_embeddings"])
        if config.get(ORIGINAL) is not None:
            rope[ORIGINAL] = config[ORIGINAL]
        check(rope, ORIGINAL, positive, "rope_parameters: ")
    if rope["rope_type"] in ("linear", "dynamic", "llama3"):
        rope.setdefault("factor", None)
    for name in {"rope_theta", "factor", "partial_rotary_factor"} & rope.keys():
        check(rope, name, lambda value: number(value) and 0 < value < math.inf, "rope_parameters: ")
    if rope["rope_type"] == "dynamic":  # the context is multiplied by it
        most = MOST_POSITIONS / config["max_position_embeddings"]
        check(rope, "factor", lambda value: value < most, "rope_parameters: ")
    return rope


def two_rotations(
    found: Mapping[str, Any], whole_default: Mapping[str, Any], local_default: Mapping[str, Any]
) -> dict[str, Any]:
    """Return two rotations, for layers without a window and for layers with one, as in Gemma 3 and 4."""
    if "sliding_attention" in found["layer_types"]:
        check(found, "sliding_window", positive)
    rotations, scaling = found.get("rope_parameters") or {}, found.get("rope_scaling") or {}
    if not isinstance(rotations, dict) or not isinstance(scaling, dict):
        raise ValueError("the rope_parameters are not a table")
    if unknown := rotations.keys() - {"full_attention", "sliding_attention"}:
        raise ValueError(f"the rope_parameters name {min(map(str, unknown))!r:.40}, which is not a kind of layer")
    whole, local = (
        rotations.get(kind) or {"rope_type": "default", **default}
        for kind, default in (("full_attention", whole_default), ("sliding_attention", {}))
    )
    if not isinstance(whole, dict) or not isinstance(local, dict):
        raise ValueError("the rope_parameters of a kind of layer are not a table")
    base = {**found, "rope_scaling": None, **local_default}
    return {
        "rope_scaling": None,
        "rope_parameters": {**whole, **scaling},
        "local_rope_parameters": rope_parameters({**base, "rope_parameters": local}),
    }
