"""Readings that are taken in turns, the load of other programs meanwhile, and the resulting figures."""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import psutil

DISTURBED = 0.1  # of a core, used by other programs: the reading does not count
LEAST = 0.2  # seconds of a reading: long enough to detect a tenth of a core in the kernel's hundredths of a second
Action = Callable[[], float | None]  # returns its own seconds if they are not all of its time

Raw = Mapping[str, Sequence[Sequence[float]]]  # cell -> [turn, value, others]; a smaller value is better


class OtherPrograms:
    """A count of the cores' time that programs other than this process and its children took since the last look."""

    def __init__(self) -> None:
        self._last = self._read()

    def __call__(self) -> float:
        now, last = self._read(), self._last
        self._last = now
        passed = max(now[0] - last[0], 1e-9)
        return max(0.0, (now[1] - last[1]) - (now[2] - last[2])) / passed

    @staticmethod
    def _read() -> tuple[float, float, float]:
        """(seconds, busy seconds of all cores, those of this process and of its children)."""
        times, own = psutil.cpu_times(), os.times()
        idle = times.idle + getattr(times, "iowait", 0.0)
        return time.monotonic(), sum(times[:8]) - idle, sum(own[:4])


def timed(action: Action, least: float = LEAST, warm: bool = True) -> tuple[float, float]:
    """Return milliseconds of an action, and how many cores other programs took meanwhile.

    Unless it is long, the first time is not counted: what ran before it still holds cores and caches.
    """
    if warm:
        action()
    others, began, total, count = OtherPrograms(), time.perf_counter(), 0.0, 0
    while not count or time.perf_counter() - began < least:
        start = time.perf_counter()
        own = action()
        total += time.perf_counter() - start if own is None else own
        count += 1
    return 1e3 * total / count, others()


def turns(count: int, seconds: float) -> Iterator[tuple[int, list[int]]]:
    """Yield the number of each turn and the order of `count` contenders in it, each time another one first; at least one."""
    began, turn = time.perf_counter(), 0
    while not turn or time.perf_counter() - began < seconds:
        first = turn % count
        yield turn, [*range(first, count), *range(first)]
        turn += 1


def cell(contender: str, column: object) -> str:
    """Return the name of a cell in the raw figures."""
    return f"{contender}|{column}"


@dataclass(frozen=True)
class Figure:
    """A median, with the numbers of quiet readings and of those taken while other programs were running.

    Where almost no reading was quiet, it is the median of all of them, and is `marked`.
    """

    value: float
    quiet: int
    disturbed: int

    @property
    def marked(self) -> bool:
        return _few(self.quiet, self.disturbed)


def _few(quiet: int, disturbed: int) -> bool:
    return quiet < max(1, disturbed / 2)


def figure(readings: Raw, contender: str, column: object) -> Figure | None:
    """Return the figure of a cell; None where it was not measured."""
    taken = readings.get(cell(contender, column), ())
    quiet = [value for _, value, others in taken if others <= DISTURBED]
    if not taken:
        return None
    disturbed = len(taken) - len(quiet)
    used = [value for _, value, _ in taken] if _few(len(quiet), disturbed) else quiet
    return Figure(median(used), len(quiet), disturbed)


def ratio(readings: Raw, one: str, other: str, column: object, other_column: object = None) -> Figure | None:
    """Return the speedup of the first: the median of the ratios turn by turn, never a ratio of medians.

    `other_column` is the second's, where it is another one.
    """
    ours = {turn: (value, others) for turn, value, others in readings.get(cell(one, column), ())}
    theirs = readings.get(cell(other, column if other_column is None else other_column), ())
    pairs = [(value / ours[turn][0], max(others, ours[turn][1])) for turn, value, others in theirs if turn in ours]
    paired = {cell("both", ""): [(turn, value, others) for turn, (value, others) in enumerate(pairs)]}
    return figure(paired, "both", "")
