"""How trained drafters are made, saved and loaded.

A trained drafter is a directory: `drafter.json` says what it is and which target it was made for, and
`drafter.safetensors` holds its weights.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localspec.errors import LocalspecError, UsageMistake
from localspec.models.drafter_cards import FORMAT, DrafterCard
from localspec.models.drafter_kinds import kind_of

if TYPE_CHECKING:
    from localspec.decoding.calibration import Calibration
    from localspec.drafters.trained import TrainedDrafter
    from localspec.nn.target import Target

CARD, WEIGHTS = "drafter.json", "drafter.safetensors"


def drafter_class(kind: str) -> "type[TrainedDrafter]":
    """The class of a kind that is trained, which its file names `Drafter`. Imports torch."""
    found: type[TrainedDrafter] = import_module(kind_of(kind).file).Drafter
    return found


def make_drafter(kind: str, target: "Target", options: Mapping[str, Any]) -> "TrainedDrafter":
    """Returns a new, untrained drafter. Raises UsageMistake for options that it cannot have."""
    class_ = drafter_class(kind)
    return class_(target, class_.parse_options(options))


def load_drafter(card: DrafterCard, target: "Target", calibration: "Calibration | None" = None) -> "TrainedDrafter":
    """Returns the trained drafter of a directory, with the calibration that earlier replies gave it, if any did.

    Raises LocalspecError where it is damaged or does not fit the target; of a small language model as it was published
    UsageMistake says the latter.
    """
    if (card.path / CARD).is_file():
        drafter = _read(card, target)
    else:  # a small language model as it was published
        drafter = drafter_class(card.kind).from_model(card.path, target)
    if calibration is not None:
        drafter.calibration = calibration
    return drafter


def _read(card: DrafterCard, target: "Target") -> "TrainedDrafter":
    from safetensors import SafetensorError, safe_open

    from localspec.drafters.trained import TensorSpec
    from localspec.nn.small_model import without_weights

    file = card.path / WEIGHTS
    try:
        with safe_open(file, framework="pt") as stored:  # a GPU holds them once only: they are loaded into place
            entries = {name: TensorSpec.of(stored.get_slice(name)) for name in stored.keys()}  # noqa: SIM118
            # A few bytes of drafter.json can ask for any amount of memory: nothing is allocated for what does not fit.
            make_drafter(card.kind, without_weights(target), card.options).check_tensors(entries)
            tensors = {name: stored.get_tensor(name) for name in entries}
        if broken := next((name for name, tensor in tensors.items() if not tensor.isfinite().all()), None):
            raise LocalspecError(f"'{broken}' holds NaN or inf; train the drafter again.")
        drafter = make_drafter(card.kind, target, card.options)
        drafter.load_tensors(tensors)
    except UsageMistake as mistake:
        raise LocalspecError(f"{card.path / CARD} cannot be used: {mistake}") from None
    except LocalspecError as error:
        raise LocalspecError(f"{file} does not fit: {error}") from None
    except (SafetensorError, OSError) as error:
        raise LocalspecError(f"{file} is damaged ({error}); train the drafter again.") from error
    drafter.eval().requires_grad_(False).cast_for_inference()
    drafter.accuracies = card.about.get("accuracy_by_depth", ())
    return drafter


def save_drafter(drafter: "TrainedDrafter", path: Path, about: Mapping[str, Any]) -> None:
    """Writes a directory for `load_drafter`; `about` is what else drafter.json says. No reader sees half a file."""
    from safetensors.torch import save_file

    path.mkdir(parents=True, exist_ok=True)
    card = {"format": FORMAT, "kind": drafter.kind, "options": asdict(drafter.options), **about}
    tensors = {name: tensor.contiguous().cpu() for name, tensor in drafter.tensors().items()}
    save_file(tensors, path / (WEIGHTS + ".new"), metadata={"format": "pt"})
    (path / (CARD + ".new")).write_text(json.dumps(card, indent=2) + "\n", "utf-8")
    for name in (WEIGHTS, CARD):
        (path / (name + ".new")).replace(path / name)
