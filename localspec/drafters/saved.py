"""Loads trained drafters.

A trained drafter is a directory: `drafter.json` describes it and the target it was made for, and `drafter.safetensors`
holds its weights.
"""

from importlib import import_module
from typing import Any

from localspec.decoding.calibration import Calibration
from localspec.decoding.compute import DraftableModel
from localspec.drafters.tensors import StoredTensors, check_tensors
from localspec.drafters.trained import OfModel, TrainedDrafter, check_vocabulary
from localspec.errors import LocalspecError, UsageMistake
from localspec.events import Reporter
from localspec.models.drafter_cards import DrafterCard, remedy
from localspec.models.drafter_kinds import kind_of

CARD, WEIGHTS = "drafter.json", "drafter.safetensors"


def drafter_class(kind: str) -> type[TrainedDrafter]:
    """Return the class `Drafter` in the file of a kind with weights."""
    found: type[TrainedDrafter] = import_module(kind_of(kind).file).Drafter
    return found


def load_drafter(
    card: DrafterCard,
    target: DraftableModel[Any],
    calibration: Calibration | None = None,
    depth: int | None = None,
    reporter: Reporter | None = None,
) -> TrainedDrafter:
    """Return the trained drafter of a directory, with the calibration from earlier replies, if there is one.

    `depth` is the requested number of tokens of a draft; only a published language model uses it. Raises LocalspecError
    if the drafter is damaged, missing, or does not fit the target. A published small language model that does not fit
    raises UsageMistake. Problems with a cached packed form go to the `reporter`.
    """
    class_, file = drafter_class(card.kind), card.path / WEIGHTS
    drafter: TrainedDrafter
    if issubclass(class_, OfModel) and not (card.path / CARD).is_file():  # a published language model
        drafter = class_.from_model(card.path, target, depth)
    else:
        tensors = StoredTensors(file)
        try:
            options = class_.parse_options({**class_.BEFORE, **card.options})
            # A few bytes of drafter.json can ask for any amount of memory: check before allocating.
            check_tensors(class_.tensor_specs(target, options), tensors.specs(), remedy(file))
            if (kept := tensors.get("kept")) is not None:
                check_vocabulary(int(kept.min()), int(kept.max()), target.vocab_size, remedy(file))
            stored = target.compute.stored(file, tensors, card.revision, reporter or Reporter())
            drafter = class_(target, options, stored)
        except UsageMistake as mistake:
            raise LocalspecError(f"{card.path / CARD} cannot be used: {mistake}") from None
        except LocalspecError as error:
            raise LocalspecError(f"{file} does not fit: {error}") from None
        drafter.accuracies = card.about.get("accuracy_by_depth", ())
    if calibration is not None:
        drafter.calibration = calibration
    return drafter
