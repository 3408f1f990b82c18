"""The settings of a run of `gpu_proof.py`, which all stages read."""

import os
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiment import content

from localspec.errors import UsageMistake
from localspec.machine.hardware import devices, versions

ROOT = Path(__file__).resolve().parent.parent.parent
MODELS = Path(tempfile.gettempdir()) / f"localspec-gpu-models-{os.getuid()}"  # where others may write, too
# How many times as wide the demo becomes, by the bytes of the card: 5.7 B, 3.2 B and 1.4 B parameters.
FACTORS = ((40e9, 32), (20e9, 24), (0.0, 16))
SMALL = 2


@dataclass(frozen=True)
class Request:
    """The settings of a run: where to measure, and where to save. `small` is a rehearsal with tiny shapes."""

    device: str
    small: bool
    work: Path
    models: Path  # large files that need not be kept
    prompts: Path | None
    data: Path | None  # texts that the demo learns from
    factor: int | None

    @property
    def on_gpu(self) -> bool:
        return self.device.startswith("cuda")

    @property
    def width(self) -> int:
        """The number of times that the demo model is widened, which depends on the GPU's memory by default."""
        if self.factor:
            return self.factor
        if self.small or not self.on_gpu:
            return SMALL
        import torch

        # A query of its free memory would need a context, which takes some memory.
        total = torch.cuda.get_device_properties(self.device).total_memory
        return next(factor for least, factor in FACTORS if total >= least)

    def decisive(self) -> dict[str, Any]:
        """Return the settings that change figures. Figures of different settings are not mixed."""
        return {
            "device": self.device, "small": self.small, "computes": versions(self.device), "factor": self.width,
            "prompts": content(self.prompts),
        }  # fmt: skip


def check(request: Request) -> None:
    """Raise UsageMistake for a device that this machine does not have, and for files that cannot be read."""
    if request.device not in ("cuda", "cpu"):
        raise UsageMistake(
            f"--device {request.device} is not for this; give cuda or cpu, and choose a card by CUDA_VISIBLE_DEVICES."
        )
    if request.on_gpu and not any(name.startswith("cuda") for name in devices()):
        raise UsageMistake("There is no GPU here that torch can use; rehearse with --device cpu --small.")
    if request.device == "cpu" and not request.small:
        raise UsageMistake("On a CPU there is only the rehearsal; give --small.")
    if request.data is not None and not (request.data / "chat.jsonl.xz").is_file():
        raise UsageMistake(f"--data {request.data} holds no chat.jsonl.xz; name the folder that does.")
    if request.factor is not None and request.factor < 1:
        raise UsageMistake(f"--factor {request.factor} is too small; give 1 or more.")
    claim(request.models)


def claim(models: Path) -> None:
    """Make the directory of large models. Only this user may write to it, because models are loaded from it.

    Raises UsageMistake if it is a file, belongs to somebody else, is somebody else's link, or if others may write to
    it.
    """
    try:
        models.mkdir(mode=0o700, parents=True, exist_ok=True)
        owners, mode = {models.lstat().st_uid, models.stat().st_uid}, models.stat().st_mode
    except OSError as error:
        raise UsageMistake(f"--models {models} cannot be used ({error.strerror}); name another directory.") from None
    if owners != {os.getuid()}:
        raise UsageMistake(f"--models {models} is somebody else's; name a directory of your own.")
    if mode & (stat.S_IWOTH | (stat.S_IWGRP if models == MODELS else 0)):
        raise UsageMistake(f"Into --models {models} others may write; take that right away from them, or name another.")
