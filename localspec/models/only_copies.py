"""Moving packed files that are the only copy of a model from the cache directory to the data directory.

Users may empty the cache directory, where earlier versions wrote all packed files. A file is deleted there only after
the new file is complete.
"""

import errno
import os
import shutil
from contextlib import suppress
from pathlib import Path

from localspec.errors import UsageMistake
from localspec.events import Reporter
from localspec.hub.cache import find_snapshot
from localspec.hub.sources import Source
from localspec.models.imported import came_from_gguf, registrations
from localspec.models.packed_files import lock_of, locked, packed_in
from localspec.outside_files import read_bytes
from localspec.packed_file import PARTIAL, Origin
from localspec.paths import Paths, private_directory
from localspec.quantities import counted, size
from localspec.reminders import once_a_day

_PIECE = 2**24  # bytes copied at a time


def is_only_copy(origin: Origin, paths: Paths) -> bool:
    """Return whether localspec has no weights to make this packed file from again."""
    if came_from_gguf(origin.files):
        same = (one.header for one in registrations(paths) if one.header.origin.revision == origin.revision)
        return not any(header.missing is None for header in same)
    try:
        return bool(origin.repo) and find_snapshot(Source.parse(origin.repo), paths) is None
    except UsageMistake:
        return False


def move_only_copies(paths: Paths, reporter: Reporter) -> None:
    """Move every only copy out of the cache directory. Report those that cannot be moved in one notice, once a day.

    Call it before models are looked up by name: a path found earlier may no longer exist afterwards.
    """
    failed: dict[Path, str] = {}
    for file in (one.path for one in packed_in(paths.packed) if is_only_copy(one.header.origin, paths)):
        try:
            private_directory(paths.imports)
            _move(file, paths.imports / file.name, reporter)
        except OSError as error:
            failed[file] = f"{file} ({error.strerror or error})"
    if failed:
        once_a_day(paths.unmoved, reporter.notice)(
            f"Emptying the cache directory would delete the only copy of {counted(len(failed), 'model')}, which could "
            f"not be moved to {paths.imports}: {', '.join(failed.values())}. Free space or correct permissions; "
            "localspec tries again at each start."
        )
    elif paths.unmoved.exists():
        with suppress(OSError):
            paths.unmoved.unlink()


def unmoved(paths: Paths) -> str | None:
    """Return the notice of the models that could not be moved at the last start; None if all were moved."""
    try:
        return read_bytes(paths.unmoved).decode()
    except (OSError, ValueError):
        return None


def _move(file: Path, new: Path, reporter: Reporter) -> None:
    """Move one file, also to another disk. If it raises OSError, the file is still in its old place."""
    lock = lock_of(new)
    with locked(new, reporter, f"moves {file.name}"):
        try:
            if file.exists():
                try:
                    os.rename(file, new)
                except OSError as error:
                    if error.errno != errno.EXDEV:
                        raise
                    _copy(file, new, reporter)
                    file.unlink()
        finally:
            with suppress(OSError):
                lock.unlink()  # a waiting process notices this and makes another lock


def _copy(file: Path, new: Path, reporter: Reporter) -> None:
    """Copy a file to another disk, completely or not at all."""
    partial, total, done = new.with_name(new.name + PARTIAL), file.stat().st_size, 0
    partial.unlink(missing_ok=True)  # left by a killed process
    if total > shutil.disk_usage(new.parent).free:
        raise OSError(errno.ENOSPC, f"{size(total)} are needed")
    try:
        with file.open("rb") as source, os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as target:
            while piece := source.read(_PIECE):
                target.write(piece)
                done += len(piece)
                reporter.progress(f"moving a model to {new.parent}, once: {done / total:.0%}")
            target.flush()
            os.fsync(target.fileno())
        shutil.copystat(file, partial)  # the latest of several imports of one name counts
        os.replace(partial, new)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise
    if os.name != "nt":  # the caller deletes the old file, so the new name must be on the disk first
        directory = os.open(new.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
