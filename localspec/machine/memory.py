"""The memory of devices: free bytes, peaks, and the release of unused memory."""

import sys
from contextlib import suppress
from pathlib import Path

import psutil

LEAST_FREE = 600 * 10**6  # bytes of a device's memory that always stay free, or a tenth of it if that is more
CONTAINER = Path("/sys/fs/cgroup")  # as seen in a container with its own control group
# Its limit, the bytes that it holds, and its counts with the one of cached pages: in version 2, and in version 1.
_LIMITS = (
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"),
)


def free_memory(device: str = "cpu") -> int:
    """Return the bytes of a device's memory that a program may still take.

    All devices but CUDA's share the main memory.
    """
    if device.startswith("cuda"):
        import torch

        # unused memory in torch's allocator is given back when it is needed
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + max(0, unused)
    available = min(int(psutil.virtual_memory().available), _container()[1])
    if device == "mps":
        import torch

        # beyond its recommendation, macOS starts to swap
        return min(available, torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory())
    return available


def total_memory(device: str = "cpu") -> int:
    """Return the bytes of a device's memory. For a Mac's GPU, return the most bytes that macOS recommends to use."""
    if device.startswith("cuda"):
        import torch

        return int(torch.cuda.mem_get_info(device)[1])
    if device == "mps":
        import torch

        return torch.mps.recommended_max_memory()
    return min(int(psutil.virtual_memory().total), _container()[0])


def usable(free: int, total: int) -> int:
    """Return the bytes that a model may take of a memory with `free` free bytes out of `total`."""
    return max(0, free - max(total // 10, LEAST_FREE))


def _container() -> tuple[int, int]:
    """Return the bytes of main memory that a container may take in all, and how many of these are left. Both are
    `sys.maxsize` if unlimited."""
    for limit_file, used_file, counts_file, cached in _LIMITS:
        with suppress(OSError, ValueError, KeyError):  # another system or version, the root group, or "max"
            limit = int((CONTAINER / limit_file).read_text())
            used = int((CONTAINER / used_file).read_text())
            counts = dict(line.split() for line in (CONTAINER / counts_file).read_text().splitlines())
            # cached pages of files are given back when a program asks for memory
            return limit, max(0, limit - used + int(counts[cached]))
    return sys.maxsize, sys.maxsize


def peak_memory(device: str = "cpu") -> int:
    """Return the most bytes that this process used so far: of a CUDA device's memory, or otherwise of main memory."""
    if device.startswith("cuda"):
        import torch

        return int(torch.cuda.max_memory_reserved(device))
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    with suppress(OSError, StopIteration):  # Linux, where `getrusage` would include this process's former program
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def give_back(device: str) -> None:
    """Release unused memory in a device's allocator."""
    torch = sys.modules.get("torch")
    if torch is None:
        return
    if device.startswith("cuda"):
        torch.cuda.empty_cache()
    elif device == "mps":
        torch.mps.empty_cache()


def is_lost() -> bool:
    """Return whether a failed kernel made CUDA unusable in this process, so that all later calls fail."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False
