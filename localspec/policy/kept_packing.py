"""The packing in which a model is kept on disk: the one that the CPU engine would load it in."""

from localspec.config import Settings
from localspec.errors import LocalspecError
from localspec.machine.machine import Machine
from localspec.models.model import Model
from localspec.models.registry import NOWHERE, TargetCard
from localspec.models.shape import Shape
from localspec.policy.drafter_spec import DrafterSpec
from localspec.policy.measurements import MeasurementSource
from localspec.policy.selection import choices
from localspec.weights.packed_files import FILED

LOSSLESS = "int8"  # where another machine will load it, or this one has no answer: it loses next to nothing


def kept_packing(
    name: str, license_: str | None, shape: Shape, settings: Settings, machine: Machine, measurements: MeasurementSource
) -> str | None:
    """The packing in which the CPU engine would load a model of this shape; None where it would not."""
    model = Model(TargetCard(name, NOWHERE, license_, ""), shape, shape.parameters)
    try:
        choice = choices(model, DrafterSpec("auto"), _of_weights(settings), machine, measurements)[0]
    except LocalspecError:  # it is told when the model is loaded
        return None
    return choice.quantize if choice.engine == "native" and choice.quantize in FILED else None


def _of_weights(settings: Settings) -> Settings:
    """The settings as far as they decide on the form of the weights."""
    return Settings(
        device=settings.device, dtype=settings.dtype, quantize=settings.quantize, context=settings.context,
        exact=settings.exact,
    )  # fmt: skip
