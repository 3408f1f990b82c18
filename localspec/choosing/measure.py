"""What was measured on this machine: kept in the store, recalled for choices, forgotten with what it is valid for.

A measurement of a moment in which other programs used cores serves that process only, and is not kept.
"""

import math
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from localspec import __version__
from localspec.choosing.cost import CONTEXT, ForwardCostModel, ForwardCosts
from localspec.errors import LocalspecError, first_line
from localspec.events import Reporter, Statistics
from localspec.machine.hardware import IdleCores, devices, memory_bandwidth, physical_cores, versions
from localspec.models.registry import TargetCard
from localspec.models.s3d_prediction import KeptLayers
from localspec.store.database import StoreTrouble
from localspec.store.store import Store
from localspec.weights.fingerprint import Identity

LOOK_SECONDS = 0.3  # at least so long other programs are watched, before the machine counts as idle
FADING = 0.95  # the weight of earlier replies, with each new one
LEAST_TOKENS = 100  # of replies, before their figures count
EXPECTATION = 600  # tokens of replies that count as much as what is expected: a few texts say little about the next
OTHERS = 3  # times what a model, its drafter and its cache hold: a higher peak is of something else
READINGS = 3  # of the memory's bandwidth, the highest of which counts
T = TypeVar("T")
Step = TypeVar("Step")


# -- what choices ask of measurements ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class ReplyStats:
    """Figures of replies with one drafter here: tokens a step, nodes a step, drafting seconds per verifying second.

    None of the three depends on the load of the machine, as tokens/s would. `beside` is the rest of a step, per
    verifying second too. `peak` is the most memory that the process held, and `held` what the drafter held of it.
    `tokens` is the length of these replies together, where earlier ones count less.
    """

    length: float
    nodes: float
    drafting: float
    beside: float = 0.0
    peak: int = 0
    held: int = 0
    tokens: float = math.inf

    @property
    def trust(self) -> float:
        """Return the weight of these figures next to an expectation, from 0 to 1."""
        return 1 / (1 + EXPECTATION / self.tokens)

    def speed(self, costs: ForwardCostModel) -> float:
        """Return the tokens/s where forwards have these costs."""
        return self.length / (costs.at(round(1 + self.nodes), CONTEXT) * (1 + self.drafting + self.beside))


@dataclass(frozen=True)
class ModelMeasurements:
    """Measurements of one model in one precision on this machine: its forwards, and its replies by `reply_key`."""

    costs: ForwardCostModel | None = None
    replies: Mapping[str, ReplyStats] = field(default_factory=dict)


class MeasurementSource(Protocol):
    """All that was measured on a machine so far."""

    def of(self, card: TargetCard, device: str, dtype: str, quantize: str) -> ModelMeasurements:
        """Return the measurements of one model in one precision."""

    def bandwidth(self, device: str) -> float | None:
        """Return the bytes a second that can be read from a device's memory at best; None where they are not known."""

    def recalled_bandwidth(self, device: str) -> float | None:
        """Return the same as far as it was measured before."""


class NoMeasurements:
    """A machine on which nothing was measured."""

    def of(self, card: TargetCard, device: str, dtype: str, quantize: str) -> ModelMeasurements:
        return ModelMeasurements()

    def bandwidth(self, device: str) -> float | None:
        return None

    def recalled_bandwidth(self, device: str) -> float | None:
        return self.bandwidth(device)


# -- keeping and recalling ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Quantity(Generic[T]):
    """Something that can be measured: the name it is kept under, and how its value is written as JSON.

    `parse` returns None for JSON that is no such value, which is then measured again.
    """

    name: str
    parse: Callable[[Any], T | None]
    to_json: Callable[[T], Any]


class MeasurementCache:
    """Recalls and keeps measurements; without a store it knows nothing.

    A `subject` names everything that a measurement is only valid for: the model or device, its form, versions.
    Troubles with the store are reported as notices and raise nothing.
    """

    def __init__(self, store: Store | None, reporter: Reporter | None = None) -> None:
        self.reporter = reporter or Reporter()
        self._store = store
        self._idle_cores, self._opened = IdleCores(), time.monotonic()

    def identity(self, path: Path) -> Identity:
        """Return the identity that measurements of a model are filed under, those of earlier versions from now on.

        Raises LocalspecError for a model whose files are damaged.
        """
        found = Identity(path)
        if self._store is not None and not self._store.read_only and found.weights != found.revision:
            with suppress(StoreTrouble):  # what is not found is measured again
                self._store.measurements.rename(found.revision, found.weights)
        return found

    def recall(self, quantity: Quantity[T], subject: str) -> T | None:
        """Return the value that was kept; None where there is no such value."""
        value = None if self._store is None else self._store.measurements.recall(quantity.name, subject)
        try:
            return None if value is None else quantity.parse(value)
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError):
            return None  # whatever else stands there in its place

    def remember(self, quantity: Quantity[T], subject: str, value: T, silent: bool = False) -> None:
        """Keep a value for later sessions; with `silent`, trouble with the store is not reported."""
        if self._store is not None and not self._store.read_only:
            try:
                self._store.measurements.remember(quantity.name, subject, quantity.to_json(value))
            except StoreTrouble as trouble:
                if not silent:
                    self.reporter.notice(str(trouble))

    def measuring(
        self, quantity: Quantity[T], subject: str, measure: Callable[[int], Generator[Step, None, T]]
    ) -> Generator[Step, None, T]:
        """Run `measure` with the number of idle cores, and keep the result unless other programs used a core."""
        cores = self._idle_cores()
        found = yield from measure(cores)
        if cores == self._idle_cores() == physical_cores():
            self.remember(quantity, subject, found)
        return found

    @cached_property
    def idle(self) -> bool:
        """Whether other programs have left all cores idle since the cache was opened; looked at once."""
        time.sleep(max(0.0, self._opened + LOOK_SECONDS - time.monotonic()))
        return self._idle_cores() == physical_cores()


def _readings(value: Any) -> list[float] | None:
    found = value if isinstance(value, list) else [value] * READINGS  # earlier versions kept one
    return found if all(isinstance(one, int | float) and one > 0 for one in found) else None


def _sums(value: Any) -> dict[str, list[float]]:
    def sound(sums: object) -> bool:
        return isinstance(sums, list) and len(sums) == 8 and all(type(one) in (int, float) and one >= 0 for one in sums)

    return {drafter: list(map(float, sums)) for drafter, sums in value.items() if sound(sums)}


def _layers(value: Any) -> list[KeptLayers] | None:
    try:
        return [KeptLayers.from_json(one) for one in value] or None
    except (KeyError, TypeError, ValueError):
        return None


COSTS = Quantity("costs", ForwardCosts.from_list, ForwardCosts.as_list)
BANDWIDTH = Quantity("bandwidth", _readings, list)
LAYERS = Quantity("layers that draft", _layers, lambda found: [one.as_json() for one in found])
# By `reply_key`: tokens, steps, nodes, seconds of drafting, of verification and of the rest of steps, then the peak and
# the drafter's bytes.
REPLIES = Quantity("replies with their memory", _sums, dict)
LIBRARIES = Quantity("libraries compute", lambda value: value if isinstance(value, bool) else None, bool)


def model_subject(weights: str, device: str, dtype: str, quantize: str, exact: bool, context: int | None) -> str:
    """Return what a measurement of a model is valid for: its weights and form, this version, this machine."""
    form, longest = "exact" if exact else "fastest", "own context" if context is None else str(context)
    return " · ".join((weights, dtype, quantize, form, longest, f"localspec {__version__}", versions(device)))


def with_kernels(subject: str, device: str, cache: MeasurementCache) -> str:
    """Return what a measurement of a model is valid for, where libraries compute and not our own kernels."""
    return f"{subject} · by libraries" if cache.recall(LIBRARIES, versions(device)) else subject


def replies_subject(weights: str, device: str, dtype: str, quantize: str) -> str:
    """Return what figures of replies are valid for: the weights and their precision, on this device."""
    return " · ".join((weights, dtype, quantize, versions(device)))


def reply_stats(sums: Sequence[float]) -> ReplyStats | None:
    """Return the figures of some replies; None where they are of too few tokens."""
    tokens, steps, nodes, drafting, verifying, beside, peak, held = sums
    if tokens < LEAST_TOKENS or not steps or not verifying:
        return None
    rest = int(peak), int(held)
    return ReplyStats(tokens / steps, nodes / steps, drafting / verifying, beside / verifying, *rest, tokens)


def with_reply(sums: dict[str, list[float]], drafter: str, statistics: Statistics) -> dict[str, list[float]]:
    """Return the sums by drafter with those of one more reply; earlier ones fade.

    The lowest peak counts, and none that is much more than is held: other models may have been in this process before.
    """
    new = (
        statistics.acceptance_length * statistics.steps,  # the token that ended the reply too: its step was paid for
        statistics.steps,
        statistics.drafted,
        statistics.draft_seconds,
        statistics.verify_seconds,
        max(0.0, statistics.step_seconds - statistics.draft_seconds - statistics.verify_seconds),
    )
    held = statistics.memory
    known = held.peak if held.peak <= OTHERS * (held.target + held.drafter + held.cache) else 0
    *before, peak, _ = sums.get(drafter) or [0.0] * 8
    lowest = min((one for one in (peak, known) if one), default=0)
    faded = [FADING * old + one for old, one in zip(before, new, strict=True)]
    return {**sums, drafter: [*faded, float(lowest), float(held.drafter)]}


class Measurements:
    """The measurements of this machine, for choices; the bandwidth of its memory is measured where it is not known.

    That takes half a second a device. With `quiet` nothing is measured. `exact` and `context` say how models are to be
    loaded; where one was not measured so, its usual form serves.
    """

    def __init__(
        self, cache: MeasurementCache, exact: bool = False, context: int | None = None, quiet: bool = False
    ) -> None:
        self.cache, self._quiet = cache, quiet
        self._forms = dict.fromkeys(((exact, context), (exact, None), (False, None)))
        self._weights: dict[Path, str] = {}  # every precision asks for it, and it reads all over the files
        self._bandwidths: dict[str, float | None] = {}

    def of(self, card: TargetCard, device: str, dtype: str, quantize: str) -> ModelMeasurements:
        """Return the cost of this model's forwards here, and the figures of its replies."""
        if not card.here:
            return ModelMeasurements()
        try:
            if card.path not in self._weights:
                self._weights[card.path] = self.cache.identity(card.path).weights
        except LocalspecError:  # damaged, which is reported when it is loaded
            return ModelMeasurements()
        how = self._weights[card.path], device, dtype, quantize
        sums = self.cache.recall(REPLIES, replies_subject(*how)) or {}
        replies = {key: stats for key, of_it in sums.items() if (stats := reply_stats(of_it)) is not None}
        subjects = (with_kernels(model_subject(*how, *form), device, self.cache) for form in self._forms)
        every = (self.cache.recall(COSTS, subject) for subject in subjects)
        return ModelMeasurements(next((costs for costs in every if costs is not None), None), replies)

    def bandwidth(self, device: str) -> float | None:
        """Return the bytes a second that can be read from the device's memory; None where they cannot be measured.

        What else the machine does makes a reading slower, never faster, so the highest of a few counts from then on.
        """
        if device not in self._bandwidths:
            readings = self._readings(device)
            if not self._quiet and device in devices() and len(readings) < READINGS:
                self.cache.reporter.progress(f"measuring how fast the memory of {device} is")
                try:
                    readings = [*readings, memory_bandwidth(device)]
                    self.cache.remember(BANDWIDTH, versions(device), readings)
                except (RuntimeError, MemoryError, OSError, ImportError) as trouble:  # no memory, no kernel, no library
                    self.cache.reporter.notice(
                        f"how fast the memory of {device} is could not be measured ({first_line(trouble)}); an "
                        "estimate serves instead."
                    )
            self._bandwidths[device] = max(readings, default=None)
        return self._bandwidths[device]

    def recalled_bandwidth(self, device: str) -> float | None:
        """Return the same without a measurement."""
        return self._bandwidths.get(device) or max(self._readings(device), default=None)

    def _readings(self, device: str) -> list[float]:
        return (self.cache.recall(BANDWIDTH, versions(device)) if device in devices() else None) or []
