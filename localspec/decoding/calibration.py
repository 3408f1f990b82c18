"""What a drafter's confidence is worth: how often candidates like this one were right."""

from bisect import bisect
from collections.abc import Sequence
from typing import Any, Self

from localspec.decoding.tree import Candidate

EDGES = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.97)  # of confidence: what lies between two is alike
DEPTHS, RANKS = 8, 8  # those behind count as the last one
PRIOR = 4.0  # candidates that the drafter's own confidence counts for
REMEMBERED = 400.0  # candidates; then old ones fade


class Calibration:
    """Running shares of right candidates by depth, rank and confidence, for greedy and for drawn text.

    A candidate is judged where its parent was accepted, so a share estimates the chance of a node given its parent.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[bool, int, int, int], tuple[float, float]] = {}  # (right, all)

    def chances(self, candidates: Sequence[Candidate], depth: int, greedy: bool) -> list[Candidate]:
        """(token, confidence) of one level, `depth` places behind the root -> (token, chance), likeliest first."""
        found = []
        for rank, (token, confidence) in enumerate(candidates):
            right, all_ = self._seen.get(_key(greedy, depth, rank, confidence), (0.0, 0.0))
            found.append((token, (right + PRIOR * confidence) / (all_ + PRIOR)))
        return sorted(found, key=lambda candidate: -candidate[1])  # stable: equal ones keep their rank

    def learn(self, candidates: Sequence[Candidate], depth: int, greedy: bool, token: int) -> None:
        """The target went on with `token` where these were proposed."""
        for rank, (drafted, confidence) in enumerate(candidates):
            key = _key(greedy, depth, rank, confidence)
            right, all_ = self._seen.get(key, (0.0, 0.0))
            fading = REMEMBERED / (REMEMBERED + 1) if all_ >= REMEMBERED else 1.0
            self._seen[key] = fading * right + (drafted == token), fading * all_ + 1

    def as_json(self) -> list[Any]:
        """For `from_json`, in this or a later process."""
        return [[*key, round(right, 2), round(all_, 2)] for key, (right, all_) in self._seen.items()]

    @classmethod
    def from_json(cls, stored: Any) -> Self:
        """What was stored; nothing known where that is no calibration."""
        calibration = cls()
        try:
            for greedy, depth, rank, level, right, all_ in stored or ():
                if 0 <= right <= all_ and all(isinstance(number, int) for number in (depth, rank, level)):
                    calibration._seen[bool(greedy), depth, rank, level] = float(right), float(all_)
        except (TypeError, ValueError):
            return cls()
        return calibration


def _key(greedy: bool, depth: int, rank: int, confidence: float) -> tuple[bool, int, int, int]:
    return greedy, min(depth, DEPTHS), min(rank, RANKS - 1), bisect(EDGES, confidence)
