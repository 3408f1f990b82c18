"""Measures the costs of a loaded model's forwards on this machine."""

import time
from collections.abc import Sequence
from statistics import median_low
from typing import Any

from localspec.choosing.cost import ForwardCostModel, ForwardCosts
from localspec.choosing.fit import STATIC_ROWS
from localspec.decoding.measuring import WEIGHT_ROWS, Measuring, MeasuringProgress
from localspec.decoding.tree import DraftTree
from localspec.engine.backends import Target, fills_rows
from localspec.events import Reporter, Statistics
from localspec.machine.hardware import wait_for
from localspec.machine.memory import free_memory

ROWS = (1, 2, 4, 8, 16, 32, 64)
# If rows are filled up, one more than such a number costs as much as the next.
FILLED_UP = tuple(sorted({*STATIC_ROWS, *(rows + 1 for rows in STATIC_ROWS[1:-1])}))
# Also on a GPU, if 64 rows hardly cost more than one. The prefill window of a small draft model has as many rows, and a
# static shape at most 64.
WIDE, NEARLY_FREE = (65, 128, 192), 1.3
NEAR, FAR = 256, 2048  # tokens of context
MOST_REPETITIONS = 15
ENOUGH_SECONDS = 1.0  # of repetitions, but at least two
# After this time one repetition is enough. After a forward that took this long, no more rows are tried.
PATIENCE_SECONDS = 3.0


def timing_forwards(target: Target) -> Measuring[ForwardCosts]:
    """Measure forwards of 1 to 64 rows or more at two contexts, and yield after each. It takes a few seconds or more.

    Numbers of rows take turns, so that a busy moment slows all of them. A context that does not fit in memory is left
    out. Larger numbers of rows are left out when a forward takes more than three seconds. Pauses between two forwards
    do not count.
    """
    device, smallest = target.device, target.cache(1)
    far = max(0, min(FAR, target.context - ROWS[-1]))
    if far < 2 * NEAR or smallest.nbytes * (far / smallest.capacity + 1) > free_memory(device) / 2:
        far = min(NEAR, far)
    contexts = sorted({min(NEAR, far), far})
    rows = [n for n in (FILLED_UP if fills_rows(target) else ROWS) if n <= target.context - far]
    wide = [n for n in WIDE if n <= target.context - far] if device != "cpu" else []
    cache = target.cache(far + max(ROWS[-1], *wide, 0))
    timings: dict[tuple[int, int], list[float]] = {}

    def time_forward(n: int, context: int) -> float:
        tree = DraftTree.chain([token % target.vocab_size for token in range(n)])
        cache.assume(context)
        wait_for(device)
        start = time.perf_counter()
        target.forward(tree, cache)
        wait_for(device)
        return time.perf_counter() - start

    time_forward(1, contexts[0])  # at the first time, weights may still come from disk
    spent, repetition, done = 0.0, 0, 0
    while repetition <= MOST_REPETITIONS and spent <= (ENOUGH_SECONDS if repetition > 2 else PATIENCE_SECONDS):
        part = 0
        for n in rows:
            for context in contexts:
                began = time.perf_counter()
                timings.setdefault((n, context), []).append(time_forward(n, context))
                spent += time.perf_counter() - began
                part, done = part + WEIGHT_ROWS + n, done + 1
                turn = repetition + part / (len(contexts) * sum(WEIGHT_ROWS + one for one in rows))
                turns = max(_turns(spent / turn), repetition + 1)
                yield MeasuringProgress(done, turns * len(rows) * len(contexts), min(1.0, turn / turns))
            if timings[n, contexts[-1]][0] > PATIENCE_SECONDS:
                del rows[rows.index(n) + 1 :]
        if repetition == 1 and spent <= ENOUGH_SECONDS and rows[-1] == ROWS[-1]:  # all shapes are recorded by then
            one, most = (timings[n, contexts[0]][-1] for n in (1, ROWS[-1]))
            rows += wide if most <= NEARLY_FREE * one else ()
        repetition += 1
    return _smoothed(rows, contexts, timings)


def _turns(seconds: float) -> int:
    """Return how many times all numbers of rows are timed, if one turn takes this many seconds."""
    for turns in range(1, MOST_REPETITIONS + 1):
        if turns * seconds > (ENOUGH_SECONDS if turns > 2 else PATIENCE_SECONDS):
            return turns
    return MOST_REPETITIONS + 1


def picks_after(target: Target, cache: Any, tokens: Sequence[int]) -> list[int]:
    """Return the likeliest token after each of some tokens, which are read in one forward and then discarded."""
    return target.forward(DraftTree.chain(tokens), cache).logits.argmax()


def _smoothed(
    rows: Sequence[int], contexts: Sequence[int], timings: dict[tuple[int, int], list[float]]
) -> ForwardCosts:
    """Return the median of each measurement, without its first value. Costs never fall with more rows or a longer
    context.

    Disturbances only make a measurement longer, so if two contradict each other the shorter one is right.
    """
    seconds: list[list[float]] = []
    longer = [float("inf")] * len(rows)
    for context in reversed(contexts):
        line, least = [], float("inf")
        for n, above in zip(reversed(rows), reversed(longer), strict=True):
            taken = timings[n, context]
            least = min(least, above, median_low(taken[1:] or taken))
            line.append(least)
        longer = line[::-1]
        seconds.append(longer)
    return ForwardCosts(tuple(rows), tuple(contexts), tuple(tuple(line) for line in reversed(seconds)))


SPILL_FACTOR = 4  # a step that takes this many times what was measured: GPU memory has spilled into main memory
LEAST_STEPS = 8  # in a reply that is judged


class SpillWatch:
    """A watch that warns once if steps on a GPU take many times as long as measured."""

    def __init__(self, device: str, costs: ForwardCostModel | None, reporter: Reporter) -> None:
        self._device, self._reporter = device, reporter
        self._costs = costs if device.startswith("cuda") else None

    def look(self, statistics: Statistics, tokens: int) -> None:
        """Check a reply, after which the cache holds `tokens` tokens."""
        if self._costs is None or statistics.steps < LEAST_STEPS:
            return
        usual = self._costs.at(round(1 + statistics.drafted / statistics.steps), tokens)
        factor = statistics.verify_seconds / statistics.steps / usual
        if factor > SPILL_FACTOR:
            self._costs = None  # one warning is enough
            self._reporter.notice(
                f"a step takes {factor:.0f} times as long as when it was measured: the memory of {self._device} "
                "may be full and part of it moved to main memory; close other programs, or give a smaller --context or "
                "--quantize nf4."
            )
