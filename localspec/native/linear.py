"""Linear layers of drafters in the CPU engine, and draft heads made of such layers."""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from localspec.decoding.compute import Floats
from localspec.machine.library import Heads, Matrix, address, check, library
from localspec.native.model import NativeModel
from localspec.native.threads import Threads
from localspec.weights.matrices import BlockStack, PackedMatrix

_NONE, _SILU = 0, 1  # activations, as localspec.h numbers them


class NativeLinear:
    """y = x Wᵀ + b with a packed weight, or one in blocks."""

    def __init__(
        self,
        matrix: PackedMatrix | BlockStack,
        bias: Floats | None,
        threads: Threads,
        silu: bool = False,
        cap: float = 0.0,
    ) -> None:
        """With a `cap`, y is bent to stay below it, by tanh."""
        self._matrix, self._bias, self._threads, self.cap = matrix, bias, threads, cap
        self._activation = _SILU if silu else _NONE
        self.struct = matrix.struct(bias)  # which may be read while this object lives

    @property
    def out(self) -> int:
        """Channels of y."""
        return self._matrix.out

    @property
    def nbytes(self) -> int:
        """Bytes of the packed weight, and of the bias."""
        return self._matrix.nbytes + (0 if self._bias is None else self._bias.nbytes)

    def __call__(self, x: Floats) -> Floats:
        """Apply the layer to rows [n, in]."""
        x = np.ascontiguousarray(x, np.float32)
        assert x.ndim == 2 and x.shape[1] == self._matrix.inputs, x.shape  # the library reads this many
        y = np.empty((len(x), self._matrix.out), np.float32)
        check(library().ls_linear(self._threads.handle, self.struct, len(x), address(x), address(y), self._activation))
        return np.tanh(y / np.float32(self.cap)) * np.float32(self.cap) if self.cap else y


class NativeHeads:
    """The heads of `Compute.draft_heads`. Between separate calls the processor would have to load their code again."""

    def __init__(
        self,
        model: NativeModel,
        blocks: Sequence[Sequence[NativeLinear]],
        path: Sequence[NativeLinear],
        own: Sequence[NativeLinear],
        head: NativeLinear | None,
        changes: tuple[Sequence[NativeLinear], Sequence[NativeLinear]],
    ) -> None:
        """Take `blocks` [layers][heads], and what else `HeadWeights` names by head; empty where it has none."""
        down, up = changes
        self._model = model
        self._layers = [*(layer for row in blocks for layer in row), *path, *own, *down, *up]
        self._head = head
        first = (*own, head)[0]
        self._tokens = model.sizes.vocab_size if first is None else first.out
        # The structures must live as long as they may be read.
        self._structs = [_structs(some) for some in (self._layers[: len(blocks) * len(blocks[0])], path, own, down, up)]
        of_blocks, of_path, of_own, of_down, of_up = (
            ctypes.addressof(some) if some else None for some in self._structs
        )
        self._struct = Heads(
            of_blocks, of_path, of_own, None if head is None else ctypes.addressof(head.struct), of_down, of_up,
            len(blocks[0]), len(blocks), self._tokens, 0.0 if head is None else head.cap,
        )  # fmt: skip

    @property
    def nbytes(self) -> int:
        """Bytes of the heads, without a vocabulary matrix that they share."""
        return sum(layer.nbytes for layer in self._layers)

    def __call__(self, state: Floats, root: int, count: int) -> Floats:
        """Return the logits [count, tokens] of the first heads after a state [1, hidden_size] and a root."""
        state = np.ascontiguousarray(state, np.float32)
        assert state.shape == (1, self._model.sizes.hidden_size), state.shape
        logits = np.empty((count, self._tokens), np.float32)
        model, pool = self._model.handle, self._model.threads.handle
        check(library().ls_draft_heads(self._struct, model, pool, address(state), root, count, address(logits)))
        return logits


def _structs(layers: Sequence[NativeLinear]) -> Any:
    """Return the layers' structures in one array, None if there are no layers."""
    return (Matrix * len(layers))(*(layer.struct for layer in layers)) if layers else None
