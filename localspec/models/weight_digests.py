"""The SHA-256 of a model's weight files: as the common cache names them, as remembered, or read.

Only `localspec verify` reads whole files for it, and what recognises files for which an earlier version noted nothing
else. A remembered digest counts while size, times and inode of its file stay as they were.
"""

import hashlib
import json
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Lock

from localspec.errors import LocalspecError
from localspec.outside_files import parse_json, read_bytes
from localspec.packed_file import Progress
from localspec.paths import Paths, private_directory, write_anew

Stamp = list[int]  # bytes, nanoseconds of the last change of its content and of anything about it, inode
Known = tuple[Stamp, str, str]  # a file as it was then, its SHA-256, its fingerprint (empty from earlier versions)
SETTLED = 2 * 10**9  # nanoseconds: file systems count time coarsely, so what changed just now may change unseen
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
    read = {os.path.realpath(file): (now[file.name], found[file], "") for file in files}
    _remember({place: one for place, one in read.items() if known.get(place, ())[:2] != one[:2]}, paths)
    return {file.name: found[file] for file in files}


def known_digests(files: Sequence[Path], paths: Paths) -> dict[str, str]:
    """Return the sha256 of each file by its name, where it is known without reading the file.

    The common cache's name for a file counts until the file changes.
    Raises LocalspecError for a file that is not there.
    """
    known, now = _remembered(paths), stamps(files)
    found = _without_reading(files, known, now)
    named = {os.path.realpath(file): (now[file.name], digest, "") for file, digest in found.items()}
    _remember({place: one for place, one in named.items() if place not in known}, paths)
    return {file.name: digest for file, digest in found.items()}


def _without_reading(files: Sequence[Path], known: Mapping[str, Known], now: Mapping[str, Stamp]) -> dict[Path, str]:
    """Return the digests that the common cache names files by, or that are remembered of files as they are now."""
    found = {}
    for file in files:
        before = known.get(os.path.realpath(file))
        if before is None and (named := _named(file)):
            found[file] = named
        elif before is not None and before[0] == now[file.name]:
            found[file] = before[1]
    return found


@dataclass(frozen=True)
class Looked:
    """What reading a whole file found: its SHA-256, that of its last reading (empty before the first), its change."""

    digest: str
    before: str
    unseen: bool  # it differs from the last reading, and nothing else says so


def look(
    files: Sequence[Path],
    fingerprints: Mapping[str, str],
    paths: Paths,
    progress: Progress = lambda done, total: None,
) -> dict[str, Looked]:
    """Read all files, and compare them with what was remembered of them. Return what was found, by their names.

    A change is unseen if size, times and inode stayed, or if the fingerprint stayed. `fingerprints` are those of the
    files now, by name. Other files are known as they are from now on; one that changed unseen stays known as it was,
    until `forget` is called. Raises LocalspecError for a file that cannot be read.
    """
    known, now, found = _remembered(paths), stamps(files), {}
    learned: dict[str, Known] = {}
    for file, digest in _read(files, 1, progress).items():
        place, mark = os.path.realpath(file), fingerprints[file.name]
        stamp, before, former_mark = known.get(place, ([], "", ""))
        unseen = before not in ("", digest) and (stamp == now[file.name] or former_mark == mark)
        found[file.name] = Looked(digest, before, unseen)
        if not unseen:
            learned |= {place: (now[file.name], digest, mark), mark: ([], digest, mark)}
    _remember(learned, paths)
    return found


def forget(files: Iterable[Path], fingerprints: Iterable[str], paths: Paths) -> None:
    """Forget what these files held, and what files with these fingerprints held."""
    gone, known = {*map(os.path.realpath, files), *fingerprints}, _remembered(paths)
    if gone & known.keys():
        with suppress(OSError):
            write_anew(_file(paths), json.dumps({one: known[one] for one in known if one not in gone}).encode())


def digest_of(mark: str, paths: Paths) -> str:
    """Return the SHA-256 that a file with this fingerprint had when it was read; empty if none was."""
    return _remembered(paths).get(mark, ([], "", ""))[1]


def stamps(files: Sequence[Path]) -> dict[str, Stamp]:
    """What changes with a file, by its name. Raises LocalspecError for one that is not there."""
    try:
        found = {file.name: file.stat() for file in files}
    except OSError as error:
        raise _unreadable(error) from None
    return {name: stamp(one) for name, one in found.items()}


def stamp(found: os.stat_result) -> Stamp:
    """Return what changes with a file."""
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]


def settled(stamp: Stamp) -> bool:
    """Return whether a further change of a file is sure to change its stamp, because it was not changed just now."""
    return all(abs(time.time_ns() - moment) > SETTLED for moment in stamp[1:3])


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


def _remembered(paths: Paths) -> dict[str, Known]:
    """Return what is known of files, by where they are, and by fingerprint. What cannot be read is nothing."""
    try:
        content = parse_json(read_bytes(_file(paths))) if _file(paths).is_file() else {}
        return {str(place): (list(said[0]), str(said[1]), "".join(said[2:])) for place, said in content.items()}
    except (OSError, ValueError, TypeError, AttributeError, LookupError):
        return {}


def _remember(learned: Mapping[str, Known], paths: Paths) -> None:
    """Add what was learned, and forget files that are gone. Where it cannot be kept, they are read again.

    Of a file that changed just now only digest and fingerprint are kept: its times do not tell a further change.
    """
    new = {place: one if settled(one[0]) else ([], one[1], one[2]) for place, one in learned.items()}
    learned = {place: one for place, one in new.items() if one[0] or one[2]}
    if not learned:
        return
    with suppress(OSError):  # two processes at once: what one of them learned is read again
        every = {**_remembered(paths), **learned}
        private_directory(paths.packed)
        here = {place: one for place, one in every.items() if place == one[2] or os.path.exists(place)}
        write_anew(_file(paths), json.dumps(here).encode())
