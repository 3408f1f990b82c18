"""Keys and values of all that the target has read, in one tensor; a branch that is kept is moved to its place."""

from collections.abc import Collection, Sequence

import torch

from localspec.policy.prediction import BUCKET


class KVCache:
    """One slot per token: those below `length` hold the committed tokens in order, those after it the tree under test.

    Slots are allocated in buckets as the text needs them, never for all that a model could hold; attention never looks
    at fewer than `least`.
    """

    def __init__(
        self, shape: tuple[int, int, int], slots: int, dtype: torch.dtype, device: torch.device | str, least: int = 0
    ) -> None:
        """`shape` is (layers, num_kv_heads, head_dim)."""
        layers, num_kv_heads, head_dim = shape
        self.length = 0
        self._least = _rounded(least)
        slots = max(_rounded(slots), self._least)
        # Zeros, not empty: a masked slot weighs nothing, but nothing times NaN is NaN.
        self._slots = torch.zeros(layers, 2, num_kv_heads, slots, head_dim, dtype=dtype, device=device)

    @property
    def capacity(self) -> int:
        return self._slots.shape[3]

    @property
    def nbytes(self) -> int:
        return self._slots.nbytes

    def reserve(self, slots: int, spare: bool = True) -> None:
        """Makes room for `slots` tokens, tree included. Growing copies, so with `spare` it grows by half at least.

        Raises what torch does where memory runs out; the cache is then unchanged.
        """
        if slots <= self.capacity:
            return
        layers, two, heads, capacity, head_dim = self._slots.shape
        slots = max(slots, capacity * 3 // 2) if spare else slots
        larger = self._slots.new_zeros(layers, two, heads, _rounded(slots), head_dim)
        larger[:, :, :, : self.length] = self._slots[:, :, :, : self.length]
        self._slots = larger

    def visible(self, rows: int) -> int:
        """Returns how many slots attention looks at when `rows` new tokens follow the committed ones."""
        return min(max(_rounded(self.length + rows), self._least), self.capacity)

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Puts [num_kv_heads, rows, head_dim] after the committed tokens; returns the layer's visible slots."""
        rows = keys.shape[1]
        end = self.length + rows
        assert end <= self.capacity, f"{end} slots needed, {self.capacity} allocated"
        seen = self.visible(rows)
        both = self._slots[layer]
        both[0, :, self.length : end] = keys
        both[1, :, self.length : end] = values
        return both[0, :, :seen], both[1, :, :seen]

    @torch.inference_mode()
    def keep(self, path: Sequence[int]) -> None:
        """Commits the rows `path` of the tree after `length`, in that order:

        slots   … p p│0 1 2 3 4      keep([0, 3, 4])      … p p 0 3 4│
        """
        count = len(path)
        if any(row != index for index, row in enumerate(path)):
            rows = torch.tensor(path, device=self._slots.device) + self.length
            # index_select copies first: the rows may overlap the slots they move to.
            self._slots[:, :, :, self.length : self.length + count] = self._slots.index_select(3, rows)
        self.length += count

    def rows(self, path: Sequence[int]) -> torch.Tensor:
        """Returns keys and values of these rows after `length`: [layers, 2, num_kv_heads, rows, head_dim]."""
        return self._slots[:, :, :, [self.length + row for row in path]]

    def fill(self, generator: torch.Generator) -> None:
        """Puts random keys and values in all slots: for measurements, which need numbers and no text."""
        self._slots.copy_(torch.randn(self._slots.shape, generator=generator))

    def truncate(self, length: int) -> None:
        """Forgets everything after the first `length` tokens."""
        assert 0 <= length <= self.length
        self.length = length

    def assume(self, length: int) -> None:
        """Counts the first `length` slots as committed; those that were never written hold zeros."""
        assert 0 <= length <= self.capacity
        self.length = length


class TextPrefix:
    """Keys and values of texts side by side, in place of a cache: gradients flow through what is read.

    They are those of the first forward, until `closed` gives the prefix of later forwards, whose rows follow them and
    are not kept. Of layers that are not in `layers`, where those are given, nothing is kept.
    """

    def __init__(self, layers: Collection[int] | None = None) -> None:
        self.length = 0
        self._layers = layers
        self._read: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # [batch, num_kv_heads, length, head_dim] each

    def closed(self) -> "TextPrefix":
        """Returns the texts as they were read. This one keeps nothing more, should a gradient read them again."""
        read = TextPrefix(self._layers)
        read._read, self._layers = self._read, ()
        self._read = {}
        read.length = next((keys.shape[2] for keys, _ in read._read.values()), 0)
        return read

    def visible(self, rows: int) -> int:
        """Returns as many slots as there are tokens and new rows."""
        return self.length + rows

    def extended(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the layer's keys and values of the texts followed by those of new rows, [batch, heads, rows, dim]."""
        if not self.length:
            if self._layers is None or layer in self._layers:
                self._read[layer] = keys, values
            return keys, values
        read_keys, read_values = self._read[layer]
        return torch.cat([read_keys.to(keys.dtype), keys], 2), torch.cat([read_values.to(values.dtype), values], 2)


def _rounded(slots: int) -> int:
    return -(-slots // BUCKET) * BUCKET
