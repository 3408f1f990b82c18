"""GGUF files in the common cache: those of models that were pulled, and what another program fetched."""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from localspec.environment import hub_places
from localspec.errors import LocalspecError, NotHere, UsageMistake
from localspec.hub.cache import Verified, damages, discard, repository, size, snapshot
from localspec.hub.gguf_files import by_type
from localspec.hub.records import COMMIT, DIGEST, ExpectedFile
from localspec.hub.sources import Source


@dataclass(frozen=True)
class CachedGguf:
    """The files of one type in one commit of a repository."""

    source: Source
    commit: str
    files: tuple[ExpectedFile, ...]

    @property
    def places(self) -> set[str]:
        """Return where the contents of the files really are."""
        return {os.path.realpath(self.path / file.name) for file in self.files}

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
        return [one for place in places for one in _in(place) if source is None or _is_meant(one, source)]
    return []


def _in(place: Path) -> Iterator[CachedGguf]:
    with suppress(UsageMistake):
        source = Source.parse(place.name.removeprefix("models--").replace("--", "/", 1))
        for commit in sorted(place.glob("snapshots/*")):
            names = [path for path in sorted(commit.rglob("*")) if path.suffix.lower() == ".gguf"]
            files = [_file(commit, path) for path in names if size(path) >= 0]
            for kind, found in by_type(files).items():
                yield CachedGguf(replace(source, gguf=kind), commit.name, tuple(found))


def _is_meant(found: CachedGguf, asked: Source) -> bool:
    if COMMIT.fullmatch(asked.revision) and found.commit != asked.revision:
        return False
    return not asked.gguf or found.source.gguf in (asked.gguf, f"UD-{asked.gguf}")


def _file(commit: Path, path: Path) -> ExpectedFile:
    """A file as the cache has it: a link to a content that is named by its digest, or a copy."""
    digest = os.path.basename(os.readlink(path)) if path.is_symlink() else ""
    return ExpectedFile(path.relative_to(commit).as_posix(), size(path), digest if DIGEST.fullmatch(digest) else "-")


def verify_gguf(source: Source, commit: str, progress: Callable[[int, int], None]) -> Verified:
    """Read the files of a commit and compare them with their names in the cache. Raises NotHere."""
    for one in cached_gguf(replace(source, revision=commit)):
        named = [file for file in one.files if DIGEST.fullmatch(file.digest)]
        return Verified(commit, len(named), False, tuple(damages(one.path, named, progress)))
    raise NotHere(f"{source} is not here; fetch it with `localspec pull {source}`.")


def discard_gguf(cached: CachedGguf) -> None:
    """Deletes these files, and what is empty then. Raises LocalspecError where that fails."""
    commits = cached.path.parent
    names = {file.name for file in cached.files}
    try:
        for file in cached.files:
            discard(cached.source, cached.commit, file)
        for link in (commit / name for commit in commits.iterdir() for name in names):
            if link.is_symlink() and not link.exists():  # another commit with the same content
                link.unlink()
    except OSError as error:
        raise LocalspecError(f"{cached.path} could not be deleted ({error.strerror}); correct that.") from None
    for commit in sorted(commits.iterdir()):
        tidy(cached.source, commit.name, [*names])


def tidy(source: Source, commit: str, names: list[str]) -> None:
    """Deletes the directories that files of these names were in, as far as they are empty."""
    place = repository(source)
    folders = {str(folder) for name in names for folder in PurePosixPath(name).parents} - {"."}
    inside = [f"snapshots/{commit}/{folder}" for folder in sorted(folders, key=len, reverse=True)]
    with suppress(OSError):  # what others have in it stays
        for directory in (*inside, f"snapshots/{commit}", "snapshots", "blobs", "refs", "."):
            if (place / directory).is_dir():
                (place / directory).rmdir()
