"""Logits and hidden states of a forward, as objects of the backend: the numbers may stay on its device."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from localspec.decoding.sampling import Ids, Sampling
from localspec.errors import LocalspecError

LIKELY = 128  # likeliest ids, from which a drafter's candidates are chosen
Candidate = tuple[int, float]  # a token, and its chance of acceptance, given its parent is accepted


class Hidden(Protocol):
    """Hidden states [rows, hidden_size] of a backend, or states of several layers joined along channels."""

    @property
    def rows(self) -> Any:
        """The states as an array of the backend, for example a torch tensor."""

    def __len__(self) -> int: ...

    def take(self, rows: Sequence[int]) -> "Hidden":
        """Return the states of these rows, in this order."""

    def part(self, start: int, stop: int) -> "Hidden":
        """Return the states' channels [start, stop)."""

    def finite(self) -> bool:
        """Return whether all states are finite numbers."""


class Picks(Protocol):
    """The token that the target chooses for each row. A backend may compute each choice only when it is requested."""

    def __getitem__(self, row: int, /) -> int: ...


class Logits(Protocol):
    """Logits [rows, vocab_size] of a backend."""

    def __len__(self) -> int: ...

    def take(self, rows: Sequence[int]) -> "Logits":
        """Return the logits of these rows, in this order."""

    def numpy(self) -> npt.NDArray[np.float32]:
        """Return all logits in main memory, [rows, vocab_size]."""

    def finite(self) -> bool:
        """Return whether all logits are finite numbers."""

    def finite_rows(self, sampling: Sampling) -> int:
        """Return the number of rows before the first row whose largest logit ÷ temperature is NaN or infinite.

        A drafter cannot sample from such a row.
        """

    def argmax(self) -> list[int]:
        """Return the likeliest token of each row."""

    def picks(self, positions: Sequence[int], sampling: Sampling) -> Picks:
        """Return the token picked for the position of each row, as `Sampling` describes.

        Raises LocalspecError if no token can be picked because of NaN.
        """

    def candidates(
        self, positions: Sequence[int], count: int, sampling: Sampling, ids: Ids | None = None
    ) -> list[list[Candidate]]:
        """Return the tokens to propose for each row of a drafter's logits, as (token, confidence), the best first.

        In greedy decoding these are the likeliest tokens. Otherwise they are the tokens with the highest log q + noise,
        where q is the drafter's probability. The target samples its pick at the same position with the same noise. So
        if q equals the target's probabilities, the first candidate is the target's pick. This makes acceptance of
        sampled text almost as high as of greedy text.

        `ids` are the tokens of the columns, if not the whole vocabulary. Rows with NaN have no candidates.
        """

    def sample(self, row: int, position: int, stream: int, sampling: Sampling) -> int:
        """Sample a token from a row. The noise is independent of the target's picks. Raises the errors of `picks`."""

    def probabilities(self, row: int, sampling: Sampling) -> npt.NDArray[np.float64]:
        """Return the probabilities from which a token is sampled, [vocab_size].

        Tokens that truncation removes have zero.
        """


@dataclass(frozen=True)
class PicksOnRequest:
    """Picks of a backend that computes each pick on request: only nodes that the walk reaches cost time."""

    pick: Callable[[int], int]

    def __getitem__(self, row: int, /) -> int:
        return self.pick(row)


class LogitsBase(ABC):
    """The methods of `Logits` that the numpy and torch backends share."""

    rows: Any

    def __len__(self) -> int:
        return len(self.rows)

    def argmax(self) -> list[int]:
        likeliest: list[int] = self.rows.argmax(-1).tolist()
        return likeliest

    def picks(self, positions: Sequence[int], sampling: Sampling) -> Picks:
        """Return the picks by row: all at once if they are greedy, otherwise each on request."""
        if sampling.greedy:
            return self.argmax()
        return PicksOnRequest(lambda row: self._noisiest(row, positions[row], sampling, None))

    def sample(self, row: int, position: int, stream: int, sampling: Sampling) -> int:
        return self._noisiest(row, position, sampling, stream)

    @abstractmethod
    def _survivors(self, row: int, sampling: Sampling) -> tuple[npt.NDArray[np.float32], Ids]:
        """Return scores (logits ÷ temperature) and ids of those tokens of a row that truncation does not remove."""

    def _noisiest(self, row: int, position: int, sampling: Sampling, stream: int | None) -> int:
        scores, ids = self._survivors(row, sampling)
        if not len(ids):
            raise LocalspecError(
                "The model computed NaN, so no token can be picked; try --dtype fp32, or fetch the model again."
            )
        # Always in main memory: a logarithm is not bit-identical on every device.
        return int(ids[(scores.astype(np.float64) + sampling.noise(position, ids, stream)).argmax()])


def candidates_shown(sampling: Sampling, count: int, vocab_size: int) -> int:
    """Return how many of a row's likeliest tokens `choose_candidates` needs, to choose `count` of them per row."""
    return min(count if sampling.proposes_likeliest else sampling.top_k or LIKELY, LIKELY, vocab_size)


def choose_candidates(
    tokens: Ids, confidence: npt.NDArray[np.floating], positions: Sequence[int], count: int, sampling: Sampling
) -> list[list[Candidate]]:
    """Choose `count` candidates per row, as `Logits.candidates` describes, from each row's likeliest tokens.

    `tokens` and their probabilities `confidence` are [rows, n], the likeliest first.
    """
    if not sampling.proposes_likeliest:
        with np.errstate(divide="ignore"):  # a chance may be rounded to zero
            noisy = np.log(confidence.astype(np.float64)) + sampling.noise(positions, tokens)
        best = np.argsort(-noisy, -1, kind="stable")[:, :count]
        noisy = np.take_along_axis(noisy, best, -1)
        weights = np.exp(noisy - noisy[:, :1])
        tokens, confidence = np.take_along_axis(tokens, best, -1), weights / weights.sum(-1, keepdims=True)
    rows = [zip(*row, strict=True) for row in zip(tokens.tolist(), confidence.tolist(), strict=True)]
    return [[(token, chance) for token, chance in row if not math.isnan(chance)] for row in rows]


class NumpyHidden:
    """Hidden states [rows, hidden_size] in main memory."""

    def __init__(self, rows: npt.NDArray[np.floating]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, rows: Sequence[int]) -> "NumpyHidden":
        return NumpyHidden(self.rows[list(rows)])

    def part(self, start: int, stop: int) -> "NumpyHidden":
        return NumpyHidden(self.rows[:, start:stop])

    def finite(self) -> bool:
        return bool(np.isfinite(self.rows).all())


class NumpyLogits(LogitsBase):
    """Logits [rows, vocab_size] in main memory, as `Logits` describes them."""

    rows: npt.NDArray[np.float32]

    def __init__(self, rows: npt.NDArray[np.floating]) -> None:
        self.rows = rows.astype(np.float32, copy=False)

    def take(self, rows: Sequence[int]) -> "NumpyLogits":
        return NumpyLogits(self.rows[list(rows)])

    def numpy(self) -> npt.NDArray[np.float32]:
        return self.rows

    def finite(self) -> bool:
        return bool(np.isfinite(self.rows).all())

    def finite_rows(self, sampling: Sampling) -> int:
        with np.errstate(over="ignore"):
            finite = np.isfinite(self.rows.max(-1) / np.float32(sampling.temperature)).tolist()
        return finite.index(False) if False in finite else len(finite)

    def candidates(
        self, positions: Sequence[int], count: int, sampling: Sampling, ids: Ids | None = None
    ) -> list[list[Candidate]]:
        scores = self.rows if sampling.proposes_likeliest else _cooled(self.rows, sampling)
        likely = np.argsort(-scores, -1, kind="stable")[:, : candidates_shown(sampling, count, scores.shape[-1])]
        confidence = np.take_along_axis(_softmax(scores), likely, -1)
        return choose_candidates(likely if ids is None else ids[likely], confidence, positions, count, sampling)

    def probabilities(self, row: int, sampling: Sampling) -> npt.NDArray[np.float64]:
        scores, ids = self._survivors(row, sampling)
        chances = np.zeros(self.rows.shape[-1])
        chances[ids] = _softmax(scores.astype(np.float64))
        return chances

    def _survivors(self, row: int, sampling: Sampling) -> tuple[npt.NDArray[np.float32], Ids]:
        scores, ids = _cooled(self.rows[row], sampling), np.arange(self.rows.shape[-1])
        if sampling.top_k and sampling.top_k < len(scores):
            mask = scores >= np.partition(scores, -sampling.top_k)[-sampling.top_k]
            scores, ids = scores[mask], ids[mask]
        if sampling.top_p < 1:
            order = np.argsort(-scores, kind="stable")
            chances = _softmax(scores[order])
            order = order[np.cumsum(chances) - chances < sampling.top_p]
            scores, ids = scores[order], ids[order]
        if sampling.min_p:
            chances = _softmax(scores)
            mask = chances >= sampling.min_p * chances.max(initial=0.0)
            scores, ids = scores[mask], ids[mask]
        return scores, ids


def _cooled(rows: npt.NDArray[np.float32], sampling: Sampling) -> npt.NDArray[np.float32]:
    with np.errstate(over="ignore"):
        return rows / np.float32(sampling.temperature)


def _softmax(scores: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
    with np.errstate(invalid="ignore", over="ignore"):
        weights = np.exp(scores - scores.max(-1, keepdims=True, initial=-np.inf))
        chances: npt.NDArray[np.floating] = weights / weights.sum(-1, keepdims=True)
    return chances
