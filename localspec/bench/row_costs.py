"""What forwards of several rows cost in the very run that is judged: timed between its replies, in turns."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import median

from localspec.choosing.cost import linear
from localspec.engine.backends import Target
from localspec.engine.forward_timing import ROWS, picks_after

CONTEXT = 256  # tokens before a timed forward, where the model holds as many
ROUNDS = 3  # each time somebody looks


@dataclass(frozen=True)
class RowCosts:
    """Forwards by their rows, in units of a forward of one row, which takes `one` seconds."""

    rows: tuple[int, ...]
    costs: tuple[float, ...]
    one: float

    def mean(self, forwards: Mapping[int, int]) -> float:
        """Seconds of a forward, on average over `forwards`: how many there were of so many rows."""
        units = sum(count * linear(self.rows, self.costs, rows) for rows, count in forwards.items())
        return self.one * units / sum(forwards.values())


class RowTimer:
    """Times forwards of one row and of more in turns, so that what disturbs the machine disturbs them alike."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._rounds: list[dict[int, float]] = []  # seconds by rows

    def look(self, most: int) -> None:
        """Times forwards of 1, 2, 4, … rows, up to `most` or just above."""
        target = self._target
        rows = [n for at, n in enumerate(ROWS) if at == 0 or ROWS[at - 1] < most]
        context = max(0, min(CONTEXT, target.context - rows[-1]))
        cache = target.cache(context + rows[-1])
        for _ in range(ROUNDS):
            seconds = {}
            for n in rows:
                tokens = [(7 + 31 * place) % target.vocab_size for place in range(n)]
                cache.assume(context)
                began = time.perf_counter()
                picks_after(target, cache, tokens)
                seconds[n] = time.perf_counter() - began
            self._rounds.append(seconds)

    def costs(self) -> RowCosts | None:
        """Medians of what rows cost beside the one row of the same round; None before the first look."""
        if not self._rounds:
            return None
        rows = sorted({n for seconds in self._rounds for n in seconds})
        beside = [median(seconds[n] / seconds[1] for seconds in self._rounds if n in seconds) for n in rows]
        one = median(seconds[1] for seconds in self._rounds)
        return RowCosts(tuple(rows), tuple(accumulate(beside, max)), one)  # more rows are never cheaper


def most_rows(forwards: Sequence[Mapping[int, int]]) -> int:
    """The most rows that any of these forwards had."""
    return max((rows for counts in forwards for rows in counts), default=1)
