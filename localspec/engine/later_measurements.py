"""What can wait until after the first reply: measurements whose steps are shown, paused, resumed and skipped."""

import time
from collections.abc import Generator
from typing import TypeVar

from localspec.decoding.measuring import Measuring
from localspec.events import Reporter
from localspec.quantities import duration

CHECKING = "checking that drafts leave the text unchanged (once)"
TIMING, TIMING_DRAFT = "timing this model (once)", "timing the draft model (once)"
PROBING = "finding the layers that draft best (once)"

Result = TypeVar("Result")
Shown = Generator[str, None, Result]  # yields what is shown of a measurement


def shown(what: str, measuring: Measuring[Result]) -> Shown[Result]:
    """Yield how far a measurement is and how long the rest should take, by the time of its own steps."""
    spent = 0.0
    yield what
    while True:
        began = time.perf_counter()
        try:
            done, total, share = next(measuring)
        except StopIteration as end:
            result: Result = end.value
            return result
        if share:  # else it still prepares what it will measure
            spent += time.perf_counter() - began
            left = spent * (1 - share) / share
            yield f"{what}: {done} of {total}, about {duration(max(1.0, left))} left"
        else:
            yield what


def reported(steps: Shown[Result], reporter: Reporter) -> Result:
    """Return the result of a measurement that is waited for, and report its progress."""
    while True:
        try:
            reporter.progress(next(steps))
        except StopIteration as end:
            result: Result = end.value
            return result
