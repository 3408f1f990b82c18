"""Logits and states of a step of static shape. Everything that decoding needs comes to main memory in one copy."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy.typing as npt
import torch

from localspec.decoding.logits import Candidate, Picks, PicksOnRequest
from localspec.decoding.sampling import Ids, Sampling
from localspec.nn.contenders import SHOWN, Contenders, contenders, findable, keys_of, narrows
from localspec.nn.logits import TorchHidden, TorchLogits, selected
from localspec.nn.transfer import brought, uploaded

LIKELIEST, STATES_FINITE, LOGITS_FINITE = range(3)  # columns of a summary


def summary(hidden: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """Return for each row the likeliest token, and whether states and logits are finite: int64 [rows, 3]."""
    finite = (hidden.isfinite().all(-1).long(), logits.isfinite().all(-1).long())
    return torch.stack([logits.argmax(-1), *finite], 1)


class StepNumbers:
    """The numbers of a step that are needed in main memory. The first access fetches all of them."""

    def __init__(self, *tensors: torch.Tensor) -> None:
        self._waiting, self._here = list(tensors), list[npt.NDArray[Any]]()

    def add(self, *tensors: torch.Tensor) -> int:
        """Request more tensors; return the index of the first."""
        first = len(self._here) + len(self._waiting)
        self._waiting += tensors
        return first

    def __getitem__(self, place: int) -> npt.NDArray[Any]:
        self.bring()
        return self._here[place]

    def bring(self) -> None:
        """Fetch the requested tensors to main memory in one copy."""
        if self._waiting:
            self._here += brought(*self._waiting)
            self._waiting = []


class StepHidden(TorchHidden):
    """Hidden states of a step, on the device. Whether they are finite is known in main memory."""

    def __init__(self, rows: torch.Tensor, all_finite: Callable[[Sequence[int]], bool]) -> None:
        super().__init__(rows)
        self._all_finite = all_finite

    def take(self, rows: Sequence[int]) -> TorchHidden:
        """Return a copy of the states of these rows, in this order."""
        return StepHidden(selected(self.rows, rows), lambda some: self._all_finite([rows[one] for one in some]))

    def finite(self) -> bool:
        """Return whether all states are finite numbers."""
        return self._all_finite(range(len(self)))


Find = Callable[[torch.Tensor, torch.Tensor, Sampling], Contenders]  # a function like `contenders`


class StepLogits(TorchLogits):
    """Logits of a step. Picks are found on the device, for all rows at once if truncation leaves few ids."""

    def __init__(self, rows: torch.Tensor, numbers: StepNumbers, first: int = 0, find: Find = contenders) -> None:
        """Store the logits. `numbers` begin with the summary of all `rows`; the rows from `first` on are used."""
        super().__init__(rows[first:])
        self._numbers, self._first, self._find = numbers, first, find
        self._found: dict[tuple[int, int, Sampling], tuple[int, int]] = {}  # the index of the contenders of a row

    def finite(self) -> bool:
        """Return whether all logits are finite numbers."""
        return bool(self._numbers[0][self._first :, LOGITS_FINITE].all())

    def argmax(self) -> list[int]:
        """Return the likeliest token of each row."""
        likeliest: list[int] = self._numbers[0][self._first :, LIKELIEST].tolist()
        return likeliest

    def picks(self, positions: Sequence[int], sampling: Sampling) -> Picks:
        """Return the picks by row. Picks requested before the first copy are included in it."""
        if sampling.greedy:
            return self.argmax()
        if not findable(sampling):
            return super().picks(positions, sampling)
        if narrows(sampling) or len(self) == 1:  # otherwise only rows that a walk reaches are worth noise for all ids
            self._look(range(len(self)), positions, sampling)

        def pick(row: int) -> int:
            here, place = self._contenders(row, positions, sampling)
            token = here.pick(place, positions[row], sampling)
            return self._noisiest(row, positions[row], sampling, None) if token is None else token

        return PicksOnRequest(pick)

    def candidates(
        self, positions: Sequence[int], count: int, sampling: Sampling, ids: Ids | None = None
    ) -> list[list[Candidate]]:
        """Return the tokens to propose for the position of each row.

        If text is sampled, they are the picks' contenders.
        """
        if sampling.proposes_likeliest or not findable(sampling) or count > SHOWN or ids is not None:
            return super().candidates(positions, count, sampling, ids)
        found = []
        for row in range(len(self)):
            here, place = self._contenders(row, positions, sampling)
            found.append(here.candidates(place, count))
        known = [one for one in found if one is not None]
        return known if len(known) == len(found) else super().candidates(positions, count, sampling)

    def _contenders(self, row: int, positions: Sequence[int], sampling: Sampling) -> tuple[Contenders, int]:
        """Return contenders in main memory, and the row's index among them."""
        if (row, positions[row], sampling) not in self._found:
            self._look([row], positions, sampling)
        first, place = self._found[row, positions[row], sampling]
        return Contenders(*(self._numbers[first + part] for part in range(4))), place

    def _look(self, rows: Sequence[int], positions: Sequence[int], sampling: Sampling) -> None:
        """Request the contenders of consecutive rows, to be fetched with the next numbers."""
        if self._found:  # a recorded search overwrites the result of the previous one
            self._numbers.bring()
        keys = uploaded(keys_of([positions[row] for row in rows], sampling), self.rows.device)
        found = self._find(self.rows[rows[0] : rows[-1] + 1], keys, sampling)
        first = self._numbers.add(found.ids, found.scores, found.before, found.noisy)
        self._found |= {(row, positions[row], sampling): (first, place) for place, row in enumerate(rows)}
