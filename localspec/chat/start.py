"""What `run` and `chat` begin with: the model, the store, and a new conversation or the one to go on with."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Literal, NamedTuple

from localspec import config
from localspec.chat.conversation import Conversation, saved_conversation
from localspec.checkpoint import inspect
from localspec.config import Settings
from localspec.engine.device_profile import BandwidthProfiler, DeviceProfiler
from localspec.engine.measurement_cache import MeasurementCache
from localspec.errors import NotHere
from localspec.events import Reporter
from localspec.machine.machine import Machine, this_machine
from localspec.models import registry
from localspec.models.registry import TargetCard
from localspec.paths import Paths
from localspec.policy.survey import preferred, recommendations
from localspec.store.database import StoreTrouble
from localspec.store.history import History, Saved
from localspec.store.store import Store, user_store

DEMO = "no model named, so the small demo model answers; choose one with -m."


class StartedChat(NamedTuple):
    """What a chat needs before its model is loaded. The store is None where nothing is kept and nothing was."""

    card: TargetCard
    store: Store | None
    conversation: Conversation


def start_chat(
    settings: Settings,
    resume: int | Literal["last"] | None,
    at_the_end: ExitStack,
    notice: Callable[[str], None],
    progress: Callable[[str], None] = lambda _: None,
) -> StartedChat:
    """Opens the store, which `at_the_end` closes, and finds the model and the conversation to `resume`, if one is.

    Raises NotHere, UsageMistake, LocalspecError for a broken model.
    """
    database = Paths(config.home()).database
    store = found = None
    if resume is not None:
        store = at_the_end.enter_context(user_store(notice, create=False))
        found = saved_conversation(store.history if store else None, resume)
    card = _named_model(settings, found, notice)
    if store is None:  # what was measured on this machine is kept there too
        store = at_the_end.enter_context(user_store(notice, create=settings.log))
    card = card or _recommended_model(settings, store, Reporter(notice, progress))
    history = store.history if store is not None and settings.log and not store.read_only else None
    if history is not None and store is not None and store.path is not None and not _ever_kept(history):
        notice(
            f"what is said is kept in {database}, readable for you alone: --no-log keeps nothing, `localspec history` "
            "and `localspec pool` show and delete it."
        )
    if found is None:
        return StartedChat(card, store, Conversation(history, registry.reference(card), settings.system, notice))
    conversation = Conversation.resume(history, found, registry.reference(card), notice)
    if settings.origins.get("system", "").startswith("--"):
        conversation.system = settings.system
    return StartedChat(card, store, conversation)


def _ever_kept(history: History) -> bool:
    try:
        return history.ever_kept
    except StoreTrouble:  # costs no reply; it is reported when the first turn cannot be saved either
        return True


def _named_model(settings: Settings, found: Saved | None, notice: Callable[[str], None]) -> TargetCard | None:
    """The model of the flag, else that of the conversation, else that of the settings."""
    if found is not None and not settings.origins.get("model", "").startswith("--"):
        try:
            return _resolve(found.info.model)
        except NotHere:
            notice(f"the model of this conversation, {found.info.model}, is no longer here.")
    return None if settings.model is None else _resolve(settings.model)


def _recommended_model(settings: Settings, store: Store | None, reporter: Reporter) -> TargetCard:
    """The model that `localspec doctor` would choose among those that are here; else the demo model."""
    found = []
    real = [card for card in registry.known().values() if card.here and card.entry and not card.entry.toy]
    cache = MeasurementCache(store, reporter)
    if len(real) > 1:
        profiler = DeviceProfiler(cache, settings.exact, settings.context)
        found = recommendations(_on_named_device(this_machine(profiler.bandwidth), settings), profiler, here=True)
    elif real:  # how fast it is does not matter, only whether it fits
        known = BandwidthProfiler(cache, settings.exact, settings.context)
        found = recommendations(_on_named_device(this_machine(), settings), known, here=True)
    chosen = preferred(found, settings.prefer)
    if chosen is None or (chosen.card.entry is not None and chosen.card.entry.toy):
        reporter.notice(DEMO)
        return _resolve("demo")
    return chosen.card


def _on_named_device(machine: Machine, settings: Settings) -> Machine:
    """The machine with only the device that was named; one that it does not have is refused later, by the choice."""
    named = None if settings.device == "auto" else machine.device(settings.device)
    return machine if named is None else replace(machine, devices=(named,))


def _resolve(name: str) -> TargetCard:
    """The model of this name or directory. Raises what is wrong with it before anything is loaded."""
    card = registry.resolve(name)
    inspect(card.path)
    return card
