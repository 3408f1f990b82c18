"""The start of `run` and `chat`: the model, the store, and a new conversation or the one to continue."""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from localspec import environment
from localspec.chat.branches import by_present_name
from localspec.chat.conversation import Conversation, Resumed, saved_conversation
from localspec.config import Settings
from localspec.errors import NotHere
from localspec.events import Reporter
from localspec.models import registry
from localspec.models.names import full_name
from localspec.models.only_copies import move_only_copies
from localspec.models.present import By, chat_models, missing_models, save_choice, saved_choice
from localspec.models.registry import TargetCard
from localspec.outside_files import read_bytes
from localspec.paths import Paths, private_directory, write_anew
from localspec.store.conversations import Saved
from localspec.store.database import StoreTrouble
from localspec.store.history import History
from localspec.store.store import Store, user_store
from localspec.weights.checkpoint import inspect
from localspec.weights.packed_files import is_gguf

if TYPE_CHECKING:
    from localspec.machine.machine import Machine


DEMO = (
    "The embedded demo model answers, because no other model is here. `make demo` in a checkout fetches SmolLM2, "
    "`localspec pull` others."
)


class StartedChat(NamedTuple):
    """The parts of a chat that exist before its model is loaded.

    The store is None if nothing is saved now and nothing was saved before.
    """

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
    say_what_is_saved: bool = True,
    find_card: Callable[[Settings, Saved | None, Reporter], TargetCard] | None = None,
) -> StartedChat:
    """Open the store, and find the model and the conversation to `resume`, if any.

    The stack `at_the_end` closes the store. `find_card`, if given, finds the model on a server. Raises NotHere,
    UsageMistake, and LocalspecError for a broken model.
    """
    move_only_copies(paths := Paths(environment.home()), Reporter(notice, progress))
    database = paths.database
    store = saved = None
    if resume is not None:
        store = at_the_end.enter_context(user_store(notice, create=False))
        saved = saved_conversation(store.history if store else None, resume)
    card = (find_card or _named_model)(settings, saved, Reporter(notice, progress))
    if store is None:  # measurements of this machine are saved there too
        store = at_the_end.enter_context(user_store(notice, create=settings.log))
    card = card or _unnamed_model(settings, store, Reporter(notice, progress), instead=saved is not None)
    history = store.history if store is not None and settings.log else None
    writable = store is not None and store.path is not None and not store.read_only
    if say_what_is_saved and writable and history is not None and not _ever_saved(history):
        notice(
            f"conversations are saved in {database} (only you can read it). --no-log turns that off; `localspec "
            "history` and `localspec pool` show and delete them."
        )
    if saved is None:
        return StartedChat(card, store, Conversation(history, registry.reference(card), settings.system, notice))
    conversation = Conversation.resume(history, saved, registry.reference(card), notice)
    if settings.origins.get("system", "").startswith("--"):
        conversation.system = settings.system
    return StartedChat(card, store, conversation)


def chosen_model(settings: Settings, store: Store | None, reporter: Reporter, saves: bool = True) -> TargetCard:
    """Return the model that the settings name, or the saved choice, or else a model that is here.

    Without `saves` nothing changes on disk: no choice is saved, and no GGUF file is registered. Raises the errors of
    `start_chat`.
    """
    if saves:
        move_only_copies(Paths(environment.home()), reporter)
    card = _named_model(settings, None, reporter, saves)
    return card or _unnamed_model(settings, store, reporter, saves=saves)


def choose(card: TargetCard, by: By, notice: Callable[[str], None]) -> None:
    """Save this model as the default, which answers without `-m`. Report a notice if saving fails."""
    paths = Paths(environment.home())
    try:
        save_choice(registry.reference(card), by, paths)
    except OSError as error:
        notice(f"{paths.choice} cannot be written ({error.strerror}), so {card.name} is chosen only for this session.")


def _ever_saved(history: History) -> bool:
    try:
        return history.ever_saved
    except StoreTrouble:  # costs no reply; it is reported when the first turn cannot be saved either
        return True


def _named_model(settings: Settings, saved: Saved | None, reporter: Reporter, saves: bool = True) -> TargetCard | None:
    """Return the model that `-m` names, or the conversation's model, or else the model that other settings name."""
    if saved is not None and not settings.origins.get("model", "").startswith("--"):
        try:
            return _resolve(saved.info.model)
        except NotHere:
            reason = "is no longer here"
            if not registry.could_be_here(saved.info.model):
                reason = "is not here: it was removed, or belongs to a server (give --server)"
            reporter.notice(f"the model of this conversation, {by_present_name(saved).info.model}, {reason}.")
    if settings.model is None:
        return None
    try:
        card = _ready(settings.model, settings, reporter) if saves else registry.resolve(full_name(settings.model))
    except NotHere as error:
        if settings.origins.get("model", "--").startswith("--"):
            raise
        # The name was not typed, so say which setting it is from.
        raise NotHere(f"{settings.shown('model')}: {error}") from None
    inspect(card.path)
    return card


def _ready(name: str, settings: Settings, reporter: Reporter) -> TargetCard:
    name = full_name(name)
    if "\0" in name or not is_gguf(Path(os.path.expanduser(name))):
        return registry.resolve(name)
    from localspec.engine.importing import ready  # what packs it takes time to import

    return ready(name, settings, reporter)


def _unnamed_model(
    settings: Settings, store: Store | None, reporter: Reporter, instead: bool = False, saves: bool = True
) -> TargetCard:
    """Return the model to use if none is named: the saved choice, the only model here, or the best for this machine.

    The best model is saved as the choice, unless `saves` is False. If no model is here, the demo model answers. A
    notice names a model that is not the saved choice, at most once a day. If a conversation's own model is missing
    (`instead`), a notice always names the model. A notice also reports missing GGUF files, of the saved choice or, if
    there is none, of all models; then nothing is saved.
    """
    paths = Paths(environment.home())
    notify = reporter.notice if instead or not saves else once_a_day(paths.last_notice, reporter.notice)
    if (choice := saved_choice(paths)) is not None:
        try:
            card = _resolve(choice.model)
        except NotHere as error:
            registered = registry.find(choice.model)
            without_file = [str(error)] if registered and registered.here else []
        else:
            if instead:
                notify(f"{card.name} answers; choose another model with -m.")
            return card
        if not without_file:
            name = registry.renamed(paths).get(choice.model, choice.model)
            notify(f"The model that was chosen last, {name}, is no longer here.")
    else:
        without_file = missing_models(paths)
    models = chat_models(paths)
    chosen = _best(models, settings, store) if len(models) > 1 else next(iter(models), None)
    if without_file:  # one of them might be the better choice, so none is saved
        chosen = chosen or _resolve("demo")
        reporter.notice(f"{' '.join(without_file)} Until then {chosen.name} answers.")
        return chosen
    if chosen is None:
        notify(DEMO)
        return _resolve("demo")
    if len(models) == 1:
        notify(f"No model named, so {chosen.name} answers: it is the only one here.")
        return chosen
    if not saves:
        return chosen
    notify(f"No model named, so {chosen.name} answers from now on; `localspec use NAME` chooses another one.")
    with suppress(OSError):  # the next session finds the same model
        save_choice(registry.reference(chosen), "machine", paths)
    return chosen


def _best(models: Sequence[TargetCard], settings: Settings, store: Store | None) -> TargetCard:
    """Return the best model for this machine, judged by its total memory; the first model if none is known to fit."""
    from localspec.choosing.measure import MeasurementCache, Measurements
    from localspec.choosing.survey import preferred, recommendations
    from localspec.machine.machine import this_machine

    measurements = Measurements(MeasurementCache(store), settings.exact, settings.context, quiet=True)
    machine = _on_named_device(this_machine(measurements.bandwidth), settings)
    machine = replace(machine, devices=tuple(replace(device, free=device.total) for device in machine.devices))
    names = {card.name for card in models}
    candidates = [
        pair
        for pair in recommendations(machine, measurements, here=True, rule=settings.drafter_rule)
        if pair.card.name in names
    ]
    chosen = preferred(candidates, settings.prefer)
    return models[0] if chosen is None else chosen.card


def _on_named_device(machine: "Machine", settings: Settings) -> "Machine":
    """Return the machine with only the device that the settings name. A missing device is reported later."""
    device = None if settings.device == "auto" else machine.device(settings.device)
    return machine if device is None else replace(machine, devices=(device,))


def _resolve(name: str) -> TargetCard:
    """Return the model of this name or directory. Raises an error for a missing or broken model before it is loaded."""
    card = registry.resolve(name)
    inspect(card.path)
    return card


DAY = 24 * 60 * 60.0  # seconds


def once_a_day(file: Path, report: Callable[[str], None]) -> Callable[[str], None]:
    """Return a function that reports a notice and saves it in `file`.

    The function does not report the same notice again while the file is less than a day old.
    """

    def notice(sentence: str) -> None:
        with suppress(OSError, ValueError):
            if read_bytes(file).decode() == sentence and 0 <= time.time() - file.stat().st_mtime < DAY:
                return
        report(sentence)
        with suppress(OSError):
            private_directory(file.parent)
            write_anew(file, sentence.encode())

    return notice
