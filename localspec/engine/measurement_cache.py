"""What was measured on this machine, kept in the store, so that it need not be measured again."""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from localspec.decoding.measuring import Measuring, finished
from localspec.events import Reporter
from localspec.machine.hardware import IdleCores, physical_cores
from localspec.store.database import StoreTrouble
from localspec.store.store import Store
from localspec.weights.fingerprint import Identity

LOOK_SECONDS = 0.3  # at least so long other programs are watched, before the machine counts as idle
T = TypeVar("T")


@dataclass(frozen=True)
class Quantity(Generic[T]):
    """Something that can be measured: the name it is kept under, and how its value is written as JSON.

    `parse` returns None for JSON that is no such value, which is then measured again.
    """

    name: str
    parse: Callable[[Any], T | None]
    to_json: Callable[[T], Any]

    @property
    def when_busy(self) -> "Quantity[T]":
        """The same, measured while other programs kept cores busy; it serves until there is an idle moment."""
        return replace(self, name=self.name + " of a busy moment")


class MeasurementCache:
    """Recalls and keeps what was measured; without a store it knows nothing.

    A `subject` names everything that a measurement is only valid for: the model or device, its form, versions.
    Troubles with the store are reported as notices and raise nothing.
    """

    def __init__(self, store: Store | None, reporter: Reporter | None = None) -> None:
        self.reporter = reporter or Reporter()
        self._store = store
        self._idle_cores, self._opened = IdleCores(), time.monotonic()

    def identity(self, path: Path) -> Identity:
        """Return what measurements of a model are filed under; those of earlier versions are filed there from now on.

        Raises LocalspecError for a model whose files are damaged.
        """
        found = Identity(path)
        if self._store is not None and not self._store.read_only and found.weights != found.revision:
            with suppress(StoreTrouble):  # what is not found is measured again
                self._store.measurements.rename(found.revision, found.weights)
        return found

    def recall(self, quantity: Quantity[T], subject: str) -> T | None:
        """What was kept; None where nothing was."""
        value = None if self._store is None else self._store.measurements.recall(quantity.name, subject)
        try:
            return None if value is None else quantity.parse(value)
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError):
            return None  # whatever else stands there in its place

    def recall_either(self, quantity: Quantity[T], subject: str) -> T | None:
        """What an idle moment gave, else what a busy one gave; None where nothing was kept."""
        found = self.recall(quantity, subject)
        return self.recall(quantity.when_busy, subject) if found is None else found

    def remember(self, quantity: Quantity[T], subject: str, value: T, silent: bool = False) -> None:
        """Keeps a value for later sessions; with `silent`, trouble with the store is not reported."""
        if self._store is not None and not self._store.read_only:
            try:
                self._store.measurements.remember(quantity.name, subject, quantity.to_json(value))
            except StoreTrouble as trouble:
                if not silent:
                    self.reporter.notice(str(trouble))

    def missing(self, quantity: Quantity[T], subject: str) -> bool:
        """Return whether to measure: nothing is known, or only a busy moment's figure and the machine is idle now."""
        if self.recall(quantity, subject) is not None:
            return False
        return self.recall(quantity.when_busy, subject) is None or self._idle

    def measuring(self, quantity: Quantity[T], subject: str, measure: Callable[[int], Measuring[T]]) -> Measuring[T]:
        """Run `measure` with the number of idle cores, and save the result as one of an idle or of a busy moment."""
        cores = self._idle_cores()
        found = yield from measure(cores)
        idle = cores == self._idle_cores() == physical_cores()
        self.remember(quantity if idle else quantity.when_busy, subject, found)
        return found

    def get_or_measure(self, quantity: Quantity[T], subject: str, what: str, measure: Callable[[int], T]) -> T:
        """What was kept, else the result of `measure`, which is given the number of idle cores and may raise anything.

        What a busy moment gave is measured again as soon as the machine is idle. `what` completes the sentence
        "measuring …, once".
        """
        if not self.missing(quantity, subject) and (found := self.recall_either(quantity, subject)) is not None:
            return found
        self.reporter.progress(f"measuring {what}, once")
        return finished(self.measuring(quantity, subject, partial(_without_pause, measure)))

    @cached_property
    def _idle(self) -> bool:
        """Whether other programs have left all cores idle since the cache was opened; looked at once."""
        time.sleep(max(0.0, self._opened + LOOK_SECONDS - time.monotonic()))
        return self._idle_cores() == physical_cores()


def _without_pause(measure: Callable[[int], T], cores: int) -> Measuring[T]:
    yield from ()
    return measure(cores)
