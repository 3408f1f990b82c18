"""Packed files that are the only copy of a model move from the cache directory, which may be emptied, to the data.

Earlier versions wrote all of them to the cache directory. A file stays where it is until its other place has it whole.
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
from localspec.models.imported import came_from_gguf
from localspec.models.packed_files import lock_of, packed_in
from localspec.packed_file import PARTIAL, Origin
from localspec.paths import Paths, private_directory
from localspec.quantities import size

_PIECE = 2**24  # bytes that are copied at a time


def is_only_copy(origin: Origin, paths: Paths) -> bool:
    """Return whether a packed file cannot be made again from weights that localspec looks after."""
    if came_from_gguf(origin.files):
        return True
    try:
        return bool(origin.repo) and find_snapshot(Source.parse(origin.repo), paths) is None
    except UsageMistake:
        return False


def settle(paths: Paths, reporter: Reporter) -> None:
    """Move every only copy that is still in the cache directory; a notice names the first one that has to stay there.

    Call it before models are looked up by name: a path that was found before may lead nowhere then.
    """
    waiting = [one.path for one in packed_in(paths.packed) if is_only_copy(one.header.origin, paths)]
    for file in waiting:
        try:
            private_directory(paths.imports)
            _move(file, paths.imports / file.name, reporter)
        except OSError as error:
            reporter.notice(
                f"{file} is the only copy of a model and stays in the cache directory, for it cannot be moved to "
                f"{paths.imports} ({error.strerror}); localspec tries again at the next start."
            )
            return


def _move(file: Path, new: Path, reporter: Reporter) -> None:
    """Move one file, whatever disk the other place is on. Raises OSError, and then it is where it was."""
    from filelock import FileLock  # seldom needed

    lock = lock_of(new)
    with FileLock(lock, mode=0o600):  # another process may be moving it
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
                lock.unlink()  # who waits for it sees that it is gone, and takes another


def _copy(file: Path, new: Path, reporter: Reporter) -> None:
    """Copy a file to another disk, whole or not at all."""
    partial, total, done = new.with_name(new.name + PARTIAL), file.stat().st_size, 0
    partial.unlink(missing_ok=True)  # of a process that was killed
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
        shutil.copystat(file, partial)  # of several imports of one name the latest counts
        os.replace(partial, new)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise
    if os.name != "nt":  # the old name goes only when the new one is on the disk
        directory = os.open(new.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
