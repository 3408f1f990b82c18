"""NVIDIA's driver, queried through its own libraries instead of torch.

This takes a millisecond, for any build of torch.
"""

import ctypes
import re
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

WINDOWS = sys.platform == "win32"
MANAGEMENT = ("nvml.dll",) if WINDOWS else ("libnvidia-ml.so.1", "libnvidia-ml.so")  # NVML
CUDA = ("nvcuda.dll",) if WINDOWS else ("libcuda.so.1",)
_TEXT = 96  # bytes, enough for any version


@dataclass(frozen=True)
class NvidiaDriver:
    """The driver's version, such as 580.65.06; empty if unknown."""

    version: str

    @property
    def branch(self) -> int:
        """The first number of the version; 0 if unknown."""
        first = self.version.partition(".")[0]
        return int(first) if first.isdecimal() else 0


@cache
def nvidia_driver() -> NvidiaDriver | None:
    """Return the driver if it drives a GPU; None otherwise."""
    management = _load(MANAGEMENT)
    if management is not None:
        return _managed(management)
    # Some containers have only the library that computes, not the one that reports.
    return NvidiaDriver(_kernel_version()) if _load(CUDA) is not None else None


def _managed(library: ctypes.CDLL) -> NvidiaDriver | None:
    """Return the driver that NVML reports; None if it does not answer, or drives no GPU."""
    if library.nvmlInit_v2():
        return None
    try:
        count, version = ctypes.c_uint(), ctypes.create_string_buffer(_TEXT)
        if library.nvmlDeviceGetCount_v2(ctypes.byref(count)) or not count.value:
            return None
        failed = library.nvmlSystemGetDriverVersion(version, ctypes.c_uint(_TEXT))
        return NvidiaDriver(_kernel_version() if failed else version.value.decode("utf-8", "replace"))
    finally:
        library.nvmlShutdown()


def _kernel_version() -> str:
    try:
        text = Path("/proc/driver/nvidia/version").read_text("utf-8", "replace")
    except OSError:
        return ""
    found = re.search(r"Kernel Module.*?\s(\d+\.[\d.]+)", text)
    return found[1] if found else ""


def _load(names: tuple[str, ...]) -> ctypes.CDLL | None:
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None
