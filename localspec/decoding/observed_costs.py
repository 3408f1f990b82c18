"""The present costs of forwards: measured costs, corrected by the times of forwards during decoding."""

from collections import deque
from statistics import median

from localspec.choosing.cost import ForwardCostModel

REMEMBERED = 9  # recent forwards; the median of their deviations counts
ENOUGH = 3  # forwards that a median needs
FRESH = 64  # a deviation expires after this many forwards, since the machine may have become quiet again
CHANGE = 1.25  # if the time of trees changes by this factor, plain steps are timed again


class ObservedCosts:
    """A `ForwardCostModel` that multiplies measured costs by a factor: how much longer similar forwards take now.

    On a busy machine a forward of eight rows may take three times as long, but one of a single row hardly longer, so
    that trees no longer pay. A size that was not seen lately gets the factor of the nearest size. If trees become
    slower, `wants_plain` requests a few plain steps, to see whether those became slower too.
    """

    def __init__(self, measured: ForwardCostModel) -> None:
        self._measured = measured
        self._forwards = 0
        self._recent: deque[float] = deque(maxlen=REMEMBERED)  # deviations of the last forwards
        # The same by the size of their rows (1, 2 to 4, 5 to 8, 9 to 16, …), with the number of each forward.
        self._of: dict[int, deque[tuple[int, float]]] = {}
        self._then: dict[int, float] = {}  # the deviation by size at first, or when plain steps were last looked at
        self._plain = 0  # plain steps since they were requested
        self._factors: dict[int, float] = {}  # by size, until the next forward: a tree needs one for each of its nodes

    def at(self, rows: int, context: int) -> float:
        """Return the seconds of one forward of `rows` rows after `context` committed tokens."""
        size = _size(rows)
        factor = self._factors.get(size)
        if factor is None:
            nearest = min(filter(self._fresh, self._of), key=lambda other: abs(other - size), default=None)
            factor = self._factors[size] = 1.0 if nearest is None else self._deviation(nearest)
        return self._measured.at(rows, context) * factor

    @property
    def slowness(self) -> float:
        """How many times longer recent forwards took than measured."""
        return median(self._recent) if len(self._recent) >= ENOUGH else 1.0

    @property
    def wants_plain(self) -> bool:
        """Whether the time of trees has changed so much that plain steps should be timed again."""
        return any(
            not _alike(self._deviation(size), self._then[size]) for size in self._then if size and self._fresh(size)
        )

    def observe(self, rows: int, context: int, seconds: float) -> None:
        """Learn how many seconds a forward took. Zero means that it was not timed."""
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
        """Return whether enough forwards of this size were seen lately. Older ones are forgotten."""
        seen = self._of[size]
        while seen and self._forwards - seen[0][0] >= FRESH:
            seen.popleft()
        return len(seen) >= ENOUGH


def _size(rows: int) -> int:
    """Return a class of forwards that have about as many rows: kernels compute four, eight or sixteen rows at once."""
    return max((rows - 1).bit_length(), 2) if rows > 1 else 0


def _alike(one: float, other: float) -> bool:
    return one < CHANGE * other and other < CHANGE * one
