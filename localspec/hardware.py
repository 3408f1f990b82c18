"""Facts about this machine: devices, memory, processor cores and how many of them are idle. No policy."""

import os
import sys
import time
from functools import cache

import psutil


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


def free_memory() -> int:
    """Bytes of main memory that a program may still take."""
    return int(psutil.virtual_memory().available)


def peak_memory() -> int:
    """The most bytes of main memory that this process ever held."""
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def cpu_computes_bf16() -> bool:
    """Whether the processor has bf16 instructions; without them bf16 is emulated, many times slower than fp32."""
    import torch

    known: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()  # older versions of torch do not tell
    return any(known.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def devices() -> list[str]:
    """Devices torch can use here, fastest first; the CPU is always one."""
    import torch

    found = [f"cuda:{index}" for index in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    if torch.backends.mps.is_available():
        found.append("mps")
    return [*found, "cpu"]
