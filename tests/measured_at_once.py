"""Fake measurements for tests, which finish in one step."""

from collections.abc import Callable
from typing import TypeVar

from localspec.decoding.measuring import Measuring, MeasuringProgress

Result = TypeVar("Result")


def at_once(measure: Callable[..., Result]) -> Callable[..., Measuring[Result]]:
    """Return a measurement that calls `measure` after its only step."""

    def measuring(*given: object) -> Measuring[Result]:
        yield MeasuringProgress(1, 1, 1.0)
        return measure(*given)

    return measuring
