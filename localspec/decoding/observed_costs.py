"""What forwards cost at present: as they were measured, corrected by what they take while text is decoded."""

from collections import deque
from statistics import median

from localspec.choosing.cost import ForwardCostModel

REMEMBERED = 9  # forwards, of whose deviations the median counts
ENOUGH = 3  # of them are believed
FRESH = 64  # forwards for which a deviation is believed: the machine may have become quiet again
CHANGE = 1.25  # of what trees take, after which plain steps are looked at again


class ObservedCosts:
    """Costs of a quiet machine, multiplied by how much longer forwards of about as many rows take now.

    On a busy machine a forward of eight rows may take three times as long and one of one row hardly longer, so that
    trees no longer pay. Forwards that were not seen lately are believed to deviate as those of the nearest number of
    rows. So that a change of trees alone is told from one of everything, `wants_plain` asks for a few plain steps.
    """

    def __init__(self, measured: ForwardCostModel) -> None:
        self._measured = measured
        self._forwards = 0
        self._recent: deque[float] = deque(maxlen=REMEMBERED)  # deviations of the last forwards
        # The same by the size of their rows (1, 2 to 4, 5 to 8, 9 to 16, …), with the number of each forward.
        self._of: dict[int, deque[tuple[int, float]]] = {}
        self._then: dict[int, float] = {}  # the deviation by size at first, or when plain steps were last looked at
        self._plain = 0  # plain steps since a look at them was wanted
        self._factors: dict[int, float] = {}  # by size, until the next forward: a tree asks for each of its nodes

    def at(self, rows: int, context: int) -> float:
        """Seconds of one forward of so many rows after so many committed tokens."""
        size = _size(rows)
        factor = self._factors.get(size)
        if factor is None:
            nearest = min(filter(self._fresh, self._of), key=lambda other: abs(other - size), default=None)
            factor = self._factors[size] = 1.0 if nearest is None else self._deviation(nearest)
        return self._measured.at(rows, context) * factor

    @property
    def slowness(self) -> float:
        """How many times longer the last forwards took than was measured."""
        return median(self._recent) if len(self._recent) >= ENOUGH else 1.0

    @property
    def wants_plain(self) -> bool:
        """Whether what trees take has changed so much that plain steps should be seen again."""
        return any(
            not _alike(self._deviation(size), self._then[size]) for size in self._then if size and self._fresh(size)
        )

    def observe(self, rows: int, context: int, seconds: float) -> None:
        """Takes in what a forward took; zero where nobody looked at the clock."""
        if seconds <= 0:
            return
        size, deviation = _size(rows), seconds / self._measured.at(rows, context)
        self._forwards += 1
        self._factors.clear()
        self._recent.append(deviation)
        self._of.setdefault(size, deque(maxlen=REMEMBERED)).append((self._forwards, deviation))
        if self._fresh(size):
            self._then.setdefault(size, self._deviation(size))
        self._plain += rows == 1
        if self._plain >= ENOUGH or not self.wants_plain:
            if self._plain >= ENOUGH:
                self._then |= {size: self._deviation(size) for size in self._of if self._fresh(size)}
            self._plain = 0

    def _deviation(self, size: int) -> float:
        return median(deviation for _, deviation in self._of[size])

    def _fresh(self, size: int) -> bool:
        """Return whether enough forwards of this size were seen lately; older ones are forgotten."""
        seen = self._of[size]
        while seen and self._forwards - seen[0][0] >= FRESH:
            seen.popleft()
        return len(seen) >= ENOUGH


def _size(rows: int) -> int:
    """Return the class of forwards with about as many rows: kernels compute four, eight or sixteen at once."""
    return max((rows - 1).bit_length(), 2) if rows > 1 else 0


def _alike(one: float, other: float) -> bool:
    return one < CHANGE * other and other < CHANGE * one
