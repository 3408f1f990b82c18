"""What `run` and `chat` begin with: the model, the store, and a new conversation or the one to go on with."""

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from localspec import environment
from localspec.chat.conversation import Conversation, Resumed, saved_conversation
from localspec.checkpoint import inspect
from localspec.config import Settings
from localspec.errors import NotHere
from localspec.events import Reporter
from localspec.models import registry
from localspec.models.imported import is_gguf
from localspec.models.only_copies import settle
from localspec.models.registry import TargetCard
from localspec.paths import Paths
from localspec.store.conversations import Saved
from localspec.store.database import StoreTrouble
from localspec.store.history import History
from localspec.store.store import Store, user_store

if TYPE_CHECKING:
    from localspec.machine.machine import Machine

DEMO = "no model named, so the small demo model answers; choose one with -m."


class StartedChat(NamedTuple):
    """What a chat needs before its model is loaded. The store is None where nothing is kept and nothing was."""

    card: TargetCard
    store: Store | None
    conversation: Conversation


def start_chat(
    settings: Settings,
    resume: Resumed | None,
    at_the_end: ExitStack,
    notice: Callable[[str], None],
    progress: Callable[[str], None] = lambda _: None,
    *,
    tell_what_is_kept: bool = True,
    who: Callable[[Settings, Saved | None, Reporter], TargetCard] | None = None,
) -> StartedChat:
    """Opens the store, which `at_the_end` closes, and finds the model and the conversation to `resume`, if one is.

    `who` finds the model where it is none of this machine.

    Raises NotHere, UsageMistake, LocalspecError for a broken model.
    """
    settle(paths := Paths(environment.home()), Reporter(notice, progress))
    database = paths.database
    store = found = None
    if resume is not None:
        store = at_the_end.enter_context(user_store(notice, create=False))
        found = saved_conversation(store.history if store else None, resume)
    card = (who or _named_model)(settings, found, Reporter(notice, progress))
    if store is None:  # what was measured on this machine is kept there too
        store = at_the_end.enter_context(user_store(notice, create=settings.log))
    card = card or _recommended_model(settings, store, Reporter(notice, progress), instead=found is not None)
    history = store.history if store is not None and settings.log else None
    written = store is not None and store.path is not None and not store.read_only
    if tell_what_is_kept and written and history is not None and not _ever_kept(history):
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


def chosen_model(settings: Settings, store: Store | None, reporter: Reporter) -> TargetCard:
    """The model that answers: of the settings, else what is recommended. Raises what `start_chat` does."""
    settle(Paths(environment.home()), reporter)
    return _named_model(settings, None, reporter) or _recommended_model(settings, store, reporter)


def _ever_kept(history: History) -> bool:
    try:
        return history.ever_kept
    except StoreTrouble:  # costs no reply; it is reported when the first turn cannot be saved either
        return True


def _named_model(settings: Settings, found: Saved | None, reporter: Reporter) -> TargetCard | None:
    """The model of the flag, else that of the conversation, else that of the settings."""
    if found is not None and not settings.origins.get("model", "").startswith("--"):
        try:
            return _resolve(found.info.model)
        except NotHere:
            gone = "is no longer here"
            if not registry.could_be_here(found.info.model):
                gone = "is not here: it was removed, or is a server's, which --server names"
            reporter.notice(f"the model of this conversation, {found.info.model}, {gone}.")
    if settings.model is None:
        return None
    card = _ready(settings.model, settings, reporter)
    inspect(card.path)
    return card


def _ready(name: str, settings: Settings, reporter: Reporter) -> TargetCard:
    if "\0" in name or not is_gguf(Path(os.path.expanduser(name))):
        return registry.resolve(name)
    from localspec.engine.importing import ready  # what packs it takes its time

    return ready(name, settings, reporter)


def _recommended_model(
    settings: Settings, store: Store | None, reporter: Reporter, instead: bool = False
) -> TargetCard:
    """The model that `localspec doctor` would choose among those that are here; else the demo model.

    It is named where nobody has said how good it is, or where it answers `instead` of a conversation's own.
    """
    real = [card for card in registry.known().values() if card.here and card.entry and not card.entry.toy]
    chosen = _preferred(real, settings, store, reporter) if real else None
    if chosen is None or (chosen.entry is not None and chosen.entry.toy):
        reporter.notice(DEMO)
        return _resolve("demo")
    if instead or not (chosen.entry and chosen.entry.quality):
        reporter.notice(f"no model named, so {chosen.name} answers; choose one with -m.")
    return chosen


def _preferred(
    real: Sequence[TargetCard], settings: Settings, store: Store | None, reporter: Reporter
) -> TargetCard | None:
    from localspec.engine.device_profile import BandwidthProfiler, DeviceProfiler  # only here: they take their time
    from localspec.engine.measurement_cache import MeasurementCache
    from localspec.machine.machine import this_machine
    from localspec.policy.survey import preferred, recommendations

    cache = MeasurementCache(store, reporter)
    if len(real) > 1:
        profiler = DeviceProfiler(cache, settings.exact, settings.context)
        found = recommendations(_on_named_device(this_machine(profiler.bandwidth), settings), profiler, here=True)
    else:  # how fast it is does not matter, only whether it fits
        known = BandwidthProfiler(cache, settings.exact, settings.context)
        found = recommendations(_on_named_device(this_machine(), settings), known, here=True)
    chosen = preferred(found, settings.prefer)
    return None if chosen is None else chosen.card


def _on_named_device(machine: "Machine", settings: Settings) -> "Machine":
    """The machine with only the device that was named; one that it does not have is refused later, by the choice."""
    named = None if settings.device == "auto" else machine.device(settings.device)
    return machine if named is None else replace(machine, devices=(named,))


def _resolve(name: str) -> TargetCard:
    """The model of this name or directory. Raises what is wrong with it before anything is loaded."""
    card = registry.resolve(name)
    inspect(card.path)
    return card
