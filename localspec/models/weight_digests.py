"""What a model's weight files hold, by sha256: as the common cache names them, as remembered, or read.

A file is known again by its size, its times and its inode. One that was touched is read once more and nothing else
happens; one whose bytes changed while all of these stayed is noticed by `verify` alone.
"""

import hashlib
import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Event, Lock

from localspec.errors import LocalspecError
from localspec.outside_files import parse_json, read_bytes
from localspec.packed_file import Progress
from localspec.paths import Paths, private_directory, write_anew

Stamp = list[int]  # bytes, nanoseconds of the last change of its content and of anything about it, inode
_SETTLED = 2 * 10**9  # nanoseconds: file systems count time coarsely, so what changed just now may change unseen
_PIECE = 2**22  # bytes read at once
_DIGEST = re.compile(r"[0-9a-f]{64}")


def weight_digests(
    files: Sequence[Path], paths: Paths, threads: int = 1, progress: Progress = lambda done, total: None
) -> dict[str, str]:
    """Returns the sha256 of each file by its name; reads those that are not known or may have changed.

    Raises LocalspecError for a file that cannot be read.
    """
    known, now = _remembered(paths), stamps(files)
    found = _without_reading(files, known, now)
    unread = [file for file in files if file not in found]
    found |= _read(unread, threads, progress)
    told = {os.path.realpath(file): (now[file.name], found[file]) for file in files}
    _remember({place: one for place, one in told.items() if known.get(place) != one}, paths)
    return {file.name: found[file] for file in files}


def known_digests(files: Sequence[Path], paths: Paths) -> dict[str, str]:
    """Return the sha256 of each file by its name, where it is known without reading the file.

    Raises LocalspecError for a file that is not there.
    """
    return {file.name: digest for file, digest in _without_reading(files, _remembered(paths), stamps(files)).items()}


def _without_reading(
    files: Sequence[Path], known: Mapping[str, tuple[Stamp, str]], now: Mapping[str, Stamp]
) -> dict[Path, str]:
    """Return the digests that the common cache names files by, or that are remembered of files as they are now."""
    found = {}
    for file in files:
        before = known.get(os.path.realpath(file))
        if before is None and (named := _named(file)):
            found[file] = named
        elif before is not None and before[0] == now[file.name]:
            found[file] = before[1]
    return found


def changed_unseen(files: Sequence[Path], paths: Paths, progress: Progress = lambda done, total: None) -> list[str]:
    """Reads all files. Returns the names of those whose bytes changed while size, times and inode stayed.

    From now on they are known as they are. Raises LocalspecError for a file that cannot be read.
    """
    known, now = _remembered(paths), stamps(files)
    found = {os.path.realpath(file): (now[file.name], digest) for file, digest in _read(files, 1, progress).items()}
    _remember(found, paths)
    places = {file.name: os.path.realpath(file) for file in files}
    return [
        name for name, place in places.items() if place in known and known[place][0] == now[name]
        and known[place][1] != found[place][1]
    ]  # fmt: skip


def stamps(files: Sequence[Path]) -> dict[str, Stamp]:
    """What changes with a file, by its name. Raises LocalspecError for one that is not there."""
    try:
        found = {file.name: file.stat() for file in files}
    except OSError as error:
        raise _unreadable(error) from None
    return {name: [one.st_size, one.st_mtime_ns, one.st_ctime_ns, one.st_ino] for name, one in found.items()}


def _named(file: Path) -> str:
    """The sha256 that the common cache names a file by; empty for other files."""
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
            stop.set()  # who interrupts does not wait for the end of a large file


def _unreadable(error: OSError) -> LocalspecError:
    return LocalspecError(f"{error.filename} cannot be read ({error.strerror}); correct its permissions.")


# -- remembered --------------------------------------------------------------------------------------------------------


def _file(paths: Paths) -> Path:
    return paths.packed / "digests.json"


def _remembered(paths: Paths) -> dict[str, tuple[Stamp, str]]:
    """What was known of files, by where they are. What cannot be read is nothing."""
    try:
        content = parse_json(read_bytes(_file(paths))) if _file(paths).is_file() else {}
        return {str(place): (list(stamp), str(digest)) for place, (stamp, digest) in content.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _remember(learned: Mapping[str, tuple[Stamp, str]], paths: Paths) -> None:
    """Adds what is settled, and forgets what is not there any more. Where it cannot be kept, it is read again."""
    now = time.time_ns()
    settled = {
        place: one for place, one in learned.items() if all(abs(now - moment) > _SETTLED for moment in one[0][1:3])
    }
    if not settled:
        return
    with suppress(OSError):  # two processes at once: what one of them learned is read again
        every = {**_remembered(paths), **settled}
        private_directory(paths.packed)
        here = {place: one for place, one in every.items() if os.path.exists(place)}
        write_anew(_file(paths), json.dumps(here).encode())
