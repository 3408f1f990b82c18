"""The machine as plain facts: its devices, what they compute in, and why torch cannot use more of them."""

import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from localspec.machine import hardware, memory
from localspec.machine.packings import lacking

LEAST_FREE = 600 * 10**6  # bytes of a device's memory that always stay free, or a tenth of it
PACKINGS = ("int8", "int4", "nf4")

# The oldest driver that each build of torch for NVIDIA runs with, the newest first.
_CUDA_BUILDS = ((580, "cu130"), (570, "cu128"), (525, "cu126"))


@dataclass(frozen=True)
class Device:
    """One place to compute: its memory in bytes, and what it computes in, the best first.

    `missing` says, for each packing that cannot be used, what it lacks here. `bandwidth` is the bytes a second that can
    be read from its memory; None where that was not measured.
    """

    name: str
    title: str
    total: int
    free: int
    dtypes: tuple[str, ...]
    packings: tuple[str, ...] = ()
    capability: str = ""
    bandwidth: float | None = None
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def type(self) -> str:
        """cpu, cuda or mps."""
        return self.name.partition(":")[0]

    @property
    def usable(self) -> int:
        """Bytes that a model may take: Windows would silently move more than that to main memory."""
        return max(0, self.free - max(self.total // 10, LEAST_FREE))


@dataclass(frozen=True)
class Machine:
    """The devices that torch can use, the fastest first and the CPU last."""

    devices: tuple[Device, ...]
    cores: int

    def device(self, name: str) -> Device | None:
        """The device of this name; `cuda` is the first of several."""
        name = "cuda:0" if name == "cuda" else name
        return next((device for device in self.devices if device.name == name), None)


def this_machine(bandwidth: Callable[[str], float | None] = lambda device: None) -> Machine:
    """This machine, with its free memory as it is now. `bandwidth` gives that of a device, where it is known."""
    devices = tuple(_device(name, bandwidth(name)) for name in hardware.devices())
    return Machine(devices, hardware.physical_cores())


def _device(name: str, bandwidth: float | None) -> Device:
    title, dtypes, capability = _description(name)
    missing = {packing: reason for packing in PACKINGS if (reason := lacking(packing, name))}
    packings = tuple(packing for packing in PACKINGS if packing not in missing)
    total, free = memory.total_memory(name), memory.free_memory(name)
    return Device(name, title, total, free, dtypes, packings, capability, bandwidth, missing)


def _description(name: str) -> tuple[str, tuple[str, ...], str]:
    """(title, dtypes that it computes in at full speed, what identifies its generation)."""
    if name.startswith("cuda"):
        import torch

        major, minor = torch.cuda.get_device_capability(name)
        dtypes = ("bf16", "fp16", "fp32") if major >= 8 else ("fp16", "fp32")
        return torch.cuda.get_device_name(name), dtypes, f"compute capability {major}.{minor}"
    if name == "mps":
        return hardware.cpu_name(), ("bf16", "fp16", "fp32"), f"macOS {platform.mac_ver()[0]}"
    native = ("bf16", "fp32") if hardware.cpu_computes_bf16() else ("fp32",)
    return hardware.cpu_name(), native, ", ".join(hardware.capabilities())


# -- a build of torch that cannot use what is there --------------------------------------------------------------------


def torch_trouble() -> str | None:
    """A sentence with the command that mends it, where this build of torch cannot use a GPU of this machine."""
    import torch

    version = torch.__version__
    plain = version.partition("+")[0]
    if torch.cuda.is_available() or torch.backends.mps.is_available():
        return None
    if sys.platform == "darwin":
        if platform.machine() == "x86_64" and "Apple" in hardware.cpu_name():
            return (
                "This Python is made for Intel and runs translated, so torch cannot use the GPU of this Mac: "
                "install a Python for arm64, and localspec with it."
            )
        return None
    if (driver := _nvidia_driver()) is not None:
        build = next((build for oldest, build in _CUDA_BUILDS if driver >= oldest), None)
        if build is None:
            return f"NVIDIA driver {driver} found, and torch {version} needs {_CUDA_BUILDS[-1][0]} or newer: update it."
        if torch.version.cuda is None:
            return f"NVIDIA driver {driver} found, torch {version} is a CPU build: {_install(plain, build)}"
        if "cu" + torch.version.cuda.replace(".", "") <= build:
            return (
                f"NVIDIA driver {driver} found, and torch {version} sees no GPU: CUDA_VISIBLE_DEVICES or a container "
                "may hide it."
            )
        return (
            f"NVIDIA driver {driver} found, torch {version} is built for CUDA {torch.version.cuda} and needs a newer "
            f"one: {_install(plain, build)}"
        )
    if torch.version.hip is None and Path("/dev/kfd").exists():
        return f"An AMD GPU is found, and torch {version} is not built for it: {_install(plain, 'rocm6.4')}"
    return None


def _install(version: str, build: str) -> str:
    index = f"https://download.pytorch.org/whl/{build}"
    return f"{sys.executable} -m pip install --force-reinstall torch=={version} --index-url {index}"


def _nvidia_driver() -> int | None:
    """The first number of the driver's version; None where there is no driver or no GPU."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text("utf-8", "replace")
    except OSError:
        program = shutil.which("nvidia-smi")
        if program is None:
            return None
        command = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
        try:
            answer = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
        except (OSError, subprocess.SubprocessError):
            return None
        text = f"Kernel Module {answer.stdout}"
    found = re.search(r"Kernel Module.*?\s(\d+)\.\d", text)
    return int(found[1]) if found else None
