"""CUDA graphs: a function of tensors that is recorded once, and played again on other numbers in the same places."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from localspec.errors import first_line, out_of_memory

Function = Callable[..., tuple[torch.Tensor, ...]]


class Recording:
    """A function of tensors on a GPU, without choices that hang on their numbers, recorded.

    Raises RuntimeError where CUDA cannot record it, or plays it otherwise than it is computed. What it returns lies in
    `results`, ordinary tensors that hold the numbers until the next recording that shares them is played; the memory
    between inputs and results is that of all recordings on the device, one after another.
    """

    def __init__(
        self, function: Function, inputs: Sequence[torch.Tensor], results: tuple[torch.Tensor, ...] | None = None
    ) -> None:
        self._inputs = [tensor.clone() for tensor in inputs]
        found = function(*self._inputs)  # libraries take what they need for themselves at the first call
        self.results = results or tuple(map(torch.empty_like, found))
        self._graph = torch.cuda.CUDAGraph()

        def record() -> None:
            for result, tensor in zip(self.results, function(*self._inputs), strict=True):
                result.copy_(tensor)

        studio = _studio(self._inputs[0].device)
        _record(self._graph, record, studio.device, studio.stream, studio.pool)
        self._graph.replay()
        if not all(map(_same_bits, self.results, found)):
            raise RuntimeError("the recorded steps do not give the same bits")

    def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Plays the recording on tensors like the first ones, or on fewer rows; a GPU is not waited for."""
        for place, tensor in zip(self._inputs, inputs, strict=True):
            place[: len(tensor)].copy_(tensor)
        self._graph.replay()
        return self.results


class Recorder:
    """Records functions where that is wanted, until it fails; `trouble` is then why."""

    def __init__(self) -> None:
        self.active = False
        self.trouble: str | None = None

    def record(
        self, function: Function, inputs: Sequence[torch.Tensor], results: tuple[torch.Tensor, ...] | None = None
    ) -> Recording | None:
        """Record a function; return None where it cannot be, and where memory is short."""
        try:
            return Recording(function, inputs, results)
        except RuntimeError as error:
            if not out_of_memory(error):
                self.active, self.trouble = False, first_line(error).rstrip(".")
            return None


@dataclass(frozen=True)
class _Studio:
    """Where recordings on a device are made: a stream, and memory that all share, since no two are played at once."""

    device: torch.device
    stream: Any
    pool: Any
    first: Any  # a recording that stays: once all that share such memory are gone, torch takes it for no new one


@cache
def _studio(device: torch.device) -> _Studio:
    with torch.cuda.device(device):
        stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        first, number = torch.cuda.CUDAGraph(), torch.zeros(1, device=device)
        _record(first, lambda: number.add_(1), device, stream, torch.cuda.graph_pool_handle())
        return _Studio(device, stream, first.pool(), first)


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))  # NaN is like NaN


def _record(graph: Any, function: Callable[[], Any], device: torch.device, stream: Any, pool: Any) -> None:
    with torch.cuda.device(device):
        before = torch.cuda.current_stream()
        try:
            # Other threads may take memory meanwhile, which concerns no recording.
            with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
                function()
        except BaseException:  # torch comes back neither from the stream nor from the memory of one that fails
            torch.cuda.set_stream(before)
            with suppress(Exception):
                torch._C._cuda_endAllocateToPool(device.index, pool)
            _studio.cache_clear()  # whatever is recorded later gets memory of its own
            raise
