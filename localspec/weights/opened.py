"""Writes packed models to files, and opens them for the compiled library, memory-mapped or in memory."""

import hashlib
import mmap
import os
import threading
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from localspec.errors import LocalspecError, first_line
from localspec.families.architecture import TABLES, TransformerConfig, in_features, weight_map
from localspec.families.model_config import ModelConfig
from localspec.machine.library import MOST_PARTS
from localspec.outside_files import parse_json
from localspec.weights.matrices import BlockMatrix, BlockStack, PackedMatrix, room
from localspec.weights.packed_file import BLOCKS, Header, Progress, Section, Tensor, joined, read, undamaged
from localspec.weights.packed_files import partial_of
from localspec.weights.stored import RowsOf

Fill = Callable[[str, Section, int, memoryview], None]  # name, section, first byte of the piece, destination


def write(file: Path, header: Header, fill: Fill, threads: int, progress: Progress) -> None:
    """Write a packed file, either completely or not at all: under a temporary name, flushed to disk, then renamed.

    Only one process may write it. Several threads call `fill`, once for each piece. Raises OSError, and CannotRead if
    the file cannot be read back.
    """
    partial = partial_of(file)
    start, lock, of_thread = len(header.encoded()), threading.Lock(), threading.local()
    largest = max((min(section.piece, section.bytes) for section in header.sections.values()), default=0)
    try:
        with os.fdopen(os.open(partial, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600), "r+b", buffering=0) as stream:
            os.chmod(partial, 0o600)  # a umask may have removed the permission to read it back
            stream.write(f"{os.getpid()}\n".encode())  # shown by processes that wait, until the header replaces it

            def put(name: str, section: Section, first: int, end: int) -> bytes:
                if not hasattr(of_thread, "buffer"):
                    of_thread.buffer = mmap.mmap(-1, max(largest, 1))
                piece = memoryview(of_thread.buffer)[: end - first]
                fill(name, section, first, piece)
                with lock:
                    stream.seek(start + section.offset + first)
                    left = piece
                    while left:
                        left = left[stream.write(left) :]
                return hashlib.sha256(piece).digest()

            digests = _each_piece(header, put, threads, progress)
            stream.seek(0)
            stream.write(header.with_digests(digests).encoded())
            stream.truncate(start + header.section_bytes)
            os.fsync(stream.fileno())
        read(partial)  # a file that cannot be read back must not look finished
        os.replace(partial, file)
        _flush_directory(file.parent)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise


def _each_piece(
    header: Header, put: Callable[[str, Section, int, int], bytes], threads: int, progress: Progress
) -> dict[str, str]:
    """Call `put` in threads to store each piece of each section (a tensor or a text). Return the digests of the
    sections.

    `put` returns the digest of a piece.
    """
    done, lock = 0, threading.Lock()

    def work(name: str, section: Section, first: int, end: int) -> bytes:
        nonlocal done
        digest = put(name, section, first, end)
        with lock:
            done += end - first
            progress(done, header.section_bytes)
        return digest

    with ThreadPoolExecutor(threads) as pool:
        jobs = {
            name: [pool.submit(work, name, section, *piece) for piece in section.pieces]
            for name, section in header.sections.items()
        }
        everything = [job for group in jobs.values() for job in group]
        try:
            ended, _ = wait(everything, return_when=FIRST_EXCEPTION)
            for job in ended:
                job.result()  # raises the error of the job
        finally:
            for job in everything:
                job.cancel()
    return {name: joined(job.result() for job in group) for name, group in jobs.items()}


def _flush_directory(directory: Path) -> None:
    """Flush a directory to disk, so that a renamed file keeps its new name. Windows does so by itself."""
    if os.name == "posix":
        handle = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@dataclass(frozen=True)
class PackedModel:
    """A packed model that is ready for computing, in a memory-mapped file or in memory."""

    header: Header
    content: mmap.mmap | npt.NDArray[np.uint8]
    start: int  # the first byte of the sections
    head_rows: RowsOf | None = None  # reads rows of a head that stays in the model's file
    file: Path | None = None  # that is mapped

    @classmethod
    def open(cls, file: Path) -> "PackedModel":
        """Memory-map a packed file, so that several processes can share it. Raises the errors of `packed_file.read`."""
        packed = read(file)
        with file.open("rb") as stream:
            content = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
            return cls(packed.header, content, packed.start, file=file)

    @classmethod
    def in_memory(cls, header: Header, fill: Fill, threads: int, progress: Progress) -> "PackedModel":
        """Pack a model into memory instead of a file."""
        content = room(header.section_bytes)
        whole = content.data

        def put(name: str, section: Section, first: int, end: int) -> bytes:
            piece = whole[section.offset + first : section.offset + end]
            fill(name, section, first, piece)
            return b"" if section.tensor else hashlib.sha256(piece).digest()  # weights in memory are never verified

        return cls(header.with_digests(_each_piece(header, put, threads, progress)), content, 0)

    @cached_property
    def config(self) -> ModelConfig:
        """The model's configuration. Raises LocalspecError if its config.json cannot be used."""
        try:
            return ModelConfig.of(parse_json(self.texts["config.json"]))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise self._unusable(first_line(error)) from None

    @cached_property
    def sizes(self) -> TransformerConfig:
        """The model's sizes, always with a separate head. In a tied model, the head is the embedding.

        Raises LocalspecError for a config.json that cannot be used, or that does not fit the weights.
        """
        sizes = replace(TransformerConfig.of(self.config), tied=False)
        stored, expected = self._parts, weight_map(sizes)
        if "embed_tokens" not in stored:
            del expected["embed_tokens"]  # it is stored once, as the head
        if self.head_rows:
            del expected["lm_head.weight"]
        for name, parts in expected.items():
            if not _fits(stored.get(name, []), name, sum(rows for _, rows in parts), in_features(name, sizes)):
                raise self._unusable(f"the file has no {name}, although its config.json declares it")
        if unknown := next((name for name in stored if name not in expected), None):
            raise self._unusable(f"the file has a tensor {unknown!r} that its config.json does not mention")
        return sizes

    def _unusable(self, reason: str) -> LocalspecError:
        return LocalspecError(
            f"The packed file of {self.header.origin.name} cannot be used ({reason}); delete that file, and localspec "
            "makes it again."
        )

    @cached_property
    def _parts(self) -> dict[str, list[tuple[str, Tensor]]]:
        """The stored sections of each parameter, as (name, form). Only a matrix in blocks can have several."""
        parts: dict[str, list[tuple[str, Tensor]]] = {}
        for name, section in self.header.tensors.items():
            assert section.tensor is not None
            blocks = section.tensor.layout == BLOCKS
            parts.setdefault(name.rpartition(" ")[0] if blocks else name, []).append((name, section.tensor))
        return parts

    @cached_property
    def tensors(self) -> dict[str, PackedMatrix | BlockStack | npt.NDArray[Any]]:
        """The weights by parameter name, without copying: packed matrices, and arrays for parameters that are not
        packed.

        bf16 numbers are in uint16 arrays. In a model with a tied head, the embedding is the same object as the head.
        """
        tensors = {name: self._tensor(name, parts) for name, parts in self._parts.items()}
        if "embed_tokens" not in tensors and "lm_head.weight" in tensors:
            tensors["embed_tokens"] = tensors["lm_head.weight"]
        return tensors

    def _tensor(self, name: str, parts: list[tuple[str, Tensor]]) -> PackedMatrix | BlockStack | npt.NDArray[Any]:
        if parts[0][1].layout == BLOCKS:
            blocks = [(self._content(part), tensor.out, tensor.inputs, tensor.format) for part, tensor in parts]
            return BlockStack(tuple(BlockMatrix(*fields) for fields in blocks))
        (_, tensor), content = parts[0], self._content(name)
        if tensor.layout == "panels":
            return PackedMatrix(content, tensor.out, tensor.inputs, tensor.format, tensor.group)
        numbers = content.view(np.uint16 if tensor.format == "bf16" else np.float32)
        return numbers if tensor.out == 1 and name not in TABLES else numbers.reshape(tensor.out, tensor.inputs)

    def _content(self, name: str) -> npt.NDArray[np.uint8]:
        return np.frombuffer(self.view(name), np.uint8)

    @property
    def nbytes(self) -> int:
        """Bytes of the weights."""
        return sum(section.bytes for section in self.header.tensors.values())

    def view(self, name: str) -> memoryview:
        """Return the bytes of a section. Raises KeyError for a missing name."""
        section = self.header.sections[name]
        whole = memoryview(self.content) if isinstance(self.content, mmap.mmap) else self.content.data
        return whole[self.start + section.offset :][: section.bytes]

    @cached_property
    def texts(self) -> dict[str, bytes]:
        """The model's text files by name. Raises DamagedFile if one does not match its digest."""
        origin = self.header.origin.name
        return {
            name: undamaged(bytes(self.view(name)), section, f"{name} in the packed file of {origin}")
            for name, section in self.header.texts.items()
        }


def _fits(parts: list[tuple[str, Tensor]], name: str, out: int, inputs: int | None) -> bool:
    """Return whether a parameter's sections have the sizes and formats that the library expects, but does not check."""
    if not parts:
        return False
    tensor = parts[0][1]
    if inputs is None:
        return [stored for _, stored in parts] == [Tensor("rows", "fp32", 1, out)]
    if tensor.layout == BLOCKS:
        rows, halves = [stored.out for _, stored in parts], "gate_up_proj" in name
        return (
            [part for part, _ in parts] == [f"{name} {number}" for number in range(len(parts))]
            and (rows == [out // 2] * 2 if halves else len(parts) <= MOST_PARTS and sum(rows) == out)
            and all((stored.layout, stored.inputs) == (BLOCKS, inputs) for _, stored in parts)
            and not name.endswith(".conv")
        )
    if len(parts) > 1:
        return False
    form: tuple[str, tuple[str, ...]] = "panels", ("fp32", "bf16", "int8")
    if name.endswith(".conv") or name in TABLES:
        form = "rows", ("fp32",) if name.endswith(".conv") else ("fp32", "bf16")
    return (tensor.out, tensor.inputs, tensor.layout) == (out, inputs, form[0]) and tensor.format in form[1]
