"""Which precision and drafter of one model pay on a machine: every way to run it, ranked by M. Pure arithmetic."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from localspec.machine.machine import Device
from localspec.models.model import Model
from localspec.models.shape import Shape
from localspec.policy import prediction
from localspec.policy.candidates import CostInputs, DrafterCandidate, DraftModelEstimate, candidates, plain
from localspec.policy.forward_costs import ForwardCostModel
from localspec.policy.measurements import MeasurementSource, ModelMeasurements
from localspec.policy.prediction import CONTEXT, Estimate, Rates, cost_effectiveness, estimated_rates

AUTO_NODES = 16  # of a tree at most, unless told; how many pay is measured
SMALL = 64_000_000  # parameters: a quarter of a GB in fp32
PLANNED = 4096  # tokens of context that must fit where none was asked for
CLEARLY = 1.05  # so much better a drafter must be than a simpler one
DOUBT = 1.15  # and so much more where what it costs and brings was not measured here
ON_APPLE = 1.05  # and so much faster than plain decoding, as measured, on Apple's GPUs


@dataclass(frozen=True)
class Precision:
    """Where a model computes, in which numbers, and how its weights are packed."""

    device: Device
    dtype: str
    quantize: str

    def __str__(self) -> str:
        return self.dtype if self.quantize == "none" else self.quantize


@dataclass(frozen=True)
class RunPlan:
    """One way to run a model: bytes it needs and tokens/s it should reach, and its M against plain decoding.

    `loaded` are the bytes of the weights and of all that the drafter holds, `effectiveness` is M; `nodes` promise most.
    """

    form: Precision
    candidate: DrafterCandidate
    nodes: int
    loaded: int
    bytes: int
    speed: float
    measured: bool  # the speed, not predicted
    effectiveness: float = 0.0

    @property
    def fits(self) -> bool:
        return self.bytes <= self.form.device.usable


def natural_precisions(device: Device, parameters: int) -> list[Precision]:
    """The forms that come into question on a device where none was named, the truest first."""
    dtype = device.dtypes[0]
    if device.kind == "cpu" and parameters <= SMALL:
        return [Precision(device, "fp32", "none")]  # costs little, and speculation changes no token there
    return [Precision(device, dtype, quantize) for quantize in ("none", *device.packings)]


def run_plans(
    model: Model, forms: Iterable[Precision], knowledge: MeasurementSource, most: int, context: int | None = None
) -> list[RunPlan]:
    """Every way to run a model in these forms, the best M first, with trees of up to `most` nodes.

    v₀ and m₀ are those of its fastest plain decoding that fits; where nothing fits, of the fastest.
    """
    found = [way for form in forms for way in _of_form(model, form, knowledge, most, context)]
    without = [way for way in found if way.candidate.name == "none"]
    base = max(without, key=lambda way: (way.fits, way.speed))
    rated = [_rated(way, base) for way in found]
    # A stable sort: of equals the truer precision and the simpler drafter comes first.
    return sorted(rated, key=lambda way: way.effectiveness, reverse=True)


def best(ranked: Sequence[RunPlan], here: bool = True, without: bool = True) -> RunPlan | None:
    """The way to take among those that fit: the simplest drafter that no other clearly beats. None where nothing fits.

    With `here`, what could be loaded now; with `without`, plain decoding too. One whose M is below that of plain
    decoding is never taken.
    """
    possible = [
        way
        for way in ranked
        if way.fits and (way.candidate.here or (not here and way.candidate.obtainable))
        if without or way.candidate.name != "none"
        if pays(way, ranked)
    ]
    if not possible:
        return None
    limit = max(map(_cautious, possible)) / CLEARLY
    return min((way for way in possible if _cautious(way) >= limit), key=lambda way: _weight(way.candidate))


def _cautious(way: RunPlan) -> float:
    """M, less of it where that rests on guesses about a drafter."""
    return way.effectiveness / (1 if way.measured or _weight(way.candidate)[0] < 2 else DOUBT)


def pays(way: RunPlan, ranked: Sequence[RunPlan]) -> bool:
    """Whether its M is at least that of plain decoding in the same form; on Apple's GPUs, only as measured."""
    if way.candidate.name == "none":
        return True
    without = _without(way, ranked)
    if way.form.device.kind == "mps" and not (way.measured and way.speed > ON_APPLE * without.speed):
        return False
    return way.effectiveness >= without.effectiveness


def _without(way: RunPlan, ranked: Sequence[RunPlan]) -> RunPlan:
    return next(other for other in ranked if other.form == way.form and other.candidate.name == "none")


def _weight(candidate: DrafterCandidate) -> tuple[int, int]:
    """How much there is to a drafter. Phrases come before none: drafts of them that do not pay are cut to nothing."""
    simple = {"phrases": 0, "none": 1}.get(candidate.name, 2)
    return simple, candidate.bytes


def _rated(way: RunPlan, base: RunPlan) -> RunPlan:
    return replace(way, effectiveness=cost_effectiveness(way.speed, way.bytes, base.speed, base.bytes))


def _of_form(
    model: Model, form: Precision, knowledge: MeasurementSource, most: int, context: int | None
) -> Iterator[RunPlan]:
    known = knowledge.of(model.card, form.device.name, form.dtype, form.quantize)
    costs = known.costs or _estimate(model.shape, form, knowledge)
    weights = prediction.weights(model.shape, form.dtype, form.quantize, form.device.kind, model.parameters)
    planned = min(context or PLANNED, model.shape.context)  # more than it holds is refused when it is loaded
    computing = prediction.computing(form.dtype, form.quantize, form.device.kind)
    setting = CostInputs(
        model.shape, costs, _rates(form, knowledge, "none"), form.dtype, computing, planned, known.replies
    )
    small = _small(model, form, knowledge, planned)

    def way(candidate: DrafterCandidate) -> RunPlan | None:
        nodes, speed = 0, 1 / costs.at(1, CONTEXT)
        if candidate.name != "none":
            if candidate.acceptance is None:
                return None
            speed, nodes = prediction.speed(costs, candidate.acceptance, candidate.drafting, most)
        loaded = weights + candidate.bytes
        how = form.dtype, form.quantize, form.device.kind
        working = prediction.cache(model.shape, planned + nodes + 1, form.dtype)
        working += prediction.workspace(model.shape, *how, nodes)
        beside = prediction.PROGRAM + prediction.tokenizer(model.shape, form.device.kind)
        size = loaded + beside + max(working, prediction.loading(model.shape, *how))
        replies = known.replies.get(candidate.key) if known.costs else None
        told = speed if replies is None else replies.speed(costs)
        if candidate.name == "phrases":  # drafts of them that do not pay are cut to nothing
            told = max(told, 1 / costs.at(1, CONTEXT))
        sure = known.costs is not None if candidate.name == "none" else replies is not None
        return RunPlan(form, candidate, nodes, loaded, size, told, sure)

    every = candidates(model.card, setting, list(model.trained), small, model.small_here)
    yield from (found for found in map(way, (plain(), *every)) if found is not None)


def _small(model: Model, form: Precision, knowledge: MeasurementSource, planned: int) -> DraftModelEstimate | None:
    """The draft model in the form that its own size asks for; it reads the whole text, as the target does."""
    if model.small is None:
        return None
    own = natural_precisions(form.device, model.small.parameters)
    if form.device.kind != "cpu":  # there a draft model is as it is published
        own = own[:1]
    shape, parameters = model.small.shape, model.small.parameters
    chosen = min(own, key=lambda one: _estimate(shape, one, knowledge).at(1, CONTEXT))
    size = prediction.weights(shape, chosen.dtype, chosen.quantize, chosen.device.kind, parameters)
    size += prediction.cache(shape, min(shape.context, planned), chosen.dtype)
    size += prediction.tokenizer(shape, chosen.device.kind)
    known: ModelMeasurements = knowledge.of(model.small.card, chosen.device.name, chosen.dtype, chosen.quantize)
    return DraftModelEstimate(model.small.card, size, known.costs or _estimate(shape, chosen, knowledge))


def _rates(form: Precision, knowledge: MeasurementSource, quantize: str) -> Rates:
    found = knowledge.rates(form.device.name, form.dtype, quantize)
    return found or estimated_rates(form.device, form.dtype, quantize)


def _estimate(shape: Shape, form: Precision, knowledge: MeasurementSource) -> ForwardCostModel:
    return Estimate(shape, _rates(form, knowledge, form.quantize))


def explained(way: RunPlan, ranked: Sequence[RunPlan]) -> str:
    """Why this way, in one sentence."""
    name = "plain decoding" if way.candidate.name == "none" else way.candidate.name
    basis = "measured here" if way.measured else "predicted"
    said = f"{name} in {way.form}: {way.speed:.3g} tokens/s, M {way.effectiveness:.2f} ({basis}"
    if way.candidate.acceptance is not None and way.candidate.name != "none":
        said += f"; {way.candidate.acceptance.length(way.nodes):.2f} tokens/step {way.candidate.acceptance.origin}"
    return f"{said}){_others(way, ranked)}"


def _others(way: RunPlan, ranked: Sequence[RunPlan]) -> str:
    """What was left out beside it: the best other drafter of this form, and why."""
    if way.candidate.name == "none" and way.form.device.kind == "mps":
        return "; speculation is off on Apple's GPUs until `localspec bench` has measured that it pays"
    others = [
        other
        for other in ranked
        if other.form == way.form and other.candidate.name not in ("none", "phrases", way.candidate.name)
    ]
    if not others or _weight(way.candidate)[0] == 2:
        return ""
    other = others[0]
    where = "" if other.candidate.here else ", which is not here," if other.candidate.obtainable else ", once made,"
    if not pays(other, ranked):
        relative = other.effectiveness / _without(way, ranked).effectiveness
        return f"; {other.candidate.name}{where} would have {relative:.2f} of plain decoding's M, so it is left out"
    room = "" if other.fits else f", and takes {other.bytes / 2**30:.1f} GiB"
    return f"; {other.candidate.name}{where} would have M {other.effectiveness:.2f}{room}"
