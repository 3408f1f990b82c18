"""What a run of the proof was asked for, as all stages read it, and what of it figures depend on."""

import getpass
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiment import content

from localspec.errors import UsageMistake
from localspec.machine.hardware import devices, versions

ROOT = Path(__file__).resolve().parent.parent.parent
MODELS = Path(tempfile.gettempdir()) / f"localspec-gpu-models-{getpass.getuser()}"
# How many times as wide the demo becomes on a card of so many bytes: 5.7 B, 3.2 B and 1.4 B parameters.
FACTORS = ((40e9, 32), (20e9, 24), (0.0, 16))
SMALL = 2


@dataclass(frozen=True)
class Asked:
    """Where to measure and where to keep it; `small` is a rehearsal with tiny shapes."""

    device: str
    small: bool
    work: Path
    models: Path  # what is large and need not be kept
    prompts: Path | None
    data: Path | None  # what the demo learns from
    factor: int | None

    @property
    def on_gpu(self) -> bool:
        return self.device.startswith("cuda")

    @property
    def width(self) -> int:
        """How many times as wide the demo becomes."""
        if self.factor:
            return self.factor
        if self.small or not self.on_gpu:
            return SMALL
        import torch

        # Its free memory would be asked for with a context, which takes some of it.
        total = torch.cuda.get_device_properties(self.device).total_memory
        return next(factor for least, factor in FACTORS if total >= least)

    def decisive(self) -> dict[str, Any]:
        """What figures depend on: those of other settings are not mixed with them."""
        return {
            "device": self.device, "small": self.small, "computes": versions(self.device), "factor": self.width,
            "prompts": content(self.prompts),
        }  # fmt: skip


def check(asked: Asked) -> None:
    """Raises UsageMistake for a device that is not here, and for files that cannot be read."""
    if asked.device not in ("cuda", "cpu"):
        raise UsageMistake(
            f"--device {asked.device} is not for this; give cuda or cpu, and choose a card by CUDA_VISIBLE_DEVICES."
        )
    if asked.on_gpu and not any(name.startswith("cuda") for name in devices()):
        raise UsageMistake("There is no GPU here that torch can use; rehearse with --device cpu --small.")
    if asked.device == "cpu" and not asked.small:
        raise UsageMistake("On a CPU there is only the rehearsal; give --small.")
    if asked.data is not None and not (asked.data / "chat.jsonl.xz").is_file():
        raise UsageMistake(f"--data {asked.data} holds no chat.jsonl.xz; name the folder that does.")
    try:
        asked.models.mkdir(mode=0o700, parents=True, exist_ok=True)
        own = not hasattr(os, "getuid") or asked.models.stat().st_uid == os.getuid()
    except OSError as error:
        raise UsageMistake(f"--models {asked.models} cannot be used ({error.strerror}); name another.") from None
    if not own:
        raise UsageMistake(f"--models {asked.models} is somebody else's; name a directory of your own.")
    if asked.factor is not None and asked.factor < 1:
        raise UsageMistake(f"--factor {asked.factor} is too small; give 1 or more.")
