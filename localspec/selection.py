"""Policy, pure arithmetic: what was asked for and what this machine is -> the Choice the engine loads."""

import os
import re
from dataclasses import dataclass, replace

from localspec import hardware
from localspec.checkpoint import inspect
from localspec.config import Settings, nearest
from localspec.drafter_cards import TRAINED, DrafterCard, find_drafter
from localspec.errors import NotHere, UsageMistake
from localspec.registry import TargetCard, resolve

DRAFTERS = ("none", "phrases", "lookahead")  # those that work with every target
PAIRED = ("draft_model", "ouroboros")  # those that take a small model
WITH_PHRASES = "+phrases"
AUTO_NODES = 16  # at most, on a processor; how many pay is measured
MOST_NODES = 64
SMALL = 64_000_000  # parameters: a quarter of a GB in fp32


@dataclass(frozen=True)
class Choice:
    """What is loaded, and the sentence that says why."""

    target: TargetCard
    drafter: str
    nodes: int  # at most
    fixed: bool  # a number was asked for: no resizing, no switching off
    device: str
    dtype: str
    quantize: str
    exact: bool
    context: int | None  # tokens; None is the model's own
    bytes: int  # of the target's weights and the drafter's, about
    reason: str
    trained: DrafterCard | None = None  # the drafter's weights, where it has some
    draft: "Choice | None" = None  # the small model, where one drafts
    parts: tuple[str, ...] = ()  # of Ouroboros


def choose(card: TargetCard, settings: Settings, parameters: int, embedding: int = 0) -> Choice:
    """Fills in what was left to `auto`, for a model of so many parameters, of which `embedding` embed the input.

    Raises UsageMistake for what was named and cannot run here.
    """
    devices = hardware.devices()
    device = settings.device
    if device == "auto":
        device = devices[0]
    elif device == "cuda":
        device = "cuda:0"
    if device not in devices:
        raise UsageMistake(f"There is no device '{device}' here; use one of {', '.join(devices)}, or auto.")
    dtype, quantize, reason = _precision(settings, device, parameters)
    drafter, trained, small = _drafter("phrases" if settings.drafter == "auto" else settings.drafter, card)
    if drafter == "none" and isinstance(settings.draft_max, int):
        raise UsageMistake(f"--draft-max {settings.draft_max} has no effect without a drafter; leave one of them out.")
    nodes = AUTO_NODES if settings.draft_max == "auto" else settings.draft_max
    if nodes > MOST_NODES:
        raise UsageMistake(f"--draft-max {nodes} is more than the {MOST_NODES} nodes a tree may have; give fewer.")
    if nodes == 0:
        drafter, trained, small = "none", None, None
    draft = _draft(small, settings, device) if small else None
    if settings.accept == "rejection" and (trained is None or drafter.endswith(WITH_PHRASES)):
        raise UsageMistake(
            f"--accept rejection needs drafts that are drawn from a known distribution, and those of '{drafter}' are "
            f"not; name one out of {', '.join(TRAINED)}, or leave it out."
        )
    if settings.accept == "typical" and drafter == "none":
        raise UsageMistake("--accept typical has no effect without a drafter; leave it out.")
    size = 4 if dtype == "fp32" else 2
    return Choice(
        target=card,
        drafter=drafter,
        nodes=nodes if drafter != "none" else 0,
        fixed=settings.draft_max != "auto",
        device=device,
        dtype=dtype,
        quantize=quantize,
        exact=settings.exact,
        context=settings.context,
        # An embedding is not packed; that of a tied model is there a second time, packed, as its head.
        bytes=(parameters + embedding * size if quantize == "int8" else parameters * size)
        + (trained.parameters * (4 if trained.revision else size) if trained else 0)
        + (draft.bytes if draft and draft.device == device else 0),
        reason=reason,
        trained=trained,
        draft=draft,
        parts=settings.ouroboros if drafter == "ouroboros" else (),
    )


def _draft(card: TargetCard, settings: Settings, device: str) -> Choice:
    """The small model, in the precision that suits its own size."""
    found = inspect(card.path)
    device = device if settings.draft_device == "auto" else settings.draft_device
    if ("cuda:0" if device == "cuda" else device) not in hardware.devices():
        raise UsageMistake(
            f"There is no device '{device}' here for a draft model; set draft_device to one of "
            f"{', '.join(hardware.devices())}, or auto."
        )
    own = replace(
        settings, drafter="none", draft_max="auto", dtype="auto", quantize="auto", exact=False, context=None,
        accept="exact", device=device,
    )  # fmt: skip
    return choose(card, own, found.parameters, found.embedding)


def _drafter(name: str, card: TargetCard) -> tuple[str, DrafterCard | None, TargetCard | None]:
    """What is named, by its kind, its weights, and the small model it takes.

    Raises UsageMistake for a drafter that there is not, NotHere where a small model is not here.
    """
    kind = name.removesuffix(WITH_PHRASES)
    phrases = name.removeprefix(kind)
    paired, _, small = kind.partition(":")
    if phrases and (kind in ("none", "phrases") or paired == "ouroboros"):
        raise UsageMistake(f"'{name}' is nothing more than '{'phrases' if kind == 'none' else kind}'; say so.")
    if kind in DRAFTERS:
        return name, None, None
    if paired in PAIRED:
        if kind.endswith(":"):
            raise UsageMistake(f"'{name}' names no model; write {paired}:MODEL, or {paired} for the model's own.")
        return paired + phrases, None, resolve(small) if small else _own_draft(paired, card)
    known = ["auto", *DRAFTERS, *TRAINED, *PAIRED]
    directory = any(mark in kind for mark in "/\\.~") or (kind not in known and os.path.isdir(kind))
    if small and re.fullmatch(r"\w{2,}", paired):  # no letter of a drive: some other word stands before a model
        directory = False
    if kind not in TRAINED and not directory:
        raise UsageMistake(
            f"There is no drafter '{kind}'{nearest(paired, known)}; use one of {', '.join(known)}, or a directory that "
            "`localspec train` wrote."
        )
    trained = find_drafter(kind, card)
    return trained.kind + phrases, trained, None


def _own_draft(kind: str, card: TargetCard) -> TargetCard:
    if not card.draft:
        raise NotHere(
            f"No draft model is known for {card.name}; name one, a small model with the same tokenizer: "
            f"--drafter {kind}:MODEL."
        )
    try:
        return resolve(card.draft)
    except NotHere as missing:
        raise NotHere(f"draft = {card.draft!r} of {card.name} in models.toml cannot be used: {missing}") from None


def _precision(settings: Settings, device: str, parameters: int) -> tuple[str, str, str]:
    """(dtype, quantisation, why)."""
    if settings.quantize == "nf4":
        raise UsageMistake("The quantisation 'nf4' is not in this version; use int8, none, or auto.")
    if settings.quantize == "int8" and device != "cpu":
        raise UsageMistake(f"int8 is for processors in this version, and the device is {device}; leave it out.")
    if settings.quantize == "int8" and not hardware.cpu_multiplies_int8():
        raise UsageMistake("This build of torch has no int8 kernels for this processor; use --quantize none.")
    dtype, reason = _dtype(settings.dtype, device, parameters)
    if settings.quantize == "int8":
        return dtype, "int8", "int8 as asked"
    left_to_us = settings.quantize == settings.dtype == "auto" and device == "cpu"
    if left_to_us and parameters > SMALL and hardware.cpu_multiplies_int8():
        return dtype, "int8", "int8 takes half the time and memory of bf16 on a processor, and costs little quality"
    return dtype, "none", reason


def _dtype(asked: str, device: str, parameters: int) -> tuple[str, str]:
    if device != "cpu":
        return ("bf16", f"{device}: bf16") if asked == "auto" else (asked, f"{device}: {asked} as asked")
    if asked == "fp16":
        raise UsageMistake("fp16 is many times slower than fp32 on a processor; use bf16, fp32 or auto there.")
    if asked == "auto" and parameters <= SMALL:
        return "fp32", "a model so small costs little in fp32, and speculation changes no token there"
    bf16 = hardware.cpu_computes_bf16()
    if asked == "auto":
        return ("bf16", "processor with bf16 instructions") if bf16 else ("fp32", "processor without bf16 instructions")
    return asked, f"{asked} as asked"
