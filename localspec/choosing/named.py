"""Reads the names of drafters: which kinds `--drafter` names, with which weights or which small model."""

import os
import re
from dataclasses import dataclass

from localspec.config import nearest
from localspec.errors import LocalspecError, NotHere, UsageMistake
from localspec.models.default_draft import DRAFT_FOLDER, default_draft
from localspec.models.drafter_cards import DrafterCard, accepted_kinds, find_drafter
from localspec.models.drafter_kinds import MERGED, TABLE, WITH_PHRASES, can_be_merged, drafting_kinds, kind_of, kinds
from localspec.models.model import Model, small_model_of
from localspec.models.names import full_name
from localspec.models.registry import TargetCard, resolve
from localspec.models.shape import Shape, shape_of


@dataclass(frozen=True)
class DrafterSpec:
    """A drafter that `--drafter` names: `auto`, or one or more kinds, with or without `+phrases`.

    Several kinds are in the order of `TABLE`. `trained` holds the weights of kinds with weights, in the same order.
    `small` is the small model, for a kind that drafts with one.
    """

    drafter: str
    trained: tuple[DrafterCard, ...] = ()
    small: Model | None = None


def named_drafter(name: str, card: TargetCard) -> DrafterSpec:
    """Return the drafter that `name` means for a model.

    Raises UsageMistake for an unknown drafter, NotHere if its small model is not here, and the errors of
    `small_model_of`.
    """
    if name == "auto":
        return DrafterSpec(name)
    base = name.removesuffix(WITH_PHRASES)
    phrases = name.removeprefix(base)
    first, _, small = base.partition(":")
    if base == "auto":
        raise UsageMistake(
            f"'{name}' is not possible, because 'auto' decides whether to use phrases; write 'auto' or 'phrases'."
        )
    row = next((row for row in TABLE if row.name == (first if row.takes == "draft model" else base)), None)
    if row is not None and phrases and (row.name == "none" or row.has_phrases):
        raise UsageMistake(f"'{name}' means the same as '{'phrases' if row.name == 'none' else base}'; write that.")
    if row is not None and row.takes in ("nothing", "probe"):
        return DrafterSpec(name)
    if row is not None and row.takes == "draft model":
        if base.endswith(":"):
            raise UsageMistake(
                f"'{name}' names no model; write {first}:MODEL, or only {first} for the registry's small model."
            )
        draft = resolve(full_name(small)) if small else _default_draft(first, card)
        return DrafterSpec(first + phrases, small=small_model_of(draft, drafts=True))
    if "+" in base and not os.path.isdir(os.path.expanduser(base)):
        return _merged(name, card)
    directory = any(mark in base for mark in "/\\.~") or (row is None and os.path.isdir(base))
    if small and re.fullmatch(r"\w{2,}", first):  # `word:…` names a kind; one letter would be a drive of Windows
        directory = False
    if row is None and not directory:
        known = ["auto", *accepted_kinds(card)]
        raise UsageMistake(
            f"There is no drafter '{base}'{nearest(first, known)}; use one of {', '.join(known)}, or a directory that "
            "`localspec train` wrote."
        )
    if row is not None and card.here and (shape := shape_of(card.path)):
        check_layers(base, card, shape)  # do not ask users to fetch a drafter that cannot work
    trained = find_drafter(base, card)
    return DrafterSpec(trained.kind + phrases, (trained,))


def _merged(name: str, card: TargetCard) -> DrafterSpec:
    """Return the drafter for several kinds joined by `+`.

    Their drafts become one tree, and phrases lengthen all of them.
    """
    drafters: dict[str, DrafterSpec] = {}
    if card.here and (shape := shape_of(card.path)):  # all kinds first: do not ask users to fetch one in vain
        for kind in (kind for kind in kinds() if kind in name.split("+")):
            check_layers(kind, card, shape)
    for piece in sorted(name.split("+"), key=kinds().__contains__):  # unknown names first: a typo before "not here"
        kind = piece.partition(":")[0]
        if kind == "auto" or (kind in kinds() and kind != "phrases" and not can_be_merged(kind_of(kind))):
            possible = [name for name in accepted_kinds(card) if can_be_merged(kind_of(name))]
            raise UsageMistake(
                f"'{piece}' cannot be combined with other drafters; these can: {', '.join([*possible, 'phrases'])}."
            )
        spec = named_drafter(piece, card)
        if spec.drafter in drafters:
            raise UsageMistake(f"'{name}' has {spec.drafter} twice; name each drafter once.")
        drafters[spec.drafter] = spec
    phrases = WITH_PHRASES if drafters.pop("phrases", None) else ""
    if len(drafters) > MERGED:
        raise UsageMistake(
            f"'{name}' has {len(drafters)} drafters to merge, but at most {MERGED} can be merged; name fewer."
        )
    drafting = [drafters[row.name] for row in TABLE if row.name in drafters]
    return DrafterSpec(
        "+".join(spec.drafter for spec in drafting) + phrases, tuple(card for spec in drafting for card in spec.trained)
    )


def _default_draft(kind: str, card: TargetCard) -> TargetCard:
    """Return the small model to use if `--drafter` names none. Raises NotHere, or LocalspecError for a broken model."""
    draft, passed_over = default_draft(card)
    if draft is not None and draft.card.here and not passed_over:
        return draft.card
    if passed_over:
        raise LocalspecError(f"{passed_over} To use another small model, name it: --drafter {kind}:MODEL.")
    if not card.draft:
        advice = (
            f"No draft model is known for {card.name}; name a small model with the same tokenizer: "
            f"--drafter {kind}:MODEL"
        )
        raise NotHere(f"{advice}." if card.imported_as else f"{advice}, or put one into {card.path / DRAFT_FOLDER}.")
    try:
        return resolve(card.draft)
    except NotHere as missing:
        raise NotHere(f"draft = {card.draft!r} of {card.name} in models.toml cannot be used: {missing}") from None


def check_layers(drafter: str, card: TargetCard, shape: Shape) -> None:
    """Raise UsageMistake for a drafter that cannot draft for recurrent layers or experts, if the shape has any."""
    unfit = next((kind.name for kind in drafting_kinds(drafter) if not kind.drafts_for(shape)), None)
    if unfit is None:
        return
    others = ", ".join(accepted_kinds(card, shape=shape))
    if shape.experts and not kind_of(unfit).with_experts:
        raise UsageMistake(
            f"'{unfit}' cannot draft for {card.name}, because the model's layers have experts; use one of {others}."
        )
    raise UsageMistake(
        f"'{unfit}' cannot draft for {card.name}, because some of the model's layers are recurrent; use one of "
        f"{others}."
    )
