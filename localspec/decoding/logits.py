"""The result of a forward as decoding sees it: handles of logits and hidden states, wherever a backend keeps them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from localspec.decoding.sampling import Ids, Sampling

LIKELY = 128  # likeliest ids, from which a drafter's candidates are chosen
Candidate = tuple[int, float]  # a token, and its chance of acceptance, given its parent is accepted


class Hidden(Protocol):
    """Hidden states, [rows, hidden_size], or those of several layers side by side."""

    @property
    def rows(self) -> Any:
        """The states as the backend's own array."""

    def __len__(self) -> int: ...

    def take(self, rows: Sequence[int]) -> "Hidden":
        """Return these rows, in this order."""

    def part(self, start: int, stop: int) -> "Hidden":
        """Return the channels [start, stop)."""

    def finite(self) -> bool:
        """Return whether all of them are finite numbers."""


class Picks(Protocol):
    """One token per row; it may be computed only when requested."""

    def __getitem__(self, row: int, /) -> int: ...


class Logits(Protocol):
    """Logits [rows, vocab_size]."""

    def __len__(self) -> int: ...

    def take(self, rows: Sequence[int]) -> "Logits":
        """Return these rows, in this order."""

    def numpy(self) -> npt.NDArray[np.float32]:
        """Return all of them, [rows, vocab_size]."""

    def finite(self) -> bool:
        """Return whether all of them are finite numbers."""

    def finite_rows(self, sampling: Sampling) -> int:
        """Count the rows of a drafter's logits before the first that cannot be sampled: NaN, inf, or no id."""

    def argmax(self) -> list[int]:
        """Return the likeliest token of each row."""

    def picks(self, positions: Sequence[int], sampling: Sampling) -> Picks:
        """Return the token picked for the position of each row, as `Sampling` describes.

        Raises LocalspecError if NaN leave nothing to pick.
        """

    def candidates(
        self, positions: Sequence[int], count: int, sampling: Sampling, ids: Ids | None = None
    ) -> list[list[Candidate]]:
        """Return the tokens to propose for the position of each row of a drafter's logits.

        They are (token, confidence) by row, the most confident first. Greedily they are the likeliest. Otherwise they
        have the highest log q + noise, with the noise of the target's own pick at this position: a drafter whose q is
        the target's p proposes exactly that pick, so sampled text is accepted almost as often as greedy text. `ids` are
        the tokens of the columns if a drafter knows only some. Logits that are NaN propose nothing: damaged weights
        cost speed but never change the text.
        """

    def sample(self, row: int, position: int, stream: int, sampling: Sampling) -> int:
        """Sample a token from a row, with noise that no pick of the target uses. Raises the errors of a pick."""

    def probabilities(self, row: int, sampling: Sampling) -> npt.NDArray[np.float64]:
        """Return the probabilities that a token is sampled from, [vocab_size]: zero for all that truncation removes."""


@dataclass(frozen=True)
class PicksOnRequest:
    """Picks of a backend that computes one at a time: only nodes that a walk reaches cost time."""

    pick: Callable[[int], int]

    def __getitem__(self, row: int, /) -> int:
        return self.pick(row)


def candidates_shown(sampling: Sampling, count: int, vocab_size: int) -> int:
    """Return how many of the likeliest tokens of a row `choose_candidates` needs."""
    return min(count if sampling.proposes_likeliest else sampling.top_k or LIKELY, LIKELY, vocab_size)


def choose_candidates(
    tokens: Ids, confidence: npt.NDArray[np.floating], positions: Sequence[int], count: int, sampling: Sampling
) -> list[list[Candidate]]:
    """Return what `Logits.candidates` does, from the likeliest tokens [rows, n] and probabilities, best first."""
    if not sampling.proposes_likeliest:
        with np.errstate(divide="ignore"):  # a chance may be rounded to zero
            noisy = np.log(confidence.astype(np.float64)) + sampling.noise(positions, tokens)
        best = np.argsort(-noisy, -1, kind="stable")[:, :count]
        noisy = np.take_along_axis(noisy, best, -1)
        weights = np.exp(noisy - noisy[:, :1])
        tokens, confidence = np.take_along_axis(tokens, best, -1), weights / weights.sum(-1, keepdims=True)
    rows = [zip(*row, strict=True) for row in zip(tokens.tolist(), confidence.tolist(), strict=True)]
    return [[(token, chance) for token, chance in row if not math.isnan(chance)] for row in rows]
