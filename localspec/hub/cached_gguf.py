"""GGUF files in the common cache: what an import that failed has left there, or another program fetched."""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from localspec.environment import hub_places
from localspec.errors import LocalspecError, UsageMistake
from localspec.hub.cache import discard, repository, size, snapshot
from localspec.hub.gguf_files import by_type
from localspec.hub.records import DIGEST, ExpectedFile
from localspec.hub.sources import Source


@dataclass(frozen=True)
class CachedGguf:
    """The files of one type in one commit of a repository."""

    source: Source
    commit: str
    files: tuple[ExpectedFile, ...]

    @property
    def path(self) -> Path:
        return snapshot(self.source, self.commit)

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


def cached_gguf(source: Source | None = None) -> list[CachedGguf]:
    """What is here of a repository, of one type where the source names one; of every repository without a source."""
    with suppress(OSError):
        places = [repository(source)] if source else sorted(hub_places().cache.glob("models--*"))
        return [one for place in places for one in _in(place) if source is None or _is_meant(one.source, source)]
    return []


def _in(place: Path) -> Iterator[CachedGguf]:
    with suppress(UsageMistake):
        source = Source.parse(place.name.removeprefix("models--").replace("--", "/", 1))
        for commit in sorted(place.glob("snapshots/*")):
            names = [path for path in sorted(commit.rglob("*")) if path.suffix.lower() == ".gguf"]
            files = [_file(commit, path) for path in names if size(path) >= 0]
            for kind, found in by_type(files).items():
                yield CachedGguf(replace(source, gguf=kind), commit.name, tuple(found))


def _is_meant(found: Source, asked: Source) -> bool:
    return not asked.gguf or found.gguf in (asked.gguf, f"UD-{asked.gguf}")


def _file(commit: Path, path: Path) -> ExpectedFile:
    """A file as the cache has it: a link to a content that is named by its digest, or a copy."""
    digest = os.path.basename(os.readlink(path)) if path.is_symlink() else ""
    return ExpectedFile(path.relative_to(commit).as_posix(), size(path), digest if DIGEST.fullmatch(digest) else "-")


def discard_gguf(cached: CachedGguf) -> None:
    """Deletes these files, and what is empty then. Raises LocalspecError where that fails."""
    try:
        for file in cached.files:
            discard(cached.source, cached.commit, file)
    except OSError as error:
        raise LocalspecError(f"{cached.path} could not be deleted ({error.strerror}); correct that.") from None
    tidy(cached.source, cached.commit, [file.name for file in cached.files])


def tidy(source: Source, commit: str, names: list[str]) -> None:
    """Deletes the directories that files of these names were in, as far as they are empty."""
    place = repository(source)
    folders = {str(folder) for name in names for folder in PurePosixPath(name).parents} - {"."}
    inside = [f"snapshots/{commit}/{folder}" for folder in sorted(folders, key=len, reverse=True)]
    with suppress(OSError):  # what others have in it stays
        for directory in (*inside, f"snapshots/{commit}", "snapshots", "blobs", "refs", "."):
            if (place / directory).is_dir():
                (place / directory).rmdir()
