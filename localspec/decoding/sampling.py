"""The settings of sampling, and its random noise, which depends only on the seed, the position and the token id."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from localspec.config import Rule
from localspec.errors import UsageMistake
from localspec.setting_checks import COLDEST, HOTTEST

Ids = npt.NDArray[np.integer]
EPSILON, DELTA = 0.09, 0.3  # of the rule `typical`, as in the code that came with the paper


@dataclass(frozen=True)
class Sampling:
    """The settings of sampling. Temperature 0 means greedy decoding.

    Top-k 0, top-p 1.0 and min-p 0.0 switch these three filters off. A pick is argmax(log p + Gumbel noise), which is a
    sample from p. Temperature, top-k, top-p and min-p shape p, in that order. The noise depends only on the seed, the
    position and the token id. So a seed gives the same text with and without drafts. `rule` is the acceptance rule;
    `epsilon` and `delta` are ε and δ of the rule `typical`. `source` says in words where the values come from. `chosen`
    lists the values that the user has set. Raises UsageMistake for impossible values.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    rule: Rule = "exact"
    epsilon: float = EPSILON
    delta: float = DELTA
    source: str = field(default="", compare=False)
    chosen: Sequence[str] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        for name, value, fine, hint in (
            ("temperature", self.temperature, 0 <= self.temperature <= HOTTEST, f"from 0 to {HOTTEST}"),
            ("top-k", self.top_k, self.top_k >= 0, "0 or more"),
            ("top-p", self.top_p, 0 < self.top_p <= 1, "above 0 and at most 1"),
            ("min-p", self.min_p, 0 <= self.min_p <= 1, "between 0 and 1"),
            ("epsilon", self.epsilon, 0 < self.epsilon <= 1, "above 0 and at most 1"),
            ("delta", self.delta, 0 < self.delta <= 1, "above 0 and at most 1"),
        ):
            if not fine:
                raise UsageMistake(f"The {name} must be {hint}, not {value}.")
        if 0 < self.temperature < COLDEST:
            object.__setattr__(self, "temperature", COLDEST)
        if self.rule != "exact" and self.greedy:
            raise UsageMistake(f"--accept {self.rule} has no effect at temperature 0; leave it out, or give a --temp.")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def proposes_likeliest(self) -> bool:
        """Whether a drafter should propose the likeliest tokens; otherwise it uses the noise of the target's picks."""
        return self.greedy or self.rule == "typical"  # `typical` accepts likely tokens, whatever would be sampled

    def noise(self, position: int | Sequence[int], ids: Ids, stream: int | None = None) -> npt.NDArray[np.float64]:
        """Return the Gumbel noise of token ids at a position, as `gumbel` does.

        Each `stream` has independent noise; None is the stream of the target's picks.
        """
        return gumbel(self.stream_seed(stream), position, ids)

    def stream_seed(self, stream: int | None) -> int:
        """Return the 64-bit seed from which a stream's noise is hashed. Picks of the target have the stream None."""
        return self.seed & _WORD if stream is None else _mixed(self.seed + (1 + stream) * FIRST & _WORD)

    def uniform(self, position: int, stream: int) -> float:
        """Return a random number from 0 to 1 for one decision at `position`. Streams are independent of each other."""
        return float(_uniform(self.seed, [position], np.array([[-1 - stream]]))[0, 0])


def gumbel(seed: int, position: int | Sequence[int], ids: Ids) -> npt.NDArray[np.float64]:
    """Return Gumbel noise for token ids. It is a hash of (seed, position, id), so no generator state is needed.

    ids [n] have one position, and ids [rows, n] have a position for each row.
    """
    positions, rows = ([position], ids[None]) if isinstance(position, int) else (position, ids)
    noise: npt.NDArray[np.float64] = -np.log(-np.log(_uniform(seed, positions, rows)))
    return noise.reshape(ids.shape)


def _uniform(seed: int, positions: Sequence[int], ids: Ids) -> npt.NDArray[np.float64]:
    by_row = np.array(keys(seed, positions), np.uint64)
    bits = _mix(ids.astype(np.int64).view(np.uint64) * np.uint64(STEP) + by_row[:, None])
    uniform: npt.NDArray[np.float64] = ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    return uniform


def keys(seed: int, positions: Sequence[int]) -> list[int]:
    """Return a 64-bit number for each position. A token id's noise is a hash of the id and its position's number."""
    start = _mixed(seed & _WORD)
    return [_mixed(start + position * STEP & _WORD) for position in positions]


# splitmix64 (Steele, Lea and Flood 2014), on Python integers for the key and on wrapping integers of numpy for the ids.
_WORD = (1 << 64) - 1
STEP, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def _mixed(z: int) -> int:
    z = (z ^ (z >> 30)) * FIRST & _WORD
    z = (z ^ (z >> 27)) * SECOND & _WORD
    return z ^ (z >> 31)


def _mix(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    z = (z ^ z >> np.uint64(30)) * np.uint64(FIRST)
    z = (z ^ z >> np.uint64(27)) * np.uint64(SECOND)
    return z ^ z >> np.uint64(31)
