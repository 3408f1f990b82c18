"""Mixtures of experts in the place of an MLP: their sizes, tensor names, and keys in config.json and GGUF.

A router chooses some experts for each token. The result is the sum of their outputs, each times its weight. Weights are
a softmax over the router's logits of the chosen experts, or of all experts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from localspec.families.family import GgufFile, Names
from localspec.families.reading import NotComputed, check, positive

# The CPU engine needs experts whose inner channels, and states whose channels, are multiples of these.
_MULTIPLE_OF_SIZE, _MULTIPLE_OF_STATES = 16, 32
MOST_EXPERTS = 4096  # of a layer, in the CPU engine

# Tensors of the experts. A name with braces stands for one tensor of each expert.
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
# In the order in which `from_gguf` reads them.
KEYS_IN_GGUF = dict.fromkeys(("expert_count", "expert_used_count", "expert_feed_forward_length"), positive)


@dataclass(frozen=True)
class MixtureSizes:
    """The sizes of a layer's mixture of experts.

    With `dense`, the layer also has an MLP of `intermediate_size` channels, through which every token passes. The
    output of the MLP is added to the output of the experts; if the MLP is `gated`, it is first multiplied by a number
    between 0 and 1 for each token (Qwen3.5). With `norms`, router, experts and MLP each have norms, and the weights of
    each expert are multiplied by a number (Gemma 4).
    """

    count: int  # experts of a layer
    used: int  # experts that the router chooses for a token
    size: int  # inner channels of an expert
    normalised: bool = True  # whether the weights of the chosen experts sum to 1; otherwise those of all experts do
    dense: bool = False
    gated: bool = False
    norms: bool = False


def read_experts(found: Mapping[str, Any], count: str, used: str, size: str, normalised: bool = True) -> MixtureSizes:
    """Return the sizes in a config.json, `found`, under the keys `count`, `used` and `size`.

    Raises ValueError for impossible sizes, and NotComputed if the CPU engine does not compute such experts.
    """
    for name in (count, used, size):
        check(found, name, positive)
    if found[used] > found[count]:
        raise ValueError(f"{used} = {found[used]} is more than {count} = {found[count]}")
    if found[count] > MOST_EXPERTS:
        raise NotComputed(f"{found[count]} experts in a layer, more than {MOST_EXPERTS}")
    if found[size] % _MULTIPLE_OF_SIZE or found["hidden_size"] % _MULTIPLE_OF_STATES:
        raise NotComputed(f"experts of {found[size]} channels on states of {found['hidden_size']}")
    return MixtureSizes(found[count], found[used], found[size], normalised)


def from_gguf(file: GgufFile, count: str, used: str, size: str) -> dict[str, Any]:
    """Return the sizes in the metadata of a GGUF file, under the family's keys in config.json: `count`, `used`, `size`.

    Raises ValueError if one is missing, or if more experts are used than there are.
    """
    found = {key: file.number(key) for key in KEYS_IN_GGUF}
    if missing := next((key for key, value in found.items() if value is None), None):
        raise ValueError(f"it has no value for {missing}")
    every, some = found["expert_count"], found["expert_used_count"]
    if some > every:
        raise ValueError(f"expert_used_count = {some} is more than expert_count = {every}")
    return dict(zip((count, used, size), found.values(), strict=True))
