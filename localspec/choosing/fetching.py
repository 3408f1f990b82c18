"""The downloads of `pull`: the model and the drafter that it fetches for a name, and the packing to store."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from localspec.choosing.choose import choices, precisions_of
from localspec.choosing.drafters import expected
from localspec.choosing.measure import MeasurementSource
from localspec.choosing.named import DrafterSpec
from localspec.choosing.plans import Precision, as_computed, natural_precisions
from localspec.choosing.survey import Recommendation, recommend
from localspec.config import Settings, nearest
from localspec.errors import LocalspecError, UsageMistake
from localspec.hub.sources import Source
from localspec.machine.machine import Device, Machine
from localspec.models.drafter_cards import MTP, accepted_kinds, check_family, comes_with_mtp, trained_drafters
from localspec.models.drafter_kinds import kinds
from localspec.models.entries import UNLICENSED, Entry
from localspec.models.model import Model, model_of
from localspec.models.registry import NOWHERE, TargetCard, named_card
from localspec.models.shape import Shape
from localspec.weights.packed_files import FILED

# The packing to store if another machine will load the model, or none can be chosen here. It loses next to nothing.
LOSSLESS = "int8"
_ANY = Settings()  # every setting on its default
# A download has at most WIDEST bytes for each weight of its config.json, plus SLACK bytes of other contents.
WIDEST, SLACK = 4.5, 64 * 2**20


@dataclass(frozen=True)
class PullSet:
    """What `pull` fetches: repositories, the model's first. The clause `why` explains the choice of the drafter.

    `recommendation` is the plan with this drafter; None if the user named the drafter or the sizes are unknown.
    """

    sources: tuple[Source, ...]
    why: str
    recommendation: Recommendation | None = None


def pull_set(
    card: TargetCard,
    drafter: str | None,
    machine: Machine,
    measurements: MeasurementSource,
    settings: Settings = _ANY,
) -> PullSet:
    """Return what to fetch for a registered model: the model, and a published drafter.

    The drafter is the named one, or else the one that pays most. A drafter without a stated license is fetched only if
    it is named. `settings` say how the model is loaded, and by which rule drafters are compared. For a model without a
    repository, such as the embedded one, only the drafter is fetched. An MTP layer needs no download, since it is in
    the model's files. Raises UsageMistake for a drafter that nobody publishes for the model, and for a packing that
    this machine does not offer.
    """
    entry = card.entry
    assert entry is not None
    model_source = _repository_of(card)
    if drafter is None:
        try:
            model = model_of(card)
        except LocalspecError:  # an entry without sizes
            first = [published.source for published in entry.drafters if published.source is not None][:1]
            return PullSet(
                (*model_source, *first), "the first published drafter, because the model's entry gives no sizes"
            )
        if settings.quantize != "auto":  # plan for the original weights, whatever packing is here already
            model = replace(model, packed=(), block_bytes=0)
        precisions, rule = _allowed_precisions(settings, machine, model), settings.drafter_rule
        recommendation = recommend(model, machine, measurements, here=False, precisions=precisions, rule=rule)
        sources, why = _sources_of(recommendation), recommendation.reason
        unknown = [
            published.kind
            for published in entry.drafters
            if published.source and not published.accepted and not expected(published.kind)
        ]
        if unknown:
            why += f"; the speedup of {unknown[0]} is not known; --drafter {unknown[0]} fetches it"
        recommended = recommendation.plan.candidate.published if recommendation.plan else None
        if sources and recommended and recommended.license == UNLICENSED:
            sources = ()
            why = (
                f"{why}; the drafter's publisher states no license, so it is fetched only with --drafter "
                f"{recommended.kind}"
            )
        return PullSet((*model_source, *sources), why, recommendation)
    if drafter == "none":
        return PullSet(model_source, "only the model, as you asked")
    if drafter == MTP and comes_with_mtp(entry.architecture):
        return PullSet(model_source, f"{MTP}, as you asked; its layer comes with the model")
    return PullSet((*model_source, *_named(entry, card, drafter)), f"{drafter}, as you asked")


def _sources_of(recommendation: Recommendation) -> tuple[Source, ...]:
    candidate = recommendation.plan.candidate if recommendation.plan else None
    if candidate is None or candidate.here:
        return ()
    if candidate.small is not None:
        return _repository_of(candidate.small)
    assert candidate.published is not None
    return (candidate.published.source,) if candidate.published.source else ()


def _repository_of(card: TargetCard) -> tuple[Source, ...]:
    return (card.entry.source,) if card.entry and card.entry.source else ()


def _named(entry: Entry, card: TargetCard, kind: str) -> tuple[Source, ...]:
    """Return the repository of the drafter that the user names. Raises UsageMistake if nobody publishes it."""
    published = [drafter for drafter in entry.drafters if drafter.kind == kind]
    if kind in kinds("draft model") and card.draft:
        return _repository_of(named_card(card.draft))
    if published and published[0].source is not None:
        return (published[0].source,)
    check_family(kind, entry.architecture, card.name)
    accepted = accepted_kinds(card)
    every = [drafter for drafter in entry.drafters if drafter.kind in accepted]
    names = [drafter.kind for drafter in every if drafter.source is not None or drafter.kind in kinds("draft model")]
    hint = f"; `localspec train {kind} -m {card.name}` makes one" if published and kind in accepted else ""
    offered = f"choose one of {', '.join(names)}, or none" if names else "none is published; leave --drafter out"
    raise UsageMistake(f"Nobody publishes a drafter {kind!r} for {card.name}{nearest(kind, names)}; {offered}{hint}.")


def to_make(card: TargetCard) -> str | None:
    """Return the first kind of drafter in the model's entry that must be trained, because it is neither published
    nor here."""
    if card.entry is None:
        return None
    here = {drafter.kind for drafter in trained_drafters(card)}
    trainable = {*accepted_kinds(card, "weights")} - here
    missing = (drafter.kind for drafter in card.entry.drafters if drafter.source is None and drafter.kind in trainable)
    return next(missing, None)


def fit(
    name: str,
    shape: Shape | None,
    weights: int,
    machine: Machine,
    measurements: MeasurementSource,
    drafter_bytes: int = 0,
    settings: Settings = _ANY,
    chosen: Recommendation | None = None,
    named: bool = False,
) -> tuple[bool | None, str]:
    """Return whether a model with `weights` bytes of weights fits this machine, and a clause that gives the reason.

    The settings decide how the model is loaded, as far as a device allows. `drafter_bytes` is the size of a drafter
    that is fetched too. `chosen` is the recommendation of `pull_set` for the same model, if there is one. The clause
    includes the recommendation's reason, unless `chosen` is given or the user `named` a drafter. The first value is
    None if config.json gives no sizes (`shape` is None), or sizes that do not match the weights.
    """
    if shape is None:
        return None, "it is unknown whether the model fits: its config.json does not say how large it is"
    if weights > WIDEST * shape.parameters + SLACK:
        return None, (
            f"it is unknown whether the model fits: its config.json implies {shape.parameters:,} parameters, but its "
            f"weights are {weights:,} bytes"
        )
    if (result := chosen) is None:  # with a drafter that needs no fetching
        devices = tuple(replace(device, free=max(0, device.free - drafter_bytes)) for device in machine.devices)
        remaining = replace(machine, devices=devices)
        model = Model(TargetCard(name, NOWHERE, None, ""), shape, shape.parameters)
        allowed = _allowed_precisions(settings, remaining, model)
        result = recommend(model, remaining, measurements, here=True, precisions=allowed)
    if result.plan is None or not result.fits:
        return False, f"{name} {result.reason}"
    precision, device = result.plan.precision, result.plan.precision.device
    reason = "" if chosen or named else f"; {result.reason}"
    return True, (
        f"{result.plan.bytes / 2**30:.1f} GiB in {precision} on {device.name}, of {device.usable / 2**30:.1f} GiB "
        f"that may be used{reason}"
    )


def _allowed_precisions(settings: Settings, machine: Machine, model: Model) -> Callable[[Device], Sequence[Precision]]:
    """Return a function that lists the precisions which the settings allow on a device for this model.

    Raises UsageMistake for a packing that no device offers.
    """

    def offered(device: Device) -> bool:
        return settings.quantize in ("auto", "none", *device.packings)

    def allowed(device: Device) -> Sequence[Precision]:
        if not offered(device):
            return ()
        try:
            return precisions_of(settings, device)
        except UsageMistake:  # another mistake is reported when the model is loaded
            return natural_precisions(device)

    devices = [as_computed(device, model) for device in machine.devices]
    if not any(map(offered, devices)):
        precisions_of(settings, devices[0])  # which raises
    return allowed


def saved_packing(
    name: str, license_: str | None, shape: Shape, settings: Settings, machine: Machine, measurements: MeasurementSource
) -> str | None:
    """Return the packing in which the CPU engine would save a copy of a model of this shape; None if it saves none."""
    model = Model(TargetCard(name, NOWHERE, license_, ""), shape, shape.parameters)
    names = ("device", "dtype", "quantize", "context", "exact")  # these decide on the form of the weights
    of_weights = Settings(**{name: getattr(settings, name) for name in names})
    try:
        choice = choices(model, DrafterSpec("auto"), of_weights, machine, measurements)[0]
    except LocalspecError:  # the error is reported when the model is loaded
        return None
    return choice.quantize if choice.engine == "native" and choice.quantize in FILED else None
