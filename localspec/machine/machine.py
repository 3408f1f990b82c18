"""Facts about the machine: its devices, the formats that each computes in, and why other formats do not work."""

import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path

from localspec.machine import compiled, hardware, memory
from localspec.machine.hardware import nvidia_driver, torch_build

_OPERATORS = {"int8": "aten::_weight_int8pack_mm", "int4": "aten::_weight_int4pack_mm"}  # on Apple's GPUs


def lacking(quantize: str, device: str) -> str:
    """Return the reason why a device cannot compute in a packing, as a clause; empty if the packing works."""
    device_type = device.partition(":")[0]
    if quantize == "none":
        return ""
    if device_type == "mps" and quantize in _OPERATORS:
        import torch

        has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key(_OPERATORS[quantize], "MPS")
        return "" if has_kernel else f"this build of torch has no {quantize} kernels for Apple's GPUs"
    if device_type == "cpu" and quantize in ("int8", "int4"):
        return compiled.missing()
    if quantize == "int4":
        return "int4 is for CPUs and Apple's GPUs"
    if device_type != "cuda":
        return (
            f"{quantize} is for NVIDIA's GPUs" if quantize == "nf4" else f"{quantize} has no kernels for {device_type}"
        )
    if quantize == "int8":
        import torch

        if torch.cuda.get_device_capability(device) < (7, 5):  # older than Turing
            return f"int8 on {device} needs a GPU of compute capability 7.5 or more"
    return "" if find_spec("bitsandbytes") else "bitsandbytes is not installed; pip install bitsandbytes"


PACKINGS = ("int8", "int4", "nf4")

# The oldest driver for each build of torch for NVIDIA, the newest first.
_CUDA_BUILDS = ((580, "cu130"), (570, "cu128"), (525, "cu126"))


@dataclass(frozen=True)
class Device:
    """A device: its memory in bytes, and the formats that it computes in, the best first.

    `missing` maps each packing that cannot be used on the device to what this packing needs. `bandwidth` is the bytes
    per second that can be read from its memory; None if not measured.
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
    engine: str = "torch"  # the backend there: native, our own library, or torch
    cores: int = 1  # of a CPU; for an NVIDIA GPU its multiprocessors, 1 if their number is unknown
    block_bits: float = 0.0  # of a weight in GGUF's blocks, if the question is about a model in blocks

    @property
    def backend(self) -> str:
        """The backend that computes on the device: native on a CPU with the compiled library, else torch's type of the
        device. A model's bytes and speed depend on it."""
        return self.engine if self.engine == "native" else self.type

    @property
    def type(self) -> str:
        """The type of the device: cpu, cuda or mps."""
        return self.name.partition(":")[0]

    @property
    def usable(self) -> int:
        """The bytes that a model may take. Windows would silently move anything beyond that to main memory."""
        return memory.usable(self.free, self.total)

    def as_torch_has_it(self) -> "Device":
        """Return a CPU as torch uses it, without the compiled library, with torch's dtypes; other devices unchanged."""
        return replace(self, engine="torch", dtypes=("fp32", "bf16")) if self.type == "cpu" else self


@dataclass(frozen=True)
class Machine:
    """The devices that can be used, the fastest first and the CPU last."""

    devices: tuple[Device, ...]
    cores: int

    def device(self, name: str) -> Device | None:
        """Return the device with this name; None if there is no such device. `cuda` means the first CUDA device."""
        name = "cuda:0" if name == "cuda" else name
        return next((device for device in self.devices if device.name == name), None)

    def as_torch_has_it(self) -> "Machine":
        """Return this machine with torch, not the compiled library, as the engine of its CPU.

        Training needs torch, because the compiled library has no gradients. Packed weights keep the library's form, and
        torch makes them dense for each product.
        """
        return replace(self, devices=tuple(device.as_torch_has_it() for device in self.devices))


def this_machine(bandwidth: Callable[[str], float | None] = lambda device: None) -> Machine:
    """Return this machine with its present free memory. `bandwidth` returns a device's bandwidth, if known."""
    devices = tuple(_device(name, bandwidth(name)) for name in hardware.devices())
    return Machine(devices, hardware.physical_cores())


def _device(name: str, bandwidth: float | None) -> Device:
    title, dtypes, capability = _description(name)
    missing = {packing: reason for packing in PACKINGS if (reason := lacking(packing, name))}
    packings = tuple(packing for packing in PACKINGS if packing not in missing)
    total, free = memory.total_memory(name), memory.free_memory(name)
    cores = hardware.physical_cores() if name == "cpu" else 1
    if name.startswith("cuda"):
        import torch

        cores = int(torch.cuda.get_device_properties(name).multi_processor_count)
    return Device(name, title, total, free, dtypes, packings, capability, bandwidth, missing, engine_of(name), cores)


def engine_of(name: str) -> str:
    """Return the backend of a device: the compiled library on a CPU; torch elsewhere, or if the library is missing."""
    return "native" if name == "cpu" and not compiled.missing() else "torch"


def _description(name: str) -> tuple[str, tuple[str, ...], str]:
    """Return a device's (name for display, dtypes at full speed, generation of a GPU or instruction set of a CPU)."""
    if name.startswith("cuda"):
        import torch

        major, minor = torch.cuda.get_device_capability(name)
        dtypes = ("bf16", "fp16", "fp32") if major >= 8 else ("fp16", "fp32")
        return torch.cuda.get_device_name(name), dtypes, f"compute capability {major}.{minor}"
    if name == "mps":
        return hardware.cpu_name(), ("bf16", "fp16", "fp32"), f"macOS {platform.mac_ver()[0]}"
    computes = compiled.instruction_set()
    return hardware.cpu_name(), ("bf16", "fp32") if computes else ("fp32",), computes or compiled.missing()


# -- a build of torch that cannot use the hardware ---------------------------------------------------------------------


def torch_trouble() -> str | None:
    """Return a sentence if the installed torch cannot use a GPU of this machine, with the command that repairs it."""
    build = torch_build()
    plain = build.version.partition("+")[0]
    if hardware.devices() != ["cpu"]:
        return None
    if sys.platform == "darwin":
        if platform.machine() == "x86_64" and "Apple" in hardware.cpu_name():
            return (
                "This Python is built for Intel and runs under Rosetta, so torch cannot use the GPU of this Mac: "
                "install a Python for arm64, and localspec with it."
            )
        return None
    if (driver := nvidia_driver()) is not None:
        version = driver.branch or "of an unknown version"
        shown = f"NVIDIA driver {version} found"
        best = next((name for oldest, name in _CUDA_BUILDS if driver.branch >= oldest), None)
        if best is None and driver.branch:
            return f"{shown}, and torch {build.version} needs {_CUDA_BUILDS[-1][0]} or newer: update the driver."
        best = best or _CUDA_BUILDS[-1][1]
        if build.cuda is None:
            return f"{shown}, torch {build.version} is a CPU build: {_install(plain, best)}"
        if "cu" + build.cuda.replace(".", "") <= best:
            return (
                f"{shown}, and torch {build.version} sees no GPU: CUDA_VISIBLE_DEVICES or a container may be hiding it."
            )
        return (
            f"{shown}, torch {build.version} is built for CUDA {build.cuda} and needs a newer one: "
            f"{_install(plain, best)}"
        )
    if build.hip is None and Path("/dev/kfd").exists():
        return f"There is an AMD GPU, but torch {build.version} is not built for it: {_install(plain, 'rocm6.4')}"
    return None


def _install(version: str, build: str) -> str:
    index = f"https://download.pytorch.org/whl/{build}"
    return f"{sys.executable} -m pip install --force-reinstall torch=={version} --index-url {index}"
