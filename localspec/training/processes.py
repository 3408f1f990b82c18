"""Training in several processes, started by `accelerate launch` on one machine or several.

With its flag --use_fsdp, each process holds a part of every layer of the target. It receives the rest of a layer only
while it computes with that layer. Each process has the whole drafter, embedding and head.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import nn

from localspec.choosing.choice import Choice
from localspec.config import Settings
from localspec.errors import UsageMistake
from localspec.machine.machine import Machine
from localspec.training.trainable import TrainableDrafter

FSDP = "ACCELERATE_USE_FSDP"


def count() -> int:
    """Return the number of processes."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def divides() -> bool:
    """Return whether the target's layers are divided among the processes."""
    return count() > 1 and os.environ.get(FSDP, "").lower() == "true"


def begin(choice: Choice) -> Accelerator:
    """Return accelerate's object for all processes of this training, or for a single process.

    The drafter computes in the target's precision.
    """
    dense = choice.quantize == "none"
    precision = choice.dtype if dense and choice.dtype != "fp32" else "no"
    with _unset(FSDP):  # accelerate would divide the small trained part instead of the target
        return Accelerator(cpu=choice.device == "cpu", mixed_precision=precision)


@contextmanager
def _unset(variable: str) -> Iterator[None]:
    value = os.environ.pop(variable, None)
    try:
        yield
    finally:
        if value is not None:
            os.environ[variable] = value


def agree(processes: Accelerator, values: Mapping[str, Any]) -> None:
    """Raise UsageMistake in every process if the processes have different `values`."""
    if processes.num_processes == 1:
        return
    everywhere = gather_object([dict(values)])
    for name in values:
        first, *others = (entry[name] for entry in everywhere)
        if different := [value for value in others if value != first]:
            raise UsageMistake(
                f"The processes differ in {name} ({first!r} and {different[0]!r}); start the same command on every "
                "machine, with the same files and an -o that they share."
            )


def layer_divider(processes: Accelerator) -> Callable[[nn.Module], None]:
    """Return a function that divides the weights of a loaded layer among all processes."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(processes.device.type, (processes.num_processes,))

    def give_back(layer: Any, *_: Any) -> None:
        layer.reshard()  # torch itself would leave a layer undivided that is in no other divided module

    def divide(layer: nn.Module) -> None:
        fully_shard(layer, mesh=mesh)
        layer.register_forward_hook(give_back)

    return divide


def for_divided(settings: Settings, machine: Machine) -> tuple[Settings, Machine]:
    """Return settings and machine for choosing a target that is divided: dense weights, and the memory of all GPUs.

    Raises UsageMistake for packed weights.
    """
    if settings.quantize not in ("auto", "none"):
        raise UsageMistake(
            f"A model in {settings.quantize} cannot be divided among processes; leave --quantize out, or --use_fsdp of "
            "accelerate."
        )
    cards = (
        replace(device, free=count() * device.free, total=count() * device.total) if device.type == "cuda" else device
        for device in machine.devices
    )
    return replace(settings, quantize="none"), replace(machine, devices=tuple(cards))


def check_divided(drafter: TrainableDrafter) -> None:
    """Raise UsageMistake if training this drafter computes with the target's layers, which must then not be divided."""
    if drafter.changes_target or drafter.reads_layers:
        raise UsageMistake(
            f"This form of {drafter.kind} learns through the model's own layers, which then cannot be divided among "
            "processes; leave accelerate's --use_fsdp out, or train medusa, parallelspec or semi."
        )
