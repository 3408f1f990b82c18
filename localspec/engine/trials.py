"""What may end the program, as a driver's error can: tried once, kept, and not tried again where it did."""

import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import psutil

from localspec.choosing.measure import MeasurementCache, Quantity
from localspec.machine.nvidia import nvidia_driver

PATIENCE = 60.0  # seconds for another process that is at it
LOOK_SECONDS = 0.2
ENDS = 2  # so often a process may end in a trial: once is somebody who closes a window
ENDED = "the program ended each time it was tried; another driver is tried anew"


@dataclass(frozen=True)
class Verdict:
    """What a trial found, and why nothing better; one that is `passing` is found anew by the next session.

    `tried_by` is the process that has begun to try, and has not come to an end: where the program ended, this is what
    the next one finds. It is the one after `ended` others that ended so.
    """

    outcome: str
    why: str | None = None
    passing: bool = False
    tried_by: str = ""
    ended: int = 0


def verdict_quantity(name: str, sound: Callable[[Verdict], bool]) -> Quantity[Verdict]:
    """What such verdicts are kept under; whatever is not `sound` is found anew."""

    def read(value: Any) -> Verdict | None:
        found = Verdict(**value)
        types = isinstance(found.why, str | None) and isinstance(found.tried_by, str) and isinstance(found.ended, int)
        return found if types and found.passing is False and sound(found) else None

    return Quantity(name, read, asdict)


def tried(
    cache: MeasurementCache, quantity: Quantity[Verdict], subject: str, what: str, fallback: str,
    try_out: Callable[[], Verdict],
) -> Verdict:  # fmt: skip
    """Returns what was kept, else what `try_out` finds; the fallback where a process is long at it, or all ended at it.

    "Looking whether `what` on this GPU". Raises what `try_out` does.
    """
    ourselves, until = _process(os.getpid()), time.monotonic() + PATIENCE
    while (found := cache.recall(quantity, subject)) is not None and _alive(found.tried_by, ourselves):
        if time.monotonic() > until:
            return Verdict(fallback, f"another process is looking whether {what}", passing=True)
        cache.reporter.progress(f"waiting for another process, which looks whether {what} on this GPU")
        time.sleep(LOOK_SECONDS)
    ended = 0 if found is None or found.tried_by in ("", ourselves) else found.ended + 1
    if found is not None and (not found.tried_by or ended >= ENDS):
        cache.remember(quantity, subject, found, silent=True)  # it is still of use, and measurements of long ago go
        return found
    cache.reporter.progress(f"looking whether {what} on this GPU, once")
    cache.remember(quantity, subject, Verdict(fallback, ENDED, tried_by=ourselves, ended=ended))
    found = Verdict(fallback, passing=True)
    try:
        found = try_out()
    finally:  # also where somebody pressed Ctrl+C
        now = cache.recall(quantity, subject)
        if now is None or now.tried_by in ("", ourselves):  # else another process began at the same moment
            cache.remember(quantity, subject, found)
    return found


def with_driver(subject: str) -> str:
    """What a verdict is valid for: a newer driver is tried anew."""
    driver = nvidia_driver()
    return f"{subject} · driver {driver.version if driver else 'unknown'}"


def _process(number: int) -> str:
    """A process by its number and when it began, since numbers come again."""
    return f"{number} {psutil.Process(number).create_time()}"


def _alive(process: str, ourselves: str) -> bool:
    """Whether a process other than this one is there."""
    try:
        return process != ourselves and _process(int(process.split(maxsplit=1)[0])) == process
    except (psutil.Error, ValueError, IndexError):
        return False
