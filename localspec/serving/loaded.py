"""The loaded models by name, the most recently used last.

A model is unloaded after a time without requests, or to make room for another model.
"""

import gc
import time
import traceback
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from localspec.choosing.choice import Choice
from localspec.choosing.choose import choices, requested_drafter
from localspec.choosing.measure import MeasurementCache, Measurements
from localspec.config import Settings
from localspec.engine.engine import Engine, phrases_allowed
from localspec.errors import DoesNotFit, LocalspecError, NotHere
from localspec.events import Reporter
from localspec.machine.machine import Machine, this_machine
from localspec.machine.memory import give_back
from localspec.models import registry
from localspec.models.model import model_of
from localspec.models.registry import TargetCard
from localspec.serving.client_request import shown
from localspec.store.store import Store
from localspec.weights.checkpoint import inspect
from localspec.weights.stored import read_config

QUIET_SECONDS = 1.0  # without requests, before another drafter is considered
BETWEEN_LOOKS = 60.0  # seconds
MOST_NOTICES = 100  # notices: HTTP clients read none of them


@dataclass
class Loaded:
    """An engine of a loaded model, and the time of its last use."""

    engine: Engine
    load_seconds: float
    used: float
    notices: tuple[str, ...] = ()  # notices while loading
    new_notices: deque[str] = field(default_factory=lambda: deque(maxlen=MOST_NOTICES))  # notices since then
    checked_at: float = float("-inf")  # when another drafter was last considered
    used_since: bool = False  # whether the drafter was used since then

    def touch(self) -> None:
        """Set the time of the last use to now."""
        self.used, self.used_since = time.monotonic(), True

    @property
    def recheck_at(self) -> float:
        """Return the time at which to check whether another drafter would now be better."""
        return max(self.used + QUIET_SECONDS, self.checked_at + BETWEEN_LOOKS) if self.used_since else float("inf")

    def news(self) -> list[str]:
        """Return the notices that were added since the last call."""
        notices = [*self.new_notices]
        self.new_notices.clear()
        return notices


@dataclass(frozen=True)
class ServedChoice:
    """The settings with which a model is loaded, or would be loaded; `context` is in tokens."""

    choice: Choice
    context: int

    def agrees(self, name: str, settings: Settings) -> bool:
        """Return whether the setting `name` has the same value in `settings` as in this choice.

        Raises the errors of `requested_drafter`.
        """
        if name == "drafter":
            request = requested_drafter(settings, self.choice.target)
            small = None if request.small is None else request.small.card.path
            draft_model = None if self.choice.draft is None else self.choice.draft.target.path
            return (request.drafter, request.trained, small) == (self.choice.drafter, self.choice.trained, draft_model)
        return bool(getattr(settings, name) == (self.context if name == "context" else getattr(self.choice, name)))


def would_take(
    settings: Settings, card: TargetCard, store: Store | None, reporter: Reporter, machine: Machine | None = None
) -> ServedChoice:
    """Return the settings with which a model would be loaded. Raises UsageMistake, NotHere and DoesNotFit."""
    choice = _would_choose(settings, card, store, reporter, machine)
    return ServedChoice(choice, read_config(inspect(card.path)).context_for(settings.context))


def _would_choose(
    settings: Settings, card: TargetCard, store: Store | None, reporter: Reporter, machine: Machine | None
) -> Choice:
    measurements = Measurements(MeasurementCache(store, reporter), settings.exact, settings.context)
    return choices(model_of(card), requested_drafter(settings, card), settings, machine, measurements)[0]


def models_here(first: TargetCard) -> dict[str, TargetCard]:
    """Return the models that a request can name: the server's default model, and all installed models."""
    others = (card for card, checkpoint in registry.installed() if not isinstance(checkpoint, LocalspecError))
    return {first.name: first, **{card.name: card for card in others if card.name != first.name}}


def model_named(name: str, first: TargetCard) -> TargetCard:
    """Return the model of this name. Raises NotHere.

    A client can name an installed model, or name the server's own model by the last part of its path.
    """
    if name == first.name:
        return first
    cards = models_here(first)
    if name in cards:
        return cards[name]
    if first.entry is None and name == first.path.name:
        return first
    if renamed := next((card for card in cards.values() if name and card.imported_as == name), None):
        return renamed
    raise NotHere(f"There is no model {shown(name)} here; the models here are: {', '.join(cards)}.")


def reconsidered(engine: Engine, settings: Settings, store: Store | None, reporter: Reporter) -> Engine:
    """Return this engine, or a new one with the same target and the drafter that `auto` would choose now.

    A new engine has an empty cache. If the machine is idle, costs that were measured on a busy machine are measured
    again, which takes about a second.
    """
    if settings.drafter != "auto" or store is None:  # without saved measurements the choice would not change
        return engine
    cache, card = MeasurementCache(store, reporter), engine.choice.target
    engine.time_when_idle(cache)
    measurements = Measurements(cache, settings.exact, settings.context)
    try:
        choice, *_ = choices(
            model_of(card), requested_drafter(settings, card), settings, machine_without([engine]), measurements
        )
        same_drafter = (choice.drafter, choice.trained) == (engine.choice.drafter, engine.choice.trained)
        if not choice.loads_as(engine.choice):
            return engine
        if same_drafter:
            engine.choice = engine.choice.with_figures_of(choice)
            return engine
        phrases = phrases_allowed(settings)
        return Engine(choice, store=store, phrases=phrases, reporter=reporter, share_with=engine, park=True)
    except LocalspecError:  # this is optional: the present engine continues
        return engine


def machine_without(engines: Iterable[Engine]) -> Machine:
    """Return this machine as if these engines were unloaded: the memory that they hold counts as free."""
    machine, freed = this_machine(), Counter[str]()
    for name, freed_bytes in (engine.freed_memory for engine in engines):
        freed[name] += freed_bytes
    devices = (replace(device, free=device.free + freed[device.name]) for device in machine.devices)
    return replace(machine, devices=tuple(devices))


class LoadedModels:
    """The loaded models. Use it only from the engines' thread."""

    def __init__(
        self, settings: Settings, first: TargetCard, store: Store | None, keep_alive: float, reporter: Reporter,
        open_engine: Callable[..., Engine] = Engine.open, reconsider: Callable[..., Engine] = reconsidered,
    ) -> None:  # fmt: skip
        self._reconsider = reconsider
        self._settings, self._first, self._store, self._reporter = settings, first, store, reporter
        self.keep_alive, self._open = keep_alive, open_engine
        self._loaded: OrderedDict[str, Loaded] = OrderedDict()

    @property
    def names(self) -> list[str]:
        """Return the names of the loaded models."""
        return list(self._loaded)

    @property
    def loaded(self) -> list[dict[str, Any]]:
        """Return the name, device and memory in bytes of each loaded model."""
        models = []
        for name, model in self._loaded.items():
            memory = model.engine.session.memory
            used = memory.target + memory.drafter + memory.cache + memory.parked
            models.append({"name": name, "device": model.engine.choice.device, "bytes": used})
        return models

    def card(self, name: str | None) -> TargetCard:
        """Return the model of this name, or the server's default model if the name is None. Raises NotHere."""
        return self._first if name is None else model_named(name, self._first)

    def get(self, name: str | None) -> Loaded:
        """Return the engine of the model `name`. Load the model if necessary; to make room, unload other models.

        Raises NotHere, and the errors of `Engine.open`.
        """
        return self._of(self.card(name))

    def exactly(self, name: str, path: str) -> tuple[Loaded, float]:
        """Return the engine of the model `name` at `path`, and the seconds for loading it.

        Commands of the server's own user send the name and the path. Raises the errors of `get`, and NotHere if the
        model of this name is in another directory.
        """
        card = self._exact_card(name, path)
        began = time.monotonic()
        loaded = self._of(card)
        return loaded, time.monotonic() - began

    def choice_of(self, name: str, path: str) -> "ServedChoice":
        """Return the device, packing, drafter and context of this model, as it is loaded or as it would be loaded now.

        Nothing is loaded. Raises the errors of `exactly`.
        """
        card = self._exact_card(name, path)
        if card.name in self._loaded:
            engine = self._loaded[card.name].engine
            return ServedChoice(engine.choice, engine.context)
        self._unpark()
        without = machine_without(self._loaded[name].engine for name in self._to_unload(card))
        return would_take(self._settings, card, self._store, self._reporter, without)

    def _exact_card(self, name: str, path: str) -> TargetCard:
        card = self.card(name)
        if str(card.path) != path:
            raise NotHere(f"{name} is the name of another model here.")
        return card

    def _of(self, card: TargetCard) -> Loaded:
        while card.name not in self._loaded:
            self._unpark()
            for name in self._to_unload(card):
                self._let_go(name)
            try:
                began, sentences = time.monotonic(), deque[str](maxlen=MOST_NOTICES)

                def notice(sentence: str, collected: deque[str] = sentences) -> None:
                    collected.append(sentence)
                    self._reporter.notice(sentence)

                engine = self._open(
                    self._settings, card, store=self._store, notice=notice, progress=self._reporter.progress
                )
                now, notices = time.monotonic(), tuple(sentences)
                self._loaded[card.name] = Loaded(engine, now - began, now, notices, sentences)
            except DoesNotFit:
                if not self._loaded:
                    raise
                self._let_go(next(iter(self._loaded)))
        self._loaded.move_to_end(card.name)
        return self._loaded[card.name]

    def _unpark(self) -> None:
        """Free the caches of earlier conversations. Their memory could change the next model's device or packing."""
        for loaded in self._loaded.values():
            loaded.engine.forget_parked()

    def _to_unload(self, card: TargetCard) -> list[str]:
        """Return the models to unload, so that `card` gets its fastest device. The least recently used is first."""
        devices = {
            name: loaded.engine.freed_memory[0]
            for name, loaded in self._loaded.items()
            if loaded.engine.freed_memory[1]
        }
        alone = self._device_without(devices, card) if devices else None
        to_unload: list[str] = []
        for name in (name for name, device in devices.items() if device == alone):
            if self._device_without(to_unload, card) == alone:
                break
            to_unload.append(name)
        return to_unload

    def _device_without(self, names: Iterable[str], card: TargetCard) -> str | None:
        """Return the device that `card` would get without the loaded models `names`; None if it fits on no device."""
        machine = machine_without(self._loaded[name].engine for name in names)
        try:
            return _would_choose(self._settings, card, self._store, self._reporter, machine).device
        except LocalspecError:  # opening it will report the error
            return None

    def rest(self, client_waits: Callable[[], bool] = lambda: False) -> float | None:
        """Work while no request waits: unload each unused model, or measure a used model and reconsider its drafter.

        Measuring pauses when `client_waits` returns True. Return the seconds until there is more to do; None if no
        model is loaded.
        """
        now = time.monotonic()
        for name, loaded in [*self._loaded.items()]:
            if now - loaded.used >= self.keep_alive:
                self._let_go(name)
            elif now >= loaded.recheck_at and not any(client_waits() for _ in loaded.engine.measure()):
                self._reconsider_drafter(loaded)
        next_time = min(
            (min(loaded.used + self.keep_alive, loaded.recheck_at) for loaded in self._loaded.values()), default=None
        )
        return None if next_time is None else max(0.0, next_time - now)

    def _reconsider_drafter(self, loaded: Loaded) -> None:
        """Choose the drafter of a model again, because the machine may have been busy at the last choice."""
        old_engine = loaded.engine
        try:
            loaded.engine = self._reconsider(old_engine, self._settings, self._store, self._reporter)
        except Exception:  # noqa: BLE001  # what was not asked for ends nothing
            traceback.print_exc()
        loaded.checked_at, loaded.used_since = time.monotonic(), False
        if loaded.engine is not old_engine:
            device = old_engine.choice.device
            del old_engine
            gc.collect()  # an engine and its session refer to each other
            give_back(device)

    def _let_go(self, name: str) -> None:
        device = self._loaded.pop(name).engine.choice.device
        gc.collect()  # an engine and its session refer to each other
        give_back(device)
