"""Writes new rows into a cache by operations of fixed shape. The rows' position is a number in the device's memory."""

from itertools import count

import torch

from localspec.choosing.fit import BUCKET, STATIC_ROWS
from localspec.nn.cache import KVCache
from localspec.nn.row_kernels import Placing
from localspec.nn.states import Advance, StaticStates


class PlacedRows:
    """The part of a cache that a forward of static shape reads and writes.

    The operations are the same for texts of any length. Every row sees all committed tokens. The bits of its int64 in
    `bits` [rows] say which new rows it sees:

        slots   p p p p│0 1 2 3│. . . .     length 4, four rows, twelve visible slots
        bits    0001 0011 0101 1101         row 3 sees rows 0, 2 and itself
    """

    def __init__(self, cache: KVCache, visible: int, length: torch.Tensor, rows: int) -> None:
        """Assign slots to `rows` new rows, from slot `length` (an int64 scalar tensor) on. The cache must have room."""
        self._cache, self._visible, self._rows = cache, visible, rows
        self._slots = torch.arange(visible, device=length.device)
        self._row_of_slot = self._slots - length  # the row whose slot it is, if any
        self._places = torch.arange(rows, device=length.device) + length

    def slot_mask(self, bits: torch.Tensor, positions: torch.Tensor, window: int | None) -> torch.Tensor:
        """Return bool [rows, visible]: the slots that each row sees."""
        row = self._row_of_slot.clamp(0, self._rows - 1)
        is_new = (self._row_of_slot >= 0) & (self._row_of_slot < self._rows)
        mask = (self._row_of_slot < 0) | (is_new & ((bits[:, None] >> row) & 1).bool())
        if window is None:
            return mask
        # A committed token's slot is its position; a tree node's is not.
        slot_positions = torch.where(is_new, positions[row], self._slots)
        return mask & (slot_positions > positions[:, None] - window)

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Write keys and values [num_kv_heads, rows, head_dim] to the rows' slots. Return the layer's visible slots."""
        slots = self._cache.slots_of(layer)
        slots[0].index_copy_(1, self._places, keys)
        slots[1].index_copy_(1, self._places, values)
        return slots[0, :, : self._visible], slots[1, :, : self._visible]

    def placing(self, layer: int, rows: int) -> Placing:
        return Placing(self._cache.slots_of(layer), self._visible, self._places, 0)


class PlacedChain(PlacedRows):
    """New rows that form a chain, also for recurrent layers. Rows that are only padding do not change the state."""

    def __init__(
        self, cache: KVCache, visible: int, length: torch.Tensor, rows: int, real: torch.Tensor, states: StaticStates
    ) -> None:
        """Assign slots to the rows. `real`, an int64 scalar tensor, is the number of rows before padding. `states`
        receives the states after these rows."""
        super().__init__(cache, visible, length, rows)
        self._real, self._states, self._layers = real, states, count()

    def read(self, layer: int, rows: torch.Tensor, advance: Advance) -> torch.Tensor:
        """Return a recurrent layer's outputs for rows, as `Advance` does. Call this once for each layer, in order."""
        index = next(self._layers)
        self._states.rows[index, : len(rows)].copy_(rows)
        return self._states.read(index, len(rows), advance, self._real)


def filled_rows(rows: int) -> int:
    """Return the number of rows after padding, for at most 64 rows."""
    return next(filled for filled in STATIC_ROWS if filled >= rows)


def filled_slots(slots: int) -> int:
    """Round up the number of slots that attention reads, by less than a quarter or by less than BUCKET.

    The result has few different values, so that texts of different lengths share recordings.
    """
    step = max(BUCKET, (1 << (slots.bit_length() - 1)) // 4)
    return -(-slots // step) * step
