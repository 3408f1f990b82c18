"""Logits and states of a recorded step, whose tensors have fixed shapes.

Everything that decoding needs is copied to main memory at once.

The picked token is the argmax of scores plus noise of 64 bits (`Sampling`), and logarithms differ in their last bits
between devices. So the device finds the few likely winners (contenders) in fp32. The CPU decides between the
contenders, as it would between all ids. If the pick is still uncertain, it is None.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from localspec.decoding import sampling as host
from localspec.decoding.logits import Candidate, Picks, PicksOnRequest
from localspec.decoding.sampling import Ids, Sampling
from localspec.nn.logits import TorchHidden, TorchLogits, selected
from localspec.nn.transfer import brought, signed, uploaded

SHOWN = 8  # contenders per row
NARROW = 1024  # likeliest ids, among which top-k and top-p are applied
CLOSE = 1e-3  # more than the fp32 errors of scores, noise and sums of chances; smaller differences are not certain


@dataclass(frozen=True)
class Contenders:
    """The ids of each row that may be picked by sampling, best first, [rows, SHOWN], on a device or in main memory."""

    ids: Any
    scores: Any  # at the temperature
    before: Any  # the chance of all likelier ids, for top-p; of equal ids, that before the last of them
    noisy: Any  # scores with noise, in fp32; -inf for no candidate, NaN in rows that are not certain

    def pick(self, row: int, position: int, sampling: Sampling) -> int | None:
        """Return the picked token of a row; None if that is uncertain, so that the caller must compare all logits."""
        noisy: npt.NDArray[np.float32] = self.noisy[row]
        columns = np.flatnonzero(noisy != -np.inf)
        if not len(columns) or not np.isfinite(noisy[columns]).all():
            return None
        ids = self.ids[row, columns]
        exact = self.scores[row, columns].astype(np.float64) + sampling.noise(position, ids)
        best = int(exact.argmax())
        if len(columns) == SHOWN and exact[best] < noisy[-1] + CLOSE:  # one that is not shown might win
            return None
        if sampling.top_p < 1 and self.before[row, columns[best]] > sampling.top_p - CLOSE:
            return None
        return int(ids[best])

    def candidates(self, row: int, count: int) -> list[Candidate] | None:
        """Return the tokens to propose for a row, as `choose_candidates` does; None if they are uncertain, so that the
        caller must compare all logits."""
        noisy: npt.NDArray[np.float64] = self.noisy[row].astype(np.float64)
        best = np.flatnonzero(noisy != -np.inf)[:count]
        if not len(best) or not np.isfinite(noisy[best]).all():
            return None
        weights = np.exp(noisy[best] - noisy[best[0]])
        return list(zip(self.ids[row, best].tolist(), (weights / weights.sum()).tolist(), strict=True))


def keys_of(positions: Sequence[int], sampling: Sampling) -> list[int]:
    """Return the key of the noise at each position: a 64-bit word as a signed integer."""
    return [signed(key) for key in host.keys(sampling.stream_seed(None), positions)]


def contenders(logits: torch.Tensor, keys: torch.Tensor, sampling: Sampling) -> Contenders:
    """Find the few ids that may be picked from logits [rows, vocab_size], without waiting for the device.

    `keys` [rows] determine the noise of each row. Raises ValueError if `findable(sampling)` is False.
    """
    if not findable(sampling):
        raise ValueError(sampling)
    scores = logits.float() / sampling.temperature
    if narrows(sampling):
        return _of_the_likeliest(scores, keys, sampling)
    ids = torch.arange(scores.shape[1], device=scores.device).expand_as(scores)
    noisy = scores + _noise(keys, ids)
    if sampling.min_p:
        least = scores.amax(-1, keepdim=True) + math.log(sampling.min_p)
        noisy = noisy.masked_fill(scores < least, float("-inf"))
    return Contenders(*_best(ids, scores, torch.zeros_like(scores), noisy))


def findable(sampling: Sampling) -> bool:
    """Return whether `contenders` supports these settings: a top-k of less than NARROW, or 0 (off)."""
    return sampling.top_k < NARROW


def narrows(sampling: Sampling) -> bool:
    """Return whether top-k or top-p leaves only a few ids. Otherwise every id needs noise, which is slow."""
    return sampling.top_k > 0 or sampling.top_p < 1


def _of_the_likeliest(scores: torch.Tensor, keys: torch.Tensor, sampling: Sampling) -> Contenders:
    """Find the ids that may be picked if truncation leaves few: apply top-k, then top-p, then min-p."""
    width = scores.shape[1]
    count = min(NARROW, width)
    likely = scores.topk(count)
    values, ids = likely.values, likely.indices
    chosen = torch.ones_like(values, dtype=torch.bool)
    certain = values.isfinite().all(-1, keepdim=True)
    total = scores.logsumexp(-1, keepdim=True)
    if 0 < sampling.top_k < width:
        chosen = values >= values[:, sampling.top_k - 1 : sampling.top_k]
        total = values.masked_fill(~chosen, float("-inf")).logsumexp(-1, keepdim=True)
        if count < width:
            certain = certain & ~chosen[:, -1:]  # there may be more equal ids
    chances = (values - total).exp()
    before = chances.cumsum(-1) - chances
    if sampling.top_p < 1:
        first, before = _of_equals(values, before)
        chosen = chosen & (first < sampling.top_p + CLOSE)
        if count < width:
            certain = certain & ~chosen[:, -1:]
    if sampling.min_p:
        chosen = chosen & (values >= values[:, :1] + math.log(sampling.min_p))
    noisy = (values + _noise(keys, ids)).masked_fill(~chosen, float("-inf"))
    ids, values, before, noisy = _best(ids, values, before, noisy)
    return Contenders(ids, values, before, noisy.masked_fill(~certain, float("nan")))


def _of_equals(values: torch.Tensor, before: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """For values in descending order, return `before` at the first and at the last of equal ones.

    For example, values 5 3 3 and `before` a b c give a b b and a c c.
    """
    places = torch.arange(values.shape[1], device=values.device).expand_as(values)
    ends = torch.ones_like(values, dtype=torch.bool)
    ends[:, :-1] = values[:, :-1] != values[:, 1:]
    starts = torch.ones_like(ends)
    starts[:, 1:] = ends[:, :-1]
    first = places.masked_fill(~starts, 0).cummax(-1).values
    last = places.masked_fill(~ends, values.shape[1] - 1).flip(-1).cummin(-1).values.flip(-1)
    return before.gather(1, first), before.gather(1, last)


def _best(
    ids: torch.Tensor, scores: torch.Tensor, before: torch.Tensor, noisy: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    best = noisy.topk(min(SHOWN, noisy.shape[1]))
    return ids.gather(1, best.indices), scores.gather(1, best.indices), before.gather(1, best.indices), best.values


def _noise(keys: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Return the noise of `gumbel` for ids [rows, n] in fp32. The error is a few units in the last place of
    max(|noise|, 1)."""
    bits = _shifted(_mixed(ids * signed(host.STEP) + keys[:, None]), 11)
    below = (bits.float() + 0.5) * 2.0**-53
    above = ((2**53 - 1 - bits).float() + 0.5) * 2.0**-53  # 1 - below, without its rounding error
    waited = torch.where(below < 0.5, -below.log(), -(-above).log1p())
    return -waited.log()


def _mixed(z: torch.Tensor) -> torch.Tensor:
    z = (z ^ _shifted(z, 30)) * signed(host.FIRST)
    z = (z ^ _shifted(z, 27)) * signed(host.SECOND)
    return z ^ _shifted(z, 31)


def _shifted(z: torch.Tensor, bits: int) -> torch.Tensor:
    """Shift an int64 to the right as if it were unsigned."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


LIKELIEST, STATES_FINITE, LOGITS_FINITE = range(3)  # columns of a summary


def summary(hidden: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """Return for each row the likeliest token, and whether states and logits are finite: int64 [rows, 3]."""
    finite = (hidden.isfinite().all(-1).long(), logits.isfinite().all(-1).long())
    return torch.stack([logits.argmax(-1), *finite], 1)


class StepNumbers:
    """The numbers of a step that are needed in main memory. The first access to one of them fetches all."""

    def __init__(self, *tensors: torch.Tensor) -> None:
        self._waiting, self._here = list(tensors), list[npt.NDArray[Any]]()

    def add(self, *tensors: torch.Tensor) -> int:
        """Request more tensors for the next copy to main memory; return the index of the first."""
        first = len(self._here) + len(self._waiting)
        self._waiting += tensors
        return first

    def __getitem__(self, index: int) -> npt.NDArray[Any]:
        self.bring()
        return self._here[index]

    def bring(self) -> None:
        """Fetch the requested tensors to main memory in one copy."""
        if self._waiting:
            self._here += brought(*self._waiting)
            self._waiting = []


class StepHidden(TorchHidden):
    """Hidden states of a step, on the device. Only the answer whether they are finite is fetched to main memory."""

    def __init__(self, rows: torch.Tensor, all_finite: Callable[[Sequence[int]], bool]) -> None:
        super().__init__(rows)
        self._all_finite = all_finite

    def take(self, rows: Sequence[int]) -> TorchHidden:
        """Return a copy of the states of these rows, in this order."""
        return StepHidden(selected(self.rows, rows), lambda some: self._all_finite([rows[index] for index in some]))

    def finite(self) -> bool:
        return self._all_finite(range(len(self)))


Find = Callable[[torch.Tensor, torch.Tensor, Sampling], Contenders]  # a function like `contenders`


class StepLogits(TorchLogits):
    """Logits of a step. Picks are found on the device, for all rows at once if top-k or top-p leaves few ids."""

    def __init__(self, rows: torch.Tensor, numbers: StepNumbers, first: int = 0, find: Find = contenders) -> None:
        """Store the logits `rows[first:]`. `numbers` begin with the summary of `rows`. `find` is like `contenders`."""
        super().__init__(rows[first:])
        self._numbers, self._first, self._find = numbers, first, find
        self._indices: dict[tuple[int, int, Sampling], tuple[int, int]] = {}  # the index of the contenders of a row

    def finite(self) -> bool:
        return bool(self._numbers[0][self._first :, LOGITS_FINITE].all())

    def argmax(self) -> list[int]:
        likeliest: list[int] = self._numbers[0][self._first :, LIKELIEST].tolist()
        return likeliest

    def picks(self, positions: Sequence[int], sampling: Sampling) -> Picks:
        """Return the pick of each row. Picks that are requested early are part of the step's copy to main memory."""
        if sampling.greedy:
            return self.argmax()
        if not findable(sampling):
            return super().picks(positions, sampling)
        if narrows(sampling) or len(self) == 1:  # otherwise only rows that a walk reaches are worth noise for all ids
            self._look(range(len(self)), positions, sampling)

        def pick(row: int) -> int:
            fetched, index = self._contenders(row, positions, sampling)
            token = fetched.pick(index, positions[row], sampling)
            return self._noisiest(row, positions[row], sampling, None) if token is None else token

        return PicksOnRequest(pick)

    def candidates(
        self, positions: Sequence[int], count: int, sampling: Sampling, ids: Ids | None = None
    ) -> list[list[Candidate]]:
        """Return the tokens to propose for the position of each row.

        For sampled text, these are the ids with the highest sums of score and noise.
        """
        if sampling.proposes_likeliest or not findable(sampling) or count > SHOWN or ids is not None:
            return super().candidates(positions, count, sampling, ids)
        proposals = []
        for row in range(len(self)):
            fetched, index = self._contenders(row, positions, sampling)
            proposals.append(fetched.candidates(index, count))
        complete = [proposal for proposal in proposals if proposal is not None]
        return complete if len(complete) == len(proposals) else super().candidates(positions, count, sampling)

    def _contenders(self, row: int, positions: Sequence[int], sampling: Sampling) -> tuple[Contenders, int]:
        """Return the ids that may be picked in some rows, in main memory, and the index of this row among them."""
        if (row, positions[row], sampling) not in self._indices:
            self._look([row], positions, sampling)
        first, index = self._indices[row, positions[row], sampling]
        return Contenders(*(self._numbers[first + part] for part in range(4))), index

    def _look(self, rows: Sequence[int], positions: Sequence[int], sampling: Sampling) -> None:
        """Find the ids that may be picked in consecutive rows, and request them for the next copy to main memory."""
        if self._indices:  # a recorded search overwrites the result of the previous one
            self._numbers.bring()
        keys = uploaded(keys_of([positions[row] for row in rows], sampling), self.rows.device)
        result = self._find(self.rows[rows[0] : rows[-1] + 1], keys, sampling)
        first = self._numbers.add(result.ids, result.scores, result.before, result.noisy)
        self._indices |= {(row, positions[row], sampling): (first, index) for index, row in enumerate(rows)}
