"""Reads GGUF files: the header, the places of the tensors, and the numbers in their blocks.

    "GGUF" │ version, 4 bytes │ tensors, 8 bytes │ keys, 8 bytes │ keys and values │ tensors │ padding │ their bytes

Nothing in a file is trusted. Memory is allocated only after a length was compared with the rest of the file. No file is
memory-mapped, because truncating a mapped file would kill the process. The format is that of llama.cpp's docs/gguf.md,
versions 2 and 3.
"""

import os
import stat
import struct
from array import array
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from localspec.errors import LocalspecError
from localspec.outside_files import MIB

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class BlockType:
    """A type of quantized blocks: its name in ggml, the number of weights in a block, and the bytes of a block."""

    name: str
    weights: int
    bytes: int


BLOCKS: dict[int, BlockType] = {
    0: BlockType("F32", 1, 4), 1: BlockType("F16", 1, 2), 30: BlockType("BF16", 1, 2), 2: BlockType("Q4_0", 32, 18),
    3: BlockType("Q4_1", 32, 20), 6: BlockType("Q5_0", 32, 22), 7: BlockType("Q5_1", 32, 24),
    8: BlockType("Q8_0", 32, 34), 10: BlockType("Q2_K", 256, 84), 11: BlockType("Q3_K", 256, 110),
    12: BlockType("Q4_K", 256, 144), 13: BlockType("Q5_K", 256, 176), 14: BlockType("Q6_K", 256, 210),
    16: BlockType("IQ2_XXS", 256, 66), 17: BlockType("IQ2_XS", 256, 74), 18: BlockType("IQ3_XXS", 256, 98),
    19: BlockType("IQ1_S", 256, 50), 20: BlockType("IQ4_NL", 32, 18), 21: BlockType("IQ3_S", 256, 110),
    22: BlockType("IQ2_S", 256, 82), 23: BlockType("IQ4_XS", 256, 136), 29: BlockType("IQ1_M", 256, 56),
    34: BlockType("TQ1_0", 256, 54), 35: BlockType("TQ2_0", 256, 66), 39: BlockType("MXFP4", 32, 17),
    40: BlockType("NVFP4", 64, 36),
}  # fmt: skip
# Types that weights never have, or that the package gguf does not read, for error messages.
NAMES = {9: "Q8_1", 15: "Q8_K", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 41: "Q1_0", 42: "Q2_0"}


def floats(block: BlockType, stored: Any) -> Floats:
    """Return the numbers in the quantized blocks `stored`, in order, as ggml's dequantize_row computes them."""
    from gguf import GGMLQuantizationType, quants

    with np.errstate(all="ignore"):  # a hostile file may have scales that are not finite
        numbers = quants.dequantize(np.frombuffer(stored, np.uint8), GGMLQuantizationType[block.name])
    return numbers.reshape(-1)


_HEADER_LIMIT = 128 * MIB  # bytes; the largest vocabularies take 20 MiB
_MOST_TENSORS = _MOST_KEYS = 2**16
_MOST_TEXTS = 2**22  # of all arrays; the largest vocabularies have 800,000 tokens and merges
_LONGEST_NAME = 2**8  # bytes of a key or a tensor's name
_DIMENSIONS = 4
_NUMBERS = {0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?", 10: "<u8", 11: "<i8", 12: "<f8"}
_TEXT, _ARRAY = 8, 9
_LENGTH = struct.Struct("<Q")  # of a text
_PIECE = 4 * MIB  # bytes that are read at a time


class Texts:
    """An array of texts, kept as the file's bytes, because separate Python strings would take ten times the memory."""

    def __init__(self, content: bytes, ends: "array[int]") -> None:
        """Wrap the bytes `content`. `ends` are the offsets at which the texts end."""
        self._content, self._ends = content, ends

    def __len__(self) -> int:
        return len(self._ends)

    @cached_property
    def _decoded(self) -> list[str]:
        content, size = self._content, _LENGTH.size

        def decoded(errors: str) -> list[str]:
            places = pairwise([0, *self._ends])
            return [content[end + size : next_end].decode("utf-8", errors) for end, next_end in places]

        try:
            return decoded("strict")  # much faster
        except UnicodeDecodeError:
            return decoded("surrogateescape")

    def tolist(self) -> list[str]:
        """Return the texts, with lone surrogates for bytes that are not UTF-8. Every call returns the same list."""
        return self._decoded


Value = str | int | float | bool | Texts | npt.NDArray[Any]


@dataclass(frozen=True)
class TensorPlace:
    """The place of a tensor in a file: its first byte, its shape (rows first), and the type of its blocks."""

    start: int
    shape: tuple[int, ...]
    block: BlockType

    @property
    def bytes(self) -> int:
        return prod(self.shape) // self.block.weights * self.block.bytes


@dataclass(frozen=True)
class GgufFile:
    """A GGUF file: metadata by key, tensors by name."""

    path: Path
    metadata: dict[str, Value]
    tensors: dict[str, TensorPlace]
    bytes: int


def read(path: Path) -> GgufFile:
    """Read a GGUF file's header. Raises LocalspecError for a file that is unreadable, inconsistent, or not GGUF."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for a writer
            raise LocalspecError(f"{path} is not a regular file; give a GGUF file.")
        with path.open("rb", buffering=0) as stream:
            return _Reader(path, stream).file()
    except OSError as error:
        raise LocalspecError(
            f"{path} cannot be read ({error.strerror}); check the file and its permissions, then try again."
        ) from None
    except ValueError as error:
        raise damaged(path, str(error)[:200]) from None


def damaged(path: Path, reason: str) -> LocalspecError:
    return LocalspecError(f"{path} cannot be read as a GGUF file ({reason}); fetch it again, or choose another file.")


class _Reader:
    """A reader of one file's header. For anything impossible it raises ValueError, whose message is not a whole
    sentence."""

    def __init__(self, path: Path, stream: BinaryIO) -> None:
        self._path, self._stream = path, stream
        self._size = os.fstat(stream.fileno()).st_size
        self._most, self._texts_left = min(self._size, _HEADER_LIMIT), _MOST_TEXTS
        self._content, self._at = bytearray(), 0  # what was read so far, and how much of it was parsed

    def file(self) -> GgufFile:
        if self._bytes(4) != b"GGUF":
            raise ValueError("the file does not begin like a GGUF file")
        version = self._number("<I")
        if version not in (2, 3):
            big = version in (2 << 24, 3 << 24)
            raise ValueError(
                "the file is big-endian, but localspec reads only little-endian files"
                if big
                else f"the GGUF version is {version} instead of 2 or 3"
            )
        count, keys = self._number("<Q"), self._number("<Q")
        if count > _MOST_TENSORS or keys > _MOST_KEYS:
            raise ValueError(f"the header claims {count} tensors and {keys} keys, which is too many")
        metadata: dict[str, Value] = {}
        for _ in range(keys):
            key = self._text(_LONGEST_NAME)
            if key in metadata:
                raise ValueError(f"the key {key!r} occurs twice")
            metadata[key] = self._value()
        entries: dict[str, tuple[int, tuple[int, ...], BlockType]] = {}
        for _ in range(count):
            name = self._text(_LONGEST_NAME)
            if name in entries:
                raise ValueError(f"the tensor {name!r} occurs twice")
            entries[name] = self._tensor(name)
        return GgufFile(self._path, metadata, self._placed(entries, metadata), self._size)

    def _placed(
        self, entries: dict[str, tuple[int, tuple[int, ...], BlockType]], metadata: dict[str, Value]
    ) -> dict[str, TensorPlace]:
        """Return the tensors' places, by name. Raises ValueError for gaps between them, or for a wrong order."""
        step = metadata.get("general.alignment", 32)
        if type(step) is not int or not 8 <= step <= 2**20 or step & (step - 1):
            raise ValueError(f"general.alignment is {str(step)[:40]} instead of a power of two from 8 to 1,048,576")
        start = -(-self._at // step) * step
        places = {name: TensorPlace(start + offset, shape, block) for name, (offset, shape, block) in entries.items()}
        end = start
        for name, place in places.items():
            if place.start != end:
                raise ValueError(f"the tensor {name!r} begins at byte {place.start} instead of {end}")
            end += -(-place.bytes // step) * step
            if place.start + place.bytes > self._size:
                raise ValueError(f"the tensor {name!r} ends beyond the file, which has {self._size} bytes")
        return places

    def _tensor(self, name: str) -> tuple[int, tuple[int, ...], BlockType]:
        dimensions = self._number("<I")
        if not 1 <= dimensions <= _DIMENSIONS:
            raise ValueError(f"the tensor {name!r} has {dimensions} dimensions instead of 1 to {_DIMENSIONS}")
        sizes = [self._number("<Q") for _ in range(dimensions)]
        kind, offset = self._number("<I"), self._number("<Q")
        if (block := BLOCKS.get(kind)) is None:
            form = NAMES.get(kind, kind)
            raise LocalspecError(
                f"The tensor {name!r} in {self._path} is of the type {form}, which localspec does not read; choose a "
                "file in another type, such as Q4_K_M."
            )
        if not all(1 <= size <= self._size * block.weights for size in sizes) or sizes[0] % block.weights:
            raise ValueError(f"the tensor {name!r} has the sizes {sizes}, which are impossible in {block.name}")
        return offset, tuple(reversed(sizes)), block  # GGUF lists the fastest-varying dimension first

    def _value(self) -> Value:
        kind = self._number("<I")
        if kind == _TEXT:
            return self._text()
        if kind == _ARRAY:
            return self._array()
        number: Value = self._numbers(kind, 1)[0].item()
        return number

    def _array(self) -> Value:
        kind, count = self._number("<I"), self._number("<Q")
        if kind == _TEXT:
            if count > min((self._most - self._at) // _LENGTH.size, self._texts_left):
                raise ValueError(f"the header has an array of {count} texts, which is too long")
            self._texts_left -= count
            return self._texts(count)
        return self._numbers(kind, count)

    def _texts(self, count: int) -> Texts:
        content, start, ends = self._content, self._at, array("I")
        length_at, size, available, at = _LENGTH.unpack_from, _LENGTH.size, len(content), start
        for _ in range(count):  # 300,000 in common files
            if at + size > available:
                available = self._fetch(at, size)
            length = length_at(content, at)[0]
            at += size
            if at + length > available:
                available = self._fetch(at, length)
            at += length
            ends.append(at - start)
        self._at = at
        with memoryview(content) as whole:
            return Texts(bytes(whole[start:at]), ends)

    def _numbers(self, kind: int, count: int) -> npt.NDArray[Any]:
        if kind not in _NUMBERS:
            raise ValueError(
                "the header has an array of arrays"
                if kind == _ARRAY
                else f"the header has a value of the unknown type {kind}"
            )
        dtype = np.dtype(_NUMBERS[kind])
        content = self._bytes(count * dtype.itemsize)
        return np.frombuffer(content, "u1").astype(bool) if kind == 7 else np.frombuffer(content, dtype)

    def _text(self, longest: int = _HEADER_LIMIT) -> str:
        """Read a string. Bytes that are not UTF-8 become lone surrogates, which matter only if the string is used."""
        length = self._number("<Q")
        if length > longest:
            raise ValueError(f"the header has a name of {length} bytes, which is too long")
        return self._bytes(length).decode("utf-8", "surrogateescape")

    def _number(self, form: str) -> int:
        number: int = struct.unpack(form, self._bytes(struct.calcsize(form)))[0]
        return number

    def _bytes(self, count: int) -> bytes:
        start, end = self._at, self._at + count
        if end > len(self._content):
            self._fetch(start, count)
        self._at = end
        return bytes(self._content[start:end])

    def _fetch(self, at: int, count: int) -> int:
        """Read on until the `count` bytes from byte `at` on are in memory. Return how many bytes are in memory then."""
        if count > self._most - at:
            raise ValueError(
                f"the header announces a value of {count} bytes, but at most {self._most - at} bytes can follow"
            )
        while len(self._content) < at + count:
            piece = self._stream.read(
                min(max(_PIECE, at + count - len(self._content)), self._most - len(self._content))
            )
            if not piece:
                raise ValueError("the file became shorter while it was read")
            self._content += piece
        return len(self._content)
