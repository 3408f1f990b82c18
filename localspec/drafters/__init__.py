"""One file a method of drafting; base.py says what all of them are, and this one how the trained ones are found.

A trained drafter is a directory: `drafter.json` says what it is and what it was made for, `drafter.safetensors` holds
its weights.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localspec.config import nearest
from localspec.drafter_cards import DrafterCard
from localspec.errors import LocalspecError, UsageMistake

if TYPE_CHECKING:
    from localspec.drafters.base import TrainedDrafter
    from localspec.engine.target import Target

CARD, WEIGHTS = "drafter.json", "drafter.safetensors"
FORMAT = 1


def trained(kind: str) -> "type[TrainedDrafter]":
    """The class of one kind out of `drafter_cards.TRAINED`, which its file names `Drafter`. Imports torch."""
    found: type[TrainedDrafter] = import_module(f"localspec.drafters.{kind}").Drafter
    return found


def make(kind: str, target: "Target", options: Mapping[str, Any]) -> "TrainedDrafter":
    """A new one, untrained. Raises UsageMistake for options that this kind does not have or that do not fit."""
    made = trained(kind)
    names = [option.name for option in fields(made.Options)]
    for name in options:
        if name not in names:
            raise UsageMistake(f"{kind} has no option {name!r}{nearest(name, names)}; it has {', '.join(names)}.")
    for option in fields(made.Options):
        value = options.get(option.name)
        wanted = type(option.default)
        if value is not None and not (
            (isinstance(value, wanted) and isinstance(value, bool) == (wanted is bool))
            or (wanted is float and isinstance(value, int) and not isinstance(value, bool))
        ):
            raise UsageMistake(f"{option.name} = {value!r} of {kind} must be of type {wanted.__name__}; correct it.")
    return made(target, made.Options(**options))


def load(card: DrafterCard, target: "Target") -> "TrainedDrafter":
    """The trained drafter of a directory. Raises UsageMistake where it was made for another target, LocalspecError
    where it is damaged.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not (card.path / CARD).is_file():  # a small language model as it was published
        from localspec.drafters.parallelspec import Drafter

        return Drafter.from_model(card.path, target)
    try:
        drafter = make(card.kind, target, card.options)
    except UsageMistake as mistake:
        raise LocalspecError(f"{card.path / CARD} cannot be used: {mistake}") from None
    file = card.path / WEIGHTS
    try:
        tensors = load_file(file, device=str(target.device))
    except (SafetensorError, OSError) as error:
        raise LocalspecError(f"{file} is damaged ({error}); train the drafter again.") from error
    if broken := next((name for name, tensor in tensors.items() if not tensor.isfinite().all()), None):
        raise LocalspecError(f"'{broken}' in {file} holds numbers that are none; train the drafter again.")
    try:
        drafter.fill(tensors)
    except LocalspecError as error:
        raise LocalspecError(f"{file} does not fit: {error}") from None
    drafter.eval().requires_grad_(False).settle()
    drafter.accuracies = card.about.get("accuracy_by_depth", ())
    return drafter


def save(drafter: "TrainedDrafter", path: Path, about: Mapping[str, Any]) -> None:
    """Writes a directory that `load` reads; `about` is what else drafter.json says. Nothing half-written stays."""
    from safetensors.torch import save_file

    path.mkdir(parents=True, exist_ok=True)
    card = {"format": FORMAT, "kind": drafter.kind, "options": asdict(drafter.options), **about}
    tensors = {name: tensor.contiguous().cpu() for name, tensor in drafter.tensors().items()}
    save_file(tensors, path / (WEIGHTS + ".new"), metadata={"format": "pt"})
    (path / (CARD + ".new")).write_text(json.dumps(card, indent=2) + "\n", "utf-8")
    for name in (WEIGHTS, CARD):
        (path / (name + ".new")).replace(path / name)
