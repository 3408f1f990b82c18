"""Matrices in the memory layouts of the compiled library: in panels of rows, in GGUF blocks, or stacked."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from localspec.errors import LocalspecError
from localspec.machine.library import (
    BLOCK_TYPES,
    BLOCKS,
    FORMATS,
    MOST_PARTS,
    Blocks,
    BlocksPacking,
    Matrix,
    Packing,
    address,
    check,
    int32,
    library,
)
from localspec.weights.packed_file import BLOCK_PANEL, PANEL

# The format of weights to pack; bits of bf16 are given as uint16.
SOURCES = {np.dtype(np.float32): "fp32", np.dtype(np.float16): "fp16", np.dtype(np.uint16): "bf16"}
_ALIGNMENT = 64  # bytes


@dataclass(frozen=True)
class PackedMatrix:
    """A weight matrix [out, inputs] in the layout of the compiled library, with 32 rows stored together as a panel.

    `format` is fp32, bf16 or int8. `group` is the number of inputs that share a scale, or 0 without scales.
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
        """Pack weights [out, inputs], given as fp32, fp16, or bf16 bits in uint16.

        With `interleave` their upper half are gate rows, their lower half up rows, and panels have both. Raises
        LocalspecError for an impossible format.
        """
        weights = np.ascontiguousarray(weights)
        out, inputs = weights.shape
        packed = cls.empty(out, inputs, format, group)
        source = FORMATS[SOURCES[weights.dtype]]
        arguments = address(weights), source, out, inputs, FORMATS[format], group, interleave, None
        check(library().ls_pack(Packing(*arguments), address(packed.data), 0, -(-out // PANEL)))
        return packed

    @classmethod
    def empty(cls, out: int, inputs: int, format: str, group: int = 0) -> "PackedMatrix":  # noqa: A002
        """Return a matrix in new, uninitialised memory. Raises LocalspecError for an impossible format."""
        if not (size := library().ls_packed_bytes(out, inputs, FORMATS[format], group)):
            raise LocalspecError(
                f"A matrix of {out} by {inputs} in {format} cannot be packed in groups of {group}; give other sizes."
            )
        return cls(room(size), out, inputs, format, group)

    def struct(self, bias: npt.NDArray[np.float32] | None = None) -> Matrix:
        """Return the matrix as a C structure. Keep this object and `bias` alive as long as the library uses it."""
        return Matrix(address(self.data), address(bias), self.out, self.inputs, FORMATS[self.format], self.group)

    @property
    def nbytes(self) -> int:
        """Bytes of the matrix."""
        return self.data.nbytes

    def unpack(self, interleave: bool = False) -> npt.NDArray[np.float32]:
        """Return the weights [out, inputs] as the library computes with them."""
        weights = np.empty((self.out, self.inputs), np.float32)
        check(library().ls_unpack(self.struct(), interleave, address(weights)))
        return weights

    def rows(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """Return the weights [n, inputs] of some rows. The matrix must not be interleaved."""
        return matrix_rows(self.struct(), ids)


def matrix_rows(matrix: Matrix, ids: Sequence[int]) -> npt.NDArray[np.float32]:
    """Return the weights of some rows, [n, inputs]. Raises LocalspecError for rows that do not exist."""
    numbers, weights = int32(ids), np.empty((len(ids), matrix.inputs), np.float32)
    check(library().ls_rows(matrix, len(numbers), address(numbers), address(weights)))
    return weights


@dataclass(frozen=True)
class BlockMatrix:
    """A weight matrix [out, inputs] in quantized blocks of one type, with the same values as in a GGUF file."""

    data: npt.NDArray[np.uint8]
    out: int
    inputs: int
    type: str

    @classmethod
    def pack(cls, rows: npt.NDArray[np.uint8], inputs: int, type: str, head_rows: int = 0) -> "BlockMatrix":  # noqa: A002
        """Copy rows [out, bytes] of a GGUF file into a new matrix. Raises the errors of `empty` and `fill`."""
        packed = cls.empty(len(rows), inputs, type)
        packed.fill(rows, head_rows=head_rows)
        return packed

    @classmethod
    def empty(cls, out: int, inputs: int, type: str) -> "BlockMatrix":  # noqa: A002
        """Return a matrix in new, uninitialised memory. Raises LocalspecError for impossible sizes."""
        return cls(room(packed_bytes(out, inputs, type)), out, inputs, type)

    @property
    def panels(self) -> int:
        """The number of panels, which store 16 rows together. The last panel may have fewer."""
        return -(-self.out // BLOCK_PANEL)

    def fill(self, rows: npt.NDArray[np.uint8], first: int = 0, end: int | None = None, head_rows: int = 0) -> None:
        """Fill panels [first, end) from the rows [out, bytes] of a GGUF file. Several threads may fill different
        panels.

        `head_rows` is an attention head's number of rows if the file stores rows i and i + head_rows / 2 of a head next
        to each other, else 0. Raises LocalspecError for a scale that is NaN or inf, and for rows of another size.
        """
        packing = BlocksPacking(address(rows), rows.nbytes, BLOCK_TYPES[self.type], self.out, self.inputs, head_rows)
        check(library().ls_blocks_pack(packing, address(self.data), first, self.panels if end is None else end))

    def fill_rounded(
        self, weights: npt.NDArray[Any], importance: npt.NDArray[np.float32] | None = None, source: str = ""
    ) -> None:
        """Round weights [out, inputs] to this matrix's block type, and fill the matrix with them.

        The weights are fp32, fp16, or bf16 as uint16; `source` names the format if the array's type does not, as for
        fp16 in uint16. Rounding minimises squared errors, weighted by `importance` [inputs]. Raises LocalspecError for
        a weight that is NaN or inf, and for a block type that localspec cannot round to.
        """
        assert weights.shape == (self.out, self.inputs)
        packing = Packing(
            address(weights),
            FORMATS[source or SOURCES[weights.dtype]],
            self.out,
            self.inputs,
            0,
            0,
            0,
            address(importance),
        )
        check(library().ls_blocks_round(packing, BLOCK_TYPES[self.type], address(self.data), 0, self.panels))

    def numbers(self) -> npt.NDArray[np.float32]:
        """Return the weights [out, inputs] as fp32."""
        return BlockStack((self,)).rows(range(self.out))


@dataclass(frozen=True)
class BlockStack:
    """A weight matrix in blocks, made of parts whose rows follow each other. Parts may differ in block type."""

    parts: tuple[BlockMatrix, ...]

    @property
    def out(self) -> int:
        """The number of rows of all parts together."""
        return sum(part.out for part in self.parts)

    @property
    def inputs(self) -> int:
        """The number of inputs of each part."""
        return self.parts[0].inputs

    @property
    def nbytes(self) -> int:
        """Bytes of all parts."""
        return sum(part.data.nbytes for part in self.parts)

    def struct(self, bias: npt.NDArray[np.float32] | None = None) -> Matrix:
        """Return the matrix as a C structure. Keep this object and `bias` alive as long as the library uses it.

        Raises LocalspecError for too many parts, and for parts that differ in their inputs.
        """
        if not 0 < len(self.parts) <= MOST_PARTS or {part.inputs for part in self.parts} != {self.inputs}:
            widths = ", ".join(str(part.inputs) for part in self.parts)
            raise LocalspecError(f"A stack needs 1 to {MOST_PARTS} parts of the same width, but these have: {widths}.")
        parts = (Blocks * MOST_PARTS)(
            *(Blocks(address(part.data), BLOCK_TYPES[part.type], part.out) for part in self.parts)
        )
        return Matrix(None, address(bias), self.out, self.inputs, BLOCKS, 0, len(self.parts), parts)

    def rows(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """Return the weights of some rows, [n, inputs]."""
        return matrix_rows(self.struct(), ids)


def room(count: int) -> npt.NDArray[np.uint8]:
    """Return new memory for a matrix, suitably aligned, and in large pages if possible."""
    spare = np.empty(count + _ALIGNMENT, np.uint8)  # numpy asks for large pages for large allocations
    return spare[-spare.ctypes.data % _ALIGNMENT :][:count]


def packed_bytes(out: int, inputs: int, type: str) -> int:  # noqa: A002
    """Return how many bytes a matrix takes. Raises LocalspecError for impossible sizes."""
    if not (size := int(library().ls_blocks_bytes(BLOCK_TYPES[type], out, inputs))):
        raise LocalspecError(library().ls_error().decode())
    return size
