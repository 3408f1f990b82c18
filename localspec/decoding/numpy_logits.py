"""Logits as a numpy array: for models without a backend, and as the reference for backends."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from localspec.decoding.logits import Candidate, HeldLogits, candidates_shown, choose_candidates
from localspec.decoding.sampling import Ids, Sampling


class NumpyHidden:
    """Hidden states [rows, hidden_size] in main memory."""

    def __init__(self, rows: npt.NDArray[np.floating]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, rows: Sequence[int]) -> "NumpyHidden":
        """Return the states of these rows, in this order."""
        return NumpyHidden(self.rows[list(rows)])

    def part(self, start: int, stop: int) -> "NumpyHidden":
        """Return the states' channels [start, stop)."""
        return NumpyHidden(self.rows[:, start:stop])

    def finite(self) -> bool:
        """Return whether all states are finite numbers."""
        return bool(np.isfinite(self.rows).all())


class NumpyLogits(HeldLogits):
    """Logits [rows, vocab_size] in main memory, as `Logits` describes them."""

    rows: npt.NDArray[np.float32]

    def __init__(self, rows: npt.NDArray[np.floating]) -> None:
        self.rows = rows.astype(np.float32, copy=False)

    def take(self, rows: Sequence[int]) -> "NumpyLogits":
        """Return the logits of these rows, in this order."""
        return NumpyLogits(self.rows[list(rows)])

    def numpy(self) -> npt.NDArray[np.float32]:
        """Return all logits, [rows, vocab_size]."""
        return self.rows

    def finite(self) -> bool:
        """Return whether all logits are finite numbers."""
        return bool(np.isfinite(self.rows).all())

    def finite_rows(self, sampling: Sampling) -> int:
        """Count the rows before the first that cannot be sampled, because it has NaN or no possible token."""
        with np.errstate(over="ignore"):
            finite = np.isfinite(self.rows.max(-1) / np.float32(sampling.temperature)).tolist()
        return finite.index(False) if False in finite else len(finite)

    def candidates(
        self, positions: Sequence[int], count: int, sampling: Sampling, ids: Ids | None = None
    ) -> list[list[Candidate]]:
        """Return the tokens to propose for the position of each row."""
        scores = self.rows if sampling.proposes_likeliest else _cooled(self.rows, sampling)
        likely = np.argsort(-scores, -1, kind="stable")[:, : candidates_shown(sampling, count, scores.shape[-1])]
        confidence = np.take_along_axis(_softmax(scores), likely, -1)
        return choose_candidates(likely if ids is None else ids[likely], confidence, positions, count, sampling)

    def probabilities(self, row: int, sampling: Sampling) -> npt.NDArray[np.float64]:
        """Return the probabilities that a token is sampled from, [vocab_size]."""
        scores, ids = self._survivors(row, sampling)
        chances = np.zeros(self.rows.shape[-1])
        chances[ids] = _softmax(scores.astype(np.float64))
        return chances

    def _survivors(self, row: int, sampling: Sampling) -> tuple[npt.NDArray[np.float32], Ids]:
        scores, ids = _cooled(self.rows[row], sampling), np.arange(self.rows.shape[-1])
        if sampling.top_k and sampling.top_k < len(scores):
            kept = scores >= np.partition(scores, -sampling.top_k)[-sampling.top_k]
            scores, ids = scores[kept], ids[kept]
        if sampling.top_p < 1:
            order = np.argsort(-scores, kind="stable")
            chances = _softmax(scores[order])
            order = order[np.cumsum(chances) - chances < sampling.top_p]
            scores, ids = scores[order], ids[order]
        if sampling.min_p:
            chances = _softmax(scores)
            kept = chances >= sampling.min_p * chances.max(initial=0.0)
            scores, ids = scores[kept], ids[kept]
        return scores, ids


def _cooled(rows: npt.NDArray[np.float32], sampling: Sampling) -> npt.NDArray[np.float32]:
    with np.errstate(over="ignore"):
        return rows / np.float32(sampling.temperature)


def _softmax(scores: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
    with np.errstate(invalid="ignore", over="ignore"):
        weights = np.exp(scores - scores.max(-1, keepdims=True, initial=-np.inf))
        chances: npt.NDArray[np.floating] = weights / weights.sum(-1, keepdims=True)
    return chances
