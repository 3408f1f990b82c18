"""What is measured of a model as it was loaded: how exact it is, what its forwards cost, what its replies are like."""

from dataclasses import dataclass
from typing import Self

from localspec.checkpoint import revision
from localspec.decoding.exactness import Exactness
from localspec.engine.backends import Target, fills_rows, measure_exactness
from localspec.engine.forward_timing import measure_forward_costs
from localspec.engine.measurement_cache import MeasurementCache, Quantity, T
from localspec.engine.own_kernels import with_kernels
from localspec.engine.recalled_measurements import COSTS, REPLY_SUMS, model_subject, with_reply
from localspec.events import Reporter, Statistics
from localspec.policy.choice import LoadSpec
from localspec.policy.decoding_kinds import DecodingKind, kept_as
from localspec.policy.forward_costs import ForwardCosts

EXACTNESS = Quantity("exactness", Exactness.from_json, Exactness.as_json)


@dataclass(frozen=True)
class ModelProfile:
    """The measurements of one model in one form: its weights, precision and context, on this machine."""

    cache: MeasurementCache
    revision: str  # of the weights
    subject: str

    @classmethod
    def of(cls, choice: LoadSpec, cache: MeasurementCache) -> Self:
        """The profile of a model as this choice loads it. Raises LocalspecError where its files are damaged."""
        weights = revision(choice.target.path)
        packing = f"{choice.quantize} above {choice.threshold}" if choice.threshold else choice.quantize
        subject = model_subject(weights, choice.device, choice.dtype, packing, choice.exact, choice.context)
        return cls(cache, weights, with_kernels(subject, choice.device, cache))

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

    def exactness(self, choice: LoadSpec, target: Target, widest: int) -> Exactness:
        """How exact trees of up to `widest` rows are; the target then computes as that was found."""
        # The bits of a row that stands among others that fill up say nothing of one that does not.
        subject = f"{self.subject} · filled up" if fills_rows(target) else self.subject
        found = self.cache.recall(EXACTNESS, subject)
        if found is None or (found.bitwise and found.widest < widest):
            self.reporter.progress("measuring how exact this model computes here, once")
            found = measure_exactness(choice, target, widest)
            self.cache.remember(EXACTNESS, subject, found)
        target.row_multiple = found.multiple
        return found

    def costs(self, target: Target) -> ForwardCosts:
        """What forwards cost, with as many threads as other programs leave idle cores."""

        def measure_now(cores: int) -> ForwardCosts:
            target.set_threads(cores)
            return measure_forward_costs(target)

        return self.cache.get_or_measure(COSTS, self.subject, "what a row costs here", measure_now)

    def costs_of_an_idle_moment(self, target: Target) -> None:
        """Measures costs again that a busy moment gave, unless this one is busy, too."""
        if self.recall(COSTS) is None and self.recall(COSTS.when_busy) is not None:
            self.costs(target)

    def add_reply(self, drafter: str, kind: DecodingKind, statistics: Statistics) -> None:
        """Adds one reply to what is kept of a drafter, by its `reply_key`, and of this kind of decoding."""
        if statistics.steps and statistics.token_ids:
            sums = with_reply(self.recall(REPLY_SUMS) or {}, kept_as(drafter, kind), statistics)
            # Trouble is not worth a sentence: the next reply will tell as much.
            self.cache.remember(REPLY_SUMS, self.subject, sums, silent=True)
