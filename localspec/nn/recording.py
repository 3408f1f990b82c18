"""CUDA graphs: a function of tensors is recorded once, and replayed with other numbers at the same addresses.

Decoding steps can be recorded, and then also smaller functions that drafters and the choice of tokens compute.
"""

from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from localspec.choosing.fit import STATIC_ROWS
from localspec.errors import first_line, out_of_memory
from localspec.nn.placed_rows import filled_rows

if TYPE_CHECKING:
    from localspec.nn.row_attention import TorchAttention

Function = Callable[..., tuple[torch.Tensor, ...]]


class Recording:
    """A recorded function of tensors on a GPU. Its control flow must not depend on values of tensors.

    Raises RuntimeError if CUDA cannot record the function, or if a replay gives other bits than the function. `results`
    are ordinary tensors, valid until the next replay of a recording with the same `results`. All recordings on a device
    share the memory for intermediate values, because only one runs at a time.
    """

    def __init__(
        self, function: Function, inputs: Sequence[torch.Tensor], results: tuple[torch.Tensor, ...] | None = None
    ) -> None:
        self._inputs = [tensor.clone() for tensor in inputs]
        expected = function(*self._inputs)  # libraries allocate their own memory at the first call
        self.results = results or tuple(map(torch.empty_like, expected))
        self._graph = torch.cuda.CUDAGraph()

        def record() -> None:
            for result, tensor in zip(self.results, function(*self._inputs), strict=True):
                result.copy_(tensor)

        studio = _studio(self._inputs[0].device)
        _record(self._graph, record, studio.device, studio.stream, studio.pool)
        self._graph.replay()
        if not all(map(_same_bits, self.results, expected)):
            raise RuntimeError("recorded steps give other results than unrecorded ones")

    def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Replay the recording on inputs of the recorded shapes, or with fewer rows. Do not wait for the GPU."""
        for buffer, tensor in zip(self._inputs, inputs, strict=True):
            buffer[: len(tensor)].copy_(tensor)
        self._graph.replay()
        return self.results


class Recorder:
    """A recorder of functions as CUDA graphs. If CUDA fails, it becomes inactive, and `trouble` is the reason."""

    def __init__(self) -> None:
        self.active = False
        self.trouble: str | None = None

    def record(
        self, function: Function, inputs: Sequence[torch.Tensor], results: tuple[torch.Tensor, ...] | None = None
    ) -> Recording | None:
        """Record a function as a CUDA graph. Return None if CUDA cannot record it, or memory is short."""
        try:
            return Recording(function, inputs, results)
        except RuntimeError as error:
            if not out_of_memory(error):
                self.active, self.trouble = False, first_line(error).rstrip(".")
            return None


@dataclass(frozen=True)
class _Studio:
    """The stream and the memory of all CUDA graphs on a device. Graphs share both, since only one runs at a time."""

    device: torch.device
    stream: Any
    pool: Any
    first: Any  # this recording stays: torch does not reuse the shared memory once all of its recordings are gone


@cache
def _studio(device: torch.device) -> _Studio:
    with torch.cuda.device(device):
        stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        first, number = torch.cuda.CUDAGraph(), torch.zeros(1, device=device)
        _record(first, lambda: number.add_(1), device, stream, torch.cuda.graph_pool_handle())
        return _Studio(device, stream, first.pool(), first)


def _same_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    # As bytes, because NaN differs from itself as a number.
    return torch.equal(first.contiguous().view(torch.uint8), second.contiguous().view(torch.uint8))


def _record(graph: Any, function: Callable[[], Any], device: torch.device, stream: Any, pool: Any) -> None:
    with torch.cuda.device(device):
        current = torch.cuda.current_stream()
        try:
            # Other threads may allocate memory meanwhile, which does not affect the recording.
            with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
                function()
        except BaseException:  # torch leaves stream and memory unusable after a failure
            torch.cuda.set_stream(current)
            with suppress(Exception):
                torch._C._cuda_endAllocateToPool(device.index, pool)
            _studio.cache_clear()  # later recordings get their own memory
            raise


# Per function; the least recently used recording is dropped first. A level of a tree takes up to five numbers of
# rows, and so does the level below it.
MOST_RECORDINGS = 32


class RecordedRows:
    """A function of tensors [rows, …] that is recorded separately for 1, 2, 4, … and 64 rows.

    The function's control flow must not depend on values of tensors, and a row of its results not on other rows. Its
    results have as many rows as its first input. Indices into inputs must be inputs too. The next call overwrites the
    results of a recorded call.
    """

    def __init__(self, function: Function, recorder: Recorder, attentions: "Sequence[TorchAttention]" = ()) -> None:
        """Wrap a function. `attentions` have the keys and values that the function reads."""
        self._function, self._recorder, self._attentions = function, recorder, attentions
        self._recordings: dict[Hashable, Recording] = {}
        self._over: list[int] = []  # the versions of the keys and values that they use
        self._unrecorded: set[Hashable] = set()

    @torch.inference_mode()
    def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Compute the function, by replaying a recording if possible."""
        if not self._recorder.active or max(map(len, inputs)) > STATIC_ROWS[-1]:
            return self._function(*inputs)
        return tuple(result[: len(inputs[0])] for result in self._filled_up(inputs))

    def _filled_up(self, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        if self._over != (over := [attention.grown for attention in self._attentions]):
            self._recordings, self._over = {}, over
        shape = tuple((filled_rows(len(tensor)), *tensor.shape[1:]) for tensor in inputs)
        recording = self._recordings.pop(shape, None)
        if recording is None:
            filled = [
                F.pad(tensor, (*(0, 0) * (tensor.ndim - 1), 0, rows - len(tensor)))
                for tensor, (rows, *_) in zip(inputs, shape, strict=True)
            ]
            recording = None if shape in self._unrecorded else self._recorder.record(self._function, filled)
            if recording is None:
                self._unrecorded.add(shape)
                return self._function(*filled)
            while len(self._recordings) >= MOST_RECORDINGS:
                del self._recordings[next(iter(self._recordings))]
        self._recordings[shape] = recording
        return recording(*inputs)
