"""Fingerprints of weights, and the SHA-256 of files.

The fingerprint of weights is the same for all files that hold these weights. Like the fingerprint of a file, it covers
only samples. Only `localspec verify` notices a changed byte between the samples, because it reads whole files for their
SHA-256. A saved SHA-256 is valid as long as size, times and inode of its file stay the same.
"""

import hashlib
import json
import os
import re
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from threading import Event, Lock
from typing import Any

from localspec.errors import LocalspecError, cannot_read
from localspec.outside_files import parse_json, read_bytes
from localspec.paths import Paths, private_directory, write_anew
from localspec.weights.checkpoint import (
    is_of_language,
    is_packed,
    revision,
    tensor_headers,
    tensor_start,
    text_name,
    weight_files,
)
from localspec.weights.file_fingerprint import DIGITS, Stamp, file_fingerprint, read_at, settled, stamp
from localspec.weights.packed_file import Progress, forms, read

Known = tuple[Stamp, str, str]  # a file at that time, its SHA-256, its fingerprint (empty from earlier versions)
_PIECE = 2**22  # bytes read at once
_DIGEST = re.compile(r"[0-9a-f]{64}")


def weight_digests(
    files: Sequence[Path], paths: Paths, threads: int = 1, progress: Progress = lambda done, total: None
) -> dict[str, str]:
    """Return the SHA-256 of each file, by its name. A file is read only if its SHA-256 is unknown or may have changed.

    Raises LocalspecError for a file that cannot be read.
    """
    records, now = _remembered(paths), stamps(files)
    digests = _without_reading(files, records, now)
    unread = [file for file in files if file not in digests]
    digests |= _read(unread, threads, progress)
    new = {os.path.realpath(file): (now[file.name], digests[file], "") for file in files}
    _remember({path: record for path, record in new.items() if records.get(path, ())[:2] != record[:2]}, paths)
    return {file.name: digests[file] for file in files}


def known_digests(files: Sequence[Path], paths: Paths) -> dict[str, str]:
    """Return the SHA-256 of those files for which it is known without reading the file, by file name.

    It may be known from an earlier reading of the same content, or from the file's name in the Hugging Face cache.
    Raises LocalspecError for a missing file.
    """
    records, now = _remembered(paths), stamps(files)
    digests = _without_reading(files, records, now)
    new = {os.path.realpath(file): (now[file.name], digest, "") for file, digest in digests.items()}
    _remember({path: record for path, record in new.items() if path not in records}, paths)
    return {file.name: digest for file, digest in digests.items()}


def _without_reading(files: Sequence[Path], records: Mapping[str, Known], now: Mapping[str, Stamp]) -> dict[Path, str]:
    """Return the SHA-256 of each file that need not be read: an unchanged file, or one in the Hugging Face cache."""
    digests = {}
    for file in files:
        record = records.get(os.path.realpath(file))
        if record is None and (digest := _named(file)):
            digests[file] = digest
        elif record is not None and record[0] == now[file.name]:
            digests[file] = record[1]
    return digests


@dataclass(frozen=True)
class FileReading:
    """The result of reading a whole file."""

    digest: str  # its SHA-256
    before: str  # its SHA-256 when it was last read; empty if it never was
    hidden_change: bool  # it differs from the last reading although its stamp or fingerprint does not


def reread(
    files: Sequence[Path],
    fingerprints: Mapping[str, str],
    paths: Paths,
    progress: Progress = lambda done, total: None,
) -> dict[str, FileReading]:
    """Read all files, and compare their SHA-256 with that of the last reading. Return the results by file name.

    If the SHA-256 is different, but the fingerprint or the size, times and inode are the same, the change is hidden.
    Files may have moved since the last reading. `fingerprints` has the present fingerprint of each file, by name. If
    there is no hidden change, the new SHA-256 is saved; otherwise the earlier one is kept until `forget` is called.
    Raises LocalspecError for a file that cannot be read.
    """
    records, now, readings = _remembered(paths), stamps(files), {}
    learned: dict[str, Known] = {}
    for file, digest in _read(files, 1, progress).items():
        path, mark = os.path.realpath(file), fingerprints[file.name]
        noted = [records[key] for key in (path, mark) if key in records]
        same = [saved for stamp, saved, saved_mark in noted if stamp == now[file.name] or saved_mark == mark]
        others = [other for other in same if other not in ("", digest)]
        before, hidden = others[0] if others else noted[0][1] if noted else "", bool(others)
        readings[file.name] = FileReading(digest, before, hidden)
        if not hidden:
            learned |= {path: (now[file.name], digest, mark), mark: ([], digest, mark)}
    _remember(learned, paths)
    return readings


def changed_since_read(files: Sequence[Path], paths: Paths) -> list[Path]:
    """Return the files whose size, times or inode changed since their SHA-256 was computed."""
    records, now = _remembered(paths), stamps(files)
    return [
        file for file in files if (saved := records.get(os.path.realpath(file), ([],))[0]) and saved != now[file.name]
    ]


def forget(files: Iterable[Path], fingerprints: Iterable[str], paths: Paths) -> None:
    """Delete what is saved about these files, and about all files with these fingerprints."""
    stale, records = {*map(os.path.realpath, files), *fingerprints}, _remembered(paths)
    if stale & records.keys():
        with suppress(OSError):
            write_anew(_file(paths), json.dumps({key: records[key] for key in records if key not in stale}).encode())


def digest_of(fingerprint: str, paths: Paths) -> str:
    """Return the SHA-256 that was saved for the file with this fingerprint; empty if none was saved."""
    return _remembered(paths).get(fingerprint, ([], "", ""))[1]


def stamps(files: Sequence[Path]) -> dict[str, Stamp]:
    """Return the stamps of files, by name. Raises LocalspecError for a missing file."""
    try:
        statuses = {file.name: file.stat() for file in files}
    except OSError as error:
        raise _unreadable(error) from None
    return {name: stamp(status) for name, status in statuses.items()}


def _named(file: Path) -> str:
    """Return the SHA-256 in the name of a file in the Hugging Face cache; empty for other files."""
    try:
        name = os.path.basename(os.readlink(file))
    except OSError:
        return ""
    return name if _DIGEST.fullmatch(name) else ""


def _read(files: Sequence[Path], threads: int, progress: Progress) -> dict[Path, str]:
    total, done, lock, stop = sum(entry[0] for entry in stamps(files).values()), 0, Lock(), Event()

    def read(file: Path) -> str:
        nonlocal done
        digest = hashlib.sha256()
        with file.open("rb") as stream:
            while (piece := stream.read(_PIECE)) and not stop.is_set():
                digest.update(piece)
                with lock:
                    done += len(piece)
                    progress(done, total)
        return digest.hexdigest()

    with ThreadPoolExecutor(threads) as pool:
        try:
            return dict(zip(files, pool.map(read, files), strict=True))
        except OSError as error:
            raise _unreadable(error) from None
        finally:
            stop.set()  # an interrupt does not wait for the end of a large file


def _unreadable(error: OSError) -> LocalspecError:
    return LocalspecError(
        f"{error.filename} cannot be read ({error.strerror}); check the file and its permissions, then try again."
    )


# -- remembered --------------------------------------------------------------------------------------------------------


def _file(paths: Paths) -> Path:
    return paths.packed / "digests.json"


def _remembered(paths: Paths) -> dict[str, Known]:
    """Return the saved records of files, by path and by fingerprint. Unreadable records count as missing."""
    try:
        content = parse_json(read_bytes(_file(paths))) if _file(paths).is_file() else {}
        return {str(path): (list(record[0]), str(record[1]), "".join(record[2:])) for path, record in content.items()}
    except (OSError, ValueError, TypeError, AttributeError, LookupError):
        return {}


def _remember(learned: Mapping[str, Known], paths: Paths) -> None:
    """Save new records of files, and drop records of deleted files. If saving fails, the files will be read again.

    For a file that changed a moment ago, only SHA-256 and fingerprint are saved, because its times might be the same
    after another change.
    """
    new = {path: record if settled(record[0]) else ([], record[1], record[2]) for path, record in learned.items()}
    learned = {path: record for path, record in new.items() if record[0] or record[2]}
    if not learned:
        return
    with suppress(OSError):  # with two processes at once, the records of one are lost and its files read again
        records = {**_remembered(paths), **learned}
        private_directory(paths.packed)
        here = {path: record for path, record in records.items() if path == record[2] or os.path.exists(path)}
        write_anew(_file(paths), json.dumps(here).encode())


RUN = 32  # neighbouring weights that are sampled together; no block of any type has fewer
_PLACES, _LARGE = 4, 2**16  # samples of a tensor with at least 2**16 weights; a smaller tensor has one
_HEAD, _TABLE = "lm_head.weight", "model.embed_tokens.weight"
Values = Callable[[str, Sequence[int], int], bytes]  # (tensor, first weight of each sample, weights of a sample)


def fingerprints(files: Sequence[Path]) -> dict[str, tuple[int, str]]:
    """Return each file's size in bytes and its fingerprint, by file name. Raises the errors of `file_fingerprint`."""
    return {file.name: (file.stat().st_size, file_fingerprint(file)) for file in files}


def identified(files: Sequence[Path], paths: Paths) -> dict[str, tuple[int, str]]:
    """Return the size in bytes and the identity of each file, by its name.

    The identities are SHA-256 digests if all of them are known without reading the files, otherwise fingerprints.
    """
    digests = known_digests(files, paths)
    if len(digests) < len(files):
        return fingerprints(files)
    return {file.name: (file.stat().st_size, digests[file.name]) for file in files}


def recognised(
    files: Sequence[Path],
    listed: Mapping[str, tuple[int, str]],
    paths: Paths,
    progress: Progress = lambda done, total: None,
) -> bool:
    """Return whether `files` have the contents listed in `listed`, as sizes and digests by name. Names may differ.

    If the digests are SHA-256, files of the right sizes are read, unless their SHA-256 is known. Raises LocalspecError
    for a file that cannot be read.
    """
    sizes = [file.stat().st_size for file in files if file.is_file()]
    if sorted(sizes) != sorted(size for size, _ in listed.values()):
        return False
    expected = sorted(digest for _, digest in listed.values())
    if all(len(digest) == DIGITS for digest in expected):
        return sorted(map(file_fingerprint, files)) == expected
    return sorted(weight_digests(files, paths, progress=progress).values()) == expected


class Identity:
    """The identity of a model, under which its drafters, phrases and measurements are saved."""

    def __init__(self, path: Path) -> None:
        """Identify the model in `path`, its directory or a packed file."""
        self.path = path

    @cached_property
    def weights(self) -> str:
        """The fingerprint of the weights. Raises the errors of `checkpoint.inspect`."""
        return weights_fingerprint(self.path)

    @cached_property
    def revision(self) -> str:
        """The model's identity in data saved by earlier versions. Raises the errors of `checkpoint.inspect`."""
        return revision(self.path)

    def owns(self, *identities: object) -> bool:
        """Return whether one of these saved identities is the model's fingerprint or revision."""
        return self.weights in identities or self.revision in identities


def weights_fingerprint(path: Path) -> str:
    """Return 40 hexadecimal digits that identify a model's weights, and nothing else about the model.

    They do not depend on file names, texts, or which file has which tensor. A packed file has the fingerprint of its
    original weights. If that is not saved in any packed file of the model, because an earlier version wrote them all,
    return the model's revision instead. Raises the errors of `checkpoint.inspect`.
    """
    if is_packed(path):
        origin = read(path).header.origin
        others = () if origin.weights else forms(path).values()
        saved = (read(other).header.origin.weights for other in others)
        return origin.weights or next(filter(None, saved), origin.revision)
    entries: dict[str, tuple[Path, dict[str, Any]]] = {}
    starts: dict[Path, int] = {}
    for file in weight_files(path):
        starts[file] = tensor_start(file)
        entries |= {
            text_name(name): (file, entry) for name, entry in tensor_headers(file).items() if is_of_language(name)
        }
    with ExitStack() as stack:
        try:
            streams = {file: stack.enter_context(file.open("rb", buffering=0)) for file in starts}
        except OSError as error:
            raise _unreadable(error) from None

        def values(name: str, firsts: Sequence[int], count: int) -> bytes:
            file, entry = entries[name]
            first, end = entry["data_offsets"]
            item = (end - first) // prod(entry["shape"])
            positions = (starts[file] + first + index * item for index in firsts)
            try:
                stored = b"".join(read_at(streams[file], position, count * item, file) for position in positions)
            except OSError as error:
                raise cannot_read(file, error) from None
            return _floats(stored, entry["dtype"])

        return sampled_weights({name: tuple(entry["shape"]) for name, (_, entry) in entries.items()}, values)


def sampled_weights(shapes: Mapping[str, tuple[int, ...]], values: Values) -> str:
    """Return the fingerprint of weights, from the names, shapes and samples of their Hugging Face tensors.

    `values` returns samples of a tensor as little-endian fp32. A head that repeats the embedding is left out, because
    not all files store it.
    """
    digest, table = hashlib.sha256(b"weights\n"), (shapes.get(_TABLE), b"")
    for name, shape in sorted(shapes.items(), key=lambda item: (item[0] != _TABLE, item[0])):
        if not prod(shape):
            continue
        columns = shape[-1] if shape else 1
        samples = values(name, _firsts(prod(shape), columns), min(RUN, columns))
        if name == _TABLE:
            table = shape, samples
        elif name == _HEAD and (shape, samples) == table:
            continue
        digest.update(f"{name} {list(shape)}\n".encode() + samples)
    return digest.hexdigest()[:DIGITS]


def _firsts(weights: int, columns: int) -> list[int]:
    """Return where the samples of a tensor begin, as indices of weights. Each sample is within one row."""
    samples, run = (_PLACES if weights >= _LARGE else 1), min(RUN, columns)
    middles = (divmod((2 * sample + 1) * weights // (2 * samples), columns) for sample in range(samples))
    return [row * columns + min(column // RUN * RUN, columns - run) for row, column in middles]


def _floats(stored: bytes, dtype: str) -> bytes:
    """Convert the stored bytes of bf16 or fp16 numbers to fp32. Bytes of other types are returned unchanged."""
    if dtype == "BF16":
        numbers = bytearray(2 * len(stored))
        numbers[2::4], numbers[3::4] = stored[::2], stored[1::2]
        return bytes(numbers)
    if dtype == "F16":
        count = len(stored) // 2
        return struct.pack(f"<{count}f", *struct.unpack(f"<{count}e", stored))
    return stored
