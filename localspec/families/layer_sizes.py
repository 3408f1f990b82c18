"""Sizes of one layer, if the layers of a model differ."""

from dataclasses import dataclass


@dataclass(frozen=True)
class LayerSizes:
    """Sizes of one layer in channels, if the layers of a model differ.

    `keys_of` is the layer whose keys and values it reads, None if it has its own: an earlier layer, or one of another
    model (`TransformerConfig.borrows`). With `keys_are_values`, one projection makes both.
    """

    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    keys_of: int | None = None
    keys_are_values: bool = False

    @property
    def projected(self) -> int:
        """Heads of keys and values that the projection makes in addition to the queries."""
        return 0 if self.keys_of is not None else self.num_kv_heads * (1 if self.keys_are_values else 2)
