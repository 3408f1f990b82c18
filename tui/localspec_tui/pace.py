"""How often the screen follows a reply, so that it leaves the CPU to the model."""

import time

SHORTEST, LONGEST = 0.1, 0.5  # seconds
SHARE = 0.1  # of a core: what the screen may take before it slows down


class Pace:
    """The seconds until the next look, by what the last ones cost this thread."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """A reply begins."""
        self.period = SHORTEST
        self._spent, self._at = time.thread_time(), time.monotonic()

    def next(self) -> float:
        """Doubles the period where more than its share was spent since the last call."""
        spent, at = time.thread_time(), time.monotonic()
        if at > self._at and (spent - self._spent) / (at - self._at) > SHARE:
            self.period = min(self.period * 2, LONGEST)
        self._spent, self._at = spent, at
        return self.period
