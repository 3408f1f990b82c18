"""Progress of the measurements that can wait until after the first reply, as text for the user."""

import time
from collections.abc import Generator
from typing import TypeVar

from localspec.decoding.measuring import Measuring
from localspec.quantities import duration

CHECKING = "checking that drafts are exact (once)"
TIMING, TIMING_DRAFT = "timing this model (once)", "timing the draft model (once)"
PROBING = "finding layers that draft best (once)"

Result = TypeVar("Result")
ProgressTexts = Generator[str, None, Result]


def progress_texts(what: str, measuring: Measuring[Result]) -> ProgressTexts[Result]:
    """Advance a measurement, and yield its progress with the time left, estimated from the steps so far."""
    spent = 0.0
    yield what
    while True:
        began = time.perf_counter()
        try:
            done, total, share = next(measuring)
        except StopIteration as end:
            result: Result = end.value
            return result
        if share:  # 0 while the measurement prepares its input
            spent += time.perf_counter() - began
            left = spent * (1 - share) / share
            yield f"{what}: {done} of {total}, about {duration(max(1.0, left))} left"
        else:
            yield what
