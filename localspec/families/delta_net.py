"""Layers with a recurrent state in the place of attention (Gated DeltaNet, Yang et al. 2024): sizes, and their weights.

A token reads and changes a matrix for each value head; nothing else is kept of it. Several value heads share a key
head. Before that, queries, keys and values pass a short convolution: each channel is a sum over the last few tokens.
"""

from dataclasses import dataclass

LINEAR = "linear_attention"  # what config.json calls such a layer


@dataclass(frozen=True)
class DeltaNet:
    """Sizes of such layers, in channels, and which layers of a model they are."""

    layers: tuple[bool, ...]
    key_heads: int
    value_heads: int
    key_dim: int  # of a head
    value_dim: int  # of a head
    taps: int  # of the convolution: tokens that it sums over, the token's own included
    tiled: bool = False  # value heads that share a key head are `key_heads` apart, and do not follow each other

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
