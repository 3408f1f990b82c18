"""What decoding is given of a forward: handles of logits and of hidden states, wherever a backend holds them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from localspec.decoding.sampling import Ids, Sampling

LIKELY = 128  # the likeliest ids, which a drafter's candidates are taken from
Candidate = tuple[int, float]  # a token, and the chance that it is accepted, given that its parent is


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
        """Return whether all of them are numbers."""


class Picks(Protocol):
    """A token by row; it may be computed when it is asked for."""

    def __getitem__(self, row: int, /) -> int: ...


class Logits(Protocol):
    """Logits [rows, vocab_size]."""

    def __len__(self) -> int: ...

    def take(self, rows: Sequence[int]) -> "Logits":
        """Return these rows, in this order."""

    def numpy(self) -> npt.NDArray[np.float32]:
        """Return all of them, [rows, vocab_size]."""

    def finite(self) -> bool:
        """Return whether all of them are numbers."""

    def finite_rows(self, sampling: Sampling) -> int:
        """Count the rows of a drafter's logits before the first from which nothing can be sampled: NaN, inf, no id."""

    def argmax(self) -> list[int]:
        """Return the likeliest token of each row."""

    def picks(self, positions: Sequence[int], sampling: Sampling) -> Picks:
        """Return by row the token that is picked for its position, as `Sampling` says.

        A pick raises LocalspecError where NaN leave nothing to pick.
        """

    def candidates(
        self, positions: Sequence[int], count: int, sampling: Sampling, ids: Ids | None = None
    ) -> list[list[Candidate]]:
        """Return the tokens to propose for the position of each row of a drafter's logits.

        They are (token, confidence) by row, the most confident first. Greedily they are the likeliest. Otherwise they
        have the highest log q + noise, the noise of the target's own pick at this position, so that a drafter whose q
        is the target's p proposes that pick, and sampled text is accepted almost as well as greedy text. `ids` are the
        tokens that the columns stand for, where a drafter knows only some. Logits that are NaN propose nothing: damaged
        weights cost speed and never the text.
        """

    def sample(self, row: int, position: int, stream: int, sampling: Sampling) -> int:
        """Sample a token from a row, with noise that no pick of the target has. Raises what a pick does."""

    def probabilities(self, row: int, sampling: Sampling) -> npt.NDArray[np.float64]:
        """Return what a token is sampled from, [vocab_size]: zero for all that truncation removes."""


@dataclass(frozen=True)
class PicksOnRequest:
    """Picks of a backend that computes one at a time: only nodes that a walk reaches cost anything."""

    pick: Callable[[int], int]

    def __getitem__(self, row: int, /) -> int:
        return self.pick(row)


def candidates_shown(sampling: Sampling, count: int, vocab_size: int) -> int:
    """Return how many of the likeliest tokens of a row `choose_candidates` needs."""
    return min(count if sampling.proposes_likeliest else sampling.top_k or LIKELY, LIKELY, vocab_size)


def choose_candidates(
    tokens: Ids, confidence: npt.NDArray[np.floating], positions: Sequence[int], count: int, sampling: Sampling
) -> list[list[Candidate]]:
    """Return what `Logits.candidates` does of the likeliest tokens [rows, n] and their probabilities, best first."""
    if not sampling.proposes_likeliest:
        with np.errstate(divide="ignore"):  # a chance may be rounded to zero
            noisy = np.log(confidence.astype(np.float64)) + sampling.noise(positions, tokens)
        best = np.argsort(-noisy, -1, kind="stable")[:, :count]
        noisy = np.take_along_axis(noisy, best, -1)
        weights = np.exp(noisy - noisy[:, :1])
        tokens, confidence = np.take_along_axis(tokens, best, -1), weights / weights.sum(-1, keepdims=True)
    rows = [zip(*row, strict=True) for row in zip(tokens.tolist(), confidence.tolist(), strict=True)]
    return [[(token, chance) for token, chance in row if not math.isnan(chance)] for row in rows]
