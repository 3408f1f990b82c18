"""Every registered model on a machine: how it would run there, and which one to take."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from localspec.errors import LocalspecError
from localspec.hub.cache import holds_tokenizer
from localspec.machine.machine import Device, Machine
from localspec.models.entries import Entry
from localspec.models.model import Model, model_of
from localspec.models.registry import TargetCard, known
from localspec.policy.decoding_kinds import decoding_kind
from localspec.policy.forms import form_bytes, original_bytes, suited_form
from localspec.policy.measurements import MeasurementSource
from localspec.policy.ranking import (
    QUICK,
    Precision,
    RunPlan,
    as_computed,
    best,
    explained,
    natural_precisions,
    possible_precisions,
    run_plans,
    speedup,
)
from localspec.weights.checkpoint import is_packed, only_packed

Prefer = Literal["speed", "memory", "quality"]


@dataclass(frozen=True)
class ToFetch:
    """What is missing of a recommendation: about how many `bytes`, None where an entry gives no sizes.

    `drafter`: a published drafter comes too, whose size nobody says.
    """

    bytes: int | None
    drafter: bool


@dataclass(frozen=True)
class Recommendation:
    """The best plan to run a model on a machine, one that fits if any does. Without a plan, `reason` says why.

    `speedup` is what drafting makes of plain decoding in the same precision; None where nothing fits. `passed_over`
    says why a small model that seems to be meant to draft is not used.
    """

    card: TargetCard
    plan: RunPlan | None
    reason: str
    quality: int = 0
    speedup: float | None = None
    passed_over: str = ""

    @property
    def gated(self) -> bool:
        """Whether terms must be accepted before it, or the small model that drafts for it, can be fetched."""
        small = self.plan.candidate.small if self.plan else None
        return any(card.entry is not None and card.entry.gated for card in (self.card, small) if card and not card.here)

    @property
    def fits(self) -> bool:
        return self.plan is not None and self.plan.fits

    @property
    def drafter(self) -> str | None:
        """What would draft; `none` is plain decoding, None where there is no plan."""
        return None if self.plan is None else self.plan.candidate.name

    @property
    def way(self) -> tuple[str, str | None]:
        """The model, and what would draft for it."""
        return self.card.name, self.drafter

    @property
    def drafts(self) -> bool:
        """Whether anything should, so that `speedup` says something."""
        return self.speedup is not None and self.drafter != "none"

    @property
    def to_fetch(self) -> ToFetch:
        """The model in the form that a pull takes, and a small model that drafts for it, if they are not here."""
        candidate = self.plan.candidate if self.plan else None
        missing = [card for card in (self.card, candidate.small if candidate else None) if card and not card.here]
        sizes = [self._download(card.entry) if card is self.card else _original(card.entry) for card in missing]
        known = [size for size in sizes if size is not None]
        other = candidate is not None and not candidate.here and candidate.small is None
        return ToFetch(sum(known) if len(known) == len(missing) else None, other)

    def _download(self, entry: Entry | None) -> int | None:
        precision = self.plan.precision if self.plan else None
        kept = precision.quantize if precision and precision.device.engine == "native" else None
        form = suited_form(entry, kept) if entry else None
        return form_bytes(form, entry) if form and entry else _original(entry)


def _original(entry: Entry | None) -> int | None:
    return original_bytes(entry) if entry else None


def recommendations(machine: Machine, measurements: MeasurementSource, here: bool) -> list[Recommendation]:
    """Every registered model, the best first: as it could be loaded now, or with all that could be fetched for it."""
    every = [_recommend_card(card, machine, measurements, here) for card in known().values() if card.here or not here]
    return sorted(every, key=lambda one: one.quality, reverse=True)


def all_ways(here: Sequence[Recommendation], every: Sequence[Recommendation]) -> list[Recommendation]:
    """The models that are here as they are, then all as they could be had, where that is another way."""
    seen = {one.way for one in here}
    return [*here, *(one for one in every if one.way not in seen)]


def _recommend_card(card: TargetCard, machine: Machine, measurements: MeasurementSource, here: bool) -> Recommendation:
    try:
        model = model_of(card)
        if card.here and not is_packed(card.path) and not holds_tokenizer(card.path):
            return Recommendation(card, None, "it has no tokenizer, and cannot be talked to")
        return replace(recommend(model, machine, measurements, here), passed_over=model.passed_over)
    except LocalspecError as trouble:
        return Recommendation(card, None, str(trouble))


def recommend(
    model: Model,
    machine: Machine,
    measurements: MeasurementSource,
    here: bool,
    precisions: Callable[[Device], Sequence[Precision]] = natural_precisions,
) -> Recommendation:
    """The recommendation for one model: as it could be loaded now (`here`), or with what could be fetched for it.

    `precisions` are those that are asked about on a device. Raises NotHere for one that is here in a packed form alone,
    which nothing on this machine computes with.
    """
    card = model.card
    fitting: list[tuple[RunPlan, Sequence[RunPlan]]] = []
    smallest: list[RunPlan] = []
    for device in machine.devices:
        if not (open_ones := possible_precisions(model, precisions(as_computed(device, model)))):
            continue
        ranked = run_plans(model, open_ones, measurements, decoding=decoding_kind(model.temperature, "exact"))
        if (plan := best(ranked, here)) is not None:
            fitting.append((plan, ranked))
        smallest.append(min(ranked, key=lambda one: one.bytes))
    quality = _quality(card, model)
    if fitting:
        chosen, others = max(fitting, key=lambda option: option[0].speed)
        return Recommendation(card, chosen, explained(chosen, others), quality, speedup(chosen, others))
    if not smallest:
        raise only_packed(card.path)
    plan = smallest[0]
    precision, device = plan.precision, plan.precision.device
    reason = (
        f"does not fit: {plan.bytes / 2**30:.1f} GiB in {precision} on {device.name}, of which "
        f"{device.usable / 2**30:.1f} may be used"
    )
    return Recommendation(card, plan, reason, quality)


def _quality(card: TargetCard, model: Model) -> int:
    """The entry's own figure, else about what the registered models of this size have."""
    return (card.entry.quality if card.entry else 0) or round(12 * (model.parameters / 5e8) ** 0.45)


def preferred(every: Sequence[Recommendation], prefer: Prefer | None = None) -> Recommendation | None:
    """The recommendation to take: the best model that fits and reaches 8 tokens/s, else the fastest that fits.

    `prefer` asks for the fastest, for the one that takes least memory, or for the best however slow it is. A toy is
    taken only where nothing else fits.
    """
    fitting = [one for one in every if one.fits]
    possible = [one for one in fitting if not (one.card.entry and one.card.entry.toy)] or fitting
    quick = [one for one in possible if _speed(one) >= QUICK]
    if not possible:
        return None
    if prefer == "speed" or (prefer is None and not quick):
        return max(possible, key=_speed)
    if prefer == "memory":
        return min(quick or possible, key=lambda one: one.plan.bytes if one.plan else 0)
    return max(possible if prefer == "quality" else quick, key=lambda one: (one.quality, _speed(one)))


def _speed(one: Recommendation) -> float:
    return one.plan.speed if one.plan else 0.0
