"""The target's states that a drafter stores: one row per token, either unchanged or mapped to the drafter's width."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from localspec.decoding.compute import Compute, DraftableModel, Rows
from localspec.decoding.drafter import Step
from localspec.drafters.tensors import StoredTensors
from localspec.models.target_map import BIAS, WEIGHT, TargetMap


class Features:
    """A store of the target's states after the final norm, one per token (EAGLE).

    A token's feature is the state that predicted it, one position before it. The first token's feature is zeros.
    """

    layers: Sequence[int] = ()  # layers whose states are read in addition to the last, as in `Drafter.target_layers`

    def __init__(self, compute: Compute) -> None:
        self._compute, self._rows = compute, list[Rows]()
        self._first = self.zeros(1)  # of the first token

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def nbytes(self) -> int:
        """Bytes of the stored rows."""
        return sum(int(row.nbytes) for row in self._rows)

    def observe(self, step: Step) -> None:
        """Store the states of the rows that are now in the target's cache."""
        rows = self.of(step)
        self._rows += [rows[row : row + 1] for row in range(len(rows))]

    def of(self, step: Step) -> Rows:
        """Return the rows [rows, channels] that are stored for a step."""
        return step.hidden.rows

    def truncate(self, length: int) -> None:
        """Discard the features of tokens after the first `length`."""
        del self._rows[length:]

    def hand_over(self) -> Sequence[Rows]:
        """Return the stored rows and store none afterwards."""
        rows, self._rows = self._rows, []
        return rows

    def resume(self, rows: Sequence[Rows]) -> None:
        """Store these rows, which another instance handed over."""
        self._rows = list(rows)

    def of_tokens(self, start: int, count: int) -> Rows:
        """Return the features of the tokens [start, start + count), [count, channels]."""
        first = [self._first] if start == 0 else []
        return self._compute.concat([*first, *self._rows[max(start - 1, 0) : start + count - 1]])

    def zeros(self, rows: int) -> Rows:
        """Return features of zeros, [rows, channels]."""
        return self._compute.rows(np.zeros((rows, self._compute.target.sizes.hidden_size), np.float32))


class MappedFeatures(Features):
    """States of some of the target's layers, mapped to a small model's width by a matrix in its files (PARD-2).

    The mapped states are stored: one row of the small model's width instead of several of the target's.
    """

    def __init__(self, target: DraftableModel[Any], described: TargetMap) -> None:
        """Load the map. Raises UsageMistake if it is for another target, and LocalspecError for a damaged file."""
        sizes, compute = target.compute.target.sizes, target.compute
        self.layers = described.for_target(sizes.num_layers, sizes.hidden_size)
        tensors, scale = StoredTensors(described.file), np.float32(described.scale)
        bias = tensors[BIAS] * scale if described.has_bias else None
        self._map, self._states = compute.linear(tensors[WEIGHT] * scale, bias), described.states
        super().__init__(compute)

    @property
    def nbytes(self) -> int:
        """Bytes of the matrix and of stored rows."""
        return self._map.nbytes + super().nbytes

    def of(self, step: Step) -> Rows:
        """Return the mapped states of a step, [rows, the small model's channels]."""
        assert step.inner is not None
        return self._map(step.inner.rows)

    def zeros(self, rows: int) -> Rows:
        """Return the result of the map for zeros: its bias, if it has one."""
        return self._map(self._compute.rows(np.zeros((rows, self._states), np.float32)))
