"""Facts about this machine: devices, memory and its speed, processor cores, what a forward costs. No policy."""

import os
import platform
import sys
import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median_low
from typing import TYPE_CHECKING, Any

import psutil

from localspec import config

if TYPE_CHECKING:
    from localspec.engine.target import Target

ROWS = (1, 2, 4, 8, 16, 32, 64)
NEAR, FAR = 256, 2048  # tokens of context
MOST_REPETITIONS = 15
ENOUGH_SECONDS = 1.0  # of repetitions, but two of them at least
PATIENCE_SECONDS = 3.0  # beyond this one is enough; and no more rows are tried behind a forward that takes so long

# Instructions that decide which matrix kernels are taken.
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


def free_memory(device: str = "cpu") -> int:
    """Bytes of a device's memory that a program may still take; all but a GPU share the main memory."""
    if device.startswith("cuda"):
        import torch

        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)


def peak_memory() -> int:
    """The most bytes of main memory that this process ever held."""
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def cpu_computes_bf16() -> bool:
    """Whether the processor has bf16 instructions; without them bf16 is emulated, many times slower than fp32."""
    return not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(capabilities())


def cpu_multiplies_int8() -> bool:
    """Whether this build of torch has int8 kernels that pack a weight for this processor."""
    import torch

    return not {"x86", "fbgemm"}.isdisjoint(torch.backends.quantized.supported_engines)


def capabilities() -> list[str]:
    """What the processor can do that decides which kernels torch takes; the widest vectors first."""
    import torch

    known: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()  # older versions of torch do not tell
    return [torch.backends.cpu.get_cpu_capability().lower(), *(name for name in KERNELS if known.get(name))]


def processor() -> str:
    """The name of the processor, as it is sold."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


def versions(device: str = "cpu") -> str:
    """What a measurement on this device is only valid for, in one line: torch, the device, what it computes with."""
    import torch

    if device.startswith("cuda"):
        return f"torch {torch.__version__}, {torch.cuda.get_device_name(device)}, CUDA {torch.version.cuda}"
    cores = f"{physical_cores()} cores"
    parts = [f"torch {torch.__version__}", processor(), *capabilities(), cores, *config.kernel_settings()]
    if device == "mps":
        parts += ["mps", f"macOS {platform.mac_ver()[0]}"]
    return ", ".join(parts)


def devices() -> list[str]:
    """Devices torch can use here, fastest first; the CPU is always one."""
    import torch

    found = [f"cuda:{index}" for index in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    if torch.backends.mps.is_available():
        found.append("mps")
    return [*found, "cpu"]


def memory_bandwidth(device: str = "cpu") -> float:
    """Bytes a second that can be read from a device's memory, measured in under half a second.

    Takes 512 MiB for it (4 GiB of a GPU's memory, which is faster), or an eighth of what is free.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(physical_cores())
    try:
        limit = 4 * 2**30 if device.startswith("cuda") else 512 * 2**20
        # ones: pages that hold nothing yet are not read from memory
        buffer = torch.ones(min(limit, free_memory(device) // 8) // 4, dtype=torch.float32, device=device)
        best, began = float("inf"), time.perf_counter()
        for repetition in range(8):
            if repetition > 2 and time.perf_counter() - began > 0.3:
                break
            start = time.perf_counter()
            buffer.sum()
            _wait_for(device)
            best = min(best, time.perf_counter() - start)
        return buffer.nbytes / best
    finally:
        torch.set_num_threads(threads)


def _wait_for(device: str) -> None:
    """A GPU works on while Python goes on."""
    import torch

    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
    elif device == "mps":
        torch.mps.synchronize()


# -- what a forward costs ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ForwardCosts:
    """Seconds of one target forward, by rows (new tokens) and by the committed tokens before them.

    `seconds` has a line for each of `contexts`, with a figure for each of `rows`; both ascend.
    """

    rows: tuple[int, ...]
    contexts: tuple[int, ...]
    seconds: tuple[tuple[float, ...], ...]

    def at(self, rows: int, context: int) -> float:
        """Seconds of a forward of so many rows behind so many tokens: linear between what was measured and beyond it.

        Below what was measured, the nearest figure.
        """
        return _linear(self.contexts, [_linear(self.rows, line, rows) for line in self.seconds], context)

    def as_list(self) -> list[object]:
        """What `from_list` reads, of lists and numbers only."""
        return [list(self.rows), list(self.contexts), [list(line) for line in self.seconds]]

    @classmethod
    def from_list(cls, value: Any) -> "ForwardCosts | None":
        """The costs that `as_list` wrote; None for anything else, for costs can be measured again."""
        try:
            rows, contexts, seconds = value
            costs = cls(tuple(map(int, rows)), tuple(map(int, contexts)), tuple(tuple(map(float, s)) for s in seconds))
        except (TypeError, ValueError, OverflowError):
            return None
        ascending = all(points and sorted({*points}) == [*points] for points in (costs.rows, costs.contexts))
        whole = [len(line) for line in costs.seconds] == [len(costs.rows)] * len(costs.contexts)
        positive = all(1e-9 < figure < 1e4 for line in costs.seconds for figure in line)  # what seconds can be
        return costs if ascending and whole and positive else None


def _linear(points: Sequence[int], values: Sequence[float], at: int) -> float:
    """Through (points, values); beyond the last one as between the last two, below the first one its value."""
    if len(points) == 1 or at <= points[0]:
        return values[0]
    right = min(bisect_left(points, at), len(points) - 1)
    share = (at - points[right - 1]) / (points[right] - points[right - 1])
    return values[right - 1] * (1 - share) + values[right] * share  # of this form, for it is exact at the points


def forward_costs(target: "Target") -> ForwardCosts:
    """Measures forwards of 1 to 64 rows at two contexts: about a second for most models, longer for very large ones.

    The numbers of rows take turns, so that a busy moment meets them all. A context that does not fit is left out, and
    so are more rows once a forward takes more than three seconds.
    """
    import torch

    device, bucket = str(target.device), target.cache(1)
    far = max(0, min(FAR, target.context - ROWS[-1]))
    if far < 2 * NEAR or bucket.nbytes * (far / bucket.capacity + 1) > free_memory(device) / 2:
        far = min(NEAR, far)
    contexts = sorted({min(NEAR, far), far})
    rows = [n for n in ROWS if n <= target.context - far]
    # The slots hold zeros, which cost what numbers do, as measured.
    cache = target.cache(far + ROWS[-1])
    taken: dict[tuple[int, int], list[float]] = {}

    def measure(n: int, context: int) -> float:
        tokens = torch.arange(n, device=target.device) % target.transformer.shape.vocabulary
        positions = torch.arange(context, context + n, device=target.device)
        mask = torch.ones(n, n, dtype=torch.bool, device=target.device).tril()
        cache.length = context
        _wait_for(device)
        start = time.perf_counter()
        target.forward(tokens, positions, mask, cache)
        _wait_for(device)
        return time.perf_counter() - start

    with torch.inference_mode():
        measure(1, contexts[0])  # the first time, weights may still come from disk
        began = time.perf_counter()
        for repetition in range(MOST_REPETITIONS + 1):
            if time.perf_counter() - began > (ENOUGH_SECONDS if repetition > 2 else PATIENCE_SECONDS):
                break
            for n in rows:
                for context in contexts:
                    taken.setdefault((n, context), []).append(measure(n, context))
                if taken[n, contexts[-1]][0] > PATIENCE_SECONDS:
                    del rows[rows.index(n) + 1 :]
    return _costs(rows, contexts, taken)


def _costs(rows: Sequence[int], contexts: Sequence[int], taken: dict[tuple[int, int], list[float]]) -> ForwardCosts:
    """Medians without the first of several, and none above those of more rows or of a longer context.

    What disturbs a measurement makes it longer, so where two contradict each other the shorter one is right.
    """
    seconds: list[list[float]] = []
    longer = [float("inf")] * len(rows)
    for context in reversed(contexts):
        line, least = [], float("inf")
        for n, above in zip(reversed(rows), reversed(longer), strict=True):
            least = min(least, above, median_low(taken[n, context][1:] or taken[n, context]))
            line.append(least)
        longer = line[::-1]
        seconds.append(longer)
    return ForwardCosts(tuple(rows), tuple(contexts), tuple(tuple(line) for line in reversed(seconds)))
