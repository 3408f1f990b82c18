"""What `--drafter` names: a kind with its weights or its small model."""

import os
import re
from dataclasses import dataclass

from localspec.config import nearest
from localspec.errors import NotHere, UsageMistake
from localspec.models.drafter_cards import TRAINED, DrafterCard, find_drafter
from localspec.models.registry import TargetCard, resolve
from localspec.policy.candidates import PAIRED, WITH_PHRASES

DRAFTERS = ("none", "phrases", "lookahead")  # those that work with every target


@dataclass(frozen=True)
class DrafterSpec:
    """What `--drafter` says: a name without its weights or its small model, or `auto`."""

    drafter: str
    trained: DrafterCard | None = None
    small: TargetCard | None = None


def named_drafter(name: str, card: TargetCard) -> DrafterSpec:
    """What is named, by its kind, its weights, and the small model it takes.

    Raises UsageMistake for a drafter that there is not, NotHere where a small model is not here.
    """
    if name == "auto":
        return DrafterSpec(name)
    kind = name.removesuffix(WITH_PHRASES)
    phrases = name.removeprefix(kind)
    paired, _, small = kind.partition(":")
    if phrases and (kind in ("none", "phrases") or paired == "ouroboros"):
        raise UsageMistake(f"'{name}' is nothing more than '{'phrases' if kind == 'none' else kind}'; say so.")
    if kind in DRAFTERS:
        return DrafterSpec(name)
    if paired in PAIRED:
        if kind.endswith(":"):
            raise UsageMistake(f"'{name}' names no model; write {paired}:MODEL, or {paired} for the model's own.")
        return DrafterSpec(paired + phrases, small=resolve(small) if small else _own_draft(paired, card))
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
    return DrafterSpec(trained.kind + phrases, trained)


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
