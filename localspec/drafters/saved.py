"""Loads trained drafters, and reads their options from the command line.

A trained drafter is a directory: `drafter.json` describes it and the target it was made for, and `drafter.safetensors`
holds its weights.
"""

from collections.abc import Sequence
from dataclasses import fields
from importlib import import_module
from typing import Any

from localspec.decoding.calibration import Calibration
from localspec.decoding.compute import DraftableModel
from localspec.drafters.tensors import StoredTensors, check_tensors
from localspec.drafters.trained import OfModel, TrainedDrafter
from localspec.errors import LocalspecError, UsageMistake
from localspec.events import Reporter
from localspec.models.drafter_cards import DrafterCard
from localspec.models.drafter_kinds import kind_of

CARD, WEIGHTS = "drafter.json", "drafter.safetensors"
SWITCHES = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def drafter_class(kind: str) -> type[TrainedDrafter]:
    """Return the class of a kind with weights, which its file names `Drafter`."""
    found: type[TrainedDrafter] = import_module(kind_of(kind).file).Drafter
    return found


def read_options(kind: str, words: Sequence[str]) -> dict[str, Any]:
    """Return options of the form NAME=VALUE, each in its own type. Raises UsageMistake."""
    types = {option.name: type(option.default) for option in fields(drafter_class(kind).Options)}
    found: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise UsageMistake(f"--option {word!r} is not of the form NAME=VALUE; {kind} has {', '.join(types)}.")
        if name in found:
            raise UsageMistake(f"--option {name} is given twice; give it once.")
        found[name] = _value(types.get(name, str), value)
    return found


def _value(type_: type, text: str) -> Any:
    """Return a text converted to this type, or unchanged if that fails: `make_drafter` will say what is wrong."""
    if type_ is bool:
        return SWITCHES.get(text.lower(), text)
    try:
        return type_(text) if type_ in (int, float) else text
    except ValueError:
        return text


def load_drafter(
    card: DrafterCard,
    target: DraftableModel[Any],
    calibration: Calibration | None = None,
    depth: int | None = None,
    reporter: Reporter | None = None,
) -> TrainedDrafter:
    """Return the trained drafter of a directory, with the calibration from earlier replies, if there is one.

    `depth` is the requested number of tokens of a draft, which only a published language model can choose. Raises
    LocalspecError if it is damaged, gone, or does not fit the target; a published small language model that does not
    fit raises UsageMistake. Parts that must be made again, and why, go to the `reporter`.
    """
    class_ = drafter_class(card.kind)
    drafter: TrainedDrafter
    if issubclass(class_, OfModel) and not (card.path / CARD).is_file():  # a published language model
        drafter = class_.from_model(card.path, target, depth)
    else:
        drafter = _read(card, target, reporter or Reporter())
    if calibration is not None:
        drafter.calibration = calibration
    return drafter


def _read(card: DrafterCard, target: DraftableModel[Any], reporter: Reporter) -> TrainedDrafter:
    file, class_ = card.path / WEIGHTS, drafter_class(card.kind)
    tensors = StoredTensors(file)
    try:
        options = class_.parse_options({**class_.BEFORE, **card.options})
        # A few bytes of drafter.json can ask for any amount of memory: check before allocating.
        check_tensors(class_.tensor_specs(target, options), tensors.specs())
        drafter = class_(target, options, target.compute.stored(file, tensors, card.revision, reporter))
    except UsageMistake as mistake:
        raise LocalspecError(f"{card.path / CARD} cannot be used: {mistake}") from None
    except LocalspecError as error:
        raise LocalspecError(f"{file} does not fit: {error}") from None
    drafter.accuracies = card.about.get("accuracy_by_depth", ())
    return drafter
