"""Logits and states of a step of static shape: what decoding asks of them comes to main memory in one copy."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy.typing as npt
import torch

from localspec.decoding.logits import Picks, PicksOnRequest
from localspec.decoding.sampling import Sampling
from localspec.nn.contenders import Contenders, contenders, findable, keys_of, narrows
from localspec.nn.logits import TorchHidden, TorchLogits, taken
from localspec.nn.transfer import brought, uploaded

LIKELIEST, STATES_FINITE, LOGITS_FINITE = range(3)  # columns of a summary


def summary(hidden: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """Returns of each row the likeliest token, and whether states and logits are numbers: int64 [rows, 3]."""
    finite = (hidden.isfinite().all(-1).long(), logits.isfinite().all(-1).long())
    return torch.stack([logits.argmax(-1), *finite], 1)


class StepNumbers:
    """What is wanted of a step in main memory. The first look at one tensor brings all of them."""

    def __init__(self, *tensors: torch.Tensor) -> None:
        self._waiting, self._here = list(tensors), list[npt.NDArray[Any]]()

    def add(self, *tensors: torch.Tensor) -> int:
        """Says that more is wanted; returns the place of the first."""
        first = len(self._here) + len(self._waiting)
        self._waiting += tensors
        return first

    def __getitem__(self, place: int) -> npt.NDArray[Any]:
        if self._waiting:
            self._here += brought(*self._waiting)
            self._waiting = []
        return self._here[place]


class StepHidden(TorchHidden):
    """States of a step, of which it is known in main memory whether they are numbers."""

    def __init__(self, rows: torch.Tensor, all_finite: Callable[[Sequence[int]], bool]) -> None:
        super().__init__(rows)
        self._all_finite = all_finite

    def take(self, rows: Sequence[int]) -> TorchHidden:
        """Returns a copy of these rows, in this order."""
        return StepHidden(taken(self.rows, rows), lambda some: self._all_finite([rows[one] for one in some]))

    def finite(self) -> bool:
        """Returns whether all of them are numbers."""
        return self._all_finite(range(len(self)))


Find = Callable[[torch.Tensor, torch.Tensor, Sampling], Contenders]  # as `contenders` does


class StepLogits(TorchLogits):
    """Logits of a step. Picks are found where the logits are: of all rows at once where truncation leaves few ids."""

    def __init__(self, rows: torch.Tensor, numbers: StepNumbers, first: int = 0, find: Find = contenders) -> None:
        """`numbers` begin with the summary of all `rows`, of which those from the `first` on are asked for."""
        super().__init__(rows[first:])
        self._numbers, self._first, self._find = numbers, first, find

    def finite(self) -> bool:
        """Returns whether all of them are numbers."""
        return bool(self._numbers[0][self._first :, LOGITS_FINITE].all())

    def argmax(self) -> list[int]:
        """Returns the likeliest token of each row."""
        likeliest: list[int] = self._numbers[0][self._first :, LIKELIEST].tolist()
        return likeliest

    def picks(self, positions: Sequence[int], sampling: Sampling) -> Picks:
        """Returns the picks by row; those that are asked for before any number came from the device come with it."""
        if sampling.greedy:
            return self.argmax()
        if not findable(sampling):
            return super().picks(positions, sampling)
        if narrows(sampling) or len(self) == 1:
            first = self._begin(range(len(self)), positions, sampling)
            return PicksOnRequest(lambda row: self._picked(first, row, row, positions, sampling))
        # Only a row that a walk reaches is worth noise for a whole vocabulary.
        return PicksOnRequest(
            lambda row: self._picked(self._begin([row], positions, sampling), 0, row, positions, sampling)
        )

    def _begin(self, rows: Sequence[int], positions: Sequence[int], sampling: Sampling) -> int:
        """Has the contenders of rows that follow each other found; returns where they will be among the numbers."""
        keys = uploaded(keys_of([positions[row] for row in rows], sampling), self.rows.device)
        found = self._find(self.rows[rows[0] : rows[-1] + 1], keys, sampling)
        return self._numbers.add(found.ids, found.scores, found.before, found.noisy)

    def _picked(self, first: int, place: int, row: int, positions: Sequence[int], sampling: Sampling) -> int:
        """Returns the pick of a row, which is at a `place` of the contenders that begin at `first`."""
        here = Contenders(*(self._numbers[first + part] for part in range(4)))
        token = here.pick(place, positions[row], sampling)
        return self._noisiest(row, positions[row], sampling, None) if token is None else token
