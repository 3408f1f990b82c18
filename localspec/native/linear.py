"""Linear layers of drafters in the CPU engine, and draft heads made of such layers."""

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from localspec.decoding.compute import Floats
from localspec.machine.library import Heads, Matrix, address, check, library
from localspec.native.threads import Threads
from localspec.weights.matrices import BlockStack, PackedMatrix

if TYPE_CHECKING:
    from localspec.native.model import NativeModel

_NONE, _SILU = 0, 1  # activations, as localspec.h numbers them


class NativeLinear:
    """A layer y = x Wᵀ + b. W is packed, or in blocks of a GGUF file."""

    def __init__(
        self,
        matrix: PackedMatrix | BlockStack,
        bias: Floats | None,
        threads: Threads,
        silu: bool = False,
        cap: float = 0.0,
    ) -> None:
        """Make the layer. With `silu` an output y becomes y σ(y); with a `cap` it becomes cap * tanh(y / cap)."""
        self._matrix, self._bias, self._threads, self.cap = matrix, bias, threads, cap
        self._activation = _SILU if silu else _NONE
        self.struct = matrix.struct(bias)  # valid only while this object lives

    @property
    def out(self) -> int:
        """The number of output channels."""
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
    """Draft heads, computed by one call of the library.

    With one call per layer, the processor would load the library's code again and again, because weights push that code
    out of the caches.
    """

    def __init__(
        self,
        model: "NativeModel",
        blocks: Sequence[Sequence[NativeLinear]],
        path: Sequence[NativeLinear],
        vocabulary: Sequence[NativeLinear],
        head: NativeLinear | None,
        change: tuple[Sequence[NativeLinear], Sequence[NativeLinear]],
    ) -> None:
        """Take the layers of draft heads. `blocks` are [block][head]; others have a layer per head, or are empty.

        `change` is (down layers, up layers). `head` is the vocabulary matrix of all heads; None: the model's head.
        """
        down, up = change
        all_blocks = [layer for row in blocks for layer in row]
        self._model, self._head = model, head
        self._layers = [*all_blocks, *path, *vocabulary, *down, *up]
        if vocabulary:
            self._tokens = vocabulary[0].out
        else:
            self._tokens = model.sizes.vocab_size if head is None else head.out
        # `_struct` has only addresses: these arrays, the layers and the head must live as long as it does.
        self._arrays = [_array(layers) for layers in (all_blocks, path, vocabulary, down, up)]
        of_blocks, of_path, of_vocabulary, of_down, of_up = (
            None if array is None else ctypes.addressof(array) for array in self._arrays
        )
        self._struct = Heads(
            of_blocks, of_path, of_vocabulary, None if head is None else ctypes.addressof(head.struct), of_down, of_up,
            len(blocks[0]), len(blocks), self._tokens, 0.0 if head is None else head.cap,
        )  # fmt: skip

    @property
    def nbytes(self) -> int:
        return sum(layer.nbytes for layer in self._layers)

    def __call__(self, state: Floats, root: int, count: int) -> Floats:
        state = np.ascontiguousarray(state, np.float32)
        assert state.shape == (1, self._model.sizes.hidden_size), state.shape
        logits = np.empty((count, self._tokens), np.float32)
        model, pool = self._model.handle, self._model.threads.handle
        check(library().ls_draft_heads(self._struct, model, pool, address(state), root, count, address(logits)))
        return logits


def _array(layers: Sequence[NativeLinear]) -> Any:
    """Return the layers' C structures as one ctypes array; None if there are no layers."""
    return (Matrix * len(layers))(*(layer.struct for layer in layers)) if layers else None
