"""The models to choose from in a chat: the models here, those that could be fetched, and those that do not fit."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

from localspec.choosing.measure import MeasurementCache, Measurements
from localspec.choosing.survey import DrafterRule, Recommendation, all_pairs, preferred, recommend, recommendations
from localspec.environment import home
from localspec.errors import LocalspecError, NotHere
from localspec.hub.sources import Source
from localspec.machine.machine import Machine, this_machine
from localspec.models import registry
from localspec.models.entries import Entry
from localspec.models.model import model_of
from localspec.models.names import full_name
from localspec.models.present import saved_choice
from localspec.models.registry import NOWHERE, TargetCard
from localspec.paths import Paths
from localspec.quantities import amount, distinct, pace_in_words, size
from localspec.store.store import user_store
from localspec.weights.checkpoint import Checkpoint

GATED = "gated: its terms must be accepted first"
Place = Literal["here", "elsewhere", "too large"]


@dataclass(frozen=True)
class Choosable:
    """A model in the list, with its `title`, and facts about it (`about`), the most important first.

    Only a `usable` model can be chosen. A chosen model that is not on this machine is fetched. If the model is `gated`,
    the user must first accept its terms at the hub.
    """

    card: TargetCard
    place: Place
    title: str
    about: tuple[str, ...]
    usable: bool = True
    gated: bool = False
    default: bool = False  # used if no model is named
    recommended: bool = False  # by `localspec doctor`

    @property
    def heading(self) -> str:
        """The title, with marks for the default model, recommended models and gated models."""
        marks = [
            *(["default"] if self.default else []),
            *(["recommended"] if self.recommended else []),
            *([GATED] if self.gated else []),
        ]
        return f"{self.title} ({'; '.join(marks)})" if marks else self.title

    def matches(self, words: str) -> bool:
        """Return whether all of these words are in the displayed text of the model."""
        text = " ".join((self.heading, *self.about, self.card.entry.publisher if self.card.entry else "")).casefold()
        return all(word in text for word in words.casefold().split())


def models_here(current: TargetCard | None) -> list[Choosable]:
    """Return the models on this machine, without their speeds; first `current`, if it is not registered.

    Raises LocalspecError if models.toml cannot be read.
    """
    return list(_here(current, {}))


def all_models(
    current: TargetCard | None,
    freed: tuple[str, int] = ("cpu", 0),
    pace: tuple[str, ...] = (),
    rule: DrafterRule = "auto",
) -> tuple[list[Choosable], bool]:
    """Return the models here, models to fetch that fit this machine, and models that do not fit.

    Return also whether the speed of this machine was ever measured. Unlike `localspec doctor`, measure nothing now,
    because a reply may be running. `current` is the model that answers now, and `pace` its speed in words. `freed` is
    the device of `current`, and the bytes that become free there if `current` is unloaded. Drafters are chosen by
    `rule`. Raises LocalspecError if models.toml cannot be read.
    """
    with user_store(lambda _: None, create=False) as store:
        measurements = Measurements(MeasurementCache(store), quiet=True)
        machine = _with_freed(this_machine(measurements.bandwidth), *freed)
        here = recommendations(machine, measurements, here=True, rule=rule)
        pairs = {pair.card.name: pair for pair in here}
        if current is not None and current.name not in pairs:
            with suppress(LocalspecError):  # listed without its speed
                pairs[current.name] = recommend(model_of(current), machine, measurements, here=True, rule=rule)
        paces = {name: _pace(pair, current is not None and name == current.name) for name, pair in pairs.items()}
        if current is not None and pace:
            paces[current.name] = pace
        candidates = recommendations(machine, measurements, here=False, rule=rule)
        to_fetch = all_pairs(here, candidates)[len(here) :]
    winner = preferred(candidates)
    best = {winner.model_and_drafter} if winner is not None else set()
    # The recommended first, then the best by quality and comfort.
    to_fetch.sort(key=lambda pair: (pair.model_and_drafter not in best, -pair.worth))
    elsewhere = [
        replace(item, recommended=pair.model_and_drafter in best)
        for pair in to_fetch
        if (item := _item_to_fetch(pair)) is not None
    ]
    best_names = {name for name, pair in pairs.items() if pair.model_and_drafter in best}
    local = [replace(item, recommended=item.card.name in best_names) for item in _here(current, paces)]
    return [*local, *sorted(elsewhere, key=lambda item: item.place == "too large")], any(
        device.bandwidth for device in machine.devices
    )


def repository(name: str) -> Choosable | None:
    """Return a repository of the hub as a model that could be fetched; None if `name` cannot be a repository."""
    try:
        source = Source.parse(name.strip())
    except LocalspecError:
        return None
    card = TargetCard(str(source), NOWHERE / str(source), None, "", entry=Entry(str(source), source=source))
    return Choosable(card, "elsewhere", card.name, ("not in the registry; the hub is asked about it",))


def named_model(name: str) -> TargetCard:
    """Return the model of this name, which may have to be fetched.

    Raises the errors of `registry.resolve` for any other name.
    """
    try:
        return registry.named_card(full_name(name))
    except NotHere:
        if (model := repository(name)) is None:
            raise
        return model.card


def named_on_server(name: str, where: str = "") -> TargetCard:
    """Return the card of a model on a server, without asking the server whether the model exists."""
    return TargetCard(name, NOWHERE, None, where, entry=Entry(name))


def in_lines(models: Sequence[Choosable], current: TargetCard) -> Iterator[str]:
    """Return the list as lines of text, with the command that fetches a model that is not here."""
    by_place = {
        place: [model for model in models if model.place == place] for place in ("here", "elsewhere", "too large")
    }
    for model in by_place["here"]:
        answers = " (answers now)" if model.card == current else ""
        yield f"{model.heading}{answers}: {' · '.join(model.about)}"
    if by_place["elsewhere"]:
        yield "These models fit this machine, but are not here; `localspec pull NAME` fetches one:"
        yield from (f"{model.heading}: {' · '.join(model.about)}" for model in by_place["elsewhere"])
    if by_place["too large"]:
        yield f"These models do not fit this machine: {', '.join(model.title for model in by_place['too large'])}."


def _with_freed(machine: Machine, name: str, freed_bytes: int) -> Machine:
    devices = (
        replace(device, free=device.free + freed_bytes) if device.name == name else device for device in machine.devices
    )
    return replace(machine, devices=tuple(devices))


# -- in words ----------------------------------------------------------------------------------------------------------


def _here(current: TargetCard | None, paces: Mapping[str, tuple[str, ...]]) -> Iterator[Choosable]:
    installed, choice = list(registry.installed()), saved_choice(Paths(home()))
    if current is not None and current not in (card for card, _ in installed):  # a directory, given by -m
        path = str(current.path)
        yield Choosable(current, "here", current.name, (*paces.get(current.name, ()), path))
    for card, result in installed:
        if isinstance(result, LocalspecError):
            yield Choosable(card, "here", card.name, (str(result),), usable=False)
        else:
            about = (*_parameters_and_weights(result), *paces.get(card.name, ()), *_sentences(card.description))
            chosen = choice is not None and choice.model in (registry.reference(card), card.name)
            yield Choosable(card, "here", card.name, about, default=chosen)


def _parameters_and_weights(checkpoint: Checkpoint) -> tuple[str, ...]:
    return f"{amount(checkpoint.parameters)} parameters", checkpoint.size_in_words


def _pace(pair: Recommendation, is_current: bool) -> tuple[str, ...]:
    """Return the speed of a model in words, with its speedup, or the reason why the model does not fit."""
    if pair.plan is None:
        return ()
    if not pair.fits:
        return () if is_current else (f"does not fit now: {_too_large(pair)}",)
    return pace_in_words(pair.plan.speed, pair.plan.measured, pair.speedup if pair.drafts else None)


def _too_large(pair: Recommendation) -> str:
    assert pair.plan is not None
    device = pair.plan.precision.device
    on = "" if device.name == "cpu" else f" on {device.name}"
    needed, usable = distinct(size, pair.plan.bytes, device.usable)
    return f"needs {needed}{on}, and {usable} may be used"


def _item_to_fetch(pair: Recommendation) -> Choosable | None:
    """Return the list item for a model to fetch, or for a model here whose drafter can be fetched; otherwise None."""
    card, needed = pair.card, pair.to_fetch
    if card.here:
        if not pair.fits or not (needed.bytes or needed.drafter):
            return None
        title, download = f"{card.name} with {pair.drafter}", "only the drafter is downloaded"
    else:
        title = card.name
        weights = "size not known" if needed.bytes is None else f"{size(needed.bytes)} download"
        download = weights + " with its drafter" * needed.drafter
    if pair.plan is not None and not pair.fits:
        return Choosable(card, "too large", title, (_too_large(pair),), usable=False, gated=pair.gated)
    fits = () if pair.plan is not None else ("it is unknown whether the model fits",)
    about = (download, *fits, *_pace(pair, False), *_sentences(card.license), *_sentences(card.description))
    return Choosable(card, "elsewhere", title, about, gated=pair.gated)


def _sentences(*texts: str | None) -> Iterable[str]:
    return (text.rstrip(".") for text in texts if text)
