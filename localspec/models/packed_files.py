"""The packed models on this machine, by revision, packing and format.

Files that can be made again from weights on this machine are in the cache directory. The others are in the data
directory.
"""

import errno
import hashlib
import json
import os
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic

from localspec.checkpoint import revision
from localspec.errors import LocalspecError, UsageMistake
from localspec.events import Reporter
from localspec.hub.sources import Source
from localspec.packed_file import BLOCKS, FORMAT, PARTIAL, SUFFIX, Origin, PackedFile, read
from localspec.paths import Paths

LOOK = 0.5  # seconds after which it is reported that another process has a lock
STALLED = 30.0  # seconds after which a process that writes nothing is waited for no more

GPU_SUFFIX = ".safetensors"  # of what was packed for a GPU, which another library reads
FILED = ("int8", "int4")  # packings that are kept on disk; dense ones are read about as fast from the model's own files
ROUNDED = "rounded"  # in the name of a file in blocks, for a registration whose types have not all kernels


_BEGIN = 2**16  # bytes of a packed file, in which the name of its model is


class Stalled(OSError):
    """Another process holds a lock and does nothing."""


def in_all_formats(origin: Origin, packing: str, paths: Paths, *, only_copy: bool = False) -> list[Path]:
    """Return the possible paths of a packed form, in the format of any version; a new file is written to the first.

    `only_copy` says that the user may delete the weights. The name has a digest of all files, because a revision
    samples the weights only.
    """
    weights = hashlib.sha256(json.dumps(sorted(origin.files.items())).encode()).hexdigest()[:16]
    stem = f"{origin.revision}-{packing}-{weights}"
    places = (paths.imports, paths.packed) if only_copy else (paths.packed, paths.imports)
    formats = [FORMAT] if packing == BLOCKS else range(FORMAT, 0, -1)
    return [place / f"{stem}-{written}{SUFFIX}" for place in places for written in formats]


def remove_outdated(file: Path) -> None:
    """Delete the file that an earlier version made in the place of this one, which is whole."""
    for former in range(1, FORMAT):
        stem = file.name.removesuffix(f"-{FORMAT}{SUFFIX}")
        with suppress(LocalspecError, OSError):
            if read(found := file.with_name(f"{stem}-{former}{SUFFIX}")).header.outdated:
                found.unlink()


def kept_for_gpus(paths: Paths) -> list[tuple[str, str, Path]]:
    """What was packed for GPUs: revision of the model, packing and precision as in nf4-bf16, file."""
    found = []
    for file in _files(paths.packed, f"*{GPU_SUFFIX}"):
        revision, _, rest = file.stem.partition("-")
        found.append((revision, rest.rsplit("-", 2)[0], file))
    return found


def former_forms(origin: Origin, packing: str, paths: Paths) -> list[Path]:
    """The packed forms of weights that lay in the same directory before these; its whole path is their name.

    A name that is no path may be that of several directories, and what was pulled belongs to its source.
    """
    if origin.repo or not os.path.isabs(origin.name):
        return []
    same = [
        one for one in packed_files(paths) if (one.header.origin.name, one.header.packing) == (origin.name, packing)
    ]
    return [one.path for one in same if not one.header.origin.repo and one.header.origin.files != origin.files]


def packed_sources(paths: Paths) -> dict[str, PackedFile]:
    """The packed models that were pulled, by source; of several the one that is read from its files, or made last."""
    pulled = [one for one in packed_files(paths) if _is_source(one.header.origin.repo)]
    return {one.header.origin.repo: one for one in sorted(pulled, key=rank)}


def rank(one: PackedFile) -> tuple[bool, float]:
    """Return what sorts the packed files of a model: its registration comes last, after the latest of the others."""
    return one.header.registered, one.path.stat().st_mtime


def files_in_use(paths: Paths, but: Collection[Path] = ()) -> set[str]:
    """Return the real paths of the GGUF files that registrations read, except some registrations."""
    found = [one for one in packed_files(paths) if one.header.registered and one.path not in but]
    return {os.path.realpath(file) for one in found for file in one.header.origin.files}


def _is_source(repo: str) -> bool:
    try:
        return str(Source.parse(repo)) == repo
    except UsageMistake:
        return False


def packed_files(paths: Paths) -> list[PackedFile]:
    """Every packed model that can be read, sorted by name and packing."""
    found = {one.path.name: one for place in _places(paths) for one in packed_in(place)}
    return sorted(found.values(), key=lambda one: (one.header.origin.name, one.header.packing, one.path))


def packed_in(directory: Path) -> list[PackedFile]:
    """Return every packed model in one directory that can be read."""
    found = []
    for file in _files(directory, f"*{SUFFIX}"):
        with suppress(LocalspecError):
            found.append(read(file))
    return found


def unreadable(paths: Paths) -> dict[Path, str]:
    """Return the packed files that cannot be read, and why not."""
    found = {}
    for file in (file for place in _places(paths) for file in _files(place, f"*{SUFFIX}")):
        try:
            read(file)
        except LocalspecError as error:
            found[file] = str(error)
    return found


def _places(paths: Paths) -> tuple[Path, Path]:
    """Return the directories of packed files. Files move from the first to the second, so read them in this order."""
    return paths.packed, paths.imports


def damaged_of(name: str, paths: Paths) -> Path | None:
    """Return a packed file that cannot be read and may be the model of this name; None without one.

    What is left of it has the name, or no name at all.
    """
    quoted = json.dumps(name, ensure_ascii=False).encode("utf-8", "surrogatepass")
    for file in unreadable(paths):
        with suppress(OSError), file.open("rb") as stream:
            begin = stream.read(_BEGIN)
            if quoted in begin or b'"name":' not in begin:
                return file
    return None


def packed_of(path: Path, source: str, paths: Paths) -> list[Path]:
    """Every packed file of the model in this directory, readable or not, finished or not; and those of its source.

    `source` is org/repo[@revision], or empty; the directory need not be there.
    """
    found = [one.path for one in packed_files(paths) if source and one.header.origin.repo == source]
    with suppress(LocalspecError):
        pattern = f"{revision(path)}-*"
        found += [file for place in _places(paths) for file in _files(place, pattern) if file.suffix != ".lock"]
    return sorted(set(found))


def other_source(file: Path, sources: Collection[str]) -> str:
    """The source that a packed file was pulled for, where it is none of these; empty else. It is that one's alone."""
    with suppress(LocalspecError):
        repo = read(file).header.origin.repo
        return "" if repo in sources else repo
    return ""


@contextmanager
def locked(file: Path, reporter: Reporter, what: str) -> Iterator[None]:
    """Hold the lock of a file; report that another process does `what` while it is waited for.

    Its lock file goes with the lock: a process that waits notices that, and makes another one. Raises Stalled where the
    other process writes nothing for a while, and OSError.
    """
    from filelock import FileLock, Timeout

    lock, partial, before, since = FileLock(lock_of(file), mode=0o600), partial_of(file), 0, monotonic()
    while not lock.is_locked:
        try:
            lock.acquire(timeout=LOOK)
        except Timeout:
            with suppress(OSError):
                if (written := partial.stat().st_mtime_ns) != before:
                    before, since = written, monotonic()
            if monotonic() - since > STALLED:
                who = _writer(partial)
                raise Stalled(
                    errno.ETIMEDOUT,
                    f"{who}, which {what}, has written nothing for {STALLED:.0f} s; let it go on or end it",
                ) from None
            reporter.progress(f"waiting for {_writer(partial)}, which {what}")
    try:
        yield
    finally:
        with suppress(OSError):  # Windows deletes no open file, so it stays there
            lock_of(file).unlink()
        lock.release()


def partial_of(file: Path) -> Path:
    """Where a file lies while it is written."""
    return file.with_name(file.name + PARTIAL)


def _writer(partial: Path) -> str:
    """Return which process writes a file, if it says so at the beginning of the file."""
    with suppress(OSError), partial.open("rb") as stream:
        if number := re.match(rb"(\d{1,10})\n", stream.read(16)):
            return f"process {number[1].decode()}"
    return "another process"


def lock_of(file: Path) -> Path:
    """The file that is locked while a packed file is made."""
    return file.with_suffix(".lock")


def remove_abandoned(*directories: Path) -> int:
    """Delete what processes were writing that were killed, and their locks. Return the bytes of it."""
    from filelock import FileLock, Timeout

    freed = 0
    every = (file for directory in directories for file in _files(directory, "*"))
    for file in {one.with_suffix("").with_suffix(SUFFIX) for one in every if one.suffix in (PARTIAL, ".lock")}:
        lock, partial = lock_of(file), partial_of(file)
        with suppress(OSError, Timeout), FileLock(lock, timeout=0, mode=0o600):  # else somebody writes it
            if partial.is_file():
                count = partial.stat().st_size
                partial.unlink()
                freed += count
            lock.unlink()  # who waits for it sees that it is gone, and takes another
    return freed


def packed_bytes(paths: Paths) -> int:
    """Bytes of all files in the directories of packed models."""
    return sum(file.stat().st_size for place in _places(paths) for file in _files(place, "*"))


def _files(directory: Path, pattern: str) -> list[Path]:
    """What is there under such a name; nothing where the directory cannot be read."""
    try:
        return [file for file in sorted(directory.glob(pattern)) if file.is_file()]
    except OSError:
        return []
