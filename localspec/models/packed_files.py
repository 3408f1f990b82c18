"""The packed models on this machine: files in the cache directory, by revision, packing and format."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from localspec.errors import LocalspecError
from localspec.packed_file import FORMAT, SUFFIX, PackedFile, read
from localspec.paths import Paths


def packed_path(revision: str, packing: str, paths: Paths) -> Path:
    """Where the packed form of a revision lies or would lie."""
    return paths.packed / f"{revision}-{packing}-{FORMAT}{SUFFIX}"


def packed_files(paths: Paths) -> list[PackedFile]:
    """Every packed model that can be read, sorted by name and packing."""
    found = []
    for file in _files(paths, f"*{SUFFIX}"):
        with suppress(LocalspecError):
            found.append(read(file))
    return sorted(found, key=lambda one: (one.header.origin.name, one.header.packing, one.path))


def files_of(revision: str, paths: Paths) -> list[Path]:
    """Every file there is of a revision, readable or not, finished or not."""
    return [file for file in _files(paths, f"{revision}-*") if file.suffix != ".lock"]


def packed_bytes(paths: Paths) -> int:
    """Bytes of all files in the directory of packed models."""
    return sum(file.stat().st_size for file in _files(paths, "*"))


def forget(revision: str, paths: Paths) -> None:
    """Deletes every file of a revision. Raises OSError."""
    for file in _files(paths, f"{revision}-*"):
        file.unlink(missing_ok=True)


def _files(paths: Paths, pattern: str) -> Iterator[Path]:
    return (file for file in sorted(paths.packed.glob(pattern)) if file.is_file())
