"""Measurements that advance one forward at a time, so that they can be shown, paused and resumed."""

from collections.abc import Generator
from typing import NamedTuple, TypeVar

BASE = 8  # rows in whose time the weights are read: what a forward costs beside its rows, roughly

Result = TypeVar("Result")


class Progress(NamedTuple):
    """How far a measurement is: `done` of `total` parts, and the share of the work that is done."""

    done: int
    total: int
    share: float


Measuring = Generator[Progress, None, Result]


def finished(measuring: Measuring[Result]) -> Result:
    """Return the result of a measurement, without a pause."""
    while True:
        try:
            next(measuring)
        except StopIteration as end:
            result: Result = end.value
            return result
