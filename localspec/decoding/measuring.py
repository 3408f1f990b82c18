"""Measurements that advance one forward at a time, so that a caller can show, pause and resume them."""

from collections.abc import Callable, Generator
from typing import NamedTuple, TypeVar

WEIGHT_ROWS = 8  # Reading the weights takes about as long as computing this many rows.

Step = TypeVar("Step")
Result = TypeVar("Result")


class MeasuringProgress(NamedTuple):
    """The progress of a measurement: `done` of `total` forwards or trials, and the finished `share` of the work."""

    done: int
    total: int
    share: float


Measuring = Generator[MeasuringProgress, None, Result]


def finished(steps: Generator[Step, None, Result], show: Callable[[Step], object] = lambda _: None) -> Result:
    """Run a measurement to its end and return its result. Call `show` with each progress report."""
    while True:
        try:
            show(next(steps))
        except StopIteration as end:
            result: Result = end.value
            return result
