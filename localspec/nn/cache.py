"""The cache of keys and values: committed tokens, followed by a draft tree until some of its nodes are committed."""

from collections.abc import Collection, Sequence
from copy import copy
from typing import Any, Self

import torch

from localspec.choosing.fit import BUCKET
from localspec.nn.row_kernels import Placing
from localspec.nn.transfer import uploaded


class KVCache:
    """A cache with one slot per token: first the committed tokens in order, then, from slot `length`, the draft tree.

    Slots are allocated in buckets as the text needs them, never for the longest possible text. Attention reads at least
    `least` slots. Layers of one shape are in one tensor [layers, 2, num_kv_heads, slots, head_dim].
    """

    def __init__(
        self,
        shapes: Sequence[tuple[int, int] | None],
        slots: int,
        dtype: torch.dtype,
        device: torch.device | str,
        least: int = 0,
    ) -> None:
        """Make an empty cache. `shapes` are (num_kv_heads, head_dim) by layer; None for a layer without keys and
        values."""
        self.length = 0
        self.recordings: dict[Any, Any] = {}  # of forwards over these very slots (`StaticForward`)
        self._least = _rounded(least)
        slots = max(_rounded(slots), self._least)
        # If a model has only recurrent layers, one tensor of no layers stores the number of slots.
        kinds = list(dict.fromkeys(shape for shape in shapes if shape is not None)) or [(1, 1)]
        # Zeros instead of uninitialised memory: a masked slot has weight 0, but 0 times NaN is NaN.
        self._slots = [
            torch.zeros(shapes.count(kind), 2, kind[0], slots, kind[1], dtype=dtype, device=device) for kind in kinds
        ]
        self._places = [
            None if shape is None else (kinds.index(shape), shapes[:layer].count(shape))
            for layer, shape in enumerate(shapes)
        ]

    @property
    def capacity(self) -> int:
        return self._slots[0].shape[3]

    @property
    def nbytes(self) -> int:
        return sum(slots.nbytes for slots in self._slots)

    def reserve(self, slots: int, spare: bool = True) -> None:
        """Make room for `slots` tokens, including the tree. With `spare` grow at least by half, because each growth
        copies the cache.

        Raises torch's errors if memory runs out; the cache is then unchanged.
        """
        if slots <= self.capacity:
            return
        slots = _rounded(max(slots, self.capacity * 3 // 2) if spare else slots)
        grown = []
        for source in self._slots:
            larger = source.new_zeros(*source.shape[:3], slots, source.shape[4])
            larger[:, :, :, : self.length] = source[:, :, :, : self.length]
            grown.append(larger)
        self._slots = grown
        self.recordings.clear()

    def visible(self, rows: int) -> int:
        """Return how many slots attention reads when `rows` new tokens follow the committed ones."""
        return min(max(_rounded(self.length + rows), self._least), self.capacity)

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Write keys and values [num_kv_heads, rows, head_dim] after the committed tokens.

        Return the layer's visible slots.
        """
        rows = keys.shape[1]
        end = self.length + rows
        assert end <= self.capacity, f"the cache needs {end} slots but has only {self.capacity}"
        visible, slots = self.visible(rows), self.slots_of(layer)
        slots[0, :, self.length : end] = keys
        slots[1, :, self.length : end] = values
        return slots[0, :, :visible], slots[1, :, :visible]

    def placing(self, layer: int, rows: int) -> Placing:
        """Return the slots into which `write` puts the next `rows` rows of a layer."""
        end = self.length + rows
        assert end <= self.capacity, f"the cache needs {end} slots but has only {self.capacity}"
        return Placing(self.slots_of(layer), self.visible(rows), None, self.length)

    def slots_of(self, layer: int) -> torch.Tensor:
        """Return keys and values of all slots of a layer, [2, num_kv_heads, slots, head_dim]."""
        place = self._places[layer]
        assert place is not None, f"layer {layer} has no keys and values"
        return self._slots[place[0]][place[1]]

    @torch.inference_mode()
    def keep(self, path: Sequence[int]) -> None:
        """Commit the rows `path` of the tree, in this order. Row numbers count from 0:

        slots   … p p│0 1 2 3 4      keep([0, 3, 4])      … p p 0 3 4│
        """
        count = len(path)
        if any(row != index for index, row in enumerate(path)):
            rows = uploaded([self.length + row for row in path], self._slots[0].device)
            for slots in self._slots:  # index_select copies first: the rows may overlap the slots they move to
                slots[:, :, :, self.length : self.length + count] = slots.index_select(3, rows)
        self.length += count

    def rows(self, path: Sequence[int]) -> torch.Tensor:
        """Return keys and values of the rows `path` of the tree, counted from 0, with all layers joined: [rows, n]."""
        places = [self.length + row for row in path]
        return torch.cat([slots[:, :, :, places].movedim(3, 0).flatten(1) for slots in self._slots], 1)

    def fill(self, generator: torch.Generator) -> None:
        """Put random keys and values in all slots. Measurements use them, because they need no text.

        They are generated on the cache's device, because they may be too many to transfer.
        """
        seed = int(torch.randint(2**31, (1,), generator=generator))
        for slots in self._slots:
            slots.normal_(generator=torch.Generator(slots.device).manual_seed(seed))

    def forget(self, layer: int, rows: int) -> None:
        """Write zeros over the first `rows` rows after the committed tokens, in one layer."""
        if place := self._places[layer]:
            self._slots[place[0]][place[1], :, :, self.length : self.length + rows] = 0

    def truncate(self, length: int) -> None:
        assert 0 <= length <= self.length
        self.length = length

    def assume(self, length: int) -> None:
        """Count the first `length` slots as committed tokens, for measurements without text. Unused slots are zero."""
        assert 0 <= length <= self.capacity
        self.length = length

    def reachable(self, length: int) -> int:
        """Return how many tokens `truncate(length)` would keep: all that there are, up to `length`."""
        return min(length, self.length)

    def copy(self, length: int, slots: int) -> Self:
        """Return a cache with the first `length` tokens, and room for `slots`. Raises torch's errors if memory runs
        out."""
        other = copy(self)
        other.length, other.recordings = length, {}
        room = max(_rounded(max(slots, length)), self._least)
        other._slots = [source.new_zeros(*source.shape[:3], room, source.shape[4]) for source in self._slots]
        for source, target in zip(self._slots, other._slots, strict=True):
            target[:, :, :, :length] = source[:, :, :, :length]
        return other

    @property
    def pinned(self) -> bool:
        """Whether recorded CUDA graphs use this cache's memory, so that it must not be replaced."""
        return bool(self.recordings)

    @torch.inference_mode()
    def take(self, other: Self) -> bool:
        """Copy the contents of another cache into this one if it is pinned and has room for them.

        Return whether the contents were copied.
        """
        if not self.pinned or self.capacity < other.length:
            return False
        for source, target in zip(other._slots, self._slots, strict=True):
            target[:, :, :, : other.length] = source[:, :, :, : other.length]
        self.length = other.length
        return True


class LentKeys:
    """The committed keys and values of another model's cache, for a drafter that has no cache and reads these."""

    def __init__(self, cache: KVCache) -> None:
        self._cache, self.length = cache, cache.length

    def visible(self, rows: int) -> int:
        """Return the number of committed tokens: rows see only these."""
        return self.length

    def of_layer(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the cached keys and values of the other model's `layer`, each [1, num_kv_heads, tokens, head_dim]."""
        keys, values = self._cache.slots_of(layer)[:, None, :, : self.length]
        return keys, values


class TextPrefix:
    """The keys and values of a batch of texts, used like a cache in training. Gradients flow through them.

    The first forward stores the texts. `closed` then returns a prefix for later forwards, whose rows follow the texts
    and are not stored. If `layers` are given, only these layers are stored.
    """

    def __init__(self, layers: Collection[int] | None = None) -> None:
        self.length = 0
        self._layers = layers
        self._read: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # [batch, num_kv_heads, length, head_dim] each

    def closed(self) -> "TextPrefix":
        """Return a prefix with the stored texts. This object then stores nothing more, not even when a checkpointed
        forward is repeated for its gradient."""
        read = TextPrefix(self._layers)
        read._read, self._layers = self._read, ()
        self._read = {}
        read.length = next((keys.shape[2] for keys, _ in read._read.values()), 0)
        return read

    def visible(self, rows: int) -> int:
        """Return how many slots attention reads: the length of the stored texts plus `rows`."""
        return self.length + rows

    def extended(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the layer's keys and values of the texts, followed by those of new rows, [batch, heads, rows, dim]."""
        if not self.length:
            if self._layers is None or layer in self._layers:
                self._read[layer] = keys, values
            return keys, values
        read_keys, read_values = self._read[layer]
        return torch.cat([read_keys.to(keys.dtype), keys], 2), torch.cat([read_values.to(values.dtype), values], 2)


def _rounded(slots: int) -> int:
    return -(-slots // BUCKET) * BUCKET
