"""Logits and states of a step of static shape: what decoding asks of them comes to main memory in one copy."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy.typing as npt
import torch

from localspec.decoding.logits import Candidate, Picks, PicksOnRequest
from localspec.decoding.sampling import Ids, Sampling
from localspec.nn.contenders import SHOWN, Contenders, contenders, findable, keys_of, narrows
from localspec.nn.logits import TorchHidden, TorchLogits, taken
from localspec.nn.transfer import brought, uploaded

LIKELIEST, STATES_FINITE, LOGITS_FINITE = range(3)  # columns of a summary


def summary(hidden: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """Return of each row the likeliest token, and whether states and logits are numbers: int64 [rows, 3]."""
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
        self.bring()
        return self._here[place]

    def bring(self) -> None:
        """Brings what is waiting."""
        if self._waiting:
            self._here += brought(*self._waiting)
            self._waiting = []


class StepHidden(TorchHidden):
    """States of a step, of which it is known in main memory whether they are numbers."""

    def __init__(self, rows: torch.Tensor, all_finite: Callable[[Sequence[int]], bool]) -> None:
        super().__init__(rows)
        self._all_finite = all_finite

    def take(self, rows: Sequence[int]) -> TorchHidden:
        """Return a copy of these rows, in this order."""
        return StepHidden(taken(self.rows, rows), lambda some: self._all_finite([rows[one] for one in some]))

    def finite(self) -> bool:
        """Return whether all of them are numbers."""
        return self._all_finite(range(len(self)))


Find = Callable[[torch.Tensor, torch.Tensor, Sampling], Contenders]  # as `contenders` does


class StepLogits(TorchLogits):
    """Logits of a step. Picks are found where the logits are: of all rows at once where truncation leaves few ids."""

    def __init__(self, rows: torch.Tensor, numbers: StepNumbers, first: int = 0, find: Find = contenders) -> None:
        """`numbers` begin with the summary of all `rows`, of which those from the `first` on are asked for."""
        super().__init__(rows[first:])
        self._numbers, self._first, self._find = numbers, first, find
        self._found: dict[tuple[int, int, Sampling], tuple[int, int]] = {}  # where the contenders of a row are

    def finite(self) -> bool:
        """Return whether all of them are numbers."""
        return bool(self._numbers[0][self._first :, LOGITS_FINITE].all())

    def argmax(self) -> list[int]:
        """Return the likeliest token of each row."""
        likeliest: list[int] = self._numbers[0][self._first :, LIKELIEST].tolist()
        return likeliest

    def picks(self, positions: Sequence[int], sampling: Sampling) -> Picks:
        """Return the picks by row; those that are asked for before any number came from the device come with it."""
        if sampling.greedy:
            return self.argmax()
        if not findable(sampling):
            return super().picks(positions, sampling)
        if narrows(sampling) or len(self) == 1:  # else only a row that a walk reaches is worth noise for all ids
            self._look(range(len(self)), positions, sampling)

        def pick(row: int) -> int:
            here, place = self._contenders(row, positions, sampling)
            token = here.pick(place, positions[row], sampling)
            return self._noisiest(row, positions[row], sampling, None) if token is None else token

        return PicksOnRequest(pick)

    def candidates(
        self, positions: Sequence[int], count: int, sampling: Sampling, ids: Ids | None = None
    ) -> list[list[Candidate]]:
        """Return the tokens to propose for the position of each row: where they are sampled, the picks' contenders."""
        if sampling.proposes_likeliest or not findable(sampling) or count > SHOWN or ids is not None:
            return super().candidates(positions, count, sampling, ids)
        found = []
        for row in range(len(self)):
            here, place = self._contenders(row, positions, sampling)
            found.append(here.candidates(place, count))
        known = [one for one in found if one is not None]
        return known if len(known) == len(found) else super().candidates(positions, count, sampling)

    def _contenders(self, row: int, positions: Sequence[int], sampling: Sampling) -> tuple[Contenders, int]:
        """Return contenders in main memory, and which of them are the row's."""
        if (row, positions[row], sampling) not in self._found:
            self._look([row], positions, sampling)
        first, place = self._found[row, positions[row], sampling]
        return Contenders(*(self._numbers[first + part] for part in range(4))), place

    def _look(self, rows: Sequence[int], positions: Sequence[int], sampling: Sampling) -> None:
        """Has the contenders of rows that follow each other found, and brought with the next numbers."""
        if self._found:  # a recorded search writes over what the one before it found
            self._numbers.bring()
        keys = uploaded(keys_of([positions[row] for row in rows], sampling), self.rows.device)
        found = self._find(self.rows[rows[0] : rows[-1] + 1], keys, sampling)
        first = self._numbers.add(found.ids, found.scores, found.before, found.noisy)
        self._found |= {(row, positions[row], sampling): (first, place) for place, row in enumerate(rows)}
