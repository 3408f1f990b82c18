"""Measures the time of work on a device, eager (started by Python) and as a captured CUDA graph."""

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from localspec.errors import first_line
from localspec.machine.hardware import wait_for
from localspec.machine.memory import free_memory, give_back

Work = Callable[[], Any]
ENOUGH = 0.15  # seconds of repetitions; fewer in a rehearsal
FEWEST = 3
COPIED = 2 * 2**30  # bytes, at most


def seconds_each(works: Sequence[Work], device: str) -> float:
    """Return the seconds per piece of work, if all run one after the other. The fastest round counts."""
    best, began, rounds = float("inf"), time.perf_counter(), 0
    for work in works:
        work()
    while rounds < FEWEST or time.perf_counter() - began < ENOUGH:
        wait_for(device)
        start = time.perf_counter()
        for work in works:
            work()
        wait_for(device)
        best, rounds = min(best, time.perf_counter() - start), rounds + 1
    return best / len(works)


def captured_seconds_each(works: Sequence[Work], device: str) -> float | str:
    """Return the seconds per piece of work in one CUDA graph, or a sentence that says why there is no graph."""
    if not device.startswith("cuda"):
        return "no CUDA graphs here"
    try:
        graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for work in works:
                work()
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(graph):
            for work in works:
                work()
        return seconds_each([graph.replay], device) / len(works)
    except RuntimeError as error:
        return first_line(error)[:120]


def copy_bandwidth(device: str) -> float:
    """Return the bytes per second that are read and written when a large tensor is copied."""
    size = min(COPIED, free_memory(device) // 8) // 4
    source, target = (torch.ones(size, dtype=torch.float32, device=device) for _ in range(2))
    seconds = seconds_each([lambda: target.copy_(source)], device)
    return 2 * source.nbytes / seconds


def runtime_calls(work: Work, device: str) -> dict[str, float]:
    """Count the calls of the CUDA runtime in `work` by purpose; on a CPU, count the operators.

    On a GPU also return the seconds of the work, and the seconds in which the device was `busy` with it.
    """
    from torch.profiler import ProfilerActivity, profile

    work()
    wait_for(device)
    on_gpu = device.startswith("cuda")
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with profile(activities=activities) as profiler:
        work()
    counts = {str(event.key): int(event.count) for event in profiler.key_averages()}
    if not on_gpu:
        return {"operators": sum(count for name, count in counts.items() if name.startswith("aten::"))}
    spans = [
        (float(event.time_range.start), float(event.time_range.end))
        for event in profiler.events() or ()
        if event.device_type.name == "CUDA" and not getattr(event, "is_user_annotation", False)
    ]
    return {**counted(counts), "busy": covered(spans) / 1e6, "seconds": seconds_each([work], device)}


def covered(spans: Sequence[tuple[float, float]]) -> float:
    """Return the total time that at least one of the spans covers. Spans may overlap."""
    total, until = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


def counted(counts: Mapping[str, int]) -> dict[str, int]:
    """Count the launches of kernels and graphs, the waits, and the copies in the calls that a profiler saw."""
    calls = {
        name: count for name, count in counts.items() if name.startswith(("cuda", "cuLaunch", "cuMem", "cuStream"))
    }

    def of(*parts: str) -> int:
        return sum(count for name, count in calls.items() if any(part in name for part in parts))

    return {
        "kernels": of("LaunchKernel"), "graphs": of("GraphLaunch"), "waits": of("Synchronize"),
        "copies": of("MemcpyAsync", "Memcpy2DAsync"), "seen": sum(calls.values()),
    }  # fmt: skip


def peak_bytes(device: str) -> int:
    """Return the most bytes that tensors took since `watch_peak`; 0 on a CPU, where they are not counted."""
    return int(torch.cuda.max_memory_allocated(device)) if device.startswith("cuda") else 0


def held_bytes(device: str) -> int:
    """Return the bytes that tensors take now; 0 on a CPU."""
    return int(torch.cuda.memory_allocated(device)) if device.startswith("cuda") else 0


def watch_peak(device: str) -> None:
    """Free unused memory, and restart the measurement of `peak_bytes`."""
    gc.collect()
    give_back(device)
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats(device)
