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
    """One way to run a model: the bytes it needs, the tokens/s it should reach, and its M against plain decoding."""

    precision: Precision
    candidate: DrafterCandidate
    nodes: int  # of a draft: the number that promises the most tokens/s
    loaded_bytes: int  # of the weights, and of all that the drafter holds
    bytes: int  # with cache, tree and workspace
    speed: float  # tokens/s
    measured: bool  # whether the speed was measured here rather than predicted
    cost_effectiveness: float = 0.0  # M

    @property
    def fits(self) -> bool:
        return self.bytes <= self.precision.device.usable


def natural_precisions(device: Device, parameters: int) -> list[Precision]:
    """The forms that come into question on a device where none was named, the truest first."""
    dtype = device.dtypes[0]
    if device.type == "cpu" and parameters <= SMALL:
        return [Precision(device, "fp32", "none")]  # costs little, and speculation changes no token there
    return [Precision(device, dtype, quantize) for quantize in ("none", *device.packings)]


def draft_precisions(device: Device, parameters: int) -> list[Precision]:
    """The precisions that a draft model of this size may have; on a GPU it stays as it is published."""
    natural = natural_precisions(device, parameters)
    return natural if device.type == "cpu" else natural[:1]


def run_plans(
    model: Model,
    precisions: Iterable[Precision],
    measurements: MeasurementSource,
    most: int,
    context: int | None = None,
) -> list[RunPlan]:
    """Every way to run a model in these forms, the best M first, with trees of up to `most` nodes.

    v₀ and m₀ are those of its fastest plain decoding that fits; where nothing fits, of the fastest.
    """
    found = [plan for precision in precisions for plan in _plans_in(model, precision, measurements, most, context)]
    without = [plan for plan in found if plan.candidate.name == "none"]
    base = max(without, key=lambda plan: (plan.fits, plan.speed))
    rated = [_rated(plan, base) for plan in found]
    # A stable sort: of equals the truer precision and the simpler drafter comes first.
    return sorted(rated, key=lambda plan: plan.cost_effectiveness, reverse=True)


def best(ranked: Sequence[RunPlan], here: bool = True, without: bool = True) -> RunPlan | None:
    """The way to take among those that fit: the simplest drafter that no other clearly beats. None where nothing fits.

    With `here`, what could be loaded now; with `without`, plain decoding too. One whose M is below that of plain
    decoding is never taken.
    """
    possible = [
        plan
        for plan in ranked
        if plan.fits and (plan.candidate.here or (not here and plan.candidate.obtainable))
        if without or plan.candidate.name != "none"
        if pays(plan, ranked)
    ]
    if not possible:
        return None
    limit = max(map(_cautious, possible)) / CLEARLY
    return min((plan for plan in possible if _cautious(plan) >= limit), key=lambda plan: _weight(plan.candidate))


def _cautious(plan: RunPlan) -> float:
    """M, less of it where that rests on guesses about a drafter."""
    return plan.cost_effectiveness / (1 if plan.measured or _weight(plan.candidate)[0] < 2 else DOUBT)


def pays(plan: RunPlan, ranked: Sequence[RunPlan]) -> bool:
    """Whether its M is at least that of plain decoding in the same form; on Apple's GPUs, only as measured."""
    if plan.candidate.name == "none":
        return True
    without = _without(plan, ranked)
    if plan.precision.device.type == "mps" and not (plan.measured and plan.speed > ON_APPLE * without.speed):
        return False
    return plan.cost_effectiveness >= without.cost_effectiveness


def _without(plan: RunPlan, ranked: Sequence[RunPlan]) -> RunPlan:
    return next(other for other in ranked if other.precision == plan.precision and other.candidate.name == "none")


def _weight(candidate: DrafterCandidate) -> tuple[int, int]:
    """How much there is to a drafter. Phrases come before none: drafts of them that do not pay are cut to nothing."""
    simple = {"phrases": 0, "none": 1}.get(candidate.name, 2)
    return simple, candidate.bytes


def _rated(plan: RunPlan, base: RunPlan) -> RunPlan:
    return replace(plan, cost_effectiveness=cost_effectiveness(plan.speed, plan.bytes, base.speed, base.bytes))


def _plans_in(
    model: Model, precision: Precision, measurements: MeasurementSource, most: int, context: int | None
) -> Iterator[RunPlan]:
    known = measurements.of(model.card, precision.device.name, precision.dtype, precision.quantize)
    costs = known.costs or _estimate(model.shape, precision, measurements)
    weights = prediction.weights(
        model.shape, precision.dtype, precision.quantize, precision.device.type, model.parameters
    )
    planned = min(context or PLANNED, model.shape.context)  # more than it holds is refused when it is loaded
    computing = prediction.computing(precision.dtype, precision.quantize, precision.device.type)
    setting = CostInputs(
        model.shape, costs, _rates(precision, measurements, "none"), precision.dtype, computing, planned, known.replies
    )
    small = _small(model, precision, measurements, planned)

    def plan(candidate: DrafterCandidate) -> RunPlan | None:
        nodes, speed = 0, 1 / costs.at(1, CONTEXT)
        if candidate.name != "none":
            if candidate.acceptance is None:
                return None
            speed, nodes = prediction.speed(costs, candidate.acceptance, candidate.drafting, most)
        loaded_bytes = weights + candidate.bytes
        how = precision.dtype, precision.quantize, precision.device.type
        working = prediction.cache(model.shape, planned + nodes + 1, precision.dtype)
        working += prediction.workspace(model.shape, *how, nodes)
        beside = prediction.PROGRAM + prediction.tokenizer(model.shape, precision.device.type)
        size = loaded_bytes + beside + max(working, prediction.loading(model.shape, *how))
        replies = known.replies.get(candidate.key) if known.costs else None
        told = speed if replies is None else replies.speed(costs)
        if candidate.name == "phrases":  # drafts of them that do not pay are cut to nothing
            told = max(told, 1 / costs.at(1, CONTEXT))
        sure = known.costs is not None if candidate.name == "none" else replies is not None
        return RunPlan(precision, candidate, nodes, loaded_bytes, size, told, sure)

    every = candidates(model.card, setting, list(model.trained), small, model.small_here)
    yield from (found for found in map(plan, (plain(), *every)) if found is not None)


def _small(
    model: Model, precision: Precision, measurements: MeasurementSource, planned: int
) -> DraftModelEstimate | None:
    """The draft model in the form that its own size asks for; it reads the whole text, as the target does."""
    if model.small is None:
        return None
    own = draft_precisions(precision.device, model.small.parameters)
    shape, parameters = model.small.shape, model.small.parameters
    chosen = min(own, key=lambda one: _estimate(shape, one, measurements).at(1, CONTEXT))
    size = prediction.weights(shape, chosen.dtype, chosen.quantize, chosen.device.type, parameters)
    size += prediction.cache(shape, min(shape.context, planned), chosen.dtype)
    size += prediction.tokenizer(shape, chosen.device.type)
    known: ModelMeasurements = measurements.of(model.small.card, chosen.device.name, chosen.dtype, chosen.quantize)
    return DraftModelEstimate(model.small.card, size, known.costs or _estimate(shape, chosen, measurements))


def _rates(precision: Precision, measurements: MeasurementSource, quantize: str) -> Rates:
    found = measurements.rates(precision.device.name, precision.dtype, quantize)
    return found or estimated_rates(precision.device, precision.dtype, quantize)


def _estimate(shape: Shape, precision: Precision, measurements: MeasurementSource) -> ForwardCostModel:
    return Estimate(shape, _rates(precision, measurements, precision.quantize))


def explained(plan: RunPlan, ranked: Sequence[RunPlan]) -> str:
    """Why this way, in one sentence."""
    name = "plain decoding" if plan.candidate.name == "none" else plan.candidate.name
    basis = "measured here" if plan.measured else "predicted"
    said = f"{name} in {plan.precision}: {plan.speed:.3g} tokens/s, M {plan.cost_effectiveness:.2f} ({basis}"
    if plan.candidate.acceptance is not None and plan.candidate.name != "none":
        said += f"; {plan.candidate.acceptance.length(plan.nodes):.2f} tokens/step {plan.candidate.acceptance.origin}"
    return f"{said}){_others(plan, ranked)}"


def _others(plan: RunPlan, ranked: Sequence[RunPlan]) -> str:
    """What was left out beside it: the best other drafter of this form, and why."""
    if plan.candidate.name == "none" and plan.precision.device.type == "mps":
        return "; speculation is off on Apple's GPUs until `localspec bench` has measured that it pays"
    others = [
        other
        for other in ranked
        if other.precision == plan.precision and other.candidate.name not in ("none", "phrases", plan.candidate.name)
    ]
    if not others or _weight(plan.candidate)[0] == 2:
        return ""
    other = others[0]
    where = "" if other.candidate.here else ", which is not here," if other.candidate.obtainable else ", once made,"
    if not pays(other, ranked):
        relative = other.cost_effectiveness / _without(plan, ranked).cost_effectiveness
        return f"; {other.candidate.name}{where} would have {relative:.2f} of plain decoding's M, so it is left out"
    room = "" if other.fits else f", and takes {other.bytes / 2**30:.1f} GiB"
    return f"; {other.candidate.name}{where} would have M {other.cost_effectiveness:.2f}{room}"
