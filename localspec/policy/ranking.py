"""Which precision and drafter of one model pay on a machine: every plan to run it, ranked by M. Pure arithmetic."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from localspec.machine.machine import PACKINGS, Device
from localspec.models.draft_role import as_draft, is_coarser
from localspec.models.drafter_kinds import kind_of
from localspec.models.model import Model
from localspec.models.shape import Shape
from localspec.packed_file import BLOCKS
from localspec.policy import host_time, prediction
from localspec.policy.candidates import (
    MOST_NODES,
    CostInputs,
    DrafterCandidate,
    DraftModelEstimate,
    candidates,
    plain,
)
from localspec.policy.cost_effectiveness import cost_effectiveness
from localspec.policy.decoding_kinds import DecodingKind, kept_as
from localspec.policy.forward_costs import ForwardCostModel
from localspec.policy.host_time import step_seconds
from localspec.policy.measurements import MeasurementSource
from localspec.policy.prediction import CONTEXT, Estimate, Rates, estimated_rates
from localspec.quantities import precision_in_words, tokens_a_second

AUTO_NODES = 16  # of a tree at most, where no number was asked for and rows have a price; how many pay is measured
# Twice the nodes brought 1 to 11 % more tokens a step: what twice the rows may take to be worth it.
NEXT_TO_FREE = 1.03
QUICK = 8.0  # tokens/s: somewhat faster than people read
SLOW_MEMORY = 5e9  # bytes a second: what is quick with such memory is quick anywhere, and needs no measurement
PLANNED = 4096  # tokens of context that must fit where none was asked for
HARMLESS = 0.98  # of plain decoding's speed: where phrases bring at least so much, they are worth looking for
NEXT_TO_NOTHING = 0.05  # of the time of a token
CLEARLY = 1.05  # times the M of a simpler drafter, which a drafter must reach
DOUBT = 1.15  # times more where what it costs and brings was not measured here
FORESEEN_TOKENS = 100  # tokens of replies that count as much as what was foreseen
ON_APPLE = 1.05  # times the measured speed of plain decoding, on Apple's GPUs


@dataclass(frozen=True)
class Precision:
    """Where a model computes, in which numbers, and how its weights are packed."""

    device: Device
    dtype: str
    quantize: str

    @property
    def bits(self) -> float:
        """Bits of a weight on average, if they are in the blocks of GGUF files; else 0."""
        return self.device.block_bits if self.quantize == BLOCKS else 0.0

    def __str__(self) -> str:
        return precision_in_words(self.dtype, self.quantize, self.bits)


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
    doubt: float = 0.0  # of what was measured: the share that what was foreseen still has
    most: int = AUTO_NODES  # nodes that a draft may have

    @property
    def parked(self) -> int:
        """Bytes that parked texts may take of what this plan leaves."""
        return prediction.parking(self.precision.device.usable - self.bytes)

    @property
    def fits(self) -> bool:
        return self.bytes <= self.precision.device.usable


def as_computed(device: Device, model: Model) -> Device:
    """The device as it computes this model: torch has recurrent layers with dense weights alone.

    Our library can compute a model in the blocks of its GGUF files. `device` may be that of another model.
    """
    if device.block_bits:
        others = tuple(packing for packing in device.packings if packing != BLOCKS)
        device = replace(device, packings=others, block_bits=0.0)
    if model.block_bytes and device.engine == "native":
        bits = 8 * model.block_bytes / max(model.parameters, 1)
        return replace(device, packings=(BLOCKS, *device.packings), block_bits=bits)
    if not model.shape.recurrent or device.engine != "torch":
        return device
    why = "a model with recurrent layers is computed with dense weights alone"
    return replace(device.as_torch_has_it(), packings=(), missing=dict.fromkeys(PACKINGS, why))


def possible_precisions(model: Model, precisions: Iterable[Precision]) -> list[Precision]:
    """Those in which this model can be had: of a model that is here only packed, what was packed."""
    return [one for one in precisions if model.can_be(one.quantize, one.device.engine)]


def natural_precisions(device: Device) -> list[Precision]:
    """The precisions in question on a device where none was named, the most accurate first.

    With our library on a CPU int8 is as good as dense weights, in half the time and memory, so those are not in
    question: one that was measured never competes with the other that was not.
    """
    dtype = device.dtypes[0]
    dense = () if device.engine == "native" and device.packings else ("none",)
    return [Precision(device, dtype, quantize) for quantize in (*dense, *device.packings)]


def draft_precisions(small: Model, device: Device) -> list[Precision]:
    """The precisions that a draft model may have: none in which it agrees less often with its target, if there is one.

    Without any it cannot be had on this device.
    """
    device = as_computed(device, small)
    natural = natural_precisions(device)
    best = [one for one in natural if one.quantize != "int4"] if device.type == "cpu" else natural[:1]
    if device.block_bits:
        best = [one for one in natural if one.quantize == small.packed[0]]
    return possible_precisions(small, best) or possible_precisions(small, natural)


def run_plans(
    model: Model,
    precisions: Iterable[Precision],
    measurements: MeasurementSource,
    most: int | None = None,
    context: int | None = None,
    decoding: DecodingKind = "greedy",
) -> list[RunPlan]:
    """Every plan to run a model in these precisions, the best M first, with trees of up to `most` nodes.

    None are as many as `auto_nodes` has. `decoding` is how replies will be decoded.

    v₀ and m₀ are those of the model's fastest plain decoding that fits; where nothing fits, of the fastest.
    """
    plans = [
        plan for precision in precisions for plan in _plans_in(model, precision, measurements, most, context, decoding)
    ]
    plans = _as_it_answers(plans, model)
    plans = _in_one_packing(plans, lambda plan: _read_along(model, plan.precision, measurements))
    plain_decoding = [plan for plan in plans if plan.candidate.name == "none"]
    base = max(plain_decoding, key=lambda plan: (plan.fits, plan.speed))
    rated = [_rated(plan, base) for plan in plans]
    # A stable sort: of equals the more accurate precision and the simpler drafter come first.
    return sorted(rated, key=lambda plan: plan.cost_effectiveness, reverse=True)


def _as_it_answers(plans: list[RunPlan], model: Model) -> list[RunPlan]:
    """Leave out other packings of a model in GGUF where the one that answers fits, and else that one."""
    first = [plan for plan in plans if model.block_bytes and plan.precision.quantize == model.packed[0]]
    fits = any(plan.fits for plan in first if plan.candidate.name == "none")
    others = [plan for plan in plans if plan not in first]
    return first if fits else others or first


def _in_one_packing(plans: list[RunPlan], quick: Callable[[RunPlan], bool]) -> list[RunPlan]:
    """Leaves out int8 or int4 on a CPU where both are in question: int4 loses more of a model, so it needs a reason.

    That is int8 without room, or so slow that people wait for it; then int8 is left out, if int4 fits.
    """
    plain_decoding = {
        plan.precision.quantize: plan
        for plan in plans
        if plan.candidate.name == "none" and plan.precision.device.type == "cpu"
    }
    if not {"int8", "int4"} <= plain_decoding.keys():
        return plans
    eight, four = plain_decoding["int8"], plain_decoding["int4"]
    left_out = "int4" if eight.fits and quick(eight) else "int8" if four.fits else ""
    return [plan for plan in plans if (plan.precision.device.type, plan.precision.quantize) != ("cpu", left_out)]


def _read_along(model: Model, precision: Precision, measurements: MeasurementSource) -> bool:
    """Whether plain decoding is as quick as people read, as far as the speed of the memory tells.

    That is all that int4 improves. Timed forwards do not count here: those of a busy moment would make the next session
    answer in another packing, and so with another text.
    """
    device = precision.device
    if device.engine != "native":  # torch makes packed weights dense: int4 takes less room, and no less time
        return True

    def at(bandwidth: float | None) -> bool:
        read = prediction.reading(replace(device, bandwidth=bandwidth), precision.dtype, precision.quantize)
        return 1 / (read * (model.shape.matrices + model.shape.cached(CONTEXT, 1))) >= QUICK

    return at(SLOW_MEMORY) or at(measurements.bandwidth(device.name) or device.bandwidth)


def best(ranked: Sequence[RunPlan], here: bool = True, allow_plain: bool = True) -> RunPlan | None:
    """The plan to take of those that fit: the simplest drafter that no other clearly beats. None where nothing fits.

    `here` leaves out what could not be loaded now, and `allow_plain` lets plain decoding be taken too. A plan whose M
    is below that of plain decoding is never taken.
    """
    possible = [
        plan
        for plan in ranked
        if plan.fits and (plan.candidate.here or (not here and plan.candidate.obtainable))
        if allow_plain or plan.candidate.name != "none"
        if pays(plan, ranked)
    ]
    if not possible:
        return None
    limit = max(map(_cautious, possible)) / CLEARLY
    return min((plan for plan in possible if _cautious(plan) >= limit), key=_complexity)


def _cautious(plan: RunPlan) -> float:
    """M, lowered as far as it rests on guesses about a drafter."""
    doubt = 0.0 if _complexity(plan)[0] < 2 else plan.doubt if plan.measured else 1.0
    return plan.cost_effectiveness / float(DOUBT**doubt)


def pays(plan: RunPlan, ranked: Sequence[RunPlan]) -> bool:
    """Whether its M is at least that of plain decoding in the same precision; on Apple's GPUs, only as measured."""
    if plan.candidate.name == "none":
        return True
    plain_decoding = _plain_decoding(plan, ranked)
    if plan.precision.device.type == "mps" and not (plan.measured and plan.speed > ON_APPLE * plain_decoding.speed):
        return False
    return plan.cost_effectiveness >= plain_decoding.cost_effectiveness


def _plain_decoding(plan: RunPlan, ranked: Sequence[RunPlan]) -> RunPlan:
    """Plain decoding in the precision of this plan."""
    return next(other for other in ranked if other.precision == plan.precision and other.candidate.name == "none")


def _complexity(plan: RunPlan) -> tuple[int, int, bool]:
    """How complex a drafter is, then its bytes, then whether it goes without phrases where they cost next to nothing.

    Phrases come before none, since where they do not pay nothing is drafted; but not where looking for them takes time.
    As many bytes bring more with them: what they bring grows with use.
    """
    if plan.candidate.name == "phrases":
        return 0 if plan.candidate.draft_seconds(max(plan.nodes, 1)) * plan.speed < NEXT_TO_NOTHING else 2, 0, False
    with_phrases = plan.candidate.with_phrases and host_time.PHRASES * plan.speed < NEXT_TO_NOTHING
    return 1 if plan.candidate.name == "none" else 2, plan.candidate.bytes, not with_phrases


def _rated(plan: RunPlan, base: RunPlan) -> RunPlan:
    return replace(plan, cost_effectiveness=cost_effectiveness(plan.speed, plan.bytes, base.speed, base.bytes))


def auto_nodes(device: Device, costs: ForwardCostModel | None) -> int:
    """The most nodes of a tree where no number was asked for: on a GPU more where further rows cost next to nothing.

    `costs` are None where forwards were not timed: an estimate of rows is no reason for wider trees.
    """
    nodes = AUTO_NODES
    if device.type == "cpu":  # rows are next to free for toys alone, and a second load would test exactness again
        return nodes
    while costs and 2 * nodes <= MOST_NODES:
        if costs.at(2 * nodes + 1, CONTEXT) > NEXT_TO_FREE * costs.at(nodes + 1, CONTEXT):
            break
        nodes *= 2
    return nodes


def _plans_in(
    model: Model,
    precision: Precision,
    measurements: MeasurementSource,
    most: int | None,
    context: int | None,
    decoding: DecodingKind,
) -> Iterator[RunPlan]:
    """The plans in one precision: plain decoding first, then each drafter of which it is known what it brings."""
    dtype, quantize, backend = how = precision.dtype, precision.quantize, precision.device.backend
    known = measurements.of(model.card, precision.device.name, dtype, quantize)
    costs = known.costs or _estimate(model.shape, precision, measurements)
    uncertain = known.costs is None or known.busy
    most = most or auto_nodes(precision.device, known.costs)
    planned = min(context or PLANNED, model.shape.context)  # more than it holds is refused when it is loaded
    plain_speed = estimated = 1 / step_seconds(0.0, costs.at(1, CONTEXT), 0)
    if known.costs and (told := known.replies.get(kept_as(plain().key, decoding))):
        plain_speed = told.speed(costs)
    # What plain replies took beside forwards hangs on decoding and machine; it is expected of what is foreseen, too.
    pace = plain_speed / estimated
    weights = _weights(model, precision) - prediction.unread(model.shape, quantize, backend, planned)
    beside = prediction.program(quantize, backend) + prediction.tokenizer(model.shape, backend)
    loading = prediction.loading(model.shape, *how)

    def plan(candidate: DrafterCandidate) -> RunPlan | None:
        nodes, speed, doubt = 0, plain_speed, 0.0
        if candidate.name != "none":
            if candidate.acceptance is None:
                return None
            speed, nodes = prediction.speed(costs, candidate.acceptance, candidate.draft_seconds, most)
            speed *= pace
        replies = known.replies.get(kept_as(candidate.key, decoding)) if known.costs else None
        if replies is not None:
            speed, doubt = replies.speed(costs), FORESEEN_TOKENS / (FORESEEN_TOKENS + replies.tokens)
            if (before := candidate.foreseen) is not None and before.acceptance is not None:
                foreseen, _ = prediction.speed(costs, before.acceptance, before.draft_seconds, most)
                speed = speed ** (1 - doubt) * (foreseen * pace) ** doubt  # each is off by a factor
        # Phrases may pay in the next text, and cost nothing until one matches: only sure figures rule them out.
        if candidate.name == "phrases" and (uncertain or speed >= HARMLESS * plain_speed):
            speed = max(speed, plain_speed)
        loaded_bytes = weights + candidate.bytes
        working = prediction.cache(model.shape, planned + nodes + 1, dtype)
        working += prediction.workspace(model.shape, *how, planned, nodes)
        size = loaded_bytes + beside + max(working, loading)
        measured = known.costs is not None if candidate.name == "none" else replies is not None
        return RunPlan(precision, candidate, nodes, loaded_bytes, size, speed, measured, doubt=doubt, most=most)

    form = "int8" if backend == "native" and quantize != "none" else "none"  # of the matrices of drafters
    numbers = prediction.drafter_numbers(dtype, quantize, backend)
    inputs = CostInputs(
        model.shape,
        costs,
        _rates(precision, measurements, form),
        dtype,
        numbers,
        planned,
        known.replies,
        known.layers,
        known.replays,
        decoding,
    )
    small = _draft_model(model, precision, measurements, planned)
    trained = [one for one in model.trained if not model.shape.recurrent or kind_of(one.kind).on_chains]
    every = candidates(model.card, inputs, trained, small, model.small_here)
    yield from (one for one in map(plan, (plain(), *every)) if one is not None)


def _draft_model(
    model: Model, precision: Precision, measurements: MeasurementSource, planned: int
) -> DraftModelEstimate | None:
    """The draft model in the precision that its own size asks for; it reads the whole text, as the target does."""
    if model.small is None:
        return None
    own = draft_precisions(model.small, precision.device)
    if not own:
        return None
    shape = model.small.shape
    chosen = min(own, key=lambda one: _estimate(shape, one, measurements).at(1, CONTEXT))
    size = _weights(model.small, chosen)
    tokens = min(shape.context, planned)
    size -= prediction.unread(shape, chosen.quantize, chosen.device.backend, tokens)
    size += prediction.cache(shape, tokens, chosen.dtype)
    size += prediction.tokenizer(shape, chosen.device.backend)
    coarser = is_coarser(chosen.quantize, shape.vocab_size, chosen.device.engine)
    form = as_draft(chosen.quantize) if coarser else chosen.quantize
    known = measurements.of(model.small.card, chosen.device.name, chosen.dtype, form)
    costs = known.costs or _estimate(shape, chosen, measurements)
    return DraftModelEstimate(model.small.card, size, costs, model.small_named)


def _weights(model: Model, precision: Precision) -> int:
    """Return the bytes of a model's weights in this precision."""
    if precision.quantize == BLOCKS:
        return model.block_bytes
    how = precision.dtype, precision.quantize, precision.device.backend
    return prediction.weights(model.shape, *how, model.parameters)


def _rates(precision: Precision, measurements: MeasurementSource, quantize: str) -> Rates:
    measured = None  # no two models have the same blocks
    if quantize != BLOCKS:
        measured = measurements.rates(precision.device.name, precision.dtype, quantize)
    return measured or estimated_rates(precision.device, precision.dtype, quantize)


def _estimate(shape: Shape, precision: Precision, measurements: MeasurementSource) -> ForwardCostModel:
    return Estimate(shape, _rates(precision, measurements, precision.quantize))


def speedup(plan: RunPlan, ranked: Sequence[RunPlan]) -> float:
    """What drafting makes of plain decoding in the same precision."""
    return plan.speed / _plain_decoding(plan, ranked).speed


def why_none(plan: RunPlan, ranked: Sequence[RunPlan]) -> str:
    """Return the reason why `auto` takes plain decoding, as text for the user."""
    if plan.precision.device.type == "mps":
        return "on Apple's GPUs nothing drafts until `localspec bench` has measured that it pays"
    same = (other for other in ranked if other.precision == plan.precision)
    phrases = next((other for other in same if other.candidate.name == "phrases"), None)
    if phrases is None or pays(phrases, ranked):
        return "no drafter is expected to pay here"
    basis = "as measured here" if phrases.measured and plan.measured else "as predicted"
    slower = round(100 * (1 - phrases.speed / plan.speed))
    if slower >= 1:
        return f"phrases would be {slower} % slower than no drafts, {basis}"
    return f"phrases would not gain enough speed for the memory that they take, {basis}"


def explained(plan: RunPlan, ranked: Sequence[RunPlan]) -> str:
    """Why this plan is taken, in one sentence."""
    name = "plain decoding" if plan.candidate.name == "none" else plan.candidate.name
    basis = "measured here" if plan.measured else "predicted"
    speed = tokens_a_second(plan.speed) if plan.speed >= 100 else f"{plan.speed:.3g} tokens/s"
    said = f"{name} in {plan.precision}: {speed}, M {plan.cost_effectiveness:.2f} ({basis}"
    if (acceptance := plan.candidate.acceptance) is not None and plan.candidate.name != "none":
        # The speed of replies is that of their own trees, whatever would be drafted by these costs.
        nodes = len(acceptance.gains) if plan.measured else plan.nodes
        said += f"; {acceptance.length(nodes):.2f} tokens/step {acceptance.origin}"
    return f"{said}){_others(plan, ranked)}"


def _others(plan: RunPlan, ranked: Sequence[RunPlan]) -> str:
    """The best other drafter in this precision and why it was left out, as the end of a sentence."""
    if plan.candidate.name == "none" and plan.precision.device.type == "mps":
        return "; speculation is off on Apple's GPUs until `localspec bench` has measured that it pays"
    not_worth_a_word = {"none", plan.candidate.name} | ({"phrases"} if plan.candidate.name != "none" else set())
    others = [
        other for other in ranked if other.precision == plan.precision and other.candidate.name not in not_worth_a_word
    ]
    if not others or _complexity(plan)[0] == 2:
        return ""
    other = others[0]
    where = "" if other.candidate.here else ", which is not here," if other.candidate.obtainable else ", once made,"
    if not pays(other, ranked):
        relative = other.cost_effectiveness / _plain_decoding(plan, ranked).cost_effectiveness
        return f"; {other.candidate.name}{where} would have {relative:.2f} of plain decoding's M, so it is left out"
    room = "" if other.fits else f", and takes {other.bytes / 2**30:.1f} GiB"
    return f"; {other.candidate.name}{where} would have M {other.cost_effectiveness:.2f}{room}"
