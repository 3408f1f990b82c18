"""A matrix in memory as the compiled library reads it: packed in panels of 32 output channels."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from localspec.errors import LocalspecError
from localspec.native.library import FORMATS, Matrix, Packing, address, check, int32, library

PANEL = 32  # output channels
SOURCES = {np.dtype(np.float32): "fp32", np.dtype(np.float16): "fp16", np.dtype(np.uint16): "bf16"}
_ALIGNMENT = 64  # bytes


@dataclass(frozen=True)
class PackedMatrix:
    """A weight [out, inputs] and its packed bytes, wherever they lie: in a mapped file, or in memory of their own.

    `format` is fp32, bf16, int8 or int4; `group` inputs share a scale, and it is 0 where there are no scales.
    """

    data: npt.NDArray[np.uint8]
    out: int
    inputs: int
    format: str
    group: int

    @classmethod
    def pack(
        cls,
        weights: npt.NDArray[Any],
        format: str,  # noqa: A002
        group: int = 0,
        interleave: bool = False,
    ) -> "PackedMatrix":
        """Pack weights [out, inputs] of fp32, fp16, or bf16 as uint16; `interleave` is for gate and up, stacked.

        Raises LocalspecError for a format that is not possible; int4 is only read, as earlier versions wrote it.
        """
        weights = np.ascontiguousarray(weights)
        out, inputs = weights.shape
        packed = cls.empty(out, inputs, format, group)
        source = FORMATS[SOURCES[weights.dtype]]
        given = address(weights), source, out, inputs, FORMATS[format], group, interleave, None
        check(library().ls_pack(Packing(*given), address(packed.data), 0, -(-out // PANEL)))
        return packed

    @classmethod
    def empty(cls, out: int, inputs: int, format: str, group: int = 0) -> "PackedMatrix":  # noqa: A002
        """Returns room for a matrix, in memory of its own. Raises LocalspecError for a format that is not possible."""
        if not (size := library().ls_packed_bytes(out, inputs, FORMATS[format], group)):
            raise LocalspecError(f"A matrix of {out} by {inputs} in {format} cannot be packed by {group}.")
        spare = np.empty(size + _ALIGNMENT, np.uint8)
        return cls(spare[-spare.ctypes.data % _ALIGNMENT :][:size], out, inputs, format, group)

    def struct(self, bias: npt.NDArray[np.float32] | None = None) -> Matrix:
        """As the library takes it; who keeps the structure keeps this and the bias too."""
        return Matrix(address(self.data), address(bias), self.out, self.inputs, FORMATS[self.format], self.group)

    @property
    def nbytes(self) -> int:
        """Return its bytes."""
        return self.data.nbytes

    def unpack(self, interleave: bool = False) -> npt.NDArray[np.float32]:
        """Returns the numbers that the library computes with, [out, inputs]."""
        weights = np.empty((self.out, self.inputs), np.float32)
        check(library().ls_unpack(self.struct(), interleave, address(weights)))
        return weights

    def rows(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """Return the numbers of some output channels, [n, inputs]; nothing may be interleaved."""
        return matrix_rows(self.struct(), ids)


def matrix_rows(matrix: Matrix, ids: Sequence[int]) -> npt.NDArray[np.float32]:
    """Return the weights of some rows, [n, inputs]. Raises LocalspecError for rows that are not there."""
    numbers, weights = int32(ids), np.empty((len(ids), matrix.inputs), np.float32)
    check(library().ls_rows(matrix, len(numbers), address(numbers), address(weights)))
    return weights
