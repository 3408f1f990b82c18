"""A model in its packed form, found in the cache directory or made."""

import errno
import shutil
from pathlib import Path
from time import monotonic

from filelock import FileLock

from localspec.checkpoint import is_packed, originals, revision
from localspec.config import home
from localspec.errors import DoesNotFit, LocalspecError
from localspec.events import Reporter
from localspec.models.packed_files import packed_path
from localspec.native.pack import Recipe, Source
from localspec.native.packed_model import PackedModel, write
from localspec.packed_file import DamagedFile, Origin, Progress, UnreadableFormat, read
from localspec.paths import Paths, private_directory

PAUSE = 1.0  # seconds between two reports of how far packing is
FILED = ("int8", "int4")  # packings that are kept on disk; dense ones are read about as fast from the model's own files
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def load(
    path: Path, packing: str, name: str, threads: int, reporter: Reporter, paths: Paths | None = None
) -> PackedModel:
    """Returns a model in int8, int4, bf16 or fp32; `path` is its directory, or a packed file.

    A packed file is made where there is none, or a damaged one. Where none can be written, the model is packed in
    memory, with a notice; bf16 and fp32 always are. Raises LocalspecError for a model that cannot be packed, DoesNotFit
    where memory runs out.
    """
    name = name or path.name
    if is_packed(path):
        model = PackedModel.open(path)
        if model.header.packing != packing:
            originals(path)
        return model
    if packing not in FILED:
        return _in_memory(path, packing, name, threads, reporter)
    try:
        return PackedModel.open(make(path, packing, Origin(name, revision(path)), threads, reporter, paths))
    except (CannotWrite, DoesNotFit) as error:
        reporter.notice(f"{error} The model is packed anew each time it is loaded until then.")
        return _in_memory(path, packing, name, threads, reporter)


class CannotWrite(LocalspecError):
    """The cache directory cannot be written."""


def make(
    path: Path, packing: str, origin: Origin, threads: int, reporter: Reporter, paths: Paths | None = None
) -> Path:
    """Returns a model's packed file, which is made where there is none, or a damaged one.

    One process makes it, others wait. Raises CannotWrite, DoesNotFit where the disk has no room, and LocalspecError
    for a model that cannot be packed.
    """
    file = packed_path(origin.revision, packing, paths or Paths(home()))
    try:
        if _is_sound(file, reporter):
            return file
        private_directory(file.parent)
        with FileLock(file.with_suffix(".lock"), mode=0o600):
            if not _is_sound(file, Reporter()):  # another process may have made it meanwhile
                _make(path, file, packing, origin, threads, reporter)
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise DoesNotFit(
                f"The disk of {file.parent} is full; make room, or set LOCALSPEC_HOME to another disk."
            ) from None
        raise CannotWrite(
            f"{file.parent}, where packed models are kept, cannot be written ({error.strerror}); correct that."
        ) from None
    return file


def _is_sound(file: Path, reporter: Reporter) -> bool:
    """Whether a packed file is there and can be read; a notice says why it is made again."""
    if not file.exists():
        return False
    try:
        read(file)
    except (DamagedFile, UnreadableFormat) as error:
        reporter.notice(str(error))
        return False
    return True


def _make(path: Path, file: Path, packing: str, origin: Origin, threads: int, reporter: Reporter) -> None:
    source = Source.open(path)
    header = source.header(source.origin(origin), packing, Recipe.of(packing))
    needed, free = len(header.encoded()) + header.section_bytes, shutil.disk_usage(file.parent).free
    if needed > free:
        raise DoesNotFit(
            f"The packed form of {origin.name} takes {needed / 2**30:.2f} GiB, and {free / 2**30:.2f} GiB are free on "
            f"the disk of {file.parent}; make room, or set LOCALSPEC_HOME to another disk."
        )
    write(file, header, source.filler({}), threads, _shown(origin.name, packing, reporter))


def _in_memory(path: Path, packing: str, name: str, threads: int, reporter: Reporter) -> PackedModel:
    source = Source.open(path)
    header = source.header(Origin(name, ""), packing, Recipe.of(packing))
    try:
        return PackedModel.in_memory(header, source.filler({}), threads, _shown(name, packing, reporter))
    except (OSError, MemoryError) as error:  # mmap says it with its own error
        raise DoesNotFit(
            f"{name} takes {header.section_bytes / 2**30:.1f} GiB of memory in {packing}, which are not free; choose a "
            "smaller model."
        ) from error


def _shown(name: str, packing: str, reporter: Reporter) -> Progress:
    """Reports that a model is being packed, and how far, where that takes a while."""
    what, last = f"packing {name} in {packing}, once", monotonic()
    reporter.progress(what)

    def show(done: int, total: int) -> None:
        nonlocal last
        if monotonic() - last >= PAUSE:
            last = monotonic()
            reporter.progress(f"{what}: {done / max(total, 1):.0%}")

    return show
