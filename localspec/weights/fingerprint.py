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
    """Return the SHA-256 of each file by its name. Read files whose digest is unknown or may have changed.

    Raises LocalspecError for a file that cannot be read.
    """
    known, now = _remembered(paths), stamps(files)
    found = _without_reading(files, known, now)
    unread = [file for file in files if file not in found]
    found |= _read(unread, threads, progress)
    read = {os.path.realpath(file): (now[file.name], found[file], "") for file in files}
    _remember({place: one for place, one in read.items() if known.get(place, ())[:2] != one[:2]}, paths)
    return {file.name: found[file] for file in files}


def known_digests(files: Sequence[Path], paths: Paths) -> dict[str, str]:
    """Return the SHA-256 of each file by its name, if it is known without reading the file.

    A digest is known from an earlier reading of the same content, or from a file name in the Hugging Face cache. Raises
    LocalspecError for a missing file.
    """
    known, now = _remembered(paths), stamps(files)
    found = _without_reading(files, known, now)
    named = {os.path.realpath(file): (now[file.name], digest, "") for file, digest in found.items()}
    _remember({place: one for place, one in named.items() if place not in known}, paths)
    return {file.name: digest for file, digest in found.items()}


def _without_reading(files: Sequence[Path], known: Mapping[str, Known], now: Mapping[str, Stamp]) -> dict[Path, str]:
    """Return the digests that need no reading: names in the Hugging Face cache, and remembered digests of unchanged
    files."""
    found = {}
    for file in files:
        before = known.get(os.path.realpath(file))
        if before is None and (named := _named(file)):
            found[file] = named
        elif before is not None and before[0] == now[file.name]:
            found[file] = before[1]
    return found


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
    """Read all files, and compare each SHA-256 with the result of the last reading. Return the results by file name.

    A change is hidden if a file has another SHA-256 but the same fingerprint, or the same size, times and inode. Files
    may have moved since the last reading. `fingerprints` has each file's present fingerprint, by file name. Digests of
    files without a hidden change are saved. For the other files the earlier digest is kept until `forget` is called.
    Raises LocalspecError for a file that cannot be read.
    """
    known, now, found = _remembered(paths), stamps(files), {}
    learned: dict[str, Known] = {}
    for file, digest in _read(files, 1, progress).items():
        place, mark = os.path.realpath(file), fingerprints[file.name]
        noted = [known[one] for one in (place, mark) if one in known]
        same = [then for stamp, then, former in noted if stamp == now[file.name] or former == mark]
        others = [one for one in same if one not in ("", digest)]
        before, hidden = others[0] if others else noted[0][1] if noted else "", bool(others)
        found[file.name] = FileReading(digest, before, hidden)
        if not hidden:
            learned |= {place: (now[file.name], digest, mark), mark: ([], digest, mark)}
    _remember(learned, paths)
    return found


def changed_since_read(files: Sequence[Path], paths: Paths) -> list[Path]:
    """Return the files whose size, times or inode changed since their SHA-256 was computed."""
    known, now = _remembered(paths), stamps(files)
    return [
        file for file in files if (before := known.get(os.path.realpath(file), ([],))[0]) and before != now[file.name]
    ]


def forget(files: Iterable[Path], fingerprints: Iterable[str], paths: Paths) -> None:
    """Forget the records of these files, and of all files with these fingerprints."""
    gone, known = {*map(os.path.realpath, files), *fingerprints}, _remembered(paths)
    if gone & known.keys():
        with suppress(OSError):
            write_anew(_file(paths), json.dumps({one: known[one] for one in known if one not in gone}).encode())


def digest_of(fingerprint: str, paths: Paths) -> str:
    """Return the SHA-256 that was saved for the file with this fingerprint; empty if none was saved."""
    return _remembered(paths).get(fingerprint, ([], "", ""))[1]


def stamps(files: Sequence[Path]) -> dict[str, Stamp]:
    """Return the stamps of files, by name. Raises LocalspecError for a missing file."""
    try:
        found = {file.name: file.stat() for file in files}
    except OSError as error:
        raise _unreadable(error) from None
    return {name: stamp(one) for name, one in found.items()}


def _named(file: Path) -> str:
    """Return the SHA-256 in the name of a file in the Hugging Face cache; empty for other files."""
    try:
        name = os.path.basename(os.readlink(file))
    except OSError:
        return ""
    return name if _DIGEST.fullmatch(name) else ""


def _read(files: Sequence[Path], threads: int, progress: Progress) -> dict[Path, str]:
    total, done, lock, stop = sum(one[0] for one in stamps(files).values()), 0, Lock(), Event()

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
    return LocalspecError(f"{error.filename} cannot be read ({error.strerror}); correct its permissions.")


# -- remembered --------------------------------------------------------------------------------------------------------


def _file(paths: Paths) -> Path:
    return paths.packed / "digests.json"


def _remembered(paths: Paths) -> dict[str, Known]:
    """Return the records of files, by path and by fingerprint. An unreadable record counts as missing."""
    try:
        content = parse_json(read_bytes(_file(paths))) if _file(paths).is_file() else {}
        return {str(place): (list(said[0]), str(said[1]), "".join(said[2:])) for place, said in content.items()}
    except (OSError, ValueError, TypeError, AttributeError, LookupError):
        return {}


def _remember(learned: Mapping[str, Known], paths: Paths) -> None:
    """Add new records, and drop records of files that are gone. If saving fails, the files will be read again.

    For a file that changed recently, only digest and fingerprint are saved, because another change might leave the
    file's times as they are.
    """
    new = {place: one if settled(one[0]) else ([], one[1], one[2]) for place, one in learned.items()}
    learned = {place: one for place, one in new.items() if one[0] or one[2]}
    if not learned:
        return
    with suppress(OSError):  # with two processes at once, the records of one are lost and its files read again
        every = {**_remembered(paths), **learned}
        private_directory(paths.packed)
        here = {place: one for place, one in every.items() if place == one[2] or os.path.exists(place)}
        write_anew(_file(paths), json.dumps(here).encode())


RUN = 32  # neighbouring weights that are sampled together; no block of any type has fewer
_PLACES, _LARGE = 4, 2**16  # samples of a tensor with at least 2**16 weights; a smaller tensor has one
_HEAD, _TABLE = "lm_head.weight", "model.embed_tokens.weight"
Values = Callable[[str, Sequence[int], int], bytes]  # (tensor, first weight of each sample, weights of a sample)


def fingerprints(files: Sequence[Path]) -> dict[str, tuple[int, str]]:
    """Return each file's size in bytes and fingerprint, by its name. Raises the errors of `file_fingerprint`."""
    return {file.name: (file.stat().st_size, file_fingerprint(file)) for file in files}


def identified(files: Sequence[Path], paths: Paths) -> dict[str, tuple[int, str]]:
    """Return the size of each file in bytes, and its SHA-256 or fingerprint.

    All files have the SHA-256 if every one is known without reading, otherwise all have the fingerprint.
    """
    known = known_digests(files, paths)
    if len(known) < len(files):
        return fingerprints(files)
    return {file.name: (file.stat().st_size, known[file.name]) for file in files}


def recognised(
    files: Sequence[Path],
    listed: Mapping[str, tuple[int, str]],
    paths: Paths,
    progress: Progress = lambda done, total: None,
) -> bool:
    """Return whether `files` have the contents listed in `listed`, the `files` of an `Origin`. Names may differ.

    Earlier versions listed SHA-256 digests. For such a list, files of the same sizes are read unless their digests are
    known. Raises LocalspecError for a file that cannot be read.
    """
    sizes = [file.stat().st_size for file in files if file.is_file()]
    if sorted(sizes) != sorted(size for size, _ in listed.values()):
        return False
    wanted = sorted(digest for _, digest in listed.values())
    if all(len(digest) == DIGITS for digest in wanted):
        return sorted(map(file_fingerprint, files)) == wanted
    return sorted(weight_digests(files, paths, progress=progress).values()) == wanted


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
    """Return 40 hexadecimal digits that change only with the weights of a model.

    File names, the distribution of tensors among files, and texts do not matter. A packed file has the fingerprint of
    its original weights. Earlier versions did not store this fingerprint; if they wrote all packed files of the model,
    return the model's revision. Raises the errors of `checkpoint.inspect`.
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
                stored = b"".join(read_at(streams[file], place, count * item, file) for place in places)
            except OSError as error:
                raise cannot_read(file, error) from None
            return _floats(stored, entry["dtype"])

        return sampled_weights({name: tuple(entry["shape"]) for name, (_, entry) in entries.items()}, values)


def sampled_weights(shapes: Mapping[str, tuple[int, ...]], values: Values) -> str:
    """Return the fingerprint of weights, by the names and shapes of their tensors in the Hugging Face layout.

    `values` returns samples of a tensor as little-endian fp32. A head that repeats the embedding is left out, because
    not all files store it.
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
    """Return the index of the first weight of each sample of a tensor. Each sample is within one row."""
    places, run = (_PLACES if weights >= _LARGE else 1), min(RUN, columns)
    middles = (divmod((2 * place + 1) * weights // (2 * places), columns) for place in range(places))
    return [row * columns + min(column // RUN * RUN, columns - run) for row, column in middles]


def _floats(stored: bytes, dtype: str) -> bytes:
    """Return numbers of a safetensors type as fp32. Rare types stay as they are stored."""
    if dtype == "BF16":
        found = bytearray(2 * len(stored))
        found[2::4], found[3::4] = stored[::2], stored[1::2]
        return bytes(found)
    if dtype == "F16":
        count = len(stored) // 2
        return struct.pack(f"<{count}f", *struct.unpack(f"<{count}e", stored))
    return stored
