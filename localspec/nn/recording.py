"""CUDA graphs: a function of tensors that is recorded once, and played again on other numbers in the same places."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch

Function = Callable[..., tuple[torch.Tensor, ...]]


class Recording:
    """A function of tensors on a GPU, without choices that hang on their numbers, recorded.

    Raises RuntimeError where CUDA cannot record it. What it returns lies in `results`, ordinary tensors that hold the
    numbers until the next recording that shares them is played; the memory between inputs and results is that of all
    recordings, one after another.
    """

    def __init__(
        self, function: Function, inputs: Sequence[torch.Tensor], results: tuple[torch.Tensor, ...] | None = None
    ) -> None:
        self._inputs = [tensor.clone() for tensor in inputs]
        found = function(*self._inputs)  # libraries take what they need for themselves at the first call
        self.results = results or tuple(map(torch.empty_like, found))
        del found
        self._graph = torch.cuda.CUDAGraph()
        # Other threads may take memory meanwhile, which concerns no recording.
        with torch.cuda.graph(self._graph, pool=_pool(), capture_error_mode="thread_local"):
            for result, tensor in zip(self.results, function(*self._inputs), strict=True):
                result.copy_(tensor)

    def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Plays the recording on tensors like the first ones; a GPU is not waited for."""
        for place, tensor in zip(self._inputs, inputs, strict=True):
            place.copy_(tensor)
        self._graph.replay()
        return self.results


@cache
def _pool() -> Any:
    """The memory of all recordings: no two are played at once, and none leaves a tensor there."""
    return torch.cuda.graph_pool_handle()
