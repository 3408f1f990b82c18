"""Measurements of this machine, saved in the store for later choices. Each is valid for one model, form and version.

A measurement that was made while other programs used cores is used only in this process and not saved.
"""

import math
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

from localspec import __version__
from localspec.choosing.cost import CONTEXT, ForwardCostModel, ForwardCosts
from localspec.environment import home
from localspec.errors import LocalspecError, first_line
from localspec.events import Reporter, Statistics
from localspec.machine.hardware import IdleCores, devices, disk_bandwidth, memory_bandwidth, physical_cores, versions
from localspec.models.registry import TargetCard
from localspec.models.s3d_prediction import MeasuredLayers
from localspec.paths import Paths, disk_of, mount_of
from localspec.store.database import StoreTrouble
from localspec.store.store import Store
from localspec.weights.checkpoint import is_packed, revision, weight_files
from localspec.weights.fingerprint import Identity
from localspec.weights.packed_file import read
from localspec.weights.packed_files import packed_files

LOOK_SECONDS = 0.3  # the least time to watch other programs before the machine counts as idle
FADING = 0.95  # the sums of earlier replies are multiplied by this for each new one
LEAST_TOKENS = 100  # tokens of replies before their figures count
EXPECTATION = 600  # tokens of replies that weigh as much as the prediction: a few texts say little about the next
# A peak above this many times the bytes of model, drafter and cache includes other memory of the process.
OTHERS = 3
READINGS = 3  # how often the bandwidth of memory or of a disk is read; the highest reading counts
T = TypeVar("T")
Step = TypeVar("Step")


# -- measurements that choices read ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ReplyStats:
    """Figures of replies with one drafter on this machine.

    `length` and `nodes` are tokens and nodes per step. `drafting` is the seconds of drafting for each second of
    verification, and `rest` the same for anything else in a step. Unlike tokens/s, these do not depend on the load of
    the machine. `peak` is the most bytes that the process used, and `drafter_bytes` is the drafter's part of them.
    `tokens` is the total length of these replies; earlier replies count less. `replies` is their number, or 0 if an
    earlier version did not count them.
    """

    length: float
    nodes: float
    drafting: float
    rest: float = 0.0
    peak: int = 0
    drafter_bytes: int = 0
    tokens: float = math.inf
    replies: int = 0

    @property
    def trust(self) -> float:
        """The weight, from 0 to 1, of measured replies in a mean with a prediction; it grows with their tokens."""
        return 1 / (1 + EXPECTATION / self.tokens)

    def speed(self, costs: ForwardCostModel) -> float:
        """Return the tokens/s that the measured replies would reach if forwards cost as in `costs`."""
        return self.length / (costs.at(round(1 + self.nodes), CONTEXT) * (1 + self.drafting + self.rest))


@dataclass(frozen=True)
class ModelMeasurements:
    """Measurements of one model in one precision: costs of forwards, and figures of replies by `reply_key`."""

    costs: ForwardCostModel | None = None
    replies: Mapping[str, ReplyStats] = field(default_factory=dict)


class MeasurementSource:
    """A source of the measurements of a machine. This base class has none; its subclasses may have some."""

    def of(self, card: TargetCard, device: str, dtype: str, quantize: str) -> ModelMeasurements:
        """Return the measurements of one model in one precision."""
        return ModelMeasurements()

    def bandwidth(self, device: str) -> float | None:
        """Return the most bytes per second that can be read from a device's memory; None if unknown."""
        return None

    def recalled_bandwidth(self, device: str) -> float | None:
        """Return the bandwidth if it was measured earlier, without measuring it now."""
        return self.bandwidth(device)

    def disk(self, card: TargetCard) -> float | None:
        """Return the bytes per second at which a model's experts can be read from the disk; None if unknown."""
        return None


NoMeasurements = MeasurementSource


# -- saving and recalling ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Quantity(Generic[T]):
    """A measurable quantity: the name under which it is saved, and how it is written as JSON.

    For JSON that is not a valid value, `parse` returns None or raises an error; the quantity is then measured again.
    """

    name: str
    parse: Callable[[Any], T | None]
    to_json: Callable[[T], Any]


class MeasurementCache:
    """A cache that saves and recalls measurements. Without a store it is empty.

    A `subject` names everything that a measurement depends on: the model or device, its form, versions. Errors of the
    store become notices and are not raised.
    """

    def __init__(self, store: Store | None, reporter: Reporter | None = None) -> None:
        self.reporter = reporter or Reporter()
        self._store = store
        self._idle_cores, self._opened = IdleCores(), time.monotonic()

    def recall(self, quantity: Quantity[T], subject: str) -> T | None:
        """Return the saved value of a quantity for this subject; None if no valid value is saved."""
        value = None if self._store is None else self._store.measurements.recall(quantity.name, subject)
        try:
            return None if value is None else quantity.parse(value)
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError):
            return None  # the stored JSON is not such a value

    def remember(self, quantity: Quantity[T], subject: str, value: T, silent: bool = False) -> None:
        """Save a value for later sessions. With `silent`, errors of the store are not reported."""
        if self._store is not None and not self._store.read_only:
            try:
                self._store.measurements.remember(quantity.name, subject, quantity.to_json(value))
            except StoreTrouble as trouble:
                if not silent:
                    self.reporter.notice(str(trouble))

    def measuring(
        self, quantity: Quantity[T], subject: str, measure: Callable[[int], Generator[Step, None, T]]
    ) -> Generator[Step, None, T]:
        """Return the result of `measure(number of idle cores)`; save it if all cores were idle before and after."""
        cores = self._idle_cores()
        result = yield from measure(cores)
        if cores == self._idle_cores() == physical_cores():
            self.remember(quantity, subject, result)
        return result

    @cached_property
    def idle(self) -> bool:
        """Whether other programs left all cores idle since the cache was opened, measured once at the first use."""
        time.sleep(max(0.0, self._opened + LOOK_SECONDS - time.monotonic()))
        return self._idle_cores() == physical_cores()


def _readings(value: Any) -> list[float] | None:
    return value if all(isinstance(number, int | float) and number > 0 for number in value) else None


def _sums(value: Any) -> dict[str, list[float]]:
    def sound(sums: object) -> bool:
        # Earlier versions did not count replies.
        if not isinstance(sums, list) or len(sums) not in (8, 9):
            return False
        return all(type(number) in (int, float) and number >= 0 for number in sums)

    return {drafter: [*map(float, sums), 0.0][:9] for drafter, sums in value.items() if sound(sums)}


COSTS = Quantity("costs", ForwardCosts.from_list, ForwardCosts.as_list)
BANDWIDTH = Quantity("bandwidth", _readings, list)
DISK = Quantity("bandwidth of a disk in pieces of 1 MiB", _readings, list)
LAYERS: Quantity[list[MeasuredLayers]] = Quantity(
    "layers that draft",
    lambda value: [MeasuredLayers.from_json(layers) for layers in value] or None,
    lambda value: [layers.as_json() for layers in value],
)
# By `reply_key`: sums of tokens, steps, nodes, seconds of drafting, seconds of verification, seconds of the rest of
# steps; then the lowest peak, the drafter's bytes, and the number of replies.
REPLIES = Quantity("replies that use it", _sums, dict)
LIBRARIES = Quantity("libraries compute", lambda value: value if isinstance(value, bool) else None, bool)


def model_subject(weights: str, device: str, dtype: str, quantize: str, exact: bool, context: int | None) -> str:
    """Return the key under which measurements of a model are saved: its weights, precision, version and device."""
    form, longest = "exact" if exact else "fastest", "own context" if context is None else str(context)
    return " · ".join((weights, dtype, quantize, form, longest, f"localspec {__version__}", versions(device)))


def with_kernels(subject: str, device: str, cache: MeasurementCache) -> str:
    """Return the key `subject`, with a suffix if this device computes with other kernels than localspec's own."""
    return f"{subject} · by libraries" if cache.recall(LIBRARIES, versions(device)) else subject


def replies_subject(weights: str, device: str, dtype: str, quantize: str) -> str:
    """Return the key under which figures of replies are saved: the weights, their precision and this device."""
    return " · ".join((weights, dtype, quantize, versions(device)))


def reply_stats(sums: Sequence[float]) -> ReplyStats | None:
    """Return the figures of replies from the sums that `with_reply` made; None with fewer than LEAST_TOKENS tokens."""
    tokens, steps, nodes, drafting, verifying, rest, peak, drafter_bytes, replies = sums
    if tokens < LEAST_TOKENS or not steps or not verifying:
        return None
    shares = drafting / verifying, rest / verifying
    return ReplyStats(tokens / steps, nodes / steps, *shares, int(peak), int(drafter_bytes), tokens, int(replies))


def with_reply(sums: dict[str, list[float]], drafter: str, statistics: Statistics) -> dict[str, list[float]]:
    """Return `sums`, the summed figures of replies by drafter, with one more reply. Earlier replies count less.

    The memory peak is not summed: the lowest one is kept. A peak above OTHERS times the bytes of model, drafter and
    cache is ignored, since it may include other models that this process had loaded before.
    """
    new = (
        statistics.acceptance_length * statistics.steps,  # includes the token that ended the reply, since it took time
        statistics.steps,
        statistics.drafted,
        statistics.draft_seconds,
        statistics.verify_seconds,
        max(0.0, statistics.step_seconds - statistics.draft_seconds - statistics.verify_seconds),
    )
    memory = statistics.memory
    new_peak = memory.peak if memory.peak <= OTHERS * (memory.target + memory.drafter + memory.cache) else 0
    *earlier, peak, _, replies = sums.get(drafter) or [0.0] * 9
    lowest = min((value for value in (peak, new_peak) if value), default=0)
    faded = [FADING * old + latest for old, latest in zip(earlier, new, strict=True)]
    return {**sums, drafter: [*faded, float(lowest), float(memory.drafter), replies + 1]}


def _file_of_experts(path: Path) -> Path | None:
    """Return the largest file from which a model's experts are read: a packed copy, or else an original file.

    Return None for an original file on another disk than packed copies. Raises LocalspecError and OSError for a model
    whose files cannot be read.
    """
    paths, packed, same = Paths(home()), read(path) if is_packed(path) else None, revision(path)
    others = [file for file in packed_files(paths) if file.header.origin.revision == same]
    copies = [file.path for file in (packed, *others) if file and not file.header.registered]
    files = copies or [Path(file) for file in (packed.header.origin.files if packed else weight_files(path))]
    largest = max(files, key=lambda file: file.stat().st_size)
    same_disk = copies or largest.stat().st_dev == disk_of(paths.packed).stat().st_dev
    return largest if same_disk else None


class Measurements(MeasurementSource):
    """A source of this machine's measurements. It measures a bandwidth that is unknown, unless `quiet` is set.

    This takes half a second per device. `exact` and `context` say how models will be loaded. Costs measured with both
    are preferred, then costs measured with only `exact`, then costs measured with neither.
    """

    def __init__(
        self, cache: MeasurementCache, exact: bool = False, context: int | None = None, quiet: bool = False
    ) -> None:
        self.cache, self._quiet = cache, quiet
        self._forms = dict.fromkeys(((exact, context), (exact, None), (False, None)))
        self._weights: dict[Path, str] = {}  # fingerprints by path: each precision needs one, and it takes many reads
        self._bandwidths: dict[str, float | None] = {}
        self._files_of_experts: dict[Path, Path | None] = {}  # by a model's path: finding one takes many reads

    def of(self, card: TargetCard, device: str, dtype: str, quantize: str) -> ModelMeasurements:
        """Return the cost of this model's forwards here, and the figures of its replies."""
        if not card.here:
            return ModelMeasurements()
        try:
            if card.path not in self._weights:
                self._weights[card.path] = Identity(card.path).weights
        except LocalspecError:  # damage is reported when the model is loaded
            return ModelMeasurements()
        how = self._weights[card.path], device, dtype, quantize
        sums = self.cache.recall(REPLIES, replies_subject(*how)) or {}
        replies = {key: stats for key, figures in sums.items() if (stats := reply_stats(figures)) is not None}
        subjects = (with_kernels(model_subject(*how, *form), device, self.cache) for form in self._forms)
        every = (self.cache.recall(COSTS, subject) for subject in subjects)
        return ModelMeasurements(next((costs for costs in every if costs is not None), None), replies)

    def bandwidth(self, device: str) -> float | None:
        """Return the bytes a second that can be read from the device's memory; None without a measurement.

        Other programs make a reading slower, never faster, so the highest of a few readings counts. A reading of a
        CPU's memory is dropped if other programs used a core during the reading.
        """
        if device not in self._bandwidths:
            readings = self._readings(device)
            if not self._quiet and device in devices() and len(readings) < READINGS:
                self.cache.reporter.progress(f"measuring how fast the memory of {device} is")
                try:
                    idle_cores = IdleCores()
                    reading = memory_bandwidth(device)
                    if device != "cpu" or idle_cores() == physical_cores():
                        readings = [*readings, reading]
                        self.cache.remember(BANDWIDTH, versions(device), readings)
                except (RuntimeError, MemoryError, OSError, ImportError) as trouble:  # no memory, no kernel, no library
                    self.cache.reporter.notice(
                        f"the memory speed of {device} could not be measured ({first_line(trouble)}); an estimate "
                        "is used instead."
                    )
            self._bandwidths[device] = max(readings, default=None)
        return self._bandwidths[device]

    def recalled_bandwidth(self, device: str) -> float | None:
        return self._bandwidths.get(device) or max(self._readings(device), default=None)

    def disk(self, card: TargetCard) -> float | None:
        """Return the bytes per second at which a model's experts can be read from the disk; None if unknown.

        Other programs make a reading slower, so the highest of a few readings of a disk counts. A reading takes at most
        half a second.
        """
        if not card.here:
            return None
        try:
            if card.path not in self._files_of_experts:
                self._files_of_experts[card.path] = _file_of_experts(card.path)
            if (file := self._files_of_experts[card.path]) is None:
                return None
            subject = f"disk at {mount_of(file)}"
        except (LocalspecError, OSError):  # reported when the model is loaded
            return None
        if subject not in self._bandwidths:
            readings = self.cache.recall(DISK, subject) or []
            if not self._quiet and len(readings) < READINGS and (reading := disk_bandwidth(file)):
                readings = [*readings, reading]
                self.cache.remember(DISK, subject, readings)
            self._bandwidths[subject] = max(readings, default=None)
        return self._bandwidths[subject]

    def _readings(self, device: str) -> list[float]:
        return (self.cache.recall(BANDWIDTH, versions(device)) if device in devices() else None) or []
