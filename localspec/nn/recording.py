"""CUDA graphs: a function of tensors is recorded once, and replayed with other numbers at the same addresses."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from localspec.errors import first_line, out_of_memory

Function = Callable[..., tuple[torch.Tensor, ...]]


class Recording:
    """A recorded function of tensors on a GPU, without control flow that depends on their values.

    Raises RuntimeError if CUDA cannot record it, or if its replay gives other bits. `results` are ordinary tensors.
    They are valid until the next replay of a recording that shares them. All recordings on a device share the memory
    between inputs and results, one after another.
    """

    def __init__(
        self, function: Function, inputs: Sequence[torch.Tensor], results: tuple[torch.Tensor, ...] | None = None
    ) -> None:
        self._inputs = [tensor.clone() for tensor in inputs]
        found = function(*self._inputs)  # libraries allocate their own memory at the first call
        self.results = results or tuple(map(torch.empty_like, found))
        self._graph = torch.cuda.CUDAGraph()

        def record() -> None:
            for result, tensor in zip(self.results, function(*self._inputs), strict=True):
                result.copy_(tensor)

        studio = _studio(self._inputs[0].device)
        _record(self._graph, record, studio.device, studio.stream, studio.pool)
        self._graph.replay()
        if not all(map(_same_bits, self.results, found)):
            raise RuntimeError("recorded steps are not bit-identical to unrecorded ones")

    def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Replay the recording on tensors like the first ones, or on fewer rows, without waiting for the GPU."""
        for place, tensor in zip(self._inputs, inputs, strict=True):
            place[: len(tensor)].copy_(tensor)
        self._graph.replay()
        return self.results


class Recorder:
    """Records functions on request until recording fails; `trouble` is then the reason."""

    def __init__(self) -> None:
        self.active = False
        self.trouble: str | None = None

    def record(
        self, function: Function, inputs: Sequence[torch.Tensor], results: tuple[torch.Tensor, ...] | None = None
    ) -> Recording | None:
        """Record a function. Return None if that is impossible, or memory is short."""
        try:
            return Recording(function, inputs, results)
        except RuntimeError as error:
            if not out_of_memory(error):
                self.active, self.trouble = False, first_line(error).rstrip(".")
            return None


@dataclass(frozen=True)
class _Studio:
    """The stream and the memory with which a device records. Recordings share both, since only one runs at a time."""

    device: torch.device
    stream: Any
    pool: Any
    first: Any  # a recording that stays: once all that share the memory are gone, torch does not reuse it


@cache
def _studio(device: torch.device) -> _Studio:
    with torch.cuda.device(device):
        stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        first, number = torch.cuda.CUDAGraph(), torch.zeros(1, device=device)
        _record(first, lambda: number.add_(1), device, stream, torch.cuda.graph_pool_handle())
        return _Studio(device, stream, first.pool(), first)


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    # As bytes, because NaN differs from itself as a number.
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


def _record(graph: Any, function: Callable[[], Any], device: torch.device, stream: Any, pool: Any) -> None:
    with torch.cuda.device(device):
        before = torch.cuda.current_stream()
        try:
            # Other threads may allocate memory meanwhile, which does not affect the recording.
            with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
                function()
        except BaseException:  # torch leaves stream and memory unusable after a failure
            torch.cuda.set_stream(before)
            with suppress(Exception):
                torch._C._cuda_endAllocateToPool(device.index, pool)
            _studio.cache_clear()  # later recordings get their own memory
            raise
