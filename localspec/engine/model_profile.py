"""The measurements of a loaded model: how exact it is, the costs of its forwards, and the acceptance in its replies."""

import time
from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Self, TypeVar

from localspec.choosing.choice import LoadSpec
from localspec.choosing.cost import CurrentCosts, Estimate, ForwardCostModel, ForwardCosts, Rates
from localspec.choosing.measure import (
    COSTS,
    REPLIES,
    MeasurementCache,
    Measurements,
    Quantity,
    T,
    model_subject,
    replies_subject,
    with_kernels,
    with_reply,
)
from localspec.decoding.exactness import Exactness
from localspec.decoding.measuring import Measuring
from localspec.engine.backends import Target, checking_exactness, fills_rows
from localspec.engine.forward_timing import timing_forwards
from localspec.events import Reporter, Statistics
from localspec.machine.machine import this_machine
from localspec.models.shape import Shape
from localspec.quantities import duration
from localspec.weights.fingerprint import Identity
from localspec.weights.recipe import as_draft

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
        how = identity.weights, choice.device, choice.dtype, packing
        subject = model_subject(*how, choice.exact, choice.context)
        return cls(cache, identity, with_kernels(subject, choice.device, cache), replies_subject(*how))

    @property
    def reporter(self) -> Reporter:
        """The reporter of measurements and of problems with them."""
        return self.cache.reporter

    def recall(self, quantity: Quantity[T]) -> T | None:
        """Return the saved value for this model; None if there is none."""
        return self.cache.recall(quantity, self.subject)

    def remember(self, quantity: Quantity[T], value: T) -> None:
        """Save a value for later sessions."""
        self.cache.remember(quantity, self.subject, value)

    def exactness(self, target: Target, widest: int) -> Exactness | None:
        """Return how exactly trees of up to `widest` rows are computed; None if unknown.

        Set the multiple to which the target pads rows.
        """
        found = self.cache.recall(EXACTNESS, self._exactness_subject(target))
        if found is None or (found.bitwise and found.widest < widest):
            return None
        target.row_multiple = found.multiple
        return found

    def checking(self, choice: LoadSpec, target: Target, widest: int) -> Measuring[Exactness]:
        """Measure how exactly trees of up to `widest` rows are computed, and save it.

        Set the multiple to which the target pads rows.
        """
        found = yield from checking_exactness(choice, target, widest)
        self.cache.remember(EXACTNESS, self._exactness_subject(target), found)
        target.row_multiple = found.multiple
        return found

    def _exactness_subject(self, target: Target) -> str:
        # A result for rows that are filled up to a multiple is not valid for others.
        return f"{self.subject} · filled up" if fills_rows(target) else self.subject

    def costs(self, spec: LoadSpec, target: Target) -> CurrentCosts:
        """Return the costs of forwards, timed or estimated."""
        timed = self.recall(COSTS)
        return CurrentCosts(timed or estimated_costs(spec, target, self.cache), timed is not None)

    @property
    def untimed(self) -> bool:
        """Whether forwards should be timed now."""
        return self.recall(COSTS) is None

    def timing(self, target: Target) -> Measuring[ForwardCosts]:
        """Time forwards, with as many threads as other programs leave idle cores."""

        def measure_now(cores: int) -> Measuring[ForwardCosts]:
            target.set_threads(cores)
            return timing_forwards(target)

        return self.cache.measuring(COSTS, self.subject, measure_now)

    def add_reply(self, drafter: str, statistics: Statistics) -> None:
        """Add one reply to the saved figures of a drafter, under its `reply_key`."""
        if statistics.steps and statistics.token_ids:
            sums = with_reply(self.cache.recall(REPLIES, self.replies_subject) or {}, drafter, statistics)
            # A problem is not worth a sentence: the next reply is as informative.
            self.cache.remember(REPLIES, self.replies_subject, sums, silent=True)


def estimated_costs(spec: LoadSpec, target: Target, cache: MeasurementCache) -> ForwardCostModel:
    """Return the estimated costs of forwards of this model, from the bandwidth of its device."""
    device, shape = this_machine().device(spec.device), Shape.of(target.config.content)
    assert device is not None and shape is not None
    known = Measurements(cache, quiet=True).bandwidth(device.name)
    device = replace(device, bandwidth=known, block_bits=8 * target.read_bytes / shape.read(1))
    return Estimate(shape, Rates.of(device, spec.dtype, spec.quantize))


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
