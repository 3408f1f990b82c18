"""A stand-in for CUDA graphs: operations are recorded with the memory that they read and write, and repeated there.

As with a graph, a Python number keeps its recorded value, and an operation that waits for the device cannot be
recorded.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, ClassVar, Self

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from localspec.nn import recording, transfer

# Operations that wait for the device: numbers for Python (of lists resolve_conj), and results of unknown size.
WAITS = ("item", "_local_scalar_dense", "is_nonzero", "resolve_conj", "equal", "nonzero", "masked_select", "unique")


class Graph:
    """A stand-in for torch.cuda.CUDAGraph."""

    made = played = 0  # of all graphs
    streams: ClassVar[list[Any]] = []  # that were made the current one

    def __init__(self) -> None:
        self.operations: list[tuple[Callable[..., Any], Any, Any, Any]] = []

    def pool(self) -> tuple[int, int]:
        """Return the memory that recordings share."""
        return (0, 1)

    def replay(self) -> None:
        """Do all operations again, into the memory of the first time."""
        Graph.played += 1
        with _disable_current_modes():  # the host issues none of them
            for operation, positional, named, before in self.operations:
                after = operation(*positional, **named)
                for old, new in zip(tree_leaves(before), tree_leaves(after), strict=True):
                    if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                        old.copy_(new)


class _Recorder(TorchDispatchMode):
    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.graph = graph

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        if str(func).split(".")[1] in WAITS:
            raise RuntimeError(f"{func} is not permitted when a stream is capturing")
        found = func(*args, **(kwargs or {}))
        self.graph.operations.append((func, args, kwargs or {}, found))
        return found


@contextmanager
def _graph(graph: Graph, **_: Any) -> Iterator[None]:
    """Stands for torch.cuda.graph. What runs here for the first time changes nothing on a GPU, and here does no harm."""
    Graph.made += 1
    with _Recorder(graph):
        yield


# Operations that launch nothing on a GPU: they look at the same memory in another way.
VIEWS = (
    "alias", "as_strided", "chunk", "detach", "detach_", "dim", "expand", "flatten", "is_pinned", "lift_fresh", "movedim", "narrow",
    "numel", "permute", "reshape", "resolve_conj", "resolve_neg", "select", "size", "slice", "split",
    "split_with_sizes", "squeeze", "stride", "t", "transpose", "unbind", "unsqueeze", "view",
)  # fmt: skip


# Those that may give what they were given.
UNCHANGED = ("contiguous", "float", "long", "to", "type_as")


class HostCalls(TorchDispatchMode):
    """A count of the host's calls while it is active: launches, including copies to and from the device, and waits.

    A recording is one launch. An operation that returns its input launches nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        self.launches = self.waits = 0
        self._patch = pytest.MonkeyPatch()

    def __enter__(self) -> Self:
        for name in ("cpu", "tolist"):
            self._patch.setattr(torch.Tensor, name, self._counted(getattr(torch.Tensor, name), waits=1))
        self._patch.setattr(transfer, "moved", self._counted(transfer.moved, waits=0))
        self._patch.setattr(Graph, "replay", self._counted(Graph.replay, waits=0))
        super().__enter__()
        return self

    def _counted(self, function: Callable[..., Any], waits: int) -> Callable[..., Any]:
        def counted(*given: Any) -> Any:
            self.waits += waits
            self.launches += 1
            return function(*given)

        return counted

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._patch.undo()

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        name, found = str(func).split(".")[1], func(*args, **(kwargs or {}))
        if name in ("item", "_local_scalar_dense", "is_nonzero"):
            self.waits += 1
        elif name not in VIEWS and not (name in UNCHANGED and _same(found, args[0])):
            self.launches += 1
        return found


def _same(found: Any, given: Any) -> bool:
    return isinstance(found, torch.Tensor) and isinstance(given, torch.Tensor) and found.data_ptr() == given.data_ptr()


def in_place_of_cuda(monkeypatch: pytest.MonkeyPatch) -> type[Graph]:
    """Replace CUDA graphs by these recordings, with all counts at zero."""
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", _graph)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: "aside")
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: "usual")
    monkeypatch.setattr(Graph, "streams", [])
    monkeypatch.setattr(torch.cuda, "set_stream", lambda stream: Graph.streams.append(stream))
    recording._studio.cache_clear()
    recording._studio(torch.device("cpu"))  # which records for itself
    monkeypatch.setattr(Graph, "made", 0)
    monkeypatch.setattr(Graph, "played", 0)
    return Graph
