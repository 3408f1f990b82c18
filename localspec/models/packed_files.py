"""The packed models on this machine: files in the cache directory, by revision, packing and format."""

from contextlib import suppress
from pathlib import Path

from localspec.checkpoint import revision
from localspec.errors import LocalspecError
from localspec.packed_file import FORMAT, SUFFIX, PackedFile, read
from localspec.paths import Paths

FILED = ("int8", "int4")  # packings that are kept on disk; dense ones are read about as fast from the model's own files


def packed_path(of: str, packing: str, paths: Paths) -> Path:
    """Where the packed form of a revision lies or would lie."""
    return paths.packed / _name(of, packing, FORMAT)


def _name(of: str, packing: str, file_format: int) -> str:
    return f"{of}-{packing}-{file_format}{SUFFIX}"


def in_all_formats(file: Path, of: str, packing: str) -> list[Path]:
    """Where a packed form lies that this or an earlier version wrote into the directory of `file`; the newest first."""
    return [file.with_name(_name(of, packing, written)) for written in range(FORMAT, 0, -1)]


def forms(file: Path) -> dict[str, Path]:
    """The packings in which the model of a packed file is here: this one, and those beside it."""
    own = read(file).header
    found = {own.packing: file}
    for packing in FILED:
        for other in in_all_formats(file, own.origin.revision, packing):
            with suppress(LocalspecError):
                found.setdefault(read(other).header.packing, other)
    return found


def packed_sources(paths: Paths) -> dict[str, PackedFile]:
    """The packed models that were pulled, by org/repo[@revision]; of several the one that was made last."""
    pulled = [one for one in packed_files(paths) if one.header.origin.repo]
    return {one.header.origin.repo: one for one in sorted(pulled, key=lambda one: one.path.stat().st_mtime)}


def packed_files(paths: Paths) -> list[PackedFile]:
    """Every packed model that can be read, sorted by name and packing."""
    found = []
    for file in _files(paths, f"*{SUFFIX}"):
        with suppress(LocalspecError):
            found.append(read(file))
    return sorted(found, key=lambda one: (one.header.origin.name, one.header.packing, one.path))


def packed_of(path: Path, source: str, paths: Paths) -> list[Path]:
    """Every packed file of the model in this directory, readable or not, finished or not; and those of its source.

    `source` is org/repo[@revision], or empty; the directory need not be there.
    """
    found = [one.path for one in packed_files(paths) if source and one.header.origin.repo == source]
    with suppress(LocalspecError):
        found += [file for file in _files(paths, f"{revision(path)}-*") if file.suffix != ".lock"]
    return sorted(set(found))


def packed_bytes(paths: Paths) -> int:
    """Bytes of all files in the directory of packed models."""
    return sum(file.stat().st_size for file in _files(paths, "*"))


def _files(paths: Paths, pattern: str) -> list[Path]:
    """What is there under such a name; nothing where the directory cannot be read."""
    try:
        return [file for file in sorted(paths.packed.glob(pattern)) if file.is_file()]
    except OSError:
        return []
