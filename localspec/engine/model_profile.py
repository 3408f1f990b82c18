"""The measurements of a loaded model: how exact it is, the costs of its forwards, and the acceptance in its replies."""

import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from statistics import median_low
from typing import Any, Self, TypeVar

from localspec.choosing.choice import LoadSpec
from localspec.choosing.cost import CONTEXT, CurrentCosts, Estimate, ForwardCostModel, ForwardCosts, Rates
from localspec.choosing.fit import STATIC_ROWS
from localspec.choosing.measure import (
    COSTS,
    REPLIES,
    MeasurementCache,
    Measurements,
    Quantity,
    T,
    model_subject,
    replies_subject,
    reply_stats,
    with_kernels,
    with_reply,
)
from localspec.decoding.exactness import Exactness
from localspec.decoding.measuring import WEIGHT_ROWS, Measuring, MeasuringProgress
from localspec.decoding.tree import DraftTree
from localspec.engine.backends import Target, checking_exactness, fills_rows
from localspec.events import Reporter, Statistics
from localspec.machine.hardware import wait_for
from localspec.machine.machine import this_machine
from localspec.machine.memory import free_memory
from localspec.models.shape import Shape
from localspec.quantities import duration
from localspec.weights.fingerprint import Identity
from localspec.weights.recipe import as_draft

ROWS = (1, 2, 4, 8, 16, 32, 64)
# Where rows are filled up, one more than such a number costs as much as the next larger one.
FILLED_UP = tuple(sorted({*STATIC_ROWS, *(rows + 1 for rows in STATIC_ROWS[1:-1])}))
# Also on a GPU, if 64 rows hardly cost more than one. The prefill window of a small draft model has as many rows, and a
# static shape at most 64.
WIDE, NEARLY_FREE = (65, 128, 192), 1.3
NEAR, FAR = 256, 2048  # tokens of context
MOST_REPETITIONS = 15
ENOUGH_SECONDS = 1.0  # of repetitions, but at least two
# After this many seconds one repetition is enough. After a forward of this length, no more rows are tried.
PATIENCE_SECONDS = 3.0


def timing_forwards(target: Target) -> Measuring[ForwardCosts]:
    """Time forwards of 1 to 64 rows or more at two lengths of the text. Yield after each forward.

    The whole measurement takes a few seconds or more. All numbers of rows are timed once before any is timed again, so
    that a busy moment slows all of them. A text length that does not fit in memory is left out. Larger numbers of rows
    are left out when a forward takes more than three seconds. Pauses between two forwards do not count.
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
                turn = repetition + part / (len(contexts) * sum(WEIGHT_ROWS + count for count in rows))
                turns = max(_turns(spent / turn), repetition + 1)
                yield MeasuringProgress(done, turns * len(rows) * len(contexts), min(1.0, turn / turns))
            if timings[n, contexts[-1]][0] > PATIENCE_SECONDS:
                del rows[rows.index(n) + 1 :]
        if repetition == 1 and spent <= ENOUGH_SECONDS and rows[-1] == ROWS[-1]:  # all shapes are recorded by then
            single, largest = (timings[n, contexts[0]][-1] for n in (1, ROWS[-1]))
            rows += wide if largest <= NEARLY_FREE * single else ()
        repetition += 1
    return _smoothed(rows, contexts, timings)


def _turns(seconds: float) -> int:
    """Return how many times each forward is timed, if timing all of them once takes this many seconds."""
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
    """Return the median time of each forward, corrected so that more rows or a longer context never cost less.

    The first of several repetitions is left out. Disturbances only make forwards slower. So where two times contradict
    each other, the longer time is replaced by the shorter.
    """
    seconds: list[list[float]] = []
    longer = [float("inf")] * len(rows)
    for context in reversed(contexts):
        line, least = [], float("inf")
        for n, above in zip(reversed(rows), reversed(longer), strict=True):
            repetitions = timings[n, context]
            least = min(least, above, median_low(repetitions[1:] or repetitions))
            line.append(least)
        longer = line[::-1]
        seconds.append(longer)
    return ForwardCosts(tuple(rows), tuple(contexts), tuple(tuple(line) for line in reversed(seconds)))


SPILL_FACTOR = 4  # a step that takes this many times what was measured: GPU memory has spilled into main memory
LEAST_STEPS = 8  # in a reply that is judged


class SpillWatch:
    """A watch that warns once if steps on a GPU become much slower than measured, as when its memory is full."""

    def __init__(self, device: str, costs: ForwardCostModel | None, reporter: Reporter) -> None:
        self._device, self._reporter = device, reporter
        self._costs = costs if device.startswith("cuda") else None

    def look(self, statistics: Statistics, tokens: int) -> None:
        """Warn if a reply's steps were too slow; after the reply the cache holds `tokens` tokens."""
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


CHECKING = "checking that drafts are exact (once)"
TIMING, TIMING_DRAFT = "timing this model (once)", "timing the draft model (once)"
PROBING = "finding layers that draft best (once)"
EXACTNESS = Quantity("exactness", Exactness.from_json, Exactness.as_json)

Result = TypeVar("Result")
ProgressTexts = Generator[str, None, Result]


@dataclass(frozen=True)
class ModelProfile:
    """The measurements of one model on this machine, in one precision and with one context."""

    cache: MeasurementCache
    identity: Identity
    subject: str
    replies_subject: str = ""

    @classmethod
    def of(cls, choice: LoadSpec, cache: MeasurementCache) -> Self:
        """Return the profile of a model as this choice loads it. Raises LocalspecError if its files are damaged."""
        identity = Identity(choice.target.path)
        packing = f"{choice.quantize} above {choice.threshold}" if choice.threshold else choice.quantize
        packing = as_draft(packing) if choice.drafts else packing
        parts = identity.weights, choice.device, choice.dtype, packing
        subject = model_subject(*parts, choice.exact, choice.context)
        return cls(cache, identity, with_kernels(subject, choice.device, cache), replies_subject(*parts))

    @property
    def reporter(self) -> Reporter:
        """The reporter of measurements and of problems with them."""
        return self.cache.reporter

    def recall(self, quantity: Quantity[T]) -> T | None:
        """Return the saved value of a `quantity` of this model, such as the costs of forwards; None if unknown."""
        return self.cache.recall(quantity, self.subject)

    def remember(self, quantity: Quantity[T], value: T) -> None:
        """Save the value of a `quantity` of this model, such as the costs of forwards, for later sessions."""
        self.cache.remember(quantity, self.subject, value)

    def exactness(self, target: Target, widest: int) -> Exactness | None:
        """Return how exactly trees of up to `widest` rows are computed; None if unknown.

        If known, the target pads later forwards to a multiple of `Exactness.multiple` rows.
        """
        exactness = self.cache.recall(EXACTNESS, self._exactness_subject(target))
        if exactness is None or (exactness.bitwise and exactness.widest < widest):
            return None
        target.row_multiple = exactness.multiple
        return exactness

    def checking(self, choice: LoadSpec, target: Target, widest: int) -> Measuring[Exactness]:
        """Run the self-test of how exactly trees of up to `widest` rows are computed, and save the result.

        Afterwards the target pads forwards to a multiple of `Exactness.multiple` rows.
        """
        exactness = yield from checking_exactness(choice, target, widest)
        self.cache.remember(EXACTNESS, self._exactness_subject(target), exactness)
        target.row_multiple = exactness.multiple
        return exactness

    def _exactness_subject(self, target: Target) -> str:
        # A result for rows that are filled up to a multiple is not valid for others.
        return f"{self.subject} · filled up" if fills_rows(target) else self.subject

    def costs(self, spec: LoadSpec, target: Target) -> CurrentCosts:
        """Return the costs of forwards, timed or estimated."""
        timed = self.recall(COSTS)
        return CurrentCosts(timed or estimated_costs(spec, target, self.cache), timed is not None)

    @property
    def untimed(self) -> bool:
        """Whether no times of this model's forwards are saved."""
        return self.recall(COSTS) is None

    def timing(self, target: Target) -> Measuring[ForwardCosts]:
        """Time forwards with one thread for each core that other programs leave idle."""

        def measure_now(cores: int) -> Measuring[ForwardCosts]:
            target.set_threads(cores)
            return timing_forwards(target)

        return self.cache.measuring(COSTS, self.subject, measure_now)

    def was_slower(self, drafter: str, costs: ForwardCostModel) -> bool:
        """Return whether earlier replies with a drafter took longer than plain decoding. `drafter` is its
        `reply_key`."""
        sums = (self.cache.recall(REPLIES, self.replies_subject) or {}).get(drafter)
        stats = reply_stats(sums) if sums else None
        if stats is None:
            return False
        whole, part = divmod(stats.nodes, 1)  # on average: most steps have no nodes where drafts were switched off
        rows = [costs.at(1 + int(whole) + more, CONTEXT) for more in (0, 1)]
        verifying = (rows[0] + part * (rows[1] - rows[0])) / costs.at(1, CONTEXT)
        return stats.length * (1 + stats.rest) < verifying * (1 + stats.drafting + stats.rest)

    def add_reply(self, drafter: str, statistics: Statistics) -> None:
        """Add one reply to the saved figures of a drafter. `drafter` is its `reply_key`."""
        if statistics.steps and statistics.token_ids:
            sums = with_reply(self.cache.recall(REPLIES, self.replies_subject) or {}, drafter, statistics)
            # Do not report a failure: the next reply is as informative.
            self.cache.remember(REPLIES, self.replies_subject, sums, silent=True)


def estimated_costs(spec: LoadSpec, target: Target, cache: MeasurementCache) -> ForwardCostModel:
    """Return the estimated costs of forwards of this model, from the bandwidth of its device."""
    device, shape = this_machine().device(spec.device), Shape.of(target.config.content)
    assert device is not None and shape is not None
    bandwidth = Measurements(cache, quiet=True).bandwidth(device.name)
    device = replace(device, bandwidth=bandwidth, block_bits=8 * target.read_bytes / shape.read(1))
    return Estimate(shape, Rates.of(device, spec.dtype, spec.quantize))


def progress_texts(name: str, measuring: Measuring[Result]) -> ProgressTexts[Result]:
    """Advance a measurement, and yield its progress with the time left, estimated from the steps so far."""
    spent = 0.0
    yield name
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
            yield f"{name}: {done} of {total}, about {duration(max(1.0, left))} left"
        else:
            yield name
