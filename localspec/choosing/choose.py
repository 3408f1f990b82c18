"""Chooses what the engine loads, and gives a reason, from the settings, this machine and its measurements."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from localspec.choosing import fit
from localspec.choosing.choice import Choice, LoadSpec
from localspec.choosing.drafters import MOST_NODES, DrafterCandidate, drafter_bytes
from localspec.choosing.measure import MeasurementSource, NoMeasurements
from localspec.choosing.named import DrafterSpec, check_layers, named_drafter
from localspec.choosing.plans import (
    AUTO_NODES,
    PLANNED,
    Precision,
    RunPlan,
    as_computed,
    best,
    disk_words,
    draft_precisions,
    expert_words,
    explained,
    natural_precisions,
    possible_precisions,
    run_plans,
    speedup,
    why_idle,
    why_none,
)
from localspec.choosing.survey import preferred, recommendations
from localspec.config import Settings
from localspec.errors import DoesNotFit, LocalspecError, NotHere, UsageMistake
from localspec.machine import compiled
from localspec.machine.machine import Device, Machine, this_machine
from localspec.models.drafter_cards import accepted_kinds
from localspec.models.drafter_kinds import WEIGHTS, kind_of, kinds
from localspec.models.model import Model, model_of
from localspec.models.registry import TargetCard
from localspec.quantities import distinct, gib
from localspec.weights.checkpoint import inspect, only_packed
from localspec.weights.packed_file import BLOCKS
from localspec.weights.recipe import is_coarser

# Packings in which a row's result does not depend, to the bit, on the rows computed with it. On CUDA localspec's
# kernels guarantee this, and they need bf16.
INVARIANT = {"cpu": ("none", "int8", "int4", BLOCKS), "cuda": ("none", "int8", "nf4"), "mps": ("none",)}

LOST = {"nf4": 28, "int4": 5}  # per cent of perplexity, from Q4_1 on a GPU (docs/figures/file-as-it-is.md)


@dataclass(frozen=True)
class Attempt:
    """The plans to run a model on one device. `ranked` holds all plans, the most cost-effective (highest M) first.

    `eligible` holds the plans that the settings allow, the preferred one first. There are no plans if the device cannot
    meet the settings, or cannot load the files of the model on this machine; `refused` then gives the reason. `no_room`
    is set if the draft model that the settings name does not fit.
    """

    ranked: Sequence[RunPlan] = ()
    eligible: Sequence[RunPlan] = ()
    draft_device: Device | None = None  # None if this machine lacks the device that `draft_device` names
    refused: LocalspecError | None = None
    no_room: DoesNotFit | None = None

    @property
    def fitting(self) -> list[RunPlan]:
        return [plan for plan in self.eligible if plan.fits]

    @property
    def smallest(self) -> RunPlan:
        return min(self.eligible or self.ranked, key=lambda plan: plan.bytes)


def choose(
    card: TargetCard, settings: Settings, machine: Machine | None = None, measurements: MeasurementSource | None = None
) -> Choice:
    """Decide how to run a model that is on this machine: every setting that is `auto` gets a value.

    Raises UsageMistake for a setting that is impossible on this machine, NotHere if a setting needs the original
    weights and only a packed form is here, DoesNotFit, and the errors of `inspect`.
    """
    drafter = requested_drafter(settings, card)
    return choices(model_of(card), drafter, settings, machine, measurements)[0]


def requested_drafter(settings: Settings, card: TargetCard) -> DrafterSpec:
    """Return the drafter that `--drafter` names, or `none` if `--draft-max` is 0.

    Raises UsageMistake for a `--draft-max` that has no effect, is 0 for a named drafter or is too large, and the errors
    of `named_drafter`.
    """
    if settings.drafter == "none" and isinstance(settings.draft_max, int):
        raise UsageMistake(
            f"{settings.shown('draft_max')} has no effect without a drafter; name a drafter, or leave it out."
        )
    if settings.draft_max == 0 and settings.drafter != "auto" and settings.origins.get("drafter", "").startswith("--"):
        raise UsageMistake(
            f"--drafter {settings.drafter} has no effect with {settings.shown('draft_max')}, which allows no drafts; "
            "leave one of them out."
        )
    if settings.draft_max != "auto" and settings.draft_max > MOST_NODES:
        raise UsageMistake(
            f"{settings.shown('draft_max')} is more than the {MOST_NODES} nodes a tree may have; give fewer."
        )
    try:
        return named_drafter(settings.drafter if settings.draft_max != 0 else "none", card)
    except UsageMistake as mistake:
        if not settings.is_set_outside("drafter"):
            raise
        raise UsageMistake(f"{settings.shown('drafter')}: {mistake}") from mistake


def choices(
    model: Model,
    drafter: DrafterSpec,
    settings: Settings,
    machine: Machine | None = None,
    measurements: MeasurementSource | None = None,
) -> list[Choice]:
    """Return the choice, and if possible a second one that takes less memory, to try if the first does not fit.

    `drafter` is the drafter that the settings name. Raises UsageMistake, NotHere and DoesNotFit.
    """
    measurements = measurements or NoMeasurements()
    machine = machine or this_machine(measurements.recalled_bandwidth)
    _check_context(settings, model.card)
    devices = machine.devices
    if settings.device != "auto":
        devices = tuple(filter(None, [machine.device(settings.device)]))
    if not devices:
        where = f"{settings.shown('device')}: " if settings.is_set_outside("device") else ""
        raise UsageMistake(
            f"{where}There is no device '{settings.device}' here; use one of {_names(machine)}, or auto."
        )
    attempts = [_attempt(model, drafter, settings, device, machine, measurements) for device in devices]
    possible = [attempt for attempt in attempts if attempt.refused is None]
    refusals = [attempt.refused for attempt in attempts if attempt.refused]
    if not possible:
        raise next((refusal for refusal in refusals if isinstance(refusal, NotHere)), refusals[0])
    fitting = [attempt for attempt in possible if attempt.fitting]
    if not fitting:
        raise DoesNotFit(_too_large(model.card, possible[0].smallest, settings.context, machine, measurements))
    if fitting[0].no_room and all(attempt.no_room for attempt in fitting):
        raise fitting[0].no_room
    # Take the device on which the model is fastest; of equally fast ones, the first in torch's order.
    fastest = max((attempt for attempt in fitting if not attempt.no_room), key=lambda attempt: attempt.fitting[0].speed)
    first, *others = fastest.fitting
    smaller = [plan for plan in others if plan.bytes < first.bytes][:1]
    options: list[Choice] = []
    tried = [
        (device, attempt.refused or (attempt.fitting or [attempt.smallest])[0])
        for device, attempt in zip(devices, attempts, strict=True)
    ]
    for plan in (first, *smaller):
        chosen, candidate = drafter, plan.candidate
        if drafter.drafter == "auto":
            chosen = DrafterSpec(candidate.drafter, candidate.trained, model.small if candidate.small else None)
        _check(settings, chosen, plan.precision, model)
        check_layers(chosen.drafter, model.card, model.shape)
        draft = None
        if chosen.small is not None:
            draft = _draft(chosen.small, fastest.draft_device, settings, machine, measurements)
        choice = _choice(model.card, settings, chosen, plan, fastest.ranked, draft)
        options.append(replace(choice, idle=why_idle(model.card.name, plan, tried)))
    return options


def _attempt(
    model: Model,
    drafter: DrafterSpec,
    settings: Settings,
    device: Device,
    machine: Machine,
    measurements: MeasurementSource,
) -> Attempt:
    try:
        precisions = possible_precisions(model, precisions_of(settings, as_computed(device, model)))
        if not precisions:
            if not model.from_gguf:
                raise only_packed(model.card.path)
            raise UsageMistake(  # four bits on a GPU
                f"--quantize {settings.quantize} would round the weights of {model.card.name} a second time (this "
                f"raised the perplexity of SmolLM2-135M in Q4_1 by {LOST[settings.quantize]} %); give int8, none or "
                "auto."
            )
    except (UsageMistake, NotHere) as mistake:  # another device may still meet the settings
        return Attempt(refused=mistake)
    draft_device = device if settings.draft_device == "auto" else machine.device(settings.draft_device)
    draft, no_room = None, None
    if drafter.small is not None:
        try:
            draft = _draft(drafter.small, draft_device, settings, machine, measurements)
        except DoesNotFit as trouble:
            no_room = trouble

    def among(precisions: Sequence[Precision]) -> Attempt:
        ranked = run_plans(model, precisions, measurements, _most_nodes(settings), settings.context)
        if draft_device != device:  # the draft model takes no memory of this device
            ranked = [_with_bytes(plan, -plan.candidate.bytes) if plan.candidate.small else plan for plan in ranked]
        return Attempt(ranked, _eligible(ranked, drafter, settings, model, draft), draft_device, no_room=no_room)

    first = among(precisions)
    left_out = [precision for precision in precisions if all(plan.precision != precision for plan in first.ranked)]
    if not left_out or first.fitting:
        return first
    # `run_plans` drops precisions by the speed of plain decoding. With the named drafter, another one may fit.
    others = among(left_out)
    return others if others.fitting else min(first, others, key=lambda attempt: attempt.smallest.bytes)


def _eligible(
    ranked: Sequence[RunPlan], drafter: DrafterSpec, settings: Settings, model: Model, draft: LoadSpec | None
) -> list[RunPlan]:
    """Return the plans that the settings allow, the preferred one first; their bytes include a named drafter."""
    if drafter.drafter == "auto":
        if settings.accept == "rejection":  # this rule needs drafts that are sampled
            sampled = [plan for plan in ranked if plan.candidate.drafter in kinds(*WEIGHTS) and plan.candidate.here]
            if sampled:
                return sampled
        needed = settings.draft_max != "auto" or settings.accept != "exact"  # drafts, paying or not
        first = best(ranked, allow_plain=not needed, rule=settings.drafter_rule)
        simple = [plan for plan in ranked if plan.candidate.name in (("phrases",) if needed else ("phrases", "none"))]
        return simple if first is None else [first, *(plan for plan in simple if plan is not first)]
    # Prefer the precision that `auto` would take, so that naming a drafter does not change the text.
    usual = best(ranked, rule=settings.drafter_rule)
    ranked = sorted(ranked, key=lambda plan: usual is not None and plan.precision != usual.precision)
    if predicted := [plan for plan in ranked if _is_of(plan.candidate, drafter)]:
        return predicted
    precision, extra = ranked[0].precision, 0  # this drafter has no figures: count its bytes, and expect plain speed
    if drafter.trained:
        planned = min(settings.context or PLANNED, model.shape.context)
        numbers = fit.drafter_numbers(precision.dtype, precision.quantize, precision.device.backend)
        extra = sum(drafter_bytes(card, model.shape, precision.dtype, numbers, planned) for card in drafter.trained)
    if draft is not None and draft.device == precision.device.name:
        extra = draft.bytes - fit.program(draft.quantize, precision.device.backend)
    return [_with_bytes(plan, extra) for plan in ranked if plan.candidate.name == "none"]


def _with_bytes(plan: RunPlan, added: int) -> RunPlan:
    return replace(plan, loaded_bytes=plan.loaded_bytes + added, bytes=plan.bytes + added, memory=plan.memory + added)


def _is_of(candidate: DrafterCandidate, drafter: DrafterSpec) -> bool:
    """Return whether a candidate is the drafter that the settings name, with the same weights or small model."""
    small = drafter.small and drafter.small.card
    return (drafter.drafter, drafter.trained, small) == (candidate.drafter, candidate.trained, candidate.small)


def _most_nodes(settings: Settings) -> int | None:
    """Return the largest number of nodes that a draft may have; None lets the costs of forwards decide.

    With `--exact` the number is fixed, since forwards over many nodes are exact less often.
    """
    if settings.draft_max != "auto":
        return settings.draft_max or AUTO_NODES
    return AUTO_NODES if settings.exact else None


def _check(settings: Settings, drafter: DrafterSpec, precision: Precision, model: Model) -> None:
    """Raise UsageMistake for an acceptance rule, a threshold or threads that have no effect on this choice."""
    samples = drafter.drafter in kinds(*WEIGHTS)
    if settings.accept == "rejection" and not samples:
        possible = ", ".join(accepted_kinds(model.card, *WEIGHTS, shape=model.shape))
        raise UsageMistake(
            f"--accept rejection needs drafts sampled from a known distribution, which '{drafter.drafter}' does not "
            f"make; use one of {possible}, or leave --accept out."
        )
    if settings.accept == "typical" and drafter.drafter == "none":
        raise UsageMistake("--accept typical has no effect without a drafter; leave it out.")
    if settings.int8_threshold and (precision.device.type, precision.quantize) != ("cuda", "int8"):
        raise UsageMistake(
            f"int8_threshold = {settings.int8_threshold} has no effect in {precision} on {precision.device.name}; "
            "remove it, or give --quantize int8 and a device with CUDA."
        )
    if settings.threads and settings.origins.get("threads", "").startswith("--") and precision.device.type != "cpu":
        raise UsageMistake(
            f"{settings.shown('threads')} has no effect on {precision.device.name}; leave it out, or give --device cpu."
        )


def _choice(
    card: TargetCard,
    settings: Settings,
    drafter: DrafterSpec,
    plan: RunPlan,
    ranked: Sequence[RunPlan],
    draft: LoadSpec | None,
) -> Choice:
    precision, predicted, named = plan.precision, _is_of(plan.candidate, drafter), settings.drafter != "auto"
    parts = kind_of(drafter.drafter).parts
    chose_none = drafter.drafter == "none" and not settings.plain
    as_named = f"{drafter.drafter}, as you asked, in {precision}{expert_words(plan)}"
    return Choice(
        target=card,
        **_how_loaded(plan),
        exact=settings.exact,
        context=settings.context,
        threshold=settings.int8_threshold,
        drafter=drafter.drafter,
        nodes=plan.most if drafter.drafter != "none" else 0,
        fixed=settings.draft_max != "auto",
        reason=explained(plan, ranked, named) if predicted else as_named,
        tokens_per_second=plan.speed if predicted else None,
        measured=predicted and plan.measured,
        speedup=speedup(plan, ranked) if predicted else None,
        cost_effectiveness=plan.cost_effectiveness if predicted else None,
        peak_measured=plan.peak_measured,
        rule=plan.rule if predicted and not named else None,
        trained=drafter.trained,
        draft=draft,
        parts=getattr(settings, parts) if parts else (),
        off_reason=why_none(plan, ranked) if chose_none else None,
    )


def _draft(
    small: Model, device: Device | None, settings: Settings, machine: Machine, measurements: MeasurementSource
) -> LoadSpec:
    """Return how a draft model is loaded: in the most cost-effective precision (highest M) that fits.

    Raises UsageMistake if there is no such device, NotHere if the draft model is here only in a packing for another
    device, and DoesNotFit.
    """
    if device is None:
        raise UsageMistake(
            f"There is no device '{settings.draft_device}' here for a draft model; set draft_device to one of "
            f"{_names(machine)}, or auto."
        )
    if not (precisions := draft_precisions(small, device)):
        raise only_packed(small.card.path)
    ranked = run_plans(small, precisions, measurements)
    plain = [plan for plan in ranked if plan.candidate.name == "none"]
    plan = next((plan for plan in plain if plan.fits), None)
    if plan is None:
        smallest = min(plain, key=lambda plan: plan.bytes)
        raise DoesNotFit(_too_large(small.card, smallest, None, machine, measurements))
    drafts = is_coarser(plan.precision.quantize, small.shape.vocab_size, plan.precision.device.engine)
    return LoadSpec(target=small.card, **_how_loaded(plan), drafts=drafts)


def _how_loaded(plan: RunPlan) -> dict[str, Any]:
    """Return the fields of `LoadSpec` that a plan decides, by name: device, precision, bytes."""
    precision = plan.precision
    return {
        "device": precision.device.name, "dtype": precision.dtype, "quantize": precision.quantize,
        "engine": precision.device.engine, "loaded_bytes": plan.loaded_bytes, "bytes": plan.bytes,
        "bits": precision.bits, "on_disk": disk_words(plan),
    }  # fmt: skip


def _too_large(
    card: TargetCard, smallest: RunPlan, context: int | None, machine: Machine, measurements: MeasurementSource
) -> str:
    """Return the error text for a model that does not fit: the missing memory, and a model that fits instead.

    Models that are on this machine are preferred.
    """
    device = smallest.precision.device
    needed, usable = distinct(gib, smallest.bytes, device.usable)
    disk = ", with half of its experts on the disk" if smallest.on_disk else ""
    missing = (
        f"{card.name} needs {needed} GiB of memory in {smallest.precision} on {device.name}{disk}, and {usable} of "
        f"{gib(device.free)} GiB free may be used"
    )
    if context is not None and context > PLANNED:  # other models would need more memory for it too
        return f"{missing}; close other programs, or give a smaller --context."
    only_there = replace(machine, devices=(machine.device(device.name) or device,))
    others = [
        option
        for option in recommendations(only_there, measurements, here=False)
        if option.fits and option.card.name != card.name
    ]
    here = [option for option in others if option.card.here and not option.toy]
    if (other := preferred(here) or preferred(others)) is None or other.plan is None:
        return f"{missing}; close other programs, or give a smaller --context."
    gated = ", gated: its terms must be accepted first" if other.gated else ""
    fetch = "" if other.card.here else f" (`localspec pull {other.card.name}`{gated})"
    return (
        f"{missing}; close other programs, give a smaller --context, or choose {other.card.name}{fetch}, which takes "
        f"{gib(max(2**30 // 10, other.plan.bytes))} GiB."
    )


def _names(machine: Machine) -> str:
    return ", ".join(device.name for device in machine.devices)


def _check_context(settings: Settings, card: TargetCard) -> None:
    """Raise UsageMistake for a context that is too long for the model."""
    if settings.context is None or not card.here:
        return
    from localspec.weights.stored import read_config  # numpy

    _, limit = read_config(inspect(card.path)).contexts
    if settings.context > limit:
        raise UsageMistake(
            f"{settings.shown('context')} is more than the {limit} tokens that this model was made for; "
            f"ask for {limit} or fewer."
        )


def precisions_of(settings: Settings, device: Device) -> list[Precision]:
    """Return the precisions that the settings allow on a device.

    Raises UsageMistake if the settings name one that the device does not offer.
    """
    dtype, quantize = str(settings.dtype), str(settings.quantize)
    if settings.exact and (device.type, device.engine) == ("cpu", "torch"):
        raise UsageMistake(
            f"--exact on a CPU needs the compiled library, and {compiled.missing()}; install localspec again, or leave "
            "--exact out."
        )
    if quantize not in ("auto", "none", *device.packings):
        missing = device.missing.get(quantize, "localspec has no kernels for it there")
        raise UsageMistake(
            f"--quantize {quantize} does not work on {device.name}: {missing}; use "
            f"{', '.join((*device.packings, 'none'))} or auto."
        )
    if dtype == "fp16" and device.type == "cpu":
        raise UsageMistake("fp16 is many times slower than fp32 on a CPU; use bf16, fp32 or auto there.")
    natural = natural_precisions(device)
    if dtype == "auto":
        dtype = natural[0].dtype  # the device's preferred one
    elif quantize == "auto":
        quantize = "none"  # a user who names a dtype wants the weights in it
    if quantize != "auto":
        if device.type == "cpu" and quantize != "none":  # a CPU computes with packed weights in one dtype only
            dtype = natural[0].dtype
        return [Precision(device, dtype, quantize)]
    exact = INVARIANT[device.type] if device.type != "cuda" or "bf16" in device.dtypes else ("none",)
    return [precision for precision in natural if not settings.exact or precision.quantize in exact]
