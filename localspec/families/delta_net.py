"""Layers with a recurrent state in the place of attention (Gated DeltaNet, Yang et al. 2024): sizes, and their weights.

A token reads and changes a matrix for each value head; nothing else is kept of it. Several value heads share a key
head. Before that, queries, keys and values pass a short convolution: each channel is a sum over the last few tokens.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from localspec.families.family_config import check, positive

LINEAR = "linear_attention"  # what config.json calls such a layer
_SIZES = (
    "linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim",
    "linear_conv_kernel_dim",
)  # fmt: skip


@dataclass(frozen=True)
class DeltaNet:
    """Sizes of such layers, in channels, and which layers of a model they are."""

    layers: tuple[bool, ...]
    key_heads: int
    value_heads: int
    key_dim: int  # of a head
    value_dim: int  # of a head
    taps: int  # of the convolution: tokens that it sums over, the token's own included

    @property
    def keys(self) -> int:
        """Channels of all keys, and of all queries."""
        return self.key_heads * self.key_dim

    @property
    def values(self) -> int:
        """Channels of all values, and of their gates."""
        return self.value_heads * self.value_dim

    @property
    def channels(self) -> int:
        """What the convolution reads: queries, keys, values."""
        return 2 * self.keys + self.values

    @property
    def read(self) -> int:
        """Numbers that a token changes a state by: those channels, and for each value head how much, and what stays."""
        return self.channels + 2 * self.value_heads

    @property
    def numbers(self) -> int:
        """Numbers of a state, in all layers together, without the last tokens of the convolutions."""
        return sum(self.layers) * self.value_heads * self.key_dim * self.value_dim

    def weights(self, theirs: str, hidden_size: int) -> dict[str, list[tuple[str, int]]]:
        """Our parameters of a layer, below its name, and the tensors they are stacked from with their rows."""
        own = theirs + "linear_attn."
        inputs = {
            "in_proj_qkv": self.channels,
            "in_proj_b": self.value_heads,
            "in_proj_a": self.value_heads,
            "in_proj_z": self.values,
        }
        return {
            "delta.in_proj.weight": [(f"{own}{name}.weight", rows) for name, rows in inputs.items()],
            "delta.conv": [(own + "conv1d.weight", self.channels)],
            "delta.dt_bias": [(own + "dt_bias", self.value_heads)],
            "delta.A_log": [(own + "A_log", self.value_heads)],
            "delta.value_norm": [(own + "norm.weight", self.value_dim)],
            "delta.out_proj.weight": [(own + "out_proj.weight", hidden_size)],
        }


def of_qwen35(found: Mapping[str, Any]) -> dict[str, Any]:
    """What Qwen3.5 says of its layers: every fourth attends, unless `layer_types` says which; the others are recurrent.

    `found` is what a file says, with what the family leaves out. Raises ValueError, with a clause.
    """
    count, types = found["num_hidden_layers"], found["layer_types"]
    if types is None:
        check(found, "full_attention_interval", positive)
        every = found["full_attention_interval"]
        types = tuple(LINEAR if layer % every else "full_attention" for layer in range(1, count + 1))
    for name in _SIZES:
        check(found, name, positive)
    if found["linear_num_value_heads"] % found["linear_num_key_heads"]:
        raise ValueError(
            f"linear_num_value_heads = {found['linear_num_value_heads']} is not a multiple of linear_num_key_heads = "
            f"{found['linear_num_key_heads']}"
        )
    sizes = DeltaNet(tuple(kind == LINEAR for kind in types), *(found[name] for name in _SIZES))
    return {"layer_types": types, "delta": sizes if any(sizes.layers) else None}
