"""A matrix that stays in the blocks of its GGUF file, as the compiled library computes with it: panels of 16 rows."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from localspec.errors import LocalspecError
from localspec.native.library import BLOCK_TYPES, Blocks, address, check, library
from localspec.native.threads import Threads

PANEL = 16  # output channels
_ALIGNMENT = 64  # bytes


@dataclass(frozen=True)
class BlockMatrix:
    """A weight [out, inputs] in blocks of a `type` of BLOCK_TYPES; each value is that of the file."""

    data: npt.NDArray[np.uint8]
    out: int
    inputs: int
    type: str

    @classmethod
    def pack(cls, rows: npt.NDArray[np.uint8], inputs: int, type: str) -> "BlockMatrix":  # noqa: A002
        """Pack rows [out, bytes] of a file.

        Raises LocalspecError for a width that is no whole number of blocks, and for a scale that is NaN or inf.
        """
        packed = cls.empty(len(rows), inputs, type)
        check(library().ls_blocks_pack(BLOCK_TYPES[type], inputs, address(rows), len(rows), address(packed.data)))
        return packed

    @classmethod
    def empty(cls, out: int, inputs: int, type: str) -> "BlockMatrix":  # noqa: A002
        """Return room for a matrix. Raises LocalspecError for sizes that are not possible."""
        if not (size := packed_bytes(out, inputs, type)):
            raise LocalspecError(library().ls_error().decode())
        spare = np.empty(size + _ALIGNMENT, np.uint8)
        return cls(spare[-spare.ctypes.data % _ALIGNMENT :][:size], out, inputs, type)

    def struct(self) -> Blocks:
        """Return it as the library takes it; who keeps the structure keeps this too."""
        return Blocks(address(self.data), BLOCK_TYPES[self.type], self.out, self.inputs)

    def multiply(self, x: npt.NDArray[np.float32], threads: Threads) -> npt.NDArray[np.float32]:
        """Return x [n, inputs] times the transposed weight; x is rounded to int8, with a scale for each 32 inputs."""
        assert x.ndim == 2 and x.shape[1] == self.inputs, x.shape  # the library reads so many
        x = np.ascontiguousarray(x, np.float32)
        y = np.empty((len(x), self.out), np.float32)
        check(library().ls_blocks_multiply(threads.handle, self.struct(), len(x), address(x), address(y)))
        return y

    def rows(self, indices: Any) -> npt.NDArray[np.float32]:
        """Return the weights of some rows, [n, inputs]."""
        indices = np.asarray(indices)
        rows, panel = np.empty((len(indices), self.inputs), np.float32), np.empty((PANEL, self.inputs), np.float32)
        for number in np.unique(indices // PANEL).tolist():
            check(library().ls_blocks_read(self.struct(), number, address(panel)))
            there = indices // PANEL == number
            rows[there] = panel[indices[there] % PANEL]
        return rows


def packed_bytes(out: int, inputs: int, type: str) -> int:  # noqa: A002
    """Return how many bytes a matrix takes; 0 for sizes that are not possible."""
    return int(library().ls_blocks_bytes(BLOCK_TYPES[type], out, inputs))
