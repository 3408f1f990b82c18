"""What a layer has where the layers of a model differ."""

from dataclasses import dataclass


@dataclass(frozen=True)
class LayerSizes:
    """What a layer has where layers of a model differ, in channels.

    `keys_of` is the layer whose keys and values it reads, None where it has its own: a layer before it, or one of
    another model (`TransformerConfig.borrows`). With `keys_are_values` one projection makes both.
    """

    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    keys_of: int | None = None
    keys_are_values: bool = False

    @property
    def projected(self) -> int:
        """Heads of keys and values that its projection makes in addition to the queries."""
        return 0 if self.keys_of is not None else self.num_kv_heads * (1 if self.keys_are_values else 2)
