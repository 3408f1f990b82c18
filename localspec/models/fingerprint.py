"""Fingerprints: of a file, which tell it from others at once, and of a model's weights, whatever files hold them.

Both read samples. A byte that changes between the samples is noticed by `localspec verify` only.
"""

import hashlib
import os
import stat
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

from localspec.checkpoint import (
    is_of_language,
    is_packed,
    revision,
    tensor_headers,
    tensor_start,
    text_name,
    weight_files,
)
from localspec.errors import LocalspecError, cannot_read
from localspec.models.weight_digests import Stamp, known_digests, settled, stamp, weight_digests
from localspec.outside_files import MIB
from localspec.packed_file import Progress, forms, read
from localspec.paths import Paths

DIGITS = 40  # of a fingerprint; a SHA-256 has 64
HEADER = 24 * MIB  # bytes from the start of a file that are all read: the largest headers of GGUF have 20 MiB
SAMPLES, SAMPLE_BYTES = 1024, 64  # of the rest of a file
RUN = 32  # neighbouring weights that are sampled together; no block of any type has fewer
_PLACES, _LARGE = 4, 2**16  # samples of a tensor with at least 2**16 weights; a smaller tensor has one
_HEAD, _TABLE = "lm_head.weight", "model.embed_tokens.weight"
_known: dict[Path, tuple[Stamp, str]] = {}  # fingerprints of files as they were
Values = Callable[[str, Sequence[int], int], bytes]  # (tensor, first weight of each sample, weights of a sample)


def file_fingerprint(file: Path) -> str:
    """Return 40 hexadecimal digits that change with the size, the header and 1024 samples of a file.

    A process reads a file again only if it changed, or had changed just before. Raises LocalspecError for what cannot
    be read, is empty, or becomes shorter meanwhile.
    """
    digest = hashlib.sha256()
    try:
        found = file.stat()
        if not stat.S_ISREG(found.st_mode):  # to open a pipe is to wait for a writer
            raise LocalspecError(f"{file} cannot be read, because it is not a regular file; give a file of weights.")
        if not found.st_size:
            raise LocalspecError(f"{file} is empty; fetch it again.")
        before, known = _known.get(file, ([], ""))
        if before == stamp(found):
            return known
        with file.open("rb", buffering=0) as stream:
            digest.update(f"file {found.st_size}\n".encode())
            start = _header_bytes(stream, found.st_size)
            digest.update(_read_at(stream, 0, start, file))
            rest = found.st_size - start
            if rest <= SAMPLES * SAMPLE_BYTES:
                digest.update(_read_at(stream, start, rest, file))
            else:
                for sample in range(SAMPLES):
                    at = start + (rest - SAMPLE_BYTES) * sample // (SAMPLES - 1)
                    digest.update(_read_at(stream, at, SAMPLE_BYTES, file))
    except OSError as error:
        raise cannot_read(file, error) from None
    if settled(stamp(found)):
        _known[file] = stamp(found), digest.hexdigest()[:DIGITS]
    return digest.hexdigest()[:DIGITS]


def fingerprints(files: Sequence[Path]) -> dict[str, tuple[int, str]]:
    """Return the bytes and the fingerprint of each file, by its name. Raises what `file_fingerprint` raises."""
    return {file.name: (file.stat().st_size, file_fingerprint(file)) for file in files}


def identified(files: Sequence[Path], paths: Paths) -> dict[str, tuple[int, str]]:
    """Return the bytes of each file, and its SHA-256 where all are known without reading, else its fingerprint."""
    known = known_digests(files, paths)
    if len(known) < len(files):
        return fingerprints(files)
    return {file.name: (file.stat().st_size, known[file.name]) for file in files}


def recognised(
    files: Sequence[Path],
    held: Mapping[str, tuple[int, str]],
    paths: Paths,
    progress: Progress = lambda done, total: None,
) -> bool:
    """Return whether these are the files that an `Origin.files` names, under whatever names.

    Earlier versions wrote SHA-256 digests: files of the same sizes are read for those, unless theirs are known. Raises
    LocalspecError for a file that cannot be read.
    """
    sizes = [file.stat().st_size for file in files if file.is_file()]
    if sorted(sizes) != sorted(size for size, _ in held.values()):
        return False
    wanted = sorted(digest for _, digest in held.values())
    if all(len(digest) == DIGITS for digest in wanted):
        return sorted(map(file_fingerprint, files)) == wanted
    return sorted(weight_digests(files, paths, progress=progress).values()) == wanted


class Identity:
    """A model by what drafters, phrases and measurements of it are filed under."""

    def __init__(self, path: Path) -> None:
        """`path` is its directory, or a packed file."""
        self.path = path

    @cached_property
    def weights(self) -> str:
        """The fingerprint of its weights. Raises what `checkpoint.inspect` raises."""
        return weights_fingerprint(self.path)

    @cached_property
    def revision(self) -> str:
        """What earlier versions filed everything under. Raises what `checkpoint.inspect` raises."""
        return revision(self.path)

    def owns(self, *filed: object) -> bool:
        """Return whether something that is filed under these names belongs to the model."""
        return self.weights in filed or self.revision in filed


def weights_fingerprint(path: Path) -> str:
    """Return 40 hexadecimal digits that change with the weights of a model and with nothing else.

    Neither names of files, nor how tensors are divided among them, nor texts count. A packed file has that of what it
    was made of. If it was made by an earlier version, and so were the other packings of its weights, its revision
    stands in. Raises what `checkpoint.inspect` raises.
    """
    if is_packed(path):
        origin = read(path).header.origin
        others = () if origin.weights else forms(path).values()
        found = (read(other).header.origin.weights for other in others)
        return origin.weights or next(filter(None, found), origin.revision)
    entries: dict[str, tuple[Path, dict[str, Any]]] = {}
    starts: dict[Path, int] = {}
    for file in weight_files(path):
        starts[file] = tensor_start(file)
        entries |= {text_name(name): (file, one) for name, one in tensor_headers(file).items() if is_of_language(name)}
    with ExitStack() as stack:
        try:
            streams = {file: stack.enter_context(file.open("rb", buffering=0)) for file in starts}
        except OSError as error:
            raise LocalspecError(f"{error.filename} cannot be read ({error.strerror}); correct that.") from None

        def values(name: str, firsts: Sequence[int], count: int) -> bytes:
            file, entry = entries[name]
            first, end = entry["data_offsets"]
            item = (end - first) // prod(entry["shape"])
            places = (starts[file] + first + at * item for at in firsts)
            try:
                stored = b"".join(_read_at(streams[file], place, count * item, file) for place in places)
            except OSError as error:
                raise cannot_read(file, error) from None
            return _floats(stored, entry["dtype"])

        return sampled_weights({name: tuple(entry["shape"]) for name, (_, entry) in entries.items()}, values)


def sampled_weights(shapes: Mapping[str, tuple[int, ...]], values: Values) -> str:
    """Return the fingerprint of weights, by the names and shapes that their tensors have in the Hugging Face layout.

    `values` reads samples, as little-endian fp32. A head that is the embedding once more is left out, because files
    differ in whether they repeat it.
    """
    digest, table = hashlib.sha256(b"weights\n"), (shapes.get(_TABLE), b"")
    for name, shape in sorted(shapes.items(), key=lambda one: (one[0] != _TABLE, one[0])):
        if not prod(shape):
            continue
        columns = shape[-1] if shape else 1
        found = values(name, _firsts(prod(shape), columns), min(RUN, columns))
        if name == _TABLE:
            table = shape, found
        elif name == _HEAD and (shape, found) == table:
            continue
        digest.update(f"{name} {list(shape)}\n".encode() + found)
    return digest.hexdigest()[:DIGITS]


def _firsts(weights: int, columns: int) -> list[int]:
    """Return the first weight of each sample of a tensor: evenly spaced, and each within one row."""
    places, run = (_PLACES if weights >= _LARGE else 1), min(RUN, columns)
    middles = (divmod((2 * place + 1) * weights // (2 * places), columns) for place in range(places))
    return [row * columns + min(column // RUN * RUN, columns - run) for row, column in middles]


def _floats(stored: bytes, dtype: str) -> bytes:
    """Return numbers of a safetensors type as fp32; those of rarer types stay as they are stored."""
    if dtype == "BF16":
        found = bytearray(2 * len(stored))
        found[2::4], found[3::4] = stored[::2], stored[1::2]
        return bytes(found)
    if dtype == "F16":
        count = len(stored) // 2
        return struct.pack(f"<{count}f", *struct.unpack(f"<{count}e", stored))
    return stored


def _header_bytes(stream: BinaryIO, size: int) -> int:
    """Return how many bytes from the start of a file are read whole."""
    begin = stream.read(9)
    if len(begin) == 9 and begin[8:] == b"{":  # safetensors
        length = 8 + int(struct.unpack("<Q", begin[:8])[0])
        return min(length, size, HEADER)
    return min(size, HEADER)


def _read_at(stream: BinaryIO, start: int, count: int, file: Path) -> bytes:
    """Read a part of a file. Raises LocalspecError where the file ends too early."""
    stream.seek(start, os.SEEK_SET)
    pieces = []
    while count:
        piece = stream.read(count)
        if not piece:
            raise LocalspecError(f"{file} ends too early, so it is damaged or changes just now; fetch it again.")
        pieces.append(piece)
        count -= len(piece)
    return b"".join(pieces)
