"""Facts about this machine: its devices, the speed of their memory, its CPU. No decisions are made here.

torch takes seconds to import, so it is imported only if there are signs of a GPU that it was built for.
"""

import ctypes
import os
import platform
import random
import re
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from mmap import mmap
from pathlib import Path

import psutil

from localspec import environment
from localspec.errors import UsageMistake
from localspec.machine import compiled
from localspec.machine.memory import CONTAINER, free_memory
from localspec.quantities import counted


@dataclass(frozen=True)
class TorchBuild:
    """The version of torch, and the versions of CUDA and ROCm's HIP that it was built for, if any."""

    version: str
    cuda: str | None = None
    hip: str | None = None


@cache
def torch_build() -> TorchBuild:
    """Return the build of the torch that is loaded, or else of the torch that would be imported."""
    if (loaded := sys.modules.get("torch")) is not None:
        return TorchBuild(str(loaded.__version__), loaded.version.cuda, loaded.version.hip)
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return TorchBuild("missing")
    try:
        text = (Path(spec.origin).parent / "version.py").read_text("utf-8")
    except OSError:
        return TorchBuild("unknown")
    values = dict(re.findall(r"^(\w+)(?:\s*:[^=]*)?\s*=\s*'([^']*)'", text, re.MULTILINE))
    return TorchBuild(values.get("__version__", "unknown"), values.get("cuda"), values.get("hip"))


LEAST_SHARE = 0.1  # of the cores is always left, by the rules of the system
OWN_LOAD = 0.5  # in the average of the last minute: of this process, which has just begun
_STATISTICS = Path("/proc/stat")
_QUOTAS = (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"))  # of control groups, version 2 and 1


class _Allowed:
    cores: int | None = None  # None: all of them


def limit_cores(count: int | None, shown: str = "") -> None:
    """Let this process compute with at most `count` cores from now on; None means all.

    Call it before a model is loaded. Raises UsageMistake if there are fewer cores. `shown` is the setting and its
    value for the message, such as "--threads 8".
    """
    if count is not None and count > _cores_here():
        raise UsageMistake(
            f"{shown or count}: there are only {counted(_cores_here(), 'core')} here; give fewer threads."
        )
    _Allowed.cores = count


def physical_cores() -> int:
    """Return the number of cores that this process may use.

    Two hardware threads of one core share its arithmetic, so they count once.
    """
    return min(_Allowed.cores or _cores_here(), _cores_here())


@cache
def _cores_here() -> int:
    return min(_allowed_cores(), _quota())


@cache
def _allowed_cores() -> int:
    """Return the number of cores that this process may run on. A container's CPU quota is ignored."""
    return min(psutil.cpu_count(logical=False) or _processors(), _processors())


@cache
def logical_cores() -> int:
    """Return how many threads can run at the same time: all hardware threads, within a container's CPU quota."""
    return min(_processors(), _quota())


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else psutil.cpu_count() or 1


def _quota() -> int:
    """Return the number of cores that the container's CPU quota allows, at least 1; `sys.maxsize` without a quota."""
    for files in _QUOTAS:
        with suppress(OSError, ValueError):  # another system, the root group, or "max"
            time_given, period = " ".join((CONTAINER / file).read_text() for file in files).split()
            if int(time_given) > 0 and int(period) > 0:  # -1: no limit
                return -(-int(time_given) // int(period))
    return sys.maxsize


class IdleCores:
    """A count of the cores that other programs left idle since the previous count. Call the object to count.

    A call within `least` seconds after a count returns the same count.
    """

    def __init__(self, least: float = 0.05) -> None:  # the kernel counts in hundredths of a second
        self._least = least
        self._last, self._idle, self._frozen = self._read(), physical_cores(), False

    def __call__(self) -> int:
        """Return the number of idle cores, at least 1.

        The cores that this process uses count as idle, too: its models can have them.
        """
        if self._frozen:
            return self._idle
        now, last = self._read(), self._last
        passed = now[0] - last[0]
        if passed < self._least:
            return self._idle
        # If fewer cores are permitted than the machine has, not all of the permitted ones must be idle.
        self._last, self._idle = now, min(physical_cores(), max(1, _allowed_cores() - round(_others(last, now))))
        return self._idle

    def hold(self) -> None:
        """Count the idle cores now. Until the next `hold`, every call returns this count."""
        self._frozen = False
        self()
        self._frozen = True

    @staticmethod
    def _read() -> tuple[float, float, float]:
        """Return times in seconds: a clock, all work on this process's processors, and this process's work."""
        times = psutil.Process().cpu_times()
        return time.monotonic(), _busy_seconds(), times.user + times.system


def slowdown() -> float:
    """Estimate how many times longer this process's work takes now than on an idle machine; at least 1.

    The estimate is from the system's load of the last minute, as if all running programs shared the cores equally.
    """
    load: float = psutil.getloadavg()[0]
    return 1 + max(load - OWN_LOAD, 0.0) / physical_cores()


class OthersLoad:
    """The average number of this process's cores that other programs used since the object was made."""

    def __init__(self) -> None:
        self._began = IdleCores._read()

    def __call__(self) -> float:
        return _others(self._began, IdleCores._read())

    def slowdown(self) -> float:
        """Return how many times longer work on all cores took than on an idle machine, by the cores that were left."""
        cores = physical_cores()
        return max(1.0, cores / max(_allowed_cores() - self(), LEAST_SHARE * cores))


def _busy_seconds() -> float:
    if sys.platform != "linux":  # a process runs on any of them
        times = psutil.cpu_times()
        return sum(times) - times.idle
    allowed = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    ticks = 0
    for line in _STATISTICS.read_text().splitlines():  # psutil leaves out the processor numbers, which may have gaps
        name, *counts = line.split()
        if name in allowed:
            # The columns after the eighth (guests) are included in `user` and `nice`.
            user, nice, system, _idle, _waiting, *rest = map(int, counts[:8])
            ticks += user + nice + system + sum(rest)
    return ticks / os.sysconf("SC_CLK_TCK")


def _others(then: tuple[float, float, float], now: tuple[float, float, float]) -> float:
    return max(0.0, (now[1] - then[1]) - (now[2] - then[2])) / max(now[0] - then[0], 1e-9)


def cpu_name() -> str:
    """Return the commercial name of the CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def versions(device: str = "cpu") -> str:
    """Return one line with the facts on which a measurement on this device depends: versions, the device, its cores."""
    if device.startswith("cuda"):
        import torch

        return f"torch {torch.__version__}, {torch.cuda.get_device_name(device)}, CUDA {torch.version.cuda}"
    cores = f"{physical_cores()} cores"
    if device == "mps":
        return f"torch {torch_build().version}, {cpu_name()}, {cores}, mps, macOS {platform.mac_ver()[0]}"
    if computes := compiled.instruction_set():
        return f"native {compiled.ABI} with {computes}, {cpu_name()}, {cores}"
    return ", ".join((f"torch {torch_build().version}", cpu_name(), cores, *environment.kernel_settings()))


def devices() -> list[str]:
    """Return the devices that can be used here, the fastest first. The CPU is always included."""
    if not gpu_expected():
        return ["cpu"]
    import torch

    gpus = [f"cuda:{index}" for index in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    if torch.backends.mps.is_available():
        gpus.append("mps")
    return [*gpus, "cpu"]


def gpu_expected() -> bool:
    """Return whether this machine seems to have a GPU that the installed torch was built for. Only a test with torch
    shows whether the GPU works."""
    build = torch_build()
    if sys.platform == "darwin":
        return platform.machine() == "arm64"
    return build.hip is not None or (build.cuda is not None and nvidia_driver() is not None)


def memory_bandwidth(device: str = "cpu") -> float:
    """Return the bytes per second that can be read from a device's memory, measured in less than half a second.

    512 MiB are read (4 GiB on a GPU, which is faster), but at most an eighth of the free memory.
    """
    limit = 4 * 2**30 if device.startswith("cuda") else 512 * 2**20
    size = min(limit, free_memory(device) // 8) // 8 * 8
    read = _read_of_memory(size) if device == "cpu" else _read_of_gpu(size, device)
    best, began = float("inf"), time.perf_counter()
    for repetition in range(8):
        if repetition > 2 and time.perf_counter() - began > 0.3:
            break
        best = min(best, read())
    return size / best


def _read_of_memory(size: int) -> Callable[[], float]:
    """Return a function that reads `size` bytes of main memory and returns the seconds. Without the compiled library,
    numpy reads with one core."""
    import numpy as np

    buffer = np.ones(size // 8, np.uint64)  # ones, because untouched pages are not read from memory
    if not compiled.missing():
        return lambda: compiled.read_seconds(buffer.ctypes.data, buffer.nbytes, physical_cores())

    def read() -> float:  # with one core, which is what numpy does
        start = time.perf_counter()
        buffer.sum()
        return time.perf_counter() - start

    return read


_PIECE = 2**20  # bytes: a matrix of an expert has 0.9 to 4 MB
_PIECES = 256  # read in one measurement; a file with fewer may be in the disk's own cache
_LONGEST = 0.5  # seconds of a measurement


def disk_bandwidth(file: Path) -> float | None:
    """Measure the bytes per second of reads at random places of a file, like those of experts; None if impossible.

    A read is about as long as the matrix of an expert. The reads follow one another, and bypass the page cache, which
    only Linux permits. The measurement takes at most half a second.
    """
    direct = getattr(os, "O_DIRECT", 0)
    try:
        handle = os.open(file, os.O_RDONLY | direct)
    except OSError:  # the file is gone, or its file system has no direct reads
        return None
    try:
        pieces = os.fstat(handle).st_size // _PIECE
        if not direct or pieces < _PIECES:
            return None
        # Different pieces each time, since a disk may keep earlier ones in its cache.
        places = random.sample(range(pieces), _PIECES)
        done, began = 0, time.perf_counter()
        with mmap(-1, _PIECE) as buffer:  # aligned, as such reads require
            while done < _PIECES and time.perf_counter() - began < _LONGEST:
                done += os.preadv(handle, [buffer], places[done] * _PIECE) // _PIECE
        return done * _PIECE / (time.perf_counter() - began)
    except OSError:
        return None
    finally:
        os.close(handle)


def _read_of_gpu(size: int, device: str) -> Callable[[], float]:
    import torch

    buffer = torch.ones(size // 4, dtype=torch.float32, device=device)

    def read() -> float:
        start = time.perf_counter()
        buffer.sum()
        wait_for(device)
        return time.perf_counter() - start

    return read


def wait_for(device: str) -> None:
    """Wait until a GPU has finished its work; calls of torch return earlier. Do nothing for another `device`."""
    if device == "cpu":
        return
    import torch

    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
    elif device == "mps":
        torch.mps.synchronize()


# -- NVIDIA's driver, asked through its own libraries: a millisecond for any build of torch ----------------------------

WINDOWS = sys.platform == "win32"
MANAGEMENT = ("nvml.dll",) if WINDOWS else ("libnvidia-ml.so.1", "libnvidia-ml.so")  # NVML
CUDA = ("nvcuda.dll",) if WINDOWS else ("libcuda.so.1",)
_TEXT = 96  # bytes, enough for any version


@dataclass(frozen=True)
class NvidiaDriver:
    """An NVIDIA driver. Its `version` is a text such as 580.65.06; empty if unknown."""

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
    match = re.search(r"Kernel Module.*?\s(\d+\.[\d.]+)", text)
    return match[1] if match else ""


def _load(names: tuple[str, ...]) -> ctypes.CDLL | None:
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None
