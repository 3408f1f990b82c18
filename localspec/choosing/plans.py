"""Lists plans to run one model on a device, with speed, memory and cost-effectiveness M, and decides which to take."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from localspec.choosing import cost, fit
from localspec.choosing.cost import CONTEXT, Estimate, ForwardCostModel, Rates
from localspec.choosing.drafters import (
    MOST_NODES,
    CostInputs,
    DrafterCandidate,
    DraftModelEstimate,
    candidates,
    speed,
)
from localspec.choosing.measure import MeasurementSource
from localspec.errors import LocalspecError
from localspec.machine.machine import PACKINGS, Device
from localspec.models.drafter_kinds import kind_of
from localspec.models.model import Model
from localspec.quantities import amount, counted, distinct, gib, precision_in_words, tokens_a_second
from localspec.weights.packed_file import BLOCKS
from localspec.weights.recipe import as_draft, is_coarser

AUTO_NODES = 16  # the most nodes of a tree if the settings name none; a reply drafts as many of them as pay
# Twice as many nodes brought 1 to 11 % more tokens a step, so a forward with twice the rows may take this much longer.
NEXT_TO_FREE = 1.03
COMFORTABLE = 20.0  # tokens/s above which more speed hardly helps a reader
SLOW_MEMORY = 5e9  # bytes a second: a model that is fast with such memory is fast anywhere, and needs no measurement
PLANNED = 4096  # tokens of context that must fit if the settings name none
HARMLESS = 0.98  # phrases with at least this share of plain decoding's speed are worth looking up
NEXT_TO_NOTHING = 0.05  # looking up phrases in less than this share of the time of a token counts as free
CLEARLY = 1.05  # a drafter must reach more than this many times the speed or M of a simpler one
ON_APPLE = 1.05  # on Apple's GPUs a drafter must exceed this many times the measured speed of plain decoding
SHORT = 0.5  # memory is short if a plan takes more than this share of what may be used on a device

Rule = Literal["memory", "speed"]


def cost_effectiveness(speed: float, memory: float, plain_speed: float, plain_memory: float) -> float:
    """Return M = (v₁ / v₀) / (m₁ / m₀): speedup over relative peak memory (S3D, eq. 13).

    Any baseline and any units are possible.
    """
    return (speed / plain_speed) / (memory / plain_memory)


@dataclass(frozen=True)
class Precision:
    """A dtype and a packing in which a device computes a model."""

    device: Device
    dtype: str
    quantize: str

    @property
    def bits(self) -> float:
        """The average bits per weight of GGUF files that are read as they are; 0 for any other packing."""
        return self.device.block_bits if self.quantize == BLOCKS else 0.0

    @property
    def backend(self) -> tuple[str, str, str]:
        """The dtype, the packing and the backend, which are arguments of the functions in `fit`."""
        return self.dtype, self.quantize, self.device.backend

    def __str__(self) -> str:
        return precision_in_words(self.dtype, self.quantize, self.bits)


@dataclass(frozen=True)
class RunPlan:
    """One plan to run a model: the bytes it needs, the tokens/s it should reach, and its cost-effectiveness M.

    `memory` is the bytes from which M is computed: predicted, or derived from measured replies if `peak_measured`.
    """

    precision: Precision
    candidate: DrafterCandidate
    nodes: int  # the nodes of a draft that promise the most tokens/s
    loaded_bytes: int  # of the weights, and of everything that the drafter holds
    bytes: int  # `loaded_bytes` plus cache, tree and workspace: the expected peak
    memory: int
    speed: float  # tokens/s
    measured: bool  # whether the speed was measured here rather than predicted
    cost_effectiveness: float = 0.0  # M
    on_disk: int = 0  # bytes of experts without room in memory: they are read from the disk whenever a token needs them
    active: tuple[int, int] | None = None  # for a model with experts: (parameters that a token reads, all parameters)
    slowed: float = 1.0  # how many times as long a plain forward takes because of `on_disk`, as predicted
    disk_measured: bool = False  # whether the speed of the disk was measured
    most: int = AUTO_NODES  # the most nodes that a draft may have
    rule: Rule = "speed"  # the rule that decided, if this plan was taken
    rule_named: bool = False  # whether the setting `drafter_rule` names the rule

    @property
    def peak_measured(self) -> bool:
        """Whether M is computed from a memory peak that was measured on this machine."""
        return self.candidate.replies is not None and self.candidate.replies.peak > 0

    @property
    def parked(self) -> int:
        """The bytes that parked texts may take of the memory that this plan leaves."""
        return fit.parking(self.precision.device.usable - self.bytes)

    @property
    def fits(self) -> bool:
        return self.bytes <= self.precision.device.usable

    @property
    def short(self) -> bool:
        """Whether this plan takes so much memory that plans are compared by M instead of by speed."""
        return self.bytes > SHORT * self.precision.device.usable


# -- precisions --------------------------------------------------------------------------------------------------------


def as_computed(device: Device, model: Model) -> Device:
    """Return the device with only the packings that it offers for this model.

    Torch computes recurrent layers and experts with dense weights only. The compiled library computes a model in the
    blocks of its GGUF files, and unpacks them for torch on a CPU. `device` may already be adapted to another model.
    """
    if device.block_bits:
        others = tuple(packing for packing in device.packings if packing != BLOCKS)
        device = replace(device, packings=others, block_bits=0.0)
    dense = model.shape.recurrent or model.shape.experts is not None
    unpacks = device.type == "cpu" and device.packings and not dense
    if model.block_bytes and (device.engine == "native" or unpacks):
        bits = 8 * model.block_bytes / max(model.shape.parameters, 1)
        return replace(device, packings=(BLOCKS, *device.packings), block_bits=bits)
    if not dense or device.engine != "torch":
        return device
    has = "recurrent layers" if model.shape.recurrent else "experts"
    why = f"PyTorch needs dense weights for models with {has}"
    return replace(device.as_torch_has_it(), packings=(), missing=dict.fromkeys(PACKINGS, why))


def possible_precisions(model: Model, precisions: Iterable[Precision]) -> list[Precision]:
    """Return the `precisions` in which this model can be loaded (`Model.can_be`)."""
    return [precision for precision in precisions if model.can_be(precision.quantize, precision.device.backend)]


def natural_precisions(device: Device) -> list[Precision]:
    """Return the precisions to consider on a device if the settings name none, the most accurate first.

    For the compiled library on a CPU, dense weights are left out: int8 is as good in half the time and memory. This
    also avoids comparing a measured precision with an unmeasured one.
    """
    dense = () if device.engine == "native" and device.packings else ("none",)
    return [Precision(device, device.dtypes[0], quantize) for quantize in (*dense, *device.packings)]


def draft_precisions(small: Model, device: Device) -> list[Precision]:
    """Return the precisions that a draft model may have on this device; an empty list if the device cannot load it."""
    device = as_computed(device, small)
    natural = natural_precisions(device)
    suited = [option for option in natural if option.quantize != "int4"] if device.type == "cpu" else natural[:1]
    if device.block_bits:
        suited = [option for option in natural if option.quantize == small.packed[0]]
    return possible_precisions(small, suited) or possible_precisions(small, natural)


# -- plans -------------------------------------------------------------------------------------------------------------


def run_plans(
    model: Model,
    precisions: Iterable[Precision],
    measurements: MeasurementSource,
    most: int | None = None,
    context: int | None = None,
) -> list[RunPlan]:
    """Return every plan to run a model in these precisions, the best M first, with trees of up to `most` nodes.

    M is the cost-effectiveness, relative to the model's fastest plain decoding that fits, or to the fastest plain
    decoding if none fits. If `most` is None, `auto_nodes` decides.
    """
    plans = [plan for precision in precisions for plan in _plans_in(model, precision, measurements, most, context)]
    plans = _in_one_packing(_in_default_packing(plans, model), model, measurements)
    base = max((plan for plan in plans if plan.candidate.name == "none"), key=lambda plan: (plan.fits, plan.speed))
    rated = [
        replace(plan, cost_effectiveness=cost_effectiveness(plan.speed, plan.memory, base.speed, base.memory))
        for plan in plans
    ]
    # The sort is stable: of plans with equal M, the more accurate precision and the simpler drafter come first.
    return sorted(rated, key=lambda plan: plan.cost_effectiveness, reverse=True)


def _in_default_packing(plans: list[RunPlan], model: Model) -> list[RunPlan]:
    """Return the plans in the default packing of a model's GGUF file, or the other plans if none of them fits.

    Where the default packing is not offered, as on a GPU, dense weights take its place, since int8 would lose more. A
    mixture of experts is packed again only on request, because a packed copy takes many gigabytes, and experts can also
    be read from the GGUF file on the disk.
    """
    packings = {plan.precision.quantize for plan in plans}
    default = model.packed[0] if packings & {*model.packed[:1]} else "none"
    first = [plan for plan in plans if model.block_bytes and plan.precision.quantize == default]
    fits = any(plan.fits for plan in first if plan.candidate.name == "none")
    others = [plan for plan in plans if plan not in first]
    return first if fits or (first and model.shape.experts is not None) else others or first


def _in_one_packing(plans: list[RunPlan], model: Model, measurements: MeasurementSource) -> list[RunPlan]:
    """Return the plans without int8 or without int4, if both packings are possible on a CPU.

    int4 loses more of a model's quality, so int8 is preferred. int4 is taken if it fits, and int8 does not fit or is
    slower than a comfortable speed.
    """
    plain = {
        plan.precision.quantize: plan
        for plan in plans
        if plan.candidate.name == "none" and plan.precision.device.type == "cpu"
    }
    if not {"int8", "int4"} <= plain.keys():
        return plans
    eight, four = plain["int8"], plain["int4"]
    comfortable = eight.fits and _comfortable(model, eight.precision, measurements)
    left_out = "int4" if comfortable else "int8" if four.fits else ""
    return [plan for plan in plans if (plan.precision.device.type, plan.precision.quantize) != ("cpu", left_out)]


def _comfortable(model: Model, precision: Precision, measurements: MeasurementSource) -> bool:
    """Return whether plain decoding would reach a comfortable speed if only the memory's bandwidth limited it.

    Timed forwards are not used, because a measurement must not change the packing, on which the text of a seed depends.
    """
    device = precision.device
    if device.engine != "native":  # torch unpacks weights: int4 takes less memory, but not less time
        return True

    def at(bandwidth: float | None) -> bool:
        read = cost.reading(replace(device, bandwidth=bandwidth), precision.dtype, precision.quantize)
        return 1 / (read * (model.shape.read(1) + model.shape.cached(CONTEXT, 1))) >= COMFORTABLE

    return at(SLOW_MEMORY) or at(device.bandwidth or measurements.bandwidth(device.name))


def auto_nodes(device: Device, costs: ForwardCostModel | None) -> int:
    """Return the default limit on the nodes of a tree: more on a GPU on which more rows take hardly more time.

    `costs` is None if forwards were not timed: an estimate does not justify wider trees.
    """
    nodes = AUTO_NODES
    if device.type == "cpu":  # only toys have nearly free rows, and wider trees would need another test of exactness
        return nodes
    while costs and 2 * nodes <= MOST_NODES:
        if costs.at(2 * nodes + 1, CONTEXT) > NEXT_TO_FREE * costs.at(nodes + 1, CONTEXT):
            break
        nodes *= 2
    return nodes


def _plans_in(
    model: Model, precision: Precision, measurements: MeasurementSource, most: int | None, context: int | None
) -> Iterator[RunPlan]:
    """Yield the plans in one precision: plain decoding, then each drafter whose gain is measured or predicted."""
    dtype, quantize, backend = how = precision.backend
    shape, known = model.shape, measurements.of(model.card, precision.device.name, dtype, quantize)
    costs = known.costs or _estimate(model, precision, measurements)
    most = most or auto_nodes(precision.device, known.costs)
    planned = min(context or PLANNED, shape.context)  # a longer context is refused when the model is loaded
    weights = weight_bytes(model, precision) - fit.unread(shape, quantize, backend, planned)
    program = fit.program(quantize, backend) + fit.tokenizer(shape, backend)
    form = "int8" if backend == "native" and quantize != "none" else "none"  # of the matrices of drafters
    rates = _rates(Precision(precision.device, dtype, form), measurements)
    numbers = fit.drafter_numbers(dtype, quantize, backend)
    inputs = CostInputs(shape, costs, rates, dtype, numbers, planned, known.replies)
    trained = [drafter for drafter in model.trained if kind_of(drafter.kind).drafts_for(shape)]
    small = draft_model(model, precision, measurements, planned)
    plain_speed, plain_bytes, in_memory = 0.0, 0, costs
    experts = int(read_bytes(model, precision)[1])
    active = (shape.active, model.parameters) if shape.experts else None
    for candidate in candidates(model.card, inputs, trained, small, model.small_here):
        replies, nodes = candidate.replies, 0
        whole = weights + candidate.bytes + program + fit.cache(shape, planned + most + 1, dtype)
        whole += fit.workspace(shape, *how, planned, most)
        on_disk = fit.on_disk(quantize, backend, experts, whole - precision.device.usable)
        costs, from_disk = in_memory, None
        if on_disk and known.costs is None:
            from_disk = measurements.disk(model.card)
            costs = cost.FromDisk(in_memory, shape, on_disk, from_disk or cost.DISK)
        if candidate.acceptance is not None:
            tokens_per_second, nodes = speed(costs, candidate.acceptance, candidate.draft_seconds, most)
        elif replies is None:
            continue
        trust = replies.trust if replies is not None else 0.0
        if replies is not None:
            in_replies, nodes = replies.speed(costs), min(round(replies.nodes), most)
            predicted = tokens_per_second if candidate.acceptance is not None else in_replies
            tokens_per_second = in_replies**trust * predicted ** (1 - trust)  # the weighted geometric mean
        measured = known.costs is not None and (trust > 0.5 or candidate.name == "none")
        # Phrases may pay in the next text, and cost nothing until one matches. Only measured figures rule them out.
        harmless = candidate.name == "phrases" and (not measured or tokens_per_second >= HARMLESS * plain_speed)
        if harmless and tokens_per_second < plain_speed:
            tokens_per_second, nodes = plain_speed, 0
        working = fit.cache(shape, planned + nodes + 1, dtype) + fit.workspace(shape, *how, planned, nodes)
        size = weights + candidate.bytes + program + max(working, fit.loading(shape, *how)) - on_disk
        if candidate.name == "none":
            plain_speed, plain_bytes = tokens_per_second, size
        memory = size
        if replies is not None and replies.peak > 0:  # M needs a ratio: the peak, relative to it without the drafter
            memory = round(plain_bytes * replies.peak / max(replies.peak - replies.drafter_bytes, 1))
            size = max(size, replies.peak)
        yield RunPlan(
            precision, candidate, nodes, weights + candidate.bytes - on_disk, size, memory, tokens_per_second, measured,
            on_disk=on_disk, active=active, slowed=costs.at(1, CONTEXT) / in_memory.at(1, CONTEXT), most=most,
            disk_measured=from_disk is not None,
        )  # fmt: skip


def draft_model(
    model: Model, precision: Precision, measurements: MeasurementSource, planned: int
) -> DraftModelEstimate | None:
    """Return the draft model in its fastest precision, with a cache for `planned` tokens; None if there is none."""
    if model.small is None or not (possible := draft_precisions(model.small, precision.device)):
        return None
    small, shape = model.small, model.small.shape
    chosen = min(possible, key=lambda option: _estimate(small, option, measurements).at(1, CONTEXT))
    tokens = min(shape.context, planned)
    size = weight_bytes(small, chosen) - fit.unread(shape, chosen.quantize, chosen.device.backend, tokens)
    size += fit.cache(shape, tokens, chosen.dtype) + fit.tokenizer(shape, chosen.device.backend)
    coarser = is_coarser(chosen.quantize, shape.vocab_size, chosen.device.engine)
    form = as_draft(chosen.quantize) if coarser else chosen.quantize
    known = measurements.of(small.card, chosen.device.name, chosen.dtype, form)
    costs = known.costs or _estimate(small, chosen, measurements)
    share = step_bytes(small, chosen) / step_bytes(model, precision)
    return DraftModelEstimate(small.card, size, costs, share, model.small_named)


def weight_bytes(model: Model, precision: Precision) -> int:
    """Return the bytes of a model's weights in this precision."""
    if precision.quantize == BLOCKS:
        dense = 0 if precision.device.backend == "native" else fit.ITEM["fp32"]  # in torch, tables only
        return model.block_bytes + dense * (model.shape.embedding + model.shape.table)
    return fit.weights(model.shape, *precision.backend, model.parameters)


def step_bytes(model: Model, precision: Precision) -> float:
    """Return the bytes of weights that a step of a model reads in this precision."""
    always, experts = read_bytes(model, precision)
    return always + experts * model.shape.chosen(1)


def read_bytes(model: Model, precision: Precision) -> tuple[float, float]:
    """Return (bytes that every step of a model reads, bytes of all its experts) of the weights in this precision.

    A step also reads the experts that its rows choose. For a model in GGUF blocks, both are sums over its tensors. For
    other packings both are shares of all bytes, in proportion to the number of weights.
    """
    if precision.quantize == BLOCKS and model.block_reads:
        return model.block_reads
    shape = model.shape
    bytes_per_weight = weight_bytes(model, precision) / max(shape.parameters, shape.matrices)
    return bytes_per_weight * (shape.matrices - shape.in_experts), bytes_per_weight * shape.in_experts


def _estimate(model: Model, precision: Precision, measurements: MeasurementSource) -> ForwardCostModel:
    reads, bytes_per_weight = None, precision.device.block_bits / 8
    if precision.quantize == BLOCKS and precision.device.engine == "native" and model.block_reads:
        always, experts = model.block_reads
        reads = always / bytes_per_weight, experts / bytes_per_weight
    return Estimate(model.shape, _rates(precision, measurements), reads)


def _rates(precision: Precision, measurements: MeasurementSource) -> Rates:
    device = precision.device
    measured = replace(device, bandwidth=device.bandwidth or measurements.recalled_bandwidth(device.name))
    return Rates.of(measured, precision.dtype, precision.quantize)


# -- which one to take -------------------------------------------------------------------------------------------------


def best(
    ranked: Sequence[RunPlan], here: bool = True, allow_plain: bool = True, rule: Literal["auto"] | Rule = "auto"
) -> RunPlan | None:
    """Return the fastest plan that fits, or the plan with the highest M if the fastest takes too much memory (`short`).

    Return None if no plan can be taken. The result names the rule that decided. `rule` may fix this rule: "speed" or
    "memory". A more complex drafter is taken only if it is better by the factor `CLEARLY`. With `here`, only plans that
    can be loaded now count. Without `allow_plain`, plain decoding does not count. A plan that is worse than plain
    decoding is never taken.
    """
    possible = [
        plan
        for plan in ranked
        if plan.fits and (plan.candidate.here or (not here and plan.candidate.obtainable))
        if allow_plain or plan.candidate.name != "none"
    ]

    def by(decides: Rule) -> RunPlan | None:
        paying = [plan for plan in possible if pays(plan, ranked, decides)]
        if not paying:
            return None
        limit = max(worth(plan, decides) for plan in paying) / CLEARLY
        simplest = min((plan for plan in paying if worth(plan, decides) >= limit), key=_complexity)
        return replace(simplest, rule=decides, rule_named=rule != "auto")

    if rule == "memory":
        return by("memory")
    fastest = by("speed")
    return by("memory") if rule == "auto" and fastest is not None and fastest.short else fastest


def worth(plan: RunPlan, rule: Rule) -> float:
    """Return the figure by which a rule compares plans: M or tokens/s."""
    return plan.cost_effectiveness if rule == "memory" else plan.speed


def pays(plan: RunPlan, ranked: Sequence[RunPlan], rule: Rule) -> bool:
    """Return whether a plan is at least as good as plain decoding. On Apple's GPUs only measured speeds count."""
    if plan.candidate.name == "none":
        return True
    plain = plain_of(plan, ranked)
    if plan.precision.device.type == "mps" and not (plan.measured and plan.speed > ON_APPLE * plain.speed):
        return False
    return worth(plan, rule) >= worth(plain, rule)


def plain_of(plan: RunPlan, ranked: Sequence[RunPlan]) -> RunPlan:
    """Return the plan of plain decoding in the same precision as this plan."""
    return next(other for other in ranked if other.precision == plan.precision and other.candidate.name == "none")


def _complexity(plan: RunPlan) -> tuple[int, int, bool]:
    """Return a sort key for plans, the simplest first: a rank, the drafter's bytes, and whether it lacks phrases.

    Phrases rank before plain decoding, since nothing is drafted while phrases do not pay. If replies showed that
    looking up phrases takes time, they rank after plain decoding. Of two drafters with the same bytes, the one with
    phrases comes first if looking them up costs almost nothing, since the gain of phrases grows with use.
    """
    if plan.candidate.name == "phrases":
        free = plan.candidate.draft_seconds(max(plan.nodes, 1)) * plan.speed < NEXT_TO_NOTHING
        return 0 if free or not plan.measured else 2, 0, False
    with_phrases = plan.candidate.with_phrases and cost.PHRASES * plan.speed < NEXT_TO_NOTHING
    return 1 if plan.candidate.name == "none" else 2, plan.candidate.bytes, not with_phrases


def speedup(plan: RunPlan, ranked: Sequence[RunPlan]) -> float:
    """Return the speed with drafts relative to plain decoding in the same precision."""
    return plan.speed / plain_of(plan, ranked).speed


# -- in words ----------------------------------------------------------------------------------------------------------


def why_none(plan: RunPlan, ranked: Sequence[RunPlan]) -> str:
    """Return the reason why `auto` takes plain decoding, as text for the user."""
    if plan.precision.device.type == "mps":
        return "on Apple's GPUs nothing drafts until `localspec bench` has measured that it pays"
    same = (other for other in ranked if other.precision == plan.precision)
    phrases = next((other for other in same if other.candidate.name == "phrases"), None)
    if phrases is None or pays(phrases, ranked, plan.rule):
        return "no drafter is expected to pay here"
    basis = "as measured here" if phrases.measured and plan.measured else "as predicted"
    slower = round(100 * (1 - phrases.speed / plan.speed))
    if slower >= 1:
        return f"phrases would be {slower} % slower than no drafts, {basis}"
    return f"phrases would not be fast enough for the memory that they take, {basis}"


def explained(plan: RunPlan, ranked: Sequence[RunPlan], named: bool = False) -> str:
    """Return the reason for this plan, in one sentence. If the user named its drafter, the rule is left out."""
    name = "plain decoding" if plan.candidate.name == "none" else plan.candidate.name
    basis = "measured here" if plan.measured else "predicted"
    memory = "measured peak" if plan.peak_measured else "predicted"
    sentence = f"{name} in {plan.precision}: {_pace(plan)} ({basis}), M {plan.cost_effectiveness:.2f} ({memory} memory)"
    if (replies := plan.candidate.replies) is not None and plan.candidate.name != "none":
        number = counted(replies.replies, "reply", "replies")
        basis = f"as measured in {number} here" if replies.replies else "as measured here"
        sentence = f"{sentence}, {replies.length:.2f} tokens/step {basis}"
    elif plan.candidate.name != "none" and not plan.nodes:
        sentence += "; drafts are expected to cost more than they save, so they are made only where they should pay"
    elif (acceptance := plan.candidate.acceptance) is not None and plan.candidate.name != "none":
        sentence += f", {acceptance.length(plan.nodes):.2f} tokens/step expected ({acceptance.origin})"
    sentence += expert_words(plan)
    if named:
        return sentence
    why = "memory is short" if plan.rule == "memory" else "memory is plentiful"
    why = "the setting drafter_rule says so" if plan.rule_named else why
    criterion = "M" if plan.rule == "memory" else "speed"
    return f"{sentence}; chosen by {criterion}, since {why}{_others(plan, ranked)}"


def expert_words(plan: RunPlan) -> str:
    """Return clauses about a model's experts, each with a leading semicolon; "" for a model without experts."""
    if plan.active is None:
        return ""
    read, every = map(amount, plan.active)
    disk = disk_words(plan)
    return f"; {read} of {every} parameters are read for each token{disk and f'; {disk}'}"


def disk_words(plan: RunPlan) -> str:
    """Return a clause about experts that are read from the disk, or "" if there are none."""
    if not plan.on_disk:
        return ""
    clause = f"{plan.on_disk / 2**30:.1f} GiB of experts have no room in memory and are read from the disk"
    if plan.slowed < 1.05:  # it would be shown as 1.0
        return clause
    if plan.disk_measured:
        return f"{clause}, so a token takes about {plan.slowed:.1f} times as long"
    speed = cost.DISK / 1e9
    return (
        f"{clause}, so a token takes about {plan.slowed:.1f} times as long if the disk reads {speed} GB/s, as assumed"
    )


def _pace(plan: RunPlan) -> str:
    return tokens_a_second(plan.speed) if plan.speed >= 100 else f"{plan.speed:.3g} tokens/s"


def _others(plan: RunPlan, ranked: Sequence[RunPlan]) -> str:
    """Return the end of a sentence: the best other drafter in this precision, and the reason for leaving it out."""
    if plan.candidate.name == "none" and plan.precision.device.type == "mps":
        return "; speculation is off on Apple's GPUs until `localspec bench` has measured that it pays"
    simple = {"none", plan.candidate.name} | ({"phrases"} if plan.candidate.name != "none" else set())
    others = [option for option in ranked if option.precision == plan.precision and option.candidate.name not in simple]
    if not others or _complexity(plan)[0] == 2:
        return ""
    other = max(others, key=lambda option: worth(option, plan.rule))
    where = "" if other.candidate.here else " (not here yet)" if other.candidate.obtainable else " (once trained)"
    if not pays(other, ranked, plan.rule):
        relative = worth(other, plan.rule) / worth(plain_of(plan, ranked), plan.rule)
        figure = "M" if plan.rule == "memory" else "speed"
        return (
            f"; drafting with {other.candidate.name}{where} would reach only {relative:.2f} times the {figure} of "
            "plain decoding, so it is not used"
        )
    room = "" if other.fits else f", and takes {other.bytes / 2**30:.1f} GiB"
    return f"; {other.candidate.name}{where} would reach {_pace(other)}, M {other.cost_effectiveness:.2f}{room}"


def why_idle(name: str, chosen: RunPlan, others: Iterable[tuple[Device, RunPlan | LocalspecError]]) -> str:
    """Return the reason why a GPU is not used for a model; "" if there is no GPU or it is used.

    `others` holds for each device its best plan, its smallest plan if none fits, or the reason why it has none.
    """
    gpu, there = next(((device, plan) for device, plan in others if device.type != "cpu"), (None, None))
    if gpu is None or there is None or chosen.precision.device.type != "cpu":
        return ""
    if isinstance(there, LocalspecError):
        return f"{gpu.name} is not used: {there}"
    if there.fits:
        pace, other, cpu = _pace(there), _pace(chosen), chosen.precision.device.name
        return f"{gpu.name} is not used: {name} should reach {pace} there, and {other} on {cpu}."
    needed, usable = distinct(gib, there.bytes, gpu.usable)
    return (
        f"{gpu.name} is not used: {name} needs {needed} GiB there in {there.precision}, and {usable} GiB may be used."
    )
