"""A packed file: one file with a model's weights as the CPU engine reads them, its configuration and its tokenizer.

    magic, 8 bytes │ length of the header, 8 bytes │ sha256 of the header, 32 bytes │ header, JSON │ sections ...

A model in GGUF files has a packed file without tensors, its registration. Its header says where the weights are in the
GGUF files. If the model has experts, or block types without kernels, a second packed file has all weights in blocks.

Sections are tensors and texts. Each begins at a multiple of 4096 bytes after the start of the first section. A section
is written and read back in pieces. Its digest is the SHA-256 of the SHA-256 digests of its pieces, one after another.
"""

import hashlib
import json
import math
import os
import re
import stat
import struct
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal

from localspec.environment import home
from localspec.errors import LocalspecError
from localspec.outside_files import TEXT_LIMIT, parse_json
from localspec.paths import Paths
from localspec.weights.file_fingerprint import file_fingerprint

SUFFIX = ".packed"
PARTIAL = ".partial"  # suffix of a file that is being written
FORMAT = 2  # of these files; earlier ones have no blocks
BLOCKS: Final = (
    "blocks"  # the packing of weights that stay in the blocks of GGUF files, and the layout of matrices in blocks
)
LAYOUTS = (1,)  # supported layouts of the tensors' bytes: localspec/native/src/layout.h
PANEL = 32  # output channels
PIECE, TEXT_PIECE = 2**21, 2**24  # most bytes of a tensor's piece, unless a single panel is larger, and of a text's
_MAGIC, _ALIGNMENT = b"LSPACKED", 4096
_HEADER_LIMIT, _LARGEST = 2**26, 2**26  # bytes of a header; channels of a tensor
_MOST_PIECES = 2**20  # of a section
_ITEM_BITS = {"fp32": 32, "bf16": 16, "int8": 8}
# By type of blocks: inputs, and lines of 64 bytes, of a record of 16 rows (localspec/native/src/layout.h).
RECORDS = {
    "Q4_0": (64, 9), "Q4_1": (32, 5), "Q5_0": (64, 11), "Q5_1": (32, 6), "Q8_0": (64, 17), "Q2_K": (256, 21),
    "Q3_K": (256, 28), "Q4_K": (256, 36), "Q5_K": (256, 44), "Q6_K": (256, 53), "IQ4_NL": (64, 9),
    "IQ4_XS": (256, 34), "MXFP4": (128, 17),
}  # fmt: skip
CHANGES = ("plus one", "-exp")  # of the numbers of a vector
BLOCK_PANEL, _LINE = 16, 64  # rows of a panel of blocks; bytes
_STORED_NAMES = {"default_packing": "answers"}  # of fields that have another name in files
_DIGEST = re.compile(r"[0-9a-f]{64}")
_MADE_AGAIN = "localspec makes the file again when it loads the original weights"  # the end of an error message
_REVISION = re.compile(r"[0-9a-f]{40}")
Progress = Callable[[int, int], None]  # bytes done, and bytes in all


class DamagedFile(LocalspecError):
    """An error: a packed file differs from what localspec wrote."""


class CannotRead(LocalspecError):
    """An error: the operating system does not let localspec read a packed file."""


class UnreadableFormat(LocalspecError):
    """An error: a packed file was written by another version of localspec."""


@dataclass(frozen=True)
class Tensor:
    """The form in which a weight [out, inputs] is stored: in panels of 32 rows, row by row, or in quantized blocks.

    `group` is the number of inputs that share a scale, or 0 without scales. A vector is one row. A matrix in blocks has
    a Tensor for each part of its rows, in panels of 16 rows; `format` is then the type of the blocks.
    """

    layout: Literal["panels", "rows", "blocks"]
    format: str
    out: int
    inputs: int
    group: int = 0

    @property
    def panel_bytes(self) -> int:
        """The bytes of a panel, or of a row if there are no panels."""
        if self.layout == "rows":
            return self.inputs * _ITEM_BITS[self.format] // 8
        if self.layout == BLOCKS:
            inputs, lines = RECORDS[self.format]
            return -(-self.inputs // inputs) * lines * _LINE
        if not self.group:
            return PANEL * self.inputs * _ITEM_BITS[self.format] // 8
        records = -(-self.inputs // self.group)
        return records * PANEL * (2 + self.group * _ITEM_BITS[self.format] // 8)

    @property
    def panels(self) -> int:
        """The number of panels, or of rows if there are no panels."""
        return self.out if self.layout == "rows" else -(-self.out // (BLOCK_PANEL if self.layout == BLOCKS else PANEL))

    @property
    def bytes(self) -> int:
        return self.panels * self.panel_bytes


@dataclass(frozen=True)
class Section:
    """A part of a packed file, a tensor or a text. `offset` counts from the start of the first section."""

    offset: int
    bytes: int
    piece: int  # bytes of a piece; the last one may be shorter
    digest: str
    tensor: Tensor | None = None

    @property
    def pieces(self) -> list[tuple[int, int]]:
        """Return the pieces in which this section is read and written, as [start, end) in bytes of the section."""
        return [(start, min(start + self.piece, self.bytes)) for start in range(0, self.bytes, self.piece)]


@dataclass(frozen=True)
class BlockPart:
    """The place of some rows of a parameter in a GGUF file, and how they are stored there.

    `file` is an index into the origin's files, and `type` the name of a GGUF type. A vector has one size. `head_rows`,
    if not 0, is the number of rows of an attention head: its rows i and i + head_rows / 2 are stored next to each
    other. `change` ("plus one" or "-exp") is what was done to each number of a vector before it was stored. `every`, if
    not 0, says that the file alternates: `every` rows of this part, `every` rows of another, and so on.
    """

    file: int
    offset: int
    bytes: int
    type: str
    shape: tuple[int, ...]
    head_rows: int = 0
    change: str = ""
    every: int = 0


@dataclass(frozen=True)
class Origin:
    """The origin of a packed file: the model's name, its revision by `checkpoint.revision`, and its source.

    `repo` and `commit` are empty for a model that was not fetched. `files` has the bytes and the SHA-256 (64 digits) or
    fingerprint (40 digits) of each weight file, by its name. GGUF files are named by absolute paths, in order.
    `weights` is the fingerprint of the weights, which is the same in all packings. Earlier versions did not write it.
    """

    name: str
    revision: str
    license: str | None = None
    repo: str = ""
    commit: str = ""
    files: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    weights: str = ""


@dataclass(frozen=True)
class Header:
    """The header of a packed file.

    If the weights are in GGUF files instead, `blocks` says where the rows of each parameter are, and `ahead` those of a
    supported MTP layer (multi-token prediction). `weight_bytes` are then the bytes of the weights in memory, or 0 if no
    engine computes with the blocks. `default_packing` applies if the user requests no other packing.
    """

    origin: Origin
    packing: str
    parameters: int
    tensors: Mapping[str, Section]
    texts: Mapping[str, Section]
    format: int = FORMAT
    layout: int = LAYOUTS[-1]
    blocks: Mapping[str, tuple[BlockPart, ...]] = field(default_factory=dict)
    weight_bytes: int = 0
    default_packing: str = BLOCKS
    ahead: Mapping[str, tuple[BlockPart, ...]] = field(default_factory=dict)

    @classmethod
    def plan(
        cls, origin: Origin, packing: str, parameters: int, tensors: Mapping[str, Tensor], texts: Mapping[str, int]
    ) -> "Header":
        """Return a header with the places of all sections. `texts` has each text's length in bytes. Digests are
        zeros."""
        offset, placed = 0, {}
        for name, tensor in [*tensors.items(), *((name, None) for name in texts)]:
            size = texts[name] if tensor is None else tensor.bytes
            piece = TEXT_PIECE if tensor is None else max(1, PIECE // tensor.panel_bytes) * tensor.panel_bytes
            placed[name] = Section(offset, size, piece, "0" * 64, tensor)
            offset = aligned(offset + size)
        parts = [{name: placed[name] for name in names} for names in (tensors, texts)]
        return cls(origin, packing, parameters, parts[0], parts[1])

    @property
    def sections(self) -> dict[str, Section]:
        return {**self.tensors, **self.texts}

    @property
    def section_bytes(self) -> int:
        """The bytes of all sections together, with the gaps between them."""
        return max((section.offset + section.bytes for section in self.sections.values()), default=0)

    @property
    def registered(self) -> bool:
        """Whether this is a registration, which has the weights in GGUF files instead of this file."""
        return self.packing == BLOCKS and not self.tensors

    @property
    def block_bytes(self) -> int:
        """The bytes that the weights take in memory, in blocks; 0 if that is unknown."""
        return self.weight_bytes or sum(section.bytes for section in self.tensors.values())

    @property
    def stored_weights(self) -> int:
        """The number of stored weights. Unlike `parameters`, it includes a head that repeats the embedding."""
        return sum(math.prod(part.shape) for parts in self.blocks.values() for part in parts) or self.parameters

    def encoded(self) -> bytes:
        """Return the header as the first bytes of the file. Their number does not depend on the digests."""
        content = {_STORED_NAMES.get(name, name): value for name, value in asdict(self).items()}
        content["weights"] = content["origin"].pop("weights")  # earlier versions refuse an origin with this field
        for part in (part for parts in (*content["blocks"].values(), *content["ahead"].values()) for part in parts):
            for key in ("change", "every"):
                if not part[key]:
                    del part[key]  # likewise
        if not self.ahead:
            del content["ahead"]  # likewise
        if not self.registered:
            del content["blocks"], content["weight_bytes"], content["answers"]
        text = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
        start = _MAGIC + struct.pack("<Q", len(text)) + hashlib.sha256(text).digest() + text
        return start.ljust(aligned(len(start)), b"\0")

    def with_digests(self, digests: Mapping[str, str]) -> "Header":
        def updated(sections: Mapping[str, Section]) -> dict[str, Section]:
            return {name: replace(section, digest=digests[name]) for name, section in sections.items()}

        return replace(self, tensors=updated(self.tensors), texts=updated(self.texts))


def block_inputs(type: str) -> int:  # noqa: A002
    """Return how many weights a block of a type has."""
    return 256 if RECORDS[type][0] == 256 else 32


def bits(type: str) -> float:  # noqa: A002
    """Return the average bits per weight of a block type, including scales."""
    inputs, lines = RECORDS[type]
    return 8 * lines * _LINE / (inputs * BLOCK_PANEL)


def aligned(count: int) -> int:
    return -(-count // _ALIGNMENT) * _ALIGNMENT


def joined(digests: Iterable[bytes]) -> str:
    """Return the digest of a section from the digests of its pieces."""
    return hashlib.sha256(b"".join(digests)).hexdigest()


# -- read --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PackedFile:
    """A packed file after its header and its length were checked."""

    path: Path
    header: Header
    start: int  # of the sections, in bytes

    @property
    def missing(self) -> Path | None:
        """The first GGUF file of a registered model that is missing or was replaced; None if all are unchanged.

        Samples of a file are compared only if it is newer than this packed file. Loading always compares samples.
        """
        header = self.header
        with suppress(LocalspecError, OSError):  # loading reports a file that cannot be read
            for name, (size, mark) in header.origin.files.items() if header.registered else ():
                if not (file := Path(name)).is_file() or (status := file.stat()).st_size != size:
                    return file
                newer = max(status.st_mtime_ns, status.st_ctime_ns) >= self.path.stat().st_mtime_ns
                if newer and file_fingerprint(file) != mark:
                    return file
        return None

    @property
    def replaced(self) -> Path | None:
        """The path `missing`, if there is now another file at that path; else None."""
        return file if (file := self.missing) and file.is_file() else None

    def text(self, name: str) -> bytes:
        """Return the content of one of the model's text files. Raises KeyError, DamagedFile and CannotRead."""
        section = self.header.texts[name]
        try:
            with self.path.open("rb") as stream:
                content = _bytes(stream, self.start + section.offset, section.bytes)
        except FileNotFoundError:
            raise _replaced(self.path) from None
        return undamaged(content, section, f"{name} in {self.path}")

    def verify(self, progress: Progress = lambda done, total: None) -> list[str]:
        """Read the whole file, and compare each section with its digest. Return words for each damaged section."""
        done, problems = 0, []
        with self.path.open("rb") as stream:
            for name, section in self.header.sections.items():
                digests = []
                for start, end in section.pieces:
                    piece = _bytes(stream, self.start + section.offset + start, end - start)
                    digests.append(hashlib.sha256(piece).digest())
                    done += end - start
                    progress(done, self.header.section_bytes)
                if joined(digests) != section.digest:
                    problems.append(f"{name} in {self.path.name} is damaged")
        return problems


def undamaged(content: bytes, section: Section, label: str) -> bytes:
    """Return the content of a section. Raises DamagedFile if the content differs from its digest."""
    if joined(hashlib.sha256(content[start:end]).digest() for start, end in section.pieces) != section.digest:
        raise DamagedFile(f"{label} is damaged; {_MADE_AGAIN}.")
    return content


def _bytes(stream: BinaryIO, start: int, count: int) -> bytes:
    stream.seek(start)
    return stream.read(count)


def read(file: Path) -> PackedFile:
    """Read the header of a file, and check the file's length.

    Raises DamagedFile, UnreadableFormat, and CannotRead for a missing or unreadable file.
    """
    packed, size = peek(file)
    if size != packed.start + packed.header.section_bytes:
        raise _damaged(file, f"the file has {size} bytes instead of {packed.start + packed.header.section_bytes}")
    return packed


def peek(file: Path) -> tuple[PackedFile, int]:
    """Return the header of a packed file, and the file's length without a check. Raises the errors of `read`."""
    try:
        if not stat.S_ISREG(file.stat().st_mode):  # opening a pipe would wait for a writer
            raise CannotRead(f"{file} is not a regular file, so it cannot be read; move or delete it.")
        with file.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            begin = stream.read(48)
            if len(begin) < 48 or begin[:8] != _MAGIC:
                raise _damaged(file, "the file does not begin like a packed file")
            (length,) = struct.unpack("<Q", begin[8:16])
            if not 2 <= length <= min(size - 48, _HEADER_LIMIT):
                raise _damaged(file, f"the header does not fit in {size} bytes")
            text = stream.read(length)
    except FileNotFoundError:
        raise _replaced(file) from None
    except OSError as error:
        raise CannotRead(
            f"{file} cannot be read ({error.strerror}); check the file and its permissions, then try again."
        ) from None
    if hashlib.sha256(text).digest() != begin[16:]:
        raise _damaged(file, "the header has changed")
    try:
        header = _parsed(text)
    except UnreadableFormat as error:
        raise UnreadableFormat(f"{file} cannot be read: {error}.") from None
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):
        raise _damaged(file, "the header is invalid") from None
    if any(section.bytes > TEXT_LIMIT for section in header.texts.values()):
        raise _damaged(file, "a text in the file is larger than the text of any model")
    return PackedFile(file, header, aligned(48 + length)), size


def forms(file: Path) -> dict[str, Path]:
    """Return one packed file for each packing of a model on this machine: `file`, or another with the same weights."""
    files = dict[str, Path]()
    for packed in sorted([peek(file)[0], *map(read, of_same_weights(file))], key=_preference):
        files.setdefault(packed.header.packing, packed.path)
    return files


def _preference(packed: PackedFile) -> tuple[bool, bool]:
    """Return the key by which packed files are sorted: registrations first, but last if a GGUF file is missing."""
    return packed.missing is not None, not packed.header.registered


def of_same_weights(file: Path) -> list[Path]:
    """Return the readable packed files with the same weights as this one.

    Search the file's directory. The cache and data directories of packed files are always searched together.
    """
    header, paths = peek(file)[0].header, Paths(home())
    standard = (paths.imports, paths.packed)
    same, folders = [], standard if file.parent in standard else (file.parent,)
    listings = (sorted(folder.glob(f"{header.origin.revision}-*{SUFFIX}"), reverse=True) for folder in folders)
    for other in (other for listing in listings for other in listing):
        with suppress(LocalspecError):
            if _same_weights(header, read(other).header):
                same.append(other)
    return same


def _same_weights(first: Header, second: Header) -> bool:
    """Return whether two packed files have the same weights. If GGUF files have them, their sizes are compared."""
    if first.origin.revision != second.origin.revision:
        return False
    if first.registered or second.registered:
        sizes = [sorted(size for size, _ in header.origin.files.values()) for header in (first, second)]
        return sizes[0] == sizes[1]
    return first.origin.files == second.origin.files


def _replaced(file: Path) -> CannotRead:
    """Return the error for a packed file that is gone, because another process has just replaced or deleted it."""
    return CannotRead(f"{file.name} cannot be read: another process has just replaced or deleted it; try again.")


def _damaged(file: Path, problem: str) -> DamagedFile:
    return DamagedFile(f"The packed file {file} is damaged ({problem}); {_MADE_AGAIN}.")


@lru_cache(maxsize=16)  # a list of models reads the same headers repeatedly
def _parsed(text: bytes) -> Header:
    """Return the header parsed from JSON. Raises UnreadableFormat, or ValueError and the like for an invalid header."""
    content: Any = parse_json(text)
    first = 2 if content["packing"] == "int4" else 1  # int4 of format 1 lies in panels that no kernel computes
    for name, supported in (("format", range(first, FORMAT + 1)), ("layout", LAYOUTS)):
        if _count(content[name]) not in supported:
            raise UnreadableFormat(
                f"its {name} is {content[name]}, which this version of localspec does not know; use the version that "
                "wrote it"
            )
    origin = dict(content["origin"])
    origin["files"] = {_text(file): (_count(size), _text(digest)) for file, (size, digest) in origin["files"].items()}
    origin["weights"] = _text(content.get("weights", ""))
    texts = [_text(origin[name]) for name in ("name", "revision", "repo", "commit", "weights")]
    if not texts[0] or not all(map(_REVISION.fullmatch, (texts[1], texts[4] or texts[1]))):
        raise ValueError
    if origin["license"] is not None:
        _text(origin["license"])
    tensors, others = (
        {_text(name): _section(entry) for name, entry in content[kind].items()} for kind in ("tensors", "texts")
    )
    header = Header(
        Origin(**origin),
        _text(content["packing"]),
        _count(content["parameters"]),
        tensors,
        others,
        content["format"],
        content["layout"],
        **(_registered(content, [*origin["files"].values()]) if content["packing"] == BLOCKS and not tensors else {}),
    )
    blocks = header.registered or any(
        section.tensor and section.tensor.layout == BLOCKS for section in tensors.values()
    )
    if blocks and header.format == 1:
        raise ValueError
    if any(section.tensor is None for section in tensors.values()) or any(
        section.tensor for section in others.values()
    ):
        raise ValueError
    placed = sorted(header.sections.values(), key=lambda section: section.offset)
    if len(placed) != len(tensors) + len(others):
        raise ValueError
    end = 0
    for section in placed:
        if section.offset % _ALIGNMENT or section.offset < end:
            raise ValueError
        end = section.offset + section.bytes
    return header


def _registered(content: Any, files: list[tuple[int, str]]) -> dict[str, Any]:
    """Return those header fields that only a registration has. Types and sizes are checked later, with the weights."""
    blocks, ahead = (_block_parts(content.get(key, {}), files) for key in ("blocks", "ahead"))
    if content["answers"] not in (BLOCKS, "int4", *_ITEM_BITS):
        raise ValueError
    sizes = {"weight_bytes": _count(content["weight_bytes"]), "default_packing": content["answers"]}
    return {"blocks": blocks, "ahead": ahead, **sizes}


def _block_parts(entries: Any, files: list[tuple[int, str]]) -> dict[str, tuple[BlockPart, ...]]:
    blocks = {_text(name): tuple(BlockPart(**part) for part in parts) for name, parts in entries.items()}
    for part in (part for parts in blocks.values() for part in parts):
        whole = [part.file, part.offset, part.bytes, part.head_rows, part.every, *part.shape]
        if not all(map(_is_count, whole)) or part.offset + part.bytes > files[part.file][0]:
            raise ValueError
        if not 1 <= len(part.shape) <= 2 or not all(1 <= size <= _LARGEST for size in part.shape):
            raise ValueError
        _text(part.type)
        if part.change not in ("", *CHANGES) or (part.change and len(part.shape) > 1):
            raise ValueError
    return {name: tuple(replace(part, shape=tuple(part.shape)) for part in parts) for name, parts in blocks.items()}


def _section(entry: Any) -> Section:
    tensor = None
    if entry["tensor"] is not None:
        tensor = Tensor(**entry["tensor"])
        sizes = (_count(tensor.out), _count(tensor.inputs), _count(tensor.group))
        scaled = tensor.layout != BLOCKS and _ITEM_BITS[tensor.format] <= 8
        if (
            tensor.layout not in ("panels", "rows", BLOCKS)
            or not all(1 <= size <= _LARGEST for size in sizes[:2])
            or (tensor.layout == BLOCKS and tensor.inputs % block_inputs(tensor.format))
            or (tensor.group not in (32, 64, 128) if scaled else tensor.group != 0)
            or (scaled and tensor.layout == "rows")
            or tensor.bytes != entry["bytes"]
        ):
            raise ValueError
    offset, count, piece = _count(entry["offset"]), _count(entry["bytes"]), _count(entry["piece"])
    if not _DIGEST.fullmatch(entry["digest"]) or piece == 0 or count / piece > _MOST_PIECES:
        raise ValueError
    return Section(offset, count, piece, entry["digest"], tensor)


def _count(value: Any) -> int:
    if not _is_count(value):
        raise ValueError
    count: int = value
    return count


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**53


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    value.encode()  # ValueError for what is not text
    return value
