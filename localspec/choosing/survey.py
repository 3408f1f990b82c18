"""Surveys the registered models: how each would run on a machine, and which one to take."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from localspec.choosing.measure import MeasurementSource, NoMeasurements
from localspec.choosing.plans import (
    COMFORTABLE,
    Precision,
    RunPlan,
    as_computed,
    best,
    explained,
    natural_precisions,
    possible_precisions,
    run_plans,
    speedup,
    why_idle,
)
from localspec.errors import LocalspecError
from localspec.hub.cache import holds_tokenizer
from localspec.machine.machine import Device, Machine
from localspec.models.drafter_kinds import WEIGHTS, kind_of, kinds
from localspec.models.entries import Entry, Form
from localspec.models.model import Model, model_of
from localspec.models.registry import TargetCard, known
from localspec.quantities import distinct, gib, size, tokens_a_second
from localspec.weights.checkpoint import is_packed, only_packed
from localspec.weights.packed_files import FILED

Prefer = Literal["speed", "memory", "quality"]
DrafterRule = Literal["auto", "memory", "speed"]
# At x times a comfortable speed, up to 1, a model's quality is multiplied by (1 + FALLING) x² / (x² + FALLING): by 0.5
# at 5.8 tokens/s, about as fast as people read, by 0.85 at twice that, and by 0.03 at 1 token/s.
FALLING = 0.1
ON_A_CARD = 1.05  # factor for the quality of a model on a graphics card, since other programs need the processor
THINKING = 1.5  # a model that thinks before it answers is comfortable at this many times the usual speed


# -- forms of a download -----------------------------------------------------------------------------------------------

# Type of GGUF file -> the packings in whose place it may be fetched. Packed from Q8_0, they are as close to the
# original weights as packed from these: docs/figures/registry.md. A file of four bits is never packed again.
SUITED = {"Q8_0": FILED, "Q4_K_M": ("int4",), "Q4_0": ("int4",)}
_BITS = {"": 16.0, "Q8_0": 8.5, "Q4_K_M": 4.9, "Q4_0": 4.7}  # average bits of a weight, wider embeddings included


def suited_form(entry: Entry, packing: str | None, packed: bool = False) -> Form | None:
    """Return the published form of a model, such as a GGUF type, that `pull` fetches instead of the original weights.

    It is the smallest form by the model's publisher that suits `packing`, in which the model will be kept. `packed`
    says that the file would be packed again, not read as it is. Return None if `packing` is None, if no form suits it,
    if the model has terms to accept, or if a drafter of the entry must be trained with original weights.
    """
    weights = [kind_of(drafter.kind) for drafter in entry.drafters if drafter.kind in kinds(*WEIGHTS)]
    to_train = any(drafter.kind in kinds("weights") and drafter.source is None for drafter in entry.drafters)
    if packing is None or entry.gated or to_train or not all(kind.mask_key or kind.by_shapes for kind in weights):
        return None
    suited = [
        form
        for form in entry.forms
        if form.publisher
        and form.publisher == entry.publisher
        and packing in SUITED.get(form.source.gguf, ())
        and (form.source.gguf == "Q8_0" or not packed)
    ]
    return min(suited, key=lambda form: form_bytes(form, entry) or float("inf"), default=None)


def form_bytes(form: Form, entry: Entry) -> int | None:
    """Return about how many bytes the download of a form has; None if the registry gives no sizes."""
    if form.bytes is not None or entry.shape is None or form.source.gguf not in _BITS:
        return form.bytes
    return round(entry.shape.parameters * _BITS[form.source.gguf] / 8)


def original_bytes(entry: Entry) -> int | None:
    """Return about how many bytes `pull` fetches by default: the publisher's weights in 16 bits, or a GGUF file."""
    return entry.bytes or (2 * entry.shape.parameters if entry.shape else None)


# -- recommendations ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ToFetch:
    """The missing downloads of a recommendation: their approximate size in `bytes`, or None if an entry gives no sizes.

    `drafter` says that a published drafter is fetched too. Its size is unknown and not included.
    """

    bytes: int | None
    drafter: bool


@dataclass(frozen=True)
class Recommendation:
    """The best plan to run a model on a machine. If no plan fits, it is the plan that lacks the least memory.

    `reason` explains the plan, or why there is none. `speedup` is the speed with drafts relative to plain decoding in
    the same precision; None if nothing fits. `pace` is the tokens/s predicted from the machine only, so that the choice
    of a model does not depend on earlier replies. `passed_over` says why a small model or a damaged drafter is not
    used, and `idle` why a GPU is not used.
    """

    card: TargetCard
    plan: RunPlan | None
    reason: str
    quality: int = 0
    speedup: float | None = None
    passed_over: str = ""
    pace: float = 0.0
    idle: str = ""

    @property
    def gated(self) -> bool:
        """Whether terms must be accepted before the model, or its draft model, can be fetched."""
        small = self.plan.candidate.small if self.plan else None
        return any(card.entry is not None and card.entry.gated for card in (self.card, small) if card and not card.here)

    @property
    def toy(self) -> bool:
        """Whether the model is the embedded demo model."""
        return self.card.entry is not None and self.card.entry.toy

    @property
    def comfort(self) -> float:
        """The factor for the model's quality on this machine: 1 at a comfortable speed or more, less for a slow
        model."""
        share = min(1.0, self.pace / (COMFORTABLE * (THINKING if self.thinks else 1.0))) ** 2
        return (1 + FALLING) * share / (share + FALLING)

    @property
    def thinks(self) -> bool:
        """Whether the model thinks before it answers, unless thinking is switched off."""
        return self.card.entry is not None and self.card.entry.thinking in ("always", "switch")

    @property
    def worth(self) -> float:
        """The model's quality times its comfort on this machine, increased a little if it runs on a graphics card."""
        on_a_card = self.plan is not None and self.plan.precision.device.type != "cpu"
        return self.quality * self.comfort * (ON_A_CARD if on_a_card else 1.0)

    @property
    def fits(self) -> bool:
        return self.plan is not None and self.plan.fits

    @property
    def drafter(self) -> str | None:
        """The name of the drafter: `none` for plain decoding, None without a plan."""
        return None if self.plan is None else self.plan.candidate.name

    @property
    def model_and_drafter(self) -> tuple[str, str | None]:
        """The name of the model, and of its drafter."""
        return self.card.name, self.drafter

    @property
    def drafts(self) -> bool:
        """Whether the plan drafts and fits, so that `speedup` is meaningful."""
        return self.speedup is not None and self.drafter != "none"

    @property
    def to_fetch(self) -> ToFetch:
        """The missing downloads of the model, in the form that `pull` would take, and of its drafter."""
        candidate = self.plan.candidate if self.plan else None
        missing = [card for card in (self.card, candidate.small if candidate else None) if card and not card.here]
        precision = self.plan.precision if self.plan else None
        packing = precision.quantize if precision and precision.device.engine == "native" else None
        sizes = [_download(card.entry, packing if card is self.card else None) for card in missing]
        sized = [size for size in sizes if size is not None]
        other = candidate.published if candidate and candidate.small is None else None
        drafter = other.download if other else None
        total = sum(sized) + (drafter or 0) if len(sized) == len(missing) else None
        return ToFetch(total, other is not None and drafter is None)


def _download(entry: Entry | None, packing: str | None) -> int | None:
    """Return about how many bytes `pull` fetches for a model that it keeps in this packing; None if unknown."""
    form = suited_form(entry, packing) if entry else None
    return form_bytes(form, entry) if form and entry else original_bytes(entry) if entry else None


def recommendations(
    machine: Machine, measurements: MeasurementSource, here: bool, rule: DrafterRule = "auto"
) -> list[Recommendation]:
    """Return the recommendation of each registered model, the highest quality first.

    With `here`, only models and drafters that are on this machine count.
    """
    cards = known()
    results: list[Recommendation] = []
    for card in (card for card in cards.values() if card.here or not here):
        try:
            model = model_of(card, cards)
            if card.here and not is_packed(card.path) and not holds_tokenizer(card.path):
                result = Recommendation(card, None, "the model has no tokenizer, so you cannot chat with it")
            else:
                result = replace(
                    recommend(model, machine, measurements, here, rule=rule), passed_over=model.passed_over
                )
        except LocalspecError as trouble:
            result = Recommendation(card, None, str(trouble))
        results.append(result)
    return sorted(results, key=lambda result: result.quality, reverse=True)


def all_pairs(here: Sequence[Recommendation], every: Sequence[Recommendation]) -> list[Recommendation]:
    """Return the recommendations in `here`, then those in `every` whose pair of model and drafter is not in `here`."""
    pairs = {option.model_and_drafter for option in here}
    return [*here, *(option for option in every if option.model_and_drafter not in pairs)]


def recommend(
    model: Model,
    machine: Machine,
    measurements: MeasurementSource,
    here: bool,
    precisions: Callable[[Device], Sequence[Precision]] = natural_precisions,
    rule: DrafterRule = "auto",
) -> Recommendation:
    """Return the recommendation for one model. With `here`, only plans that can be loaded now count.

    `precisions` returns the precisions to consider on a device. Raises NotHere for a model that is here only in packed
    forms that no device of this machine computes with.
    """
    fitting: list[tuple[RunPlan, Sequence[RunPlan]]] = []
    tried: list[tuple[Device, RunPlan]] = []  # for each device the best plan that fits, or else the smallest one
    for device in machine.devices:
        if not (possible := possible_precisions(model, precisions(as_computed(device, model)))):
            continue
        ranked = run_plans(model, possible, measurements)
        if (plan := best(ranked, here, rule=rule)) is not None:
            fitting.append((plan, ranked))
        tried.append((device, plan or min(ranked, key=lambda option: option.bytes)))
    quality = _quality(model)
    if fitting:
        chosen, others = max(fitting, key=lambda option: option[0].speed)
        pace = chosen.speed
        if model.card.here:
            device = as_computed(chosen.precision.device, model)
            possible = possible_precisions(model, precisions(device))
            predicted = best(run_plans(model, possible, _OfMachine(measurements)), here, rule=rule)
            pace = predicted.speed if predicted is not None else pace
        reason, gain = explained(chosen, others), speedup(chosen, others)
        idle = why_idle(model.card.name, chosen, tried)
        return Recommendation(model.card, chosen, reason, quality, gain, pace=pace, idle=idle)
    if not tried:
        raise only_packed(model.card.path)
    _, plan = min(tried, key=lambda pair: pair[1].bytes - pair[0].usable)  # the device that lacks the least memory
    precision, device = plan.precision, plan.precision.device
    disk = ", with half of its experts on the disk" if plan.on_disk else ""
    needed, usable = distinct(gib, plan.bytes, device.usable)
    reason = f"does not fit: it needs {needed} GiB in {precision} on {device.name}{disk}, and {usable} GiB may be used"
    return Recommendation(model.card, plan, reason, quality)


class _OfMachine(NoMeasurements):
    """A source of the machine's bandwidths, of memory and disk, without measurements of models."""

    def __init__(self, measurements: MeasurementSource) -> None:
        self._measurements = measurements

    def bandwidth(self, device: str) -> float | None:
        return self._measurements.bandwidth(device)

    def recalled_bandwidth(self, device: str) -> float | None:
        return self._measurements.recalled_bandwidth(device)

    def disk(self, card: TargetCard) -> float | None:
        return self._measurements.disk(card)


def _quality(model: Model) -> int:
    """Return the model's quality in the registry, or an estimate from registered models of about the same size.

    A mixture of experts counts like a dense model whose size is the geometric mean of its parameters and of the
    parameters that a token reads. Registered mixtures agree: with means of 8 to 11 B they have qualities of 59 to 66,
    and dense models of 8 to 15 B from the same families have 50 to 61.
    """
    entry, size = model.card.entry, float(model.parameters)
    if model.shape.experts:
        size = (size * model.shape.active) ** 0.5
    return (entry.quality if entry else 0) or round(12 * (size / 5e8) ** 0.45)


def preferred(every: Sequence[Recommendation], prefer: Prefer | None = None) -> Recommendation | None:
    """Return the recommendation to take: of the models that fit, the one with the best product of quality and comfort.

    Quality counts fully from a comfortable speed on, and less for slower models. `prefer` asks for the fastest model,
    for the smallest in memory, or for the best at any speed. A model with terms to accept is taken only if no other
    model fits, and the demo model only if nothing else does.
    """
    fitting = [option for option in every if option.fits]
    possible = [option for option in fitting if not option.toy] or fitting
    possible = [option for option in possible if not option.gated] or possible
    if prefer == "speed":
        return max(possible, key=_speed, default=None)
    if prefer == "memory":
        comfortable = [option for option in possible if option.comfort >= 1]
        return min(comfortable or possible, key=lambda option: option.plan.bytes if option.plan else 0, default=None)
    if prefer == "quality":
        return max(possible, key=lambda option: (option.quality, _speed(option)), default=None)
    return max(possible, key=lambda option: (option.worth, _speed(option)), default=None)


def mixture_words(chosen: Recommendation, every: Sequence[Recommendation], prefer: Prefer | None = None) -> str:
    """Return sentences about the mixtures of experts that are better than `chosen`, or "" if there are none.

    `chosen` is the result of `preferred` with the same `prefer`. Models with terms to accept are left out. First come
    the mixtures that fit, with their predicted speeds: those that are too slow, then those that `prefer` excludes. Of
    the mixtures that do not fit, the smallest is listed with the reason, and the larger ones by name.
    """
    better = [
        option
        for option in every
        if option.plan and option.plan.active and option.quality > chosen.quality and not option.gated
    ]
    fitting = sorted((option for option in better if option.fits), key=lambda option: option.worth, reverse=True)
    slow = [option for option in fitting if prefer == "speed" or (prefer is None and option.comfort < chosen.comfort)]
    others = [option for option in fitting if option not in slow]
    sentences = []
    titles = "Better but slower mixtures of experts", "Better mixtures of experts that should also run here"
    for listed, title in zip((slow, others), titles, strict=True):
        if listed:
            sentences.append(f"{title}: {', '.join(map(_name_with_speed, listed))}.")
    large = sorted(
        (option for option in better if not option.fits), key=lambda option: option.plan.bytes if option.plan else 0
    )
    if large:
        sentences.append(f"{large[0].card.name} is a better mixture of experts, but it {large[0].reason}.")
    if larger := [option.card.name for option in large[1:]]:
        names = " and ".join(filter(None, (", ".join(larger[:-1]), larger[-1])))
        sentences.append(f"Even more memory is needed by {names}.")
    return " ".join(sentences)


def _name_with_speed(mixture: Recommendation) -> str:
    assert mixture.plan is not None
    disk = f" with {size(mixture.plan.on_disk)} of its experts on the disk" if mixture.plan.on_disk else ""
    thinks = "; it thinks before it answers" if mixture.thinks else ""
    return f"{mixture.card.name} ({tokens_a_second(mixture.plan.speed)}{disk}{thinks})"


def _speed(option: Recommendation) -> float:
    return option.plan.speed if option.plan else 0.0
