"""What is measured of a model as it was loaded: how exact it is, what its forwards cost, what its replies are like."""

from dataclasses import dataclass, replace
from typing import Self

from localspec.decoding.exactness import Exactness
from localspec.decoding.measuring import Measuring, finished
from localspec.engine.backends import Target, checking_exactness, fills_rows
from localspec.engine.forward_timing import timing_forwards
from localspec.engine.measurement_cache import MeasurementCache, Quantity, T
from localspec.engine.own_kernels import with_kernels
from localspec.engine.recalled_measurements import (
    COSTS,
    REPLY_SUMS,
    RecalledMeasurements,
    model_subject,
    with_reply,
)
from localspec.events import Reporter, Statistics
from localspec.machine.machine import this_machine
from localspec.models.draft_role import as_draft
from localspec.models.fingerprint import Identity
from localspec.models.shape import Shape
from localspec.policy.choice import LoadSpec
from localspec.policy.decoding_kinds import DecodingKind, kept_as
from localspec.policy.forward_costs import CurrentCosts, ForwardCostModel, ForwardCosts
from localspec.policy.prediction import Estimate, estimated_rates

EXACTNESS = Quantity("exactness", Exactness.from_json, Exactness.as_json)


@dataclass(frozen=True)
class ModelProfile:
    """The measurements of one model in one form: its weights, precision and context, on this machine."""

    cache: MeasurementCache
    identity: Identity
    subject: str

    @classmethod
    def of(cls, choice: LoadSpec, cache: MeasurementCache) -> Self:
        """The profile of a model as this choice loads it. Raises LocalspecError where its files are damaged."""
        identity = cache.identity(choice.target.path)
        packing = f"{choice.quantize} above {choice.threshold}" if choice.threshold else choice.quantize
        packing = as_draft(packing) if choice.drafts else packing
        subject = model_subject(identity.weights, choice.device, choice.dtype, packing, choice.exact, choice.context)
        return cls(cache, identity, with_kernels(subject, choice.device, cache))

    @property
    def reporter(self) -> Reporter:
        """Where what is measured, and trouble with it, is reported."""
        return self.cache.reporter

    def recall(self, quantity: Quantity[T]) -> T | None:
        """What was kept of this model; None where nothing was."""
        return self.cache.recall(quantity, self.subject)

    def remember(self, quantity: Quantity[T], value: T) -> None:
        """Keeps it for later sessions."""
        self.cache.remember(quantity, self.subject, value)

    def exactness(self, target: Target, widest: int) -> Exactness | None:
        """Return how exact trees of up to `widest` rows are, and set the target's row multiple; None if unknown."""
        found = self.cache.recall(EXACTNESS, self._exactness_subject(target))
        if found is None or (found.bitwise and found.widest < widest):
            return None
        target.row_multiple = found.multiple
        return found

    def checking(self, choice: LoadSpec, target: Target, widest: int) -> Measuring[Exactness]:
        """Measure how exact trees of up to `widest` rows are, save it, and set the row multiple of the target."""
        found = yield from checking_exactness(choice, target, widest)
        self.cache.remember(EXACTNESS, self._exactness_subject(target), found)
        target.row_multiple = found.multiple
        return found

    def _exactness_subject(self, target: Target) -> str:
        # A result for rows that are filled up to a multiple is not valid for others.
        return f"{self.subject} · filled up" if fills_rows(target) else self.subject

    def costs(self, spec: LoadSpec, target: Target) -> CurrentCosts:
        """Return the costs of forwards as timed, else estimated."""
        timed = self.cache.recall_either(COSTS, self.subject)
        return CurrentCosts(timed or estimated_costs(spec, target, self.cache), timed is not None)

    @property
    def untimed(self) -> bool:
        """Whether forwards should be timed now."""
        return self.cache.missing(COSTS, self.subject)

    def timing(self, target: Target) -> Measuring[ForwardCosts]:
        """Time forwards, with as many threads as other programs leave idle cores."""

        def measure_now(cores: int) -> Measuring[ForwardCosts]:
            target.set_threads(cores)
            return timing_forwards(target)

        return self.cache.measuring(COSTS, self.subject, measure_now)

    def costs_of_an_idle_moment(self, target: Target) -> None:
        """Times forwards again that were timed in a busy moment, unless this one is busy, too."""
        if self.recall(COSTS.when_busy) is not None and self.untimed:
            finished(self.timing(target))

    def add_reply(self, drafter: str, kind: DecodingKind, statistics: Statistics) -> None:
        """Adds one reply to what is kept of a drafter, by its `reply_key`, and of this kind of decoding."""
        if statistics.steps and statistics.token_ids:
            sums = with_reply(self.recall(REPLY_SUMS) or {}, kept_as(drafter, kind), statistics)
            # Trouble is not worth a sentence: the next reply will tell as much.
            self.cache.remember(REPLY_SUMS, self.subject, sums, silent=True)


def estimated_costs(spec: LoadSpec, target: Target, cache: MeasurementCache) -> ForwardCostModel:
    """Return the estimated costs of forwards of this model, from the figures of its device."""
    known, device = RecalledMeasurements(cache), this_machine().device(spec.device)
    shape = Shape.of(target.config.content)
    assert device is not None and shape is not None
    rates = known.rates(device.name, spec.dtype, spec.quantize)
    if rates is None:
        bits = 8 * target.read_bytes / shape.matrices
        device = replace(device, bandwidth=known.bandwidth(device.name), block_bits=bits)
        rates = estimated_rates(device, spec.dtype, spec.quantize)
    return Estimate(shape, rates)
