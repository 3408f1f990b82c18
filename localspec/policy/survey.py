"""Every registered model on a machine: how it would run there, and which one to take. Pure arithmetic."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from localspec.errors import LocalspecError
from localspec.hub.cache import tokenized
from localspec.machine.machine import Machine
from localspec.models.model import Model, model_of
from localspec.models.registry import TargetCard, known
from localspec.policy.measurements import MeasurementSource
from localspec.policy.ranking import AUTO_NODES, RunPlan, best, explained, natural_precisions, run_plans

LEAST_SPEED = 8.0  # tokens/s: somewhat faster than one reads
Prefer = Literal["speed", "memory", "quality"]


@dataclass(frozen=True)
class Recommendation:
    """A model on a machine: the best way to run it, of those that fit if any does. Without one, `reason` says why."""

    card: TargetCard
    way: RunPlan | None
    reason: str
    quality: int = 0

    @property
    def fits(self) -> bool:
        return self.way is not None and self.way.fits


def recommendations(machine: Machine, knowledge: MeasurementSource, here: bool) -> list[Recommendation]:
    """Every registered model, the best first: as it could be loaded now, or with all that could be fetched for it."""
    found = [_offer(card, machine, knowledge, here) for card in known().values() if card.here or not here]
    return sorted(found, key=lambda one: one.quality, reverse=True)


def _offer(card: TargetCard, machine: Machine, knowledge: MeasurementSource, here: bool) -> Recommendation:
    try:
        model = model_of(card)
        if card.here and not tokenized(card.path):
            return Recommendation(card, None, "it has no tokenizer, and cannot be talked to")
        return offer(model, machine, knowledge, here)
    except LocalspecError as trouble:
        return Recommendation(card, None, str(trouble))


def offer(model: Model, machine: Machine, knowledge: MeasurementSource, here: bool) -> Recommendation:
    """One model on this machine, as `recommendations`."""
    card = model.card
    fitting: list[tuple[RunPlan, Sequence[RunPlan]]] = []
    least: list[RunPlan] = []
    for device in machine.devices:
        ranked = run_plans(model, natural_precisions(device, model.parameters), knowledge, AUTO_NODES)
        if (way := best(ranked, here)) is not None:
            fitting.append((way, ranked))
        least.append(min(ranked, key=lambda one: one.bytes))
    quality = _quality(card, model)
    if fitting:
        chosen, others = max(fitting, key=lambda option: option[0].speed)
        return Recommendation(card, chosen, explained(chosen, others), quality)
    smallest = least[0]
    reason = (
        f"does not fit: {smallest.bytes / 2**30:.1f} GiB in {smallest.form} on {smallest.form.device.name}, of which "
        f"{smallest.form.device.usable / 2**30:.1f} may be used"
    )
    return Recommendation(card, smallest, reason, quality)


def _quality(card: TargetCard, model: Model) -> int:
    """The entry's own figure, else what the registered models of this size have, about."""
    return (card.entry.quality if card.entry else 0) or round(12 * (model.parameters / 5e8) ** 0.45)


def preferred(found: Sequence[Recommendation], prefer: Prefer | None = None) -> Recommendation | None:
    """Which one to take: the best that fits and reaches 8 tokens/s, else the fastest that fits.

    `prefer` asks for the fastest, for the one that takes least memory, or for the best however slow it is. A toy is
    taken only where nothing else fits.
    """
    fitting = [one for one in found if one.fits]
    possible = [one for one in fitting if not (one.card.entry and one.card.entry.toy)] or fitting
    quick = [one for one in possible if _speed(one) >= LEAST_SPEED]
    if not possible:
        return None
    if prefer == "speed" or (prefer is None and not quick):
        return max(possible, key=_speed)
    if prefer == "memory":
        return min(quick or possible, key=lambda one: one.way.bytes if one.way else 0)
    return max(possible if prefer == "quality" else quick, key=lambda one: (one.quality, _speed(one)))


def _speed(one: Recommendation) -> float:
    return one.way.speed if one.way else 0.0
