"""Policy: what was asked for, what this machine is and what was measured on it -> the Choice the engine loads."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from localspec.config import Settings
from localspec.errors import DoesNotFit, UsageMistake
from localspec.machine.machine import Device, Machine, this_machine
from localspec.models.drafter_cards import DrafterCard
from localspec.models.drafter_kinds import WITH_PHRASES, kind_of, kinds
from localspec.models.model import Model, model_of
from localspec.models.registry import TargetCard
from localspec.policy.candidates import DrafterCandidate, drafter_bytes
from localspec.policy.drafter_spec import DrafterSpec, named_drafter
from localspec.policy.measurements import MeasurementSource, NoMeasurements
from localspec.policy.prediction import PROGRAM, computing
from localspec.policy.ranking import (
    AUTO_NODES,
    PLANNED,
    Precision,
    RunPlan,
    best,
    explained,
    natural_precisions,
    run_plans,
)
from localspec.policy.survey import recommendations

MOST_NODES = 64
INVARIANT = (("cpu", "none"), ("cpu", "int8"), ("cuda", "none"), ("mps", "none"))  # whose rows can be had to the bit


@dataclass(frozen=True)
class Choice:
    """What is loaded, what it should take and bring, and the sentence that says why."""

    target: TargetCard
    drafter: str
    nodes: int  # at most
    fixed: bool  # a number was asked for: no resizing, no switching off
    device: str
    dtype: str
    quantize: str
    exact: bool
    context: int | None  # tokens; None is the model's own
    loaded_bytes: int  # of the target's weights and of all that the drafter holds
    bytes: int  # with cache, tree and workspace
    reason: str
    tokens_per_second: float | None = None  # predicted, or measured in earlier replies
    cost_effectiveness: float | None = None  # M
    trained: DrafterCard | None = None  # the drafter's weights, where it has some
    draft: "Choice | None" = None  # the small model, where one drafts
    parts: tuple[str, ...] = ()  # of Ouroboros
    threshold: float = 0.0  # of int8 on CUDA


def choose(
    card: TargetCard, settings: Settings, machine: Machine | None = None, measurements: MeasurementSource | None = None
) -> Choice:
    """Fills in what was left to `auto`, for a model that is here.

    Raises UsageMistake for what was named and cannot run here, DoesNotFit, and what `inspect` raises.
    """
    return choices(card, settings, machine, measurements)[0]


def choices(
    card: TargetCard, settings: Settings, machine: Machine | None = None, measurements: MeasurementSource | None = None
) -> list[Choice]:
    """The choice, and behind it those that take less memory, for where it turns out not to fit."""
    machine, measurements = machine or this_machine(), measurements or NoMeasurements()
    if settings.drafter == "none" and isinstance(settings.draft_max, int):
        raise UsageMistake(f"--draft-max {settings.draft_max} has no effect without a drafter; leave one of them out.")
    nodes = AUTO_NODES if settings.draft_max == "auto" else settings.draft_max
    if nodes > MOST_NODES:
        raise UsageMistake(f"--draft-max {nodes} is more than the {MOST_NODES} nodes a tree may have; give fewer.")
    named = named_drafter(settings.drafter if nodes else "none", card)
    devices = machine.devices if settings.device == "auto" else (_device(machine, settings.device),)
    model = model_of(card)
    found: list[tuple[RunPlan, Sequence[RunPlan]]] = []
    least: list[RunPlan] = []
    refused: list[UsageMistake] = []
    alone: list[DoesNotFit] = []  # where the target fits, and the draft model that was named does not
    for device in devices:
        try:
            precisions = _precisions(settings, device, model.parameters)
        except UsageMistake as mistake:  # another device may have what was named
            refused.append(mistake)
            continue
        ranked = run_plans(model, precisions, measurements, nodes or AUTO_NODES, settings.context)
        if settings.draft_device != "auto" and machine.device(settings.draft_device) != device:
            ranked = [_beside(plan, -plan.candidate.bytes) if plan.candidate.small else plan for plan in ranked]
        draft, trouble = None, None
        if named.small is not None:
            try:
                draft = _draft(named.small, settings, device.name, machine, measurements)
            except DoesNotFit as error:
                trouble = error
        needed = settings.draft_max != "auto" or settings.accept != "exact"  # some drafter, whether it pays or not
        taken = _taken(named, model, ranked, needed, draft, settings.context)
        least.append(min(taken or ranked, key=lambda plan: plan.bytes))
        fitting = [plan for plan in taken if plan.fits]
        if fitting and trouble is not None:
            alone.append(trouble)
            continue
        # The device on which it is fastest; of two as fast, the one that torch names first.
        if fitting and (not found or fitting[0].speed > found[0][0].speed):
            found = [(plan, ranked) for plan in (fitting[0], *_smaller(fitting))]
    if not least:
        raise refused[0]
    if not found and alone:
        raise alone[0]
    if not found:
        raise DoesNotFit(_too_large(card, least[0], settings, machine, measurements))
    return [_choice(card, settings, named, nodes, plan, ranked, machine, measurements) for plan, ranked in found]


def _taken(
    named: DrafterSpec, model: Model, ranked: Sequence[RunPlan], needed: bool, draft: Choice | None, context: int | None
) -> list[RunPlan]:
    """The ways that are in question, the one to take first, with the bytes of the drafter that was named."""
    if named.drafter == "auto":
        first = best(ranked, without=not needed)
        simple = [plan for plan in ranked if plan.candidate.name in (("phrases",) if needed else ("phrases", "none"))]
        return simple if first is None else [first, *(plan for plan in simple if plan is not first)]
    same = [plan for plan in ranked if _same(named, plan.candidate)]
    if same:
        return same
    extra = 0
    if named.trained is not None:
        planned = min(context or PLANNED, model.shape.context)
        precision = ranked[0].precision
        numbers = computing(precision.dtype, precision.quantize, precision.device.type)
        extra = drafter_bytes(named.trained, model.shape, precision.dtype, numbers, planned)
    if draft is not None and draft.device == ranked[0].precision.device.name:
        extra = draft.bytes - PROGRAM
    plain = [plan for plan in ranked if plan.candidate.name == "none"]
    return [_beside(plan, extra) for plan in plain]


def _beside(plan: RunPlan, size: int) -> RunPlan:
    """With so many bytes more of a drafter."""
    return replace(plan, loaded_bytes=plan.loaded_bytes + size, bytes=plan.bytes + size)


def _same(named: DrafterSpec, candidate: DrafterCandidate) -> bool:
    """Whether this is what was named, with the same weights."""
    kind = candidate.name.partition(":")[0]
    return (named.drafter, named.trained, named.small) == (kind, candidate.trained, candidate.small)


def _smaller(fitting: Sequence[RunPlan]) -> list[RunPlan]:
    """The next way to try where the first turns out not to fit: the best that takes less."""
    return [plan for plan in fitting[1:] if plan.bytes < fitting[0].bytes][:1]


def _choice(
    card: TargetCard,
    settings: Settings,
    named: DrafterSpec,
    nodes: int,
    plan: RunPlan,
    ranked: Sequence[RunPlan],
    machine: Machine,
    measurements: MeasurementSource,
) -> Choice:
    if named.drafter == "auto":
        named = DrafterSpec(plan.candidate.name.partition(":")[0], plan.candidate.trained, plan.candidate.small)
    _check_rule(settings, named)
    if settings.int8_threshold and (plan.precision.device.type, plan.precision.quantize) != ("cuda", "int8"):
        raise UsageMistake(
            f"int8_threshold = {settings.int8_threshold} has no effect in {plan.precision} on "
            f"{plan.precision.device.name}; remove it, or give --quantize int8 and a device with CUDA."
        )
    precision, foreseen = plan.precision, _same(named, plan.candidate)
    draft = _draft(named.small, settings, precision.device.name, machine, measurements) if named.small else None
    return Choice(
        target=card,
        drafter=named.drafter,
        nodes=nodes if named.drafter != "none" else 0,
        fixed=settings.draft_max != "auto",
        device=precision.device.name,
        dtype=precision.dtype,
        quantize=precision.quantize,
        exact=settings.exact,
        context=settings.context,
        loaded_bytes=plan.loaded_bytes,
        bytes=plan.bytes,
        reason=explained(plan, ranked) if foreseen else f"{named.drafter} as asked, in {precision}",
        tokens_per_second=plan.speed if foreseen else None,
        cost_effectiveness=plan.cost_effectiveness if foreseen else None,
        trained=named.trained,
        draft=draft,
        parts=getattr(settings, kind.parts) if (kind := kind_of(named.drafter)).parts else (),
        threshold=settings.int8_threshold,
    )


def _check_rule(settings: Settings, named: DrafterSpec) -> None:
    if settings.accept == "rejection" and (named.trained is None or named.drafter.endswith(WITH_PHRASES)):
        raise UsageMistake(
            f"--accept rejection needs drafts that are drawn from a known distribution, and those of '{named.drafter}' "
            f"are not; name one out of {', '.join(kinds('weights'))}, or leave it out."
        )
    if settings.accept == "typical" and named.drafter == "none":
        raise UsageMistake("--accept typical has no effect without a drafter; leave it out.")


def _too_large(
    card: TargetCard, least: RunPlan, settings: Settings, machine: Machine, measurements: MeasurementSource
) -> str:
    """What is missing, and the best model that would fit there: one that is here rather than one to be fetched."""
    device, gib = least.precision.device, 2.0**30
    missing = (
        f"{card.name} needs {least.bytes / gib:.1f} GiB of memory in {least.precision} on {device.name}, and of "
        f"{device.free / gib:.1f} GiB free {device.usable / gib:.1f} may be used"
    )
    if settings.context is not None and settings.context > PLANNED:  # with which others take more as well
        return f"{missing}; close other programs, or give a smaller --context."
    there = replace(machine, devices=(device,))
    others = [
        one for one in recommendations(there, measurements, here=False) if one.fits and one.card.name != card.name
    ]
    # The best of those that are here; a toy only where there is nothing else.
    others.sort(key=lambda one: one.card.here and not (one.card.entry and one.card.entry.toy), reverse=True)
    for one in others[:1]:
        assert one.plan is not None
        fetch = "" if one.card.here else f" (`localspec pull {one.card.name}`)"
        return (
            f"{missing}; close other programs, give a smaller --context, or choose {one.card.name}{fetch}, which takes "
            f"{one.plan.bytes / gib:.1f} GiB."
        )
    return f"{missing}; close other programs, or give a smaller --context."


def _draft(
    card: TargetCard, settings: Settings, device: str, machine: Machine, measurements: MeasurementSource
) -> Choice:
    """The small model, in the precision that suits its own size."""
    device = device if settings.draft_device == "auto" else settings.draft_device
    if machine.device(device) is None:
        raise UsageMistake(
            f"There is no device '{device}' here for a draft model; set draft_device to one of {_names(machine)}, or "
            "auto."
        )
    own = replace(
        settings, drafter="none", draft_max="auto", dtype="auto", exact=False, context=None,
        accept="exact", device=device, int8_threshold=0.0,
        quantize="auto" if device == "cpu" else "none",  # as ranking has it
    )  # fmt: skip
    return choose(card, own, machine, measurements)


def _names(machine: Machine) -> str:
    return ", ".join(device.name for device in machine.devices)


def _device(machine: Machine, name: str) -> Device:
    if (device := machine.device(name)) is None:
        raise UsageMistake(f"There is no device '{name}' here; use one of {_names(machine)}, or auto.")
    return device


def _precisions(settings: Settings, device: Device, parameters: int) -> list[Precision]:
    """The forms that the settings leave open on a device. Raises UsageMistake for what was named and cannot be had."""
    dtype: str = settings.dtype
    quantize: str = settings.quantize
    if quantize not in ("auto", "none", *device.packings):
        missing = device.missing.get(quantize, "its kernels are missing")
        raise UsageMistake(
            f"--quantize {quantize} cannot be had on {device.name}: {missing}; use another, none, or auto."
        )
    if dtype == "fp16" and device.type == "cpu":
        raise UsageMistake("fp16 is many times slower than fp32 on a processor; use bf16, fp32 or auto there.")
    natural = natural_precisions(device, parameters)
    if dtype == "auto":
        dtype = natural[0].dtype
    elif quantize == "auto":
        quantize = "none"  # who names a format of numbers wants those
    if quantize != "auto":
        return [Precision(device, dtype, quantize)]
    return [precision for precision in natural if not settings.exact or (device.type, precision.quantize) in INVARIANT]
