"""Time for tests."""

import time
from collections.abc import Callable

# Seconds after which a test's wait counts as hung. Nothing that works takes this long, even on a busy machine, where
# importing torch may take a minute.
PATIENCE = 150


def until(condition: Callable[[], object]) -> None:
    """Wait for the result of another process or thread."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it never came to pass"
        time.sleep(0.01)


class Clock:
    """A clock on which time passes only when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now
