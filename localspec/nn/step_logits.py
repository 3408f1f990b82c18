"""Logits and states of a step of static shape: what decoding asks of them comes to main memory in one copy."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy.typing as npt
import torch

from localspec.decoding.logits import Picks, PicksOnRequest
from localspec.decoding.sampling import Sampling
from localspec.nn.contenders import Contenders, contenders, keys_of
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


class StepLogits(TorchLogits):
    """Logits of a step. What is picked is found for all rows at once, since to ask for one takes as long."""

    def __init__(self, rows: torch.Tensor, numbers: StepNumbers, first: int = 0) -> None:
        """`numbers` begin with the summary of all `rows`, of which those from the `first` on are asked for."""
        super().__init__(rows[first:])
        self._numbers, self._first = numbers, first

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
        keys = uploaded(keys_of(positions, sampling), self.rows.device)
        if (found := contenders(self.rows, keys, sampling)) is None:
            return super().picks(positions, sampling)
        first = self._numbers.add(found.ids, found.scores, found.before, found.noisy)

        def pick(row: int) -> int:
            here = Contenders(*(self._numbers[first + part] for part in range(4)))
            token = here.pick(row, positions[row], sampling)
            return self._noisiest(row, positions[row], sampling, None) if token is None else token

        return PicksOnRequest(pick)
