"""Turns a drafter's confidence into a chance: how often candidates with the same confidence were right."""

from bisect import bisect
from collections.abc import Sequence
from typing import Any, Self

from localspec.decoding.logits import Candidate

EDGES = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.97)  # of the bins of confidence
DEPTHS, RANKS = 8, 8  # deeper levels and lower ranks count as the last ones
PRIOR = 4.0  # the drafter's own confidence counts as this many candidates
REMEMBERED = 400.0  # candidates in a bin; beyond that old ones fade


class Calibration:
    """A table of how often candidates were right, by depth, rank and confidence, separately for greedy and sampled
    text.

    A candidate is a token that a drafter proposed. It is judged only if its parent was accepted, so the share of right
    candidates estimates the chance of acceptance, given an accepted parent. Some drafters pass another number as
    `depth`: phrases pass the length of a match, and merged drafters the set of drafters that proposed the token.
    """

    def __init__(self) -> None:
        self._counts: dict[tuple[bool, int, int, int], tuple[float, float]] = {}  # (right, judged)

    def chance(self, confidence: float, depth: int, rank: int, greedy: bool) -> float:
        """Return the chance that a candidate of this confidence, depth and rank is accepted."""
        right, judged = self._counts.get(_key(greedy, depth, rank, confidence), (0.0, 0.0))
        return (right + PRIOR * confidence) / (judged + PRIOR)

    def chances(self, candidates: Sequence[Candidate], depth: int, greedy: bool) -> list[Candidate]:
        """Turn candidates (token, confidence) at one depth into (token, chance), the likeliest first."""
        calibrated = [
            (token, self.chance(confidence, depth, rank, greedy)) for rank, (token, confidence) in enumerate(candidates)
        ]
        return sorted(calibrated, key=lambda candidate: -candidate[1])  # stable: equal ones keep their rank

    def judge(self, confidence: float, depth: int, rank: int, greedy: bool, right: bool) -> None:
        """Record whether a candidate, whose parent was accepted, was right."""
        key = _key(greedy, depth, rank, confidence)
        hits, judged = self._counts.get(key, (0.0, 0.0))
        fading = REMEMBERED / (REMEMBERED + 1) if judged >= REMEMBERED else 1.0
        self._counts[key] = fading * hits + right, fading * judged + 1

    def learn(self, candidates: Sequence[Candidate], depth: int, greedy: bool, token: int) -> None:
        """Judge all candidates below one accepted node: only the candidate equal to the target's `token` was right."""
        for rank, (drafted, confidence) in enumerate(candidates):
            self.judge(confidence, depth, rank, greedy, drafted == token)

    def as_json(self) -> list[Any]:
        """Return the counts for `from_json`."""
        return [[*key, round(right, 2), round(judged, 2)] for key, (right, judged) in self._counts.items()]

    @classmethod
    def from_json(cls, stored: Any) -> Self:
        """Return the calibration that `as_json` described; an empty calibration for anything else."""
        calibration = cls()
        try:
            for greedy, depth, rank, level, right, judged in stored or ():
                if 0 <= right <= judged and all(isinstance(number, int) for number in (depth, rank, level)):
                    calibration._counts[bool(greedy), depth, rank, level] = float(right), float(judged)
        except (TypeError, ValueError):
            return cls()
        return calibration


def _key(greedy: bool, depth: int, rank: int, confidence: float) -> tuple[bool, int, int, int]:
    return greedy, min(depth, DEPTHS), min(rank, RANKS - 1), bisect(EDGES, confidence)
