"""Pulling a model, as a generator of events: planned for this machine, fetched from the hub, its drafter made.

Nothing is fetched before the event after `AboutToFetch` is asked for: who does not want it closes the generator. What
goes on between two events, such as the bytes of a file that arrive, is reported through callbacks.
"""

from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from localspec.config import Settings
from localspec.engine.device_profile import BandwidthProfiler, DeviceProfiler
from localspec.engine.measurement_cache import MeasurementCache
from localspec.errors import DoesNotFit, UsageMistake
from localspec.events import Reporter
from localspec.hub.cache import snapshot
from localspec.hub.client import server
from localspec.hub.fetch import fetch, too_large
from localspec.hub.plan import Plan, plan
from localspec.hub.sources import Source
from localspec.machine.machine import Machine, this_machine
from localspec.models.registry import cards, named_card, split_of
from localspec.policy.measurements import MeasurementSource, NoMeasurements
from localspec.policy.pull_set import PullSet, fit, pull_set, to_make
from localspec.pulling.heads import Converted, NotConverted, convert_heads
from localspec.pulling.packing import (
    BESIDE,
    Packed,
    forget_damaged,
    pack_alone,
    pack_beside,
    packed_alone,
    packing_of,
    packing_to_keep,
)
from localspec.pulling.repositories import own_source, sources_of
from localspec.store.store import user_store

TRAINING_TOKENS = 10_000_000  # of text to train a drafter on: about what the S3D paper took


@dataclass(frozen=True)
class NothingToFetch:
    """All that was asked for is here already; `why` says in words what there was to look for."""

    why: str


@dataclass(frozen=True)
class Planned:
    """What would be fetched.

    `fits` says whether the model fits into memory, None where that cannot be known; `memory` puts it in words, and
    `drafter` why this drafter comes along, if there was a choice. `packing` is the one that the CPU engine would load
    the model in, None where that would not compute it.
    """

    plan: Plan
    fits: bool | None
    memory: str
    drafter: str
    packing: str | None = None


@dataclass(frozen=True)
class AboutToFetch:
    """So many bytes will be fetched when the next event is asked for."""

    bytes: int


@dataclass(frozen=True)
class Fetched:
    """Every file is here and agrees with its digest. `notices` are sentences about what was found damaged or left."""

    notices: tuple[str, ...]


@dataclass(frozen=True)
class Installed:
    """A repository is here, in this directory."""

    source: Source
    path: Path


@dataclass(frozen=True)
class DrafterToTrain:
    """Nobody publishes the drafter of this kind; `localspec train` makes it of so many tokens in about these hours.

    `memory` is in bytes.
    """

    kind: str
    tokens: int
    hours: float
    memory: int


PullEvent = (
    NothingToFetch | Planned | AboutToFetch | Fetched | Converted | NotConverted | Installed | Packed | DrafterToTrain
)  # in this order, from the plan on


@dataclass(frozen=True)
class Wishes:
    """What a pull is asked for beside the name: a kind of drafter, what does not fit too, the packed form alone.

    `settings` say how the model would be loaded, and so how it is packed.
    """

    drafter: str | None = None
    force: bool = False
    packed_only: bool = False
    settings: Settings = field(default_factory=Settings)


def pull(
    name: str, wishes: Wishes, reporter: Reporter, downloaded: Callable[[int, int], None]
) -> Generator[PullEvent, None, None]:
    """Fetches the model that a name or org/repo[@revision] stands for, and the drafter of the kind given or that pays.

    `downloaded` gets the bytes that are here and the bytes in all, as they arrive. Raises UsageMistake for a drafter
    that cannot be meant, DoesNotFit after the plan, and what `plan`, `packing_to_keep`, `fetch`, `convert_heads` and
    `pack_alone` raise.
    """
    drafter, force = wishes.drafter, wishes.force
    sources, card = sources_of(name), cards().get(name)
    if not sources:
        yield NothingToFetch("nothing is to be fetched for it")
        return
    if drafter is not None and card is None:
        raise UsageMistake(f"--drafter {drafter} has no effect with a repository; leave it out, or pull a name.")
    if wishes.packed_only and own_source(name) is None:
        raise UsageMistake(f"--packed-only has no effect with {name}, which is not fetched; leave it out.")
    reporter.progress("looking at this machine")
    machine = this_machine()
    planned = _planned(name, wishes, machine, reporter)
    yield planned
    if isinstance(planned, NothingToFetch):
        return
    if not planned.plan.fits_on_disk and not force:
        raise DoesNotFit(f"{too_large(planned.plan)} --force tries all the same.")
    if planned.fits is False and not force:
        raise DoesNotFit(f"{planned.memory}; choose a smaller model, or give --force to fetch it all the same.")
    alone, model = "", planned.plan.parts[0]
    if wishes.packed_only:
        alone = packing_to_keep(planned.plan, planned.packing, wishes.settings)
        if packed := packed_alone(model, alone):
            yield packed
            return
    if planned.plan.fetch_bytes:
        yield AboutToFetch(planned.plan.fetch_bytes)
    yield Fetched(tuple(fetch(planned.plan, downloaded, force=force, notice=reporter.notice)))
    yield from convert_heads(planned.plan, reporter.progress)
    for part in planned.plan.parts:
        forget_damaged(snapshot(part.source, part.commit))
        if alone and part is model:
            yield pack_alone(part, alone, machine, reporter)
            continue
        if part.whole:
            yield Installed(part.source, split_of(part.source))
            continue
        yield Installed(part.source, snapshot(part.source, part.commit))
        packing = planned.packing if part is model and own_source(name) else planned.packing and BESIDE
        if packing and not part.heads and (packed := pack_beside(part, packing, machine, reporter)):
            yield packed
    if card is not None and not alone and (kind := to_make(named_card(name))) is not None:
        reporter.progress(f"estimating what training {kind} takes")
        from localspec.training.estimate import outlook  # torch and transformers

        with suppress(DoesNotFit):  # nobody trains what has no room for its target
            hours, memory = outlook(kind, named_card(name), machine, NoMeasurements(), TRAINING_TOKENS)
            yield DrafterToTrain(kind, TRAINING_TOKENS, hours, memory)


def _planned(name: str, wishes: Wishes, machine: Machine, reporter: Reporter) -> Planned | NothingToFetch:
    """Chooses the drafter, asks the hub, and predicts whether the model fits and how it would be loaded."""
    card, drafter = cards().get(name), wishes.drafter
    with user_store(reporter.notice, create=False) as store:
        # Between drafters it chooses as `doctor` does; that a model fits needs no measurement.
        several = drafter is None and card is not None and card.entry is not None and card.entry.drafters
        cache = MeasurementCache(store, reporter)
        measurements = DeviceProfiler(cache) if several else BandwidthProfiler(cache)
        chosen = pull_set(card, drafter, machine, measurements) if card else PullSet(tuple(sources_of(name)), "")
        if not chosen.sources:
            return NothingToFetch(f"drafter: {chosen.why}")
        reporter.progress(f"asking {server()} about {name}")
        found = plan(chosen.sources, reporter.notice)
        fits, memory = _memory(name, found, wishes, machine, measurements)
        packing = packing_of(found.parts[0], wishes.settings, machine, measurements)
    return Planned(found, fits, memory, chosen.why, packing)


def _memory(
    name: str, found: Plan, wishes: Wishes, machine: Machine, measurements: MeasurementSource
) -> tuple[bool | None, str]:
    """Whether the model of a plan fits into memory, and a sentence about it."""
    model, *others = found.parts
    if model.heads or own_source(name) is None:
        return None, "not known for a drafter alone"
    # A drafter that was chosen for this machine fits beside the model.
    beside = sum(part.weights for part in others) if wishes.drafter is not None else 0
    return fit(name, model.config, model.weights, machine, measurements, beside, wishes.settings)
