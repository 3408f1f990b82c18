"""Pulls (downloads) a model, as a generator of events: the plan for this machine, the download, its drafter.

Nothing is fetched until the caller requests the event after `AboutToFetch`. A caller that does not agree closes the
generator instead. Progress between two events, such as received bytes, is reported through callbacks.
"""

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

from localspec.choosing.cost import TRAINING_TOKENS
from localspec.choosing.fetching import LOSSLESS, PullSet, fit, pull_set, to_make
from localspec.choosing.measure import MeasurementCache, Measurements, MeasurementSource, NoMeasurements
from localspec.config import Settings
from localspec.errors import DoesNotFit, UsageMistake
from localspec.events import Reporter
from localspec.families.family import NotComputed
from localspec.families.model_config import ModelConfig, not_computed
from localspec.hub.cache import snapshot
from localspec.hub.client import must_be_online, server
from localspec.hub.fetch import fetch, too_large
from localspec.hub.plan import Plan
from localspec.hub.plan import plan as ask_hub
from localspec.machine.hardware import devices
from localspec.machine.machine import Machine, this_machine
from localspec.models.drafter_cards import MTP
from localspec.models.names import repository_of, sources_of
from localspec.models.registry import TargetCard, cards, named_card, split_of
from localspec.models.shape import Shape
from localspec.pulling import gguf
from localspec.pulling.gguf import Instead, replaced, with_smaller_form
from localspec.pulling.heads import Converted, NotConverted, convert_heads
from localspec.pulling.packing import (
    Installed,
    Packed,
    forget_damaged,
    pack_and_delete,
    pack_and_keep,
    packed_only_copy,
    packing_of,
    packing_to_keep,
)
from localspec.store.store import user_store


@dataclass(frozen=True)
class AlreadyHere:
    """An event: nothing needs to be fetched. `why` is the reason."""

    why: str


@dataclass(frozen=True)
class Planned:
    """An event: the plan of a pull is ready.

    `fits` says whether the model fits into memory (None if unknown), and `memory` is a sentence about it. `drafter` is
    the reason for the choice of a drafter, if one was chosen. `packing` is the form of weights in which the CPU engine
    would load the model; None if it would not load the model, or if nothing is packed now. `instead` is set if a
    smaller form is fetched instead of the publisher's own weights.
    """

    plan: Plan
    fits: bool | None
    memory: str
    drafter: str
    packing: str | None = None
    instead: Instead | None = None


@dataclass(frozen=True)
class AboutToFetch:
    """An event: the download of this many bytes starts as soon as the caller requests the next event."""

    bytes: int


@dataclass(frozen=True)
class Fetched:
    """An event: every file is here, and matches its digest. `notices` are sentences about damaged or leftover files."""

    notices: tuple[str, ...]


@dataclass(frozen=True)
class DrafterToTrain:
    """An event: no drafter of this kind is published for the model, but `localspec train` can make one.

    That takes about this many `hours`, with this many `tokens` of text and `memory` bytes.
    """

    kind: str
    tokens: int
    hours: float
    memory: int


PullEvent = (
    AlreadyHere | Planned | AboutToFetch | Fetched | Converted | NotConverted | Installed | Packed | DrafterToTrain
)  # in this order, starting with the plan


@dataclass(frozen=True)
class PullOptions:
    """The options of a pull.

    `drafter` is a kind of drafter to fetch. `force` allows a model that does not fit. With `packed_only`, only the
    packed file is kept. With `original`, the original weights are fetched even if a smaller form could replace them.
    `settings` say how the model would be loaded, and so how it is packed. `quiet` is for a pull during a chat, when
    replies must not become slower. Then nothing is measured, no training time is estimated, and the model is packed
    later, when it is loaded.
    """

    drafter: str | None = None
    force: bool = False
    packed_only: bool = False
    original: bool = False
    settings: Settings = field(default_factory=Settings)
    quiet: bool = False


def pull(
    name: str, options: PullOptions, reporter: Reporter, downloaded: Callable[[int, int], None]
) -> Generator[PullEvent, None, None]:
    """Fetch a model, given its name or org/repo[@revision], and a drafter: of the kind in `options`, or one that pays.

    `downloaded` is called with the number of bytes that are here, and their total. Raises UsageMistake for an invalid
    drafter, DoesNotFit after the plan, and the errors of `plan`, `packing_to_keep`, `fetch`, `convert_heads` and
    `pack_and_delete`.
    """
    card = cards().get(name)
    if nothing := already_here(name, options):
        yield nothing
        return
    hint = f"`localspec pull {name} --dry-run` shows what the registry knows about it." if card else ""
    must_be_online(f"Fetching {name}", hint)
    reporter.progress("checking this machine")
    machine = this_machine()
    planned = _planned(name, options, machine, reporter)
    yield planned
    if isinstance(planned, AlreadyHere):
        return
    if not options.force:
        _refuse_too_large(planned)
    plan, model, only_packing, copy = planned.plan, planned.plan.parts[0], "", None
    texts = next((part for part in plan.parts if part.texts_only), None)
    earlier = gguf.made_before(model, texts) if model.source.gguf else None
    if earlier and texts:
        plan = replace(plan, parts=tuple(part for part in plan.parts if part is not texts))
    if options.packed_only and not model.source.gguf:
        only_packing = packing_to_keep(plan, planned.packing, options.settings)
        copy = packed_only_copy(model, only_packing)
    if copy:
        yield copy
        plan = replace(plan, parts=tuple(part for part in plan.parts if part is not model))
        if not plan.parts:
            return
    if plan.fetch_bytes:
        yield AboutToFetch(plan.fetch_bytes)
    yield Fetched(tuple(fetch(plan, downloaded, force=options.force)))
    fetched_parts = tuple(part for part in plan.parts if not part.source.gguf and not part.texts_only)
    if model.source.gguf:
        yield from gguf.register(model, options.settings, reporter, texts, earlier)
    registered = model.source if model.source.gguf else None
    yield from convert_heads(replace(plan, parts=fetched_parts), reporter.progress, registered)
    for part in fetched_parts:
        forget_damaged(snapshot(part.source, part.commit))
        if only_packing and part is model:
            yield pack_and_delete(part, only_packing, machine, reporter)
            continue
        yield Installed(part.source, split_of(part.source) if part.whole else snapshot(part.source, part.commit))
        packing = planned.packing if part is model and repository_of(name) else planned.packing and LOSSLESS
        if part.whole or part.heads or not packing:
            continue
        if packed := pack_and_keep(part, packing, machine, reporter):
            yield packed
    if card is not None and not only_packing and not options.quiet:
        yield from _drafter_to_train(name, machine, reporter)


def _refuse_too_large(planned: Planned) -> None:
    """Raise DoesNotFit if the planned files do not fit on the disk, or the model does not fit into memory."""
    if not planned.plan.fits_on_disk:
        raise DoesNotFit(f"{too_large(planned.plan)} --force tries anyway.")
    if planned.fits is False:
        raise DoesNotFit(f"{planned.memory}; choose a smaller model, or give --force to fetch it anyway.")


def _drafter_to_train(name: str, machine: Machine, reporter: Reporter) -> Iterator[DrafterToTrain]:
    """Yield an event for the drafter that is worth training for a registered model, if there is one."""
    kind = to_make(named_card(name))
    if kind is None:
        return
    reporter.progress(f"estimating what training {kind} takes")
    from localspec.training.estimate import outlook  # torch and transformers

    with suppress(DoesNotFit):  # without room for the target, nobody trains a drafter
        hours, memory = outlook(kind, named_card(name), machine, NoMeasurements(), TRAINING_TOKENS)
        yield DrafterToTrain(kind, TRAINING_TOKENS, hours, memory)


def already_here(name: str, options: PullOptions) -> AlreadyHere | None:
    """Return an event if nothing needs to be fetched for this name; otherwise None.

    Raises UsageMistake for options that have no effect, and the errors of `sources_of`.
    """
    if not sources_of(name):
        return AlreadyHere("this model needs no download")
    if options.drafter is not None and name not in cards():
        raise UsageMistake(
            f"--drafter {options.drafter} has no effect with a repository; leave it out, or pull a registered model."
        )
    entry = card.entry if (card := cards().get(name)) else None
    if options.original and not (entry and entry.forms):
        subject = "a repository" if entry is None else name
        raise UsageMistake(
            f"--original has no effect with {subject}, which is fetched unchanged; leave --original out."
        )
    if options.packed_only and options.drafter == MTP:
        raise UsageMistake(f"--packed-only drops the MTP layer, which --drafter {MTP} needs; leave one of them out.")
    if options.packed_only and repository_of(name) is None:
        raise UsageMistake(
            f"--packed-only has no effect with {name}, which needs no download; leave --packed-only out."
        )
    return None


@contextmanager
def measured(card: TargetCard | None, options: PullOptions, reporter: Reporter) -> Iterator[MeasurementSource]:
    """Yield this machine's measurements. They include the memory bandwidth if a drafter must be chosen."""
    with user_store(reporter.notice, create=False) as store:
        measurements = Measurements(MeasurementCache(store, reporter), quiet=options.quiet)
        if options.drafter is None and card is not None and card.entry is not None and card.entry.drafters:
            for device in devices():
                measurements.bandwidth(device)
        yield measurements


def _planned(name: str, options: PullOptions, machine: Machine, reporter: Reporter) -> Planned | AlreadyHere:
    """Choose the drafter, ask the hub for files, and predict whether the model fits and how it would be loaded."""
    card, drafter = cards().get(name), options.drafter
    with measured(card, options, reporter) as measurements:
        if card:
            chosen = pull_set(card, drafter, machine, measurements, options.settings)
        else:
            chosen = PullSet(tuple(sources_of(name)), "")
        if not chosen.sources:
            return AlreadyHere(f"drafter: {chosen.why}")
        reporter.progress(f"asking {server()} about {name}")
        plan, instead = ask_hub(chosen.sources), None
        gguf.check(plan.parts[0], options.packed_only, options.settings)
        if not plan.parts[0].heads and not plan.parts[0].source.gguf:
            config = plan.parts[0].config
            try:  # refuse now what would be refused after the download
                ModelConfig.of(config)
            except NotComputed as error:
                raise not_computed(error, plan.parts[0].source, str(config["architectures"][0])) from None
            except ValueError:  # reading the model will report an impossible value
                pass
        fits, memory = _memory(name, plan, options, machine, measurements, chosen)
        packing = packing_of(plan.parts[0], options.settings, machine, measurements)
    if card is not None and card.entry is not None and not options.original and repository_of(name) is not None:
        original_packing = replaced(packing, options.packed_only, options.settings)
        plan, instead = with_smaller_form(plan, card.entry, original_packing, options.settings, reporter.notice)
    return Planned(plan, fits, memory, chosen.why, None if options.quiet else packing, instead)


def _memory(
    name: str, plan: Plan, options: PullOptions, machine: Machine, measurements: MeasurementSource, chosen: PullSet
) -> tuple[bool | None, str]:
    """Return whether the planned model fits into memory, and a sentence about it."""
    model, *drafters = plan.parts
    if model.source.gguf:
        card = cards().get(name)
        return gguf.memory(model, options.settings, machine, card.entry.shape if card and card.entry else None)
    if model.heads or repository_of(name) is None:
        return None, "not known for a drafter without its model"
    # A drafter that was chosen for this machine fits next to the model.
    drafter_bytes = sum(part.weights for part in drafters) if options.drafter is not None else 0
    shape, entry = Shape.of(model.config), named_card(name).entry if chosen.recommendation else None
    same = chosen.recommendation if entry is not None and entry.shape == shape else None  # otherwise the hub's sizes
    named = options.drafter is not None
    return fit(name, shape, model.weights, machine, measurements, drafter_bytes, options.settings, same, named)
