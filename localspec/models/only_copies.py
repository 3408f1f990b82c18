"""Moves packed files that are the only copy of a model from the cache directory to the data directory.

Users may empty the cache directory, but earlier versions wrote all packed files there. A file is deleted from the cache
only after its copy is complete.
"""

import errno
import os
import shutil
from pathlib import Path

from localspec.errors import UsageMistake
from localspec.events import Reporter
from localspec.hub.cache import find_snapshot
from localspec.hub.sources import Source
from localspec.paths import Paths, private_directory
from localspec.quantities import counted
from localspec.weights.packed_file import PARTIAL, Origin
from localspec.weights.packed_files import locked, made_from_gguf, packed_files, packed_in


def is_only_copy(origin: Origin, paths: Paths) -> bool:
    """Return whether a packed file is the only copy: localspec has nothing else from which to make it again."""
    if made_from_gguf(origin.files):
        same = (packed for packed in packed_files(paths) if packed.header.origin.revision == origin.revision)
        # If another file is in the place of the GGUF file, a packed file serves nobody.
        return not any(packed.header.registered and (packed.missing is None or packed.replaced) for packed in same)
    try:
        return bool(origin.repo) and find_snapshot(Source.parse(origin.repo), paths) is None
    except UsageMistake:
        return False


def move_only_copies(paths: Paths, reporter: Reporter) -> None:
    """Move every only copy out of the cache directory. Report all copies that cannot be moved in one notice.

    Call it before models are looked up by name: a path found earlier may no longer exist afterwards.
    """
    failed: list[str] = []
    for file in (packed.path for packed in packed_in(paths.packed) if is_only_copy(packed.header.origin, paths)):
        try:
            private_directory(paths.imports)
            with locked(paths.imports / file.name, reporter, f"moves {file.name}"):
                if file.exists():
                    _move(file, paths.imports / file.name, reporter)
        except OSError as error:
            failed.append(f"{file} ({error.strerror or error})")
    if failed:
        reporter.notice(
            f"The only copy of {counted(len(failed), 'model')} cannot be moved from the cache directory, which may be "
            f"emptied, to {paths.imports}: {', '.join(failed)}. Free space or correct permissions; localspec tries "
            "again at each start."
        )


def _move(file: Path, new: Path, reporter: Reporter) -> None:
    """Move one file, also to another disk. If it raises OSError, the file is still in its old place."""
    try:
        os.rename(file, new)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        reporter.progress(f"moving a model to {new.parent} (needed only once)")
        partial = new.with_name(new.name + PARTIAL)
        try:
            shutil.copy2(file, partial)  # of several imports under one name, the latest counts
            _flush(partial)
            os.replace(partial, new)
        finally:
            partial.unlink(missing_ok=True)
        _flush(new.parent)
        file.unlink()


def _flush(path: Path) -> None:
    """Wait until a file, or the list of files of a directory, is on the disk."""
    if os.name != "nt":
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
