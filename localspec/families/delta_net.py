"""Sizes and weights of layers with a recurrent state instead of attention (Gated DeltaNet, Yang et al. 2024).

A token reads and changes a matrix per value head; nothing else of the token is stored. Several value heads share a key
head. Before that, queries, keys and values pass a short convolution: each channel becomes a sum over the last few
tokens.
"""

from dataclasses import dataclass

LINEAR = "linear_attention"  # the name of such a layer in config.json


@dataclass(frozen=True)
class DeltaNet:
    """The sizes of a model's recurrent layers, in channels. `layers` says which layers these are."""

    layers: tuple[bool, ...]
    key_heads: int
    value_heads: int
    key_dim: int  # of a head
    value_dim: int  # of a head
    taps: int  # of the convolution: tokens in its sum, including the token's own
    tiled: bool = False  # value heads that share a key head are `key_heads` apart, not consecutive

    @property
    def keys(self) -> int:
        """The number of channels of all keys together, and also of all queries together."""
        return self.key_heads * self.key_dim

    @property
    def values(self) -> int:
        """The number of channels of all values together, and also of their gates."""
        return self.value_heads * self.value_dim

    @property
    def channels(self) -> int:
        """The number of input channels of the convolution: queries, keys, values."""
        return 2 * self.keys + self.values

    @property
    def read(self) -> int:
        """The count of numbers with which a token changes a state: `channels`, and two per value head, strength and
        decay."""
        return self.channels + 2 * self.value_heads

    @property
    def numbers(self) -> int:
        """The count of numbers in the states of all layers, without the last tokens of the convolutions."""
        return sum(self.layers) * self.value_heads * self.key_dim * self.value_dim
