"""How often the screen follows a reply, so that it leaves the CPU to the model."""

import time

SHORTEST, LONGEST = 0.1, 0.5  # seconds
SHARE = 0.03  # of a core, of which the model misses a part: one of its threads rests meanwhile, and the others go on


class Pace:
    """The seconds until the next look, by what the last one cost this thread."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """A reply begins."""
        self.period = SHORTEST
        self._spent = time.thread_time()

    def next(self) -> float:
        """As long as makes its share of what was spent since the last call, drawing and all; as far as eyes bear it."""
        spent = time.thread_time()
        self.period = min(max((spent - self._spent) / SHARE, SHORTEST), LONGEST)
        self._spent = spent
        return self.period
