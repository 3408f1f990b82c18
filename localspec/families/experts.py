"""Mixtures of experts in the place of an MLP: sizes, and how config.json says them.

A router chooses some experts for each token. What they give is added up, each times its weight: a softmax over the
logits of the chosen ones, or over those of all experts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from localspec.families.family import GgufFile, Names
from localspec.families.reading import NotComputed, check, positive

SIZE, WIDTH = 16, 32  # what channels of an expert, and those of states, are multiples of in the CPU engine

# Tensors of the experts; a name with braces stands for one of each.
IN_SAFETENSORS: Names = {
    "router.weight": ("mlp.gate.weight",),
    "experts.gate_up_proj.weight": ("mlp.experts.{}.gate_proj.weight", "mlp.experts.{}.up_proj.weight"),
    "experts.down_proj.weight": ("mlp.experts.{}.down_proj.weight",),
}
IN_GGUF: Names = {
    "router.weight": ("ffn_gate_inp.weight",),
    "experts.gate_up_proj.weight": ("ffn_gate_exps.weight", "ffn_up_exps.weight"),
    "experts.down_proj.weight": ("ffn_down_exps.weight",),
}
KEYS_IN_GGUF = dict.fromkeys(("expert_count", "expert_used_count", "expert_feed_forward_length"), positive)


@dataclass(frozen=True)
class Experts:
    """Sizes of the experts of a layer, in channels, and how many of them a token is given to.

    `beside` them is an MLP, as wide as `intermediate_size` says, that all tokens pass; what it gives may be `gated` by
    a number for each token. With `norms` router, experts and MLP each have norms, and each expert a scale (Gemma 4).
    """

    count: int
    used: int
    size: int
    normalised: bool = True  # the weights of the chosen ones sum to 1
    beside: bool = False
    gated: bool = False
    norms: bool = False


def read_experts(found: Mapping[str, Any], count: str, used: str, size: str, normalised: bool = True) -> Experts:
    """Return the sizes that a config.json has by these keys. Raise ValueError for what is not possible."""
    for name in (count, used, size):
        check(found, name, positive)
    if found[used] > found[count]:
        raise ValueError(f"{used} = {found[used]} is more than {count} = {found[count]}")
    if found[size] % SIZE or found["hidden_size"] % WIDTH:
        raise NotComputed(f"experts of {found[size]} channels on states of {found['hidden_size']}")
    return Experts(found[count], found[used], found[size], normalised)


def from_gguf(file: GgufFile, count: str, used: str, size: str) -> dict[str, Any]:
    """Return the sizes that a GGUF file has, by these keys of config.json. Raise ValueError where one is missing."""
    found = dict(zip((count, used, size), map(file.number, KEYS_IN_GGUF), strict=True))
    if missing := next((key for key, value in found.items() if value is None), None):
        raise ValueError(f"it does not say its {missing}")
    return found
