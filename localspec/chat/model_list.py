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
    """A model in the list: its `title`, and facts about it, the most important first.

    Only a `usable` model can be chosen; if it is not here, it is then fetched. The terms of a `gated` model must be
    accepted at the hub first.
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
        said = " ".join((self.heading, *self.about, self.card.entry.publisher if self.card.entry else "")).casefold()
        return all(word in said for word in words.casefold().split())


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
        ways = {one.card.name: one for one in here}
        if current is not None and current.name not in ways:
            with suppress(LocalspecError):  # listed without its speed
                ways[current.name] = recommend(model_of(current), machine, measurements, here=True, rule=rule)
        paces = {name: _pace(one, current is not None and name == current.name) for name, one in ways.items()}
        if current is not None and pace:
            paces[current.name] = pace
        every = recommendations(machine, measurements, here=False, rule=rule)
        more = all_pairs(here, every)[len(here) :]
    taken = preferred(every)
    best = {taken.model_and_drafter} if taken is not None else set()
    # The recommended first, then the best by quality and comfort.
    more.sort(key=lambda one: (one.model_and_drafter not in best, -one.worth))
    elsewhere = [
        replace(one, recommended=pair.model_and_drafter in best)
        for pair in more
        if (one := _item_to_fetch(pair)) is not None
    ]
    mine = {name for name, one in ways.items() if one.model_and_drafter in best}
    local = [replace(one, recommended=one.card.name in mine) for one in _here(current, paces)]
    return [*local, *sorted(elsewhere, key=lambda one: one.place == "too large")], any(
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


def named(name: str) -> TargetCard:
    """Return the model of this name, which may have to be fetched.

    Raises the errors of `registry.resolve` for any other name.
    """
    try:
        return registry.named_card(full_name(name))
    except NotHere:
        if (found := repository(name)) is None:
            raise
        return found.card


def named_on_server(name: str, where: str = "") -> TargetCard:
    """Return the card of a model on a server, without asking the server whether the model exists."""
    return TargetCard(name, NOWHERE, None, where, entry=Entry(name))


def in_lines(models: Sequence[Choosable], current: TargetCard) -> Iterator[str]:
    """Return the list as lines of text, with the command that fetches a model that is not here."""
    by_place = {place: [one for one in models if one.place == place] for place in ("here", "elsewhere", "too large")}
    for one in by_place["here"]:
        answers = " (answers now)" if one.card == current else ""
        yield f"{one.heading}{answers}: {' · '.join(one.about)}"
    if by_place["elsewhere"]:
        yield "These models fit this machine, but are not here; `localspec pull NAME` fetches one:"
        yield from (f"{one.heading}: {' · '.join(one.about)}" for one in by_place["elsewhere"])
    if by_place["too large"]:
        yield f"These models do not fit this machine: {', '.join(one.title for one in by_place['too large'])}."


def _with_freed(machine: Machine, device: str, freed_bytes: int) -> Machine:
    devices = (replace(one, free=one.free + freed_bytes) if one.name == device else one for one in machine.devices)
    return replace(machine, devices=tuple(devices))


# -- in words ----------------------------------------------------------------------------------------------------------


def _here(current: TargetCard | None, paces: Mapping[str, tuple[str, ...]]) -> Iterator[Choosable]:
    found, choice = list(registry.installed()), saved_choice(Paths(home()))
    if current is not None and current not in (card for card, _ in found):  # a directory, given by -m
        path = str(current.path)
        yield Choosable(current, "here", current.name, (*paces.get(current.name, ()), path))
    for card, what in found:
        if isinstance(what, LocalspecError):
            yield Choosable(card, "here", card.name, (str(what),), usable=False)
        else:
            about = (*_parameters_and_weights(what), *paces.get(card.name, ()), *_sentences(card.description))
            chosen = choice is not None and choice.model in (registry.reference(card), card.name)
            yield Choosable(card, "here", card.name, about, default=chosen)


def _parameters_and_weights(checkpoint: Checkpoint) -> tuple[str, ...]:
    return f"{amount(checkpoint.parameters)} parameters", checkpoint.size_in_words


def _pace(one: Recommendation, is_current: bool) -> tuple[str, ...]:
    """Return the speed of a model in words, with its speedup, or the reason why the model does not fit."""
    if one.plan is None:
        return ()
    if not one.fits:
        return () if is_current else (f"does not fit now: {_too_large(one)}",)
    return pace_in_words(one.plan.speed, one.plan.measured, one.speedup if one.drafts else None)


def _too_large(one: Recommendation) -> str:
    assert one.plan is not None
    device = one.plan.precision.device
    on = "" if device.name == "cpu" else f" on {device.name}"
    needed, usable = distinct(size, one.plan.bytes, device.usable)
    return f"needs {needed}{on}, and {usable} may be used"


def _item_to_fetch(one: Recommendation) -> Choosable | None:
    """Return the item for a model to fetch, or for a model here whose drafter is to be fetched; None for any other."""
    card, needed = one.card, one.to_fetch
    if card.here:
        if not one.fits or not (needed.bytes or needed.drafter):
            return None
        title, download = f"{card.name} with {one.drafter}", "only the drafter is downloaded"
    else:
        title = card.name
        weights = "size not known" if needed.bytes is None else f"{size(needed.bytes)} download"
        download = weights + " with its drafter" * needed.drafter
    if one.plan is not None and not one.fits:
        return Choosable(card, "too large", title, (_too_large(one),), usable=False, gated=one.gated)
    fits = () if one.plan is not None else ("it is unknown whether the model fits",)
    about = (download, *fits, *_pace(one, False), *_sentences(card.license), *_sentences(card.description))
    return Choosable(card, "elsewhere", title, about, gated=one.gated)


def _sentences(*texts: str | None) -> Iterable[str]:
    return (text.rstrip(".") for text in texts if text)
