"""Time for tests."""

import time
from collections.abc import Callable

# Seconds until what a test waits for counts as hung. Nothing that works takes so long, however busy the machine is: to
# import torch alone may take a minute there.
PATIENCE = 150


def until(condition: Callable[[], object]) -> None:
    """Wait for what another process or thread brings about."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it never came to pass"
        time.sleep(0.01)


class Clock:
    """Seconds that pass only when somebody says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now
