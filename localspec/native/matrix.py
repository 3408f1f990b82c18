"""A matrix in memory as the compiled library reads it: packed in panels of 32 output channels."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from localspec.errors import LocalspecError
from localspec.native.library import FORMATS, Matrix, Packing, address, check, library

PANEL = 32  # output channels
_SOURCES = {np.dtype(np.float32): "fp32", np.dtype(np.float16): "fp16", np.dtype(np.uint16): "bf16"}
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
        importance: npt.NDArray[np.float32] | None = None,
    ) -> "PackedMatrix":
        """Packs weights [out, inputs] of fp32, fp16, or bf16 as uint16.

        `interleave` is for gate and up, stacked; `importance` [inputs] weighs the squared errors of int4. Raises
        LocalspecError for a format that is not possible.
        """
        weights = np.ascontiguousarray(weights)
        out, inputs = weights.shape
        packed = cls.empty(out, inputs, format, group)
        source = FORMATS[_SOURCES[weights.dtype]]
        given = address(weights), source, out, inputs, FORMATS[format], group, interleave, address(importance)
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

    def panel(self, index: int) -> "PackedMatrix":
        """Returns 32 output channels, or as many as are left, as a matrix of their own; nothing may be interleaved."""
        size = len(self.data) // -(-self.out // PANEL)
        out = min(PANEL, self.out - PANEL * index)
        return PackedMatrix(self.data[size * index : size * (index + 1)], out, self.inputs, self.format, self.group)

    def unpack(self, interleave: bool = False) -> npt.NDArray[np.float32]:
        """Returns the numbers that the library computes with, [out, inputs]."""
        weights = np.empty((self.out, self.inputs), np.float32)
        check(library().ls_unpack(self.struct(), interleave, address(weights)))
        return weights
