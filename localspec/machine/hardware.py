"""Facts about this machine: its devices, the speed of their memory, its CPU. No policy."""

import os
import platform
import time
from functools import cache
from pathlib import Path

import psutil

from localspec import config
from localspec.machine.memory import free_memory

# Instructions that decide which matrix kernels torch takes.
KERNELS = ("avx_vnni", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16", "dot", "i8mm", "bf16", "sve")


@cache
def physical_cores() -> int:
    """Cores this process may use; two threads of one core share its arithmetic, so they count once."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else psutil.cpu_count() or 1
    return max(1, min(psutil.cpu_count(logical=False) or allowed, allowed))


class IdleCores:
    """How many cores other programs left idle since the last look."""

    def __init__(self) -> None:
        self._last = self._read()

    def __call__(self) -> int:
        """At least 1. Our own work counts as idle: it is we who would use those cores."""
        now, last = self._read(), self._last
        passed = now[0] - last[0]
        if passed < 0.05:  # the kernel counts in hundredths of a second
            return physical_cores()
        self._last = now
        others = max(0.0, (now[1] - last[1]) - (now[2] - last[2])) / passed
        return max(1, physical_cores() - round(others))

    @staticmethod
    def _read() -> tuple[float, float, float]:
        """(seconds, busy seconds of all cores, busy seconds of this process)."""
        times, own = psutil.cpu_times(), psutil.Process().cpu_times()
        idle = times.idle + getattr(times, "iowait", 0.0)
        return time.monotonic(), sum(times[:8]) - idle, own.user + own.system


def cpu_computes_bf16() -> bool:
    """Whether the CPU has bf16 instructions; without them bf16 is emulated, many times slower than fp32."""
    return not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(capabilities())


def cpu_multiplies_int8() -> bool:
    """Whether this build of torch has int8 kernels that pack a weight for this CPU."""
    import torch

    return not {"x86", "fbgemm"}.isdisjoint(torch.backends.quantized.supported_engines)


def capabilities() -> list[str]:
    """The capabilities of the CPU that decide which kernels torch takes; the widest vectors first."""
    import torch

    known: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()  # older versions of torch do not say
    return [torch.backends.cpu.get_cpu_capability().lower(), *(name for name in KERNELS if known.get(name))]


def cpu_name() -> str:
    """The name under which the CPU is sold."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def versions(device: str = "cpu") -> str:
    """One line that says what a measurement on this device is valid for: torch, the device, what it computes with."""
    import torch

    if device.startswith("cuda"):
        return f"torch {torch.__version__}, {torch.cuda.get_device_name(device)}, CUDA {torch.version.cuda}"
    cores = f"{physical_cores()} cores"
    parts = [f"torch {torch.__version__}", cpu_name(), *capabilities(), cores, *config.kernel_settings()]
    if device == "mps":
        parts += ["mps", f"macOS {platform.mac_ver()[0]}"]
    return ", ".join(parts)


def devices() -> list[str]:
    """The devices that torch can use, the fastest first; the CPU is always one."""
    import torch

    found = [f"cuda:{index}" for index in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    if torch.backends.mps.is_available():
        found.append("mps")
    return [*found, "cpu"]


def memory_bandwidth(device: str = "cpu") -> float:
    """Bytes a second that can be read from a device's memory, measured in under half a second.

    Reads 512 MiB (on a GPU, which is faster, 4 GiB), or an eighth of what is free.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(physical_cores())
    try:
        limit = 4 * 2**30 if device.startswith("cuda") else 512 * 2**20
        # ones, because pages that hold nothing yet are not read from memory
        buffer = torch.ones(min(limit, free_memory(device) // 8) // 4, dtype=torch.float32, device=device)
        best, began = float("inf"), time.perf_counter()
        for repetition in range(8):
            if repetition > 2 and time.perf_counter() - began > 0.3:
                break
            start = time.perf_counter()
            buffer.sum()
            wait_for(device)
            best = min(best, time.perf_counter() - start)
        return buffer.nbytes / best
    finally:
        torch.set_num_threads(threads)


def wait_for(device: str) -> None:
    """Waits until a GPU has done its work, which Python does not wait for."""
    import torch

    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
    elif device == "mps":
        torch.mps.synchronize()
