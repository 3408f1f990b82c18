"""GGUF files in the shared cache: files of pulled models, and files that other programs fetched."""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from localspec.environment import hub_places
from localspec.errors import LocalspecError, NotHere, UsageMistake
from localspec.hub.cache import Verified, damages, discard, repository, snapshot
from localspec.hub.cache import size as bytes_of
from localspec.hub.records import COMMIT, DIGEST, ExpectedFile
from localspec.hub.sources import Source
from localspec.quantities import size

_TYPE = r"((?P<stem>.*?)[-._])??(?P<type>(UD-)?(I?Q\d[A-Z0-9_]*|TQ\d[A-Z0-9_]*|BF16|FP?16|FP?32|MXFP4))"
# Names of types in which some of the weights have a type that `localspec.weights.gguf_file` cannot read.
_UNREAD = re.compile(r"(UD-)?(Q1_.*|Q2_0|Q7_.*|Q4_0_\d.*|Q8_1|Q8_K)", re.ASCII)
_TYPED = re.compile(_TYPE, re.IGNORECASE | re.ASCII)
_PARTED = re.compile(r"(?P<name>.*?)(-(?P<part>\d{5})-of-(?P<count>\d{5}))?\.gguf", re.IGNORECASE | re.ASCII)
_NOT_MODELS = ("mmproj", "imatrix")  # other content that such files may have


def by_type(expected: Iterable[ExpectedFile]) -> dict[str, list[ExpectedFile]]:
    """Return GGUF files, ordered by name, for each type, such as Q4_K_M. The type with the fewest bytes is first.

    If files of a type are in several folders, the folder nearest to the top is taken.
    """
    types: dict[str, list[ExpectedFile]] = {}
    for file in sorted(expected, key=lambda file: (file.name.count("/"), file.name)):
        kind = _type_of(file)
        if kind and file.name.count("/") == types.setdefault(kind, [file])[0].name.count("/"):
            types[kind] = [*dict.fromkeys((*types[kind], file))]
    return dict(sorted(types.items(), key=lambda item: _bytes(item[1])))


def _type_of(file: ExpectedFile) -> str | None:
    """Return the GGUF type, such as Q4_K_M, that ends a file's or its folder's name; None if the file is no model."""
    path = PurePosixPath(file.name)
    parted = _PARTED.fullmatch(path.name)
    if parted is None or path.name.lower().startswith(_NOT_MODELS):
        return None
    match = _TYPED.fullmatch(parted["name"]) or _TYPED.fullmatch(path.parent.name)
    return match["type"].upper() if match else None


def of_type(source: Source, expected: Sequence[ExpectedFile]) -> list[ExpectedFile]:
    """Return the files of the GGUF type that a source names.

    Unsloth's prefix `UD-` may be left out. Raises LocalspecError, with a list of the types, if there are no such files
    or the type is not supported.
    """
    types = by_type(expected)
    kind = next((name for name in (source.gguf, f"UD-{source.gguf}") if name in types), None)
    if kind is None:
        raise LocalspecError(f"{source.repo} has no GGUF file of the type {source.gguf}; {_choose(source, types)}")
    if _UNREAD.fullmatch(kind):
        raise LocalspecError(f"{source} is of a type that localspec does not read; {_choose(source, types)}")
    files = types[kind]
    matches = [match for match in (_PARTED.fullmatch(file.name) for file in files) if match]
    counts, stems = {int(match["count"] or 1) for match in matches}, {match["name"] for match in matches}
    parts = [int(match["part"] or 1) for match in matches]
    if len(stems) > 1 or len(counts) > 1 or parts != list(range(1, max(counts) + 1)):
        raise LocalspecError(
            f"{', '.join(file.name for file in files[:4])} of {source.repo} are not parts of one model; fetch the "
            "right file yourself, and give it to `localspec import`."
        )
    return files


def types_listed(source: Source, expected: Sequence[ExpectedFile]) -> str:
    """Return a sentence that asks the user to choose one of a repository's GGUF types; empty if it has none."""
    types = by_type(expected)
    return f"{source.repo} has GGUF files; {_choose(source, types)}" if types else ""


def _choose(source: Source, types: dict[str, list[ExpectedFile]]) -> str:
    if not types:
        return "no file name states a type such as Q4_K_M, so none can be chosen."
    read = {name: files for name, files in types.items() if not _UNREAD.fullmatch(name)}
    others = ", ".join(name for name in types if name not in read)
    if not read:
        return f"the repository has only types that localspec does not read: {others}."
    listed = ", ".join(f"{name} ({size(_bytes(files))})" for name, files in read.items())
    likely = next((name for name in ("Q4_K_M", "Q8_0") if name in read), next(iter(read)))
    whole = Source(source.repo, source.revision, likely)
    unread = f"; localspec does not read {others}" if others else ""
    return f"choose a type from this list, as in `localspec pull {whole}`: {listed}{unread}."


def _bytes(files: Sequence[ExpectedFile]) -> int:
    return sum(file.bytes for file in files if isinstance(file.bytes, int))


@dataclass(frozen=True)
class CachedGguf:
    """The GGUF files of one type, in one commit of a repository in the cache."""

    source: Source
    commit: str
    files: tuple[ExpectedFile, ...]

    @property
    def places(self) -> set[str]:
        """The real paths of the files, with symbolic links resolved."""
        return {os.path.realpath(self.path / file.name) for file in self.files}

    @property
    def path(self) -> Path:
        return snapshot(self.source, self.commit)

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


def cached_gguf(source: Source | None = None) -> list[CachedGguf]:
    """Return the GGUF files that are in the cache, of a repository or of one type in a repository.

    Without a source, return those of every repository.
    """
    with suppress(OSError):
        places = [repository(source)] if source else sorted(hub_places().cache.glob("models--*"))
        ggufs = [gguf for place in places for gguf in _in(place)]
        if source is not None and COMMIT.fullmatch(source.revision):
            ggufs = [gguf for gguf in ggufs if gguf.commit == source.revision]
        if source is not None and source.gguf:
            ggufs = [gguf for gguf in ggufs if gguf.source.gguf in (source.gguf, f"UD-{source.gguf}")]
        return ggufs
    return []


def _in(folder: Path) -> Iterator[CachedGguf]:
    with suppress(UsageMistake):
        source = Source.parse(folder.name.removeprefix("models--").replace("--", "/", 1))
        for commit in sorted(folder.glob("snapshots/*")):
            names = [path for path in sorted(commit.rglob("*")) if path.suffix.lower() == ".gguf"]
            files = [_file(commit, path) for path in names if bytes_of(path) >= 0]
            for kind, parts in by_type(files).items():
                yield CachedGguf(replace(source, gguf=kind), commit.name, tuple(parts))


def _file(commit: Path, path: Path) -> ExpectedFile:
    """Return a cached file's name, size and digest. A link points to a blob named by its digest; a copy gets "-"."""
    digest = os.path.basename(os.readlink(path)) if path.is_symlink() else ""
    return ExpectedFile(
        path.relative_to(commit).as_posix(), bytes_of(path), digest if DIGEST.fullmatch(digest) else "-"
    )


def verify_gguf(source: Source, commit: str, progress: Callable[[int, int], None]) -> Verified:
    """Compare the GGUF files of a commit with their digests, which are their names in the cache. Raises NotHere."""
    for gguf in cached_gguf(replace(source, revision=commit)):
        named = [file for file in gguf.files if DIGEST.fullmatch(file.digest)]
        return Verified(commit, len(named), False, tuple(damages(gguf.path, named, progress)))
    raise NotHere(f"{source} is not here; fetch it with `localspec pull {source}`.")


def discard_gguf(cached: CachedGguf) -> None:
    """Delete the files of `cached`, and directories that become empty. Raises LocalspecError if a deletion fails."""
    commits = cached.path.parent
    names = {file.name for file in cached.files}
    try:
        for file in cached.files:
            discard(cached.source, cached.commit, file)
        for link in (commit / name for commit in commits.iterdir() for name in names):
            if link.is_symlink() and not link.exists():  # another commit may have the same content
                link.unlink()
    except OSError as error:
        raise LocalspecError(
            f"{error.filename or cached.path} could not be deleted ({error.strerror}); check the permissions of its "
            "directory, then try again."
        ) from None
    for commit in sorted(commits.iterdir()):
        tidy(cached.source, commit.name, [*names])


def tidy(source: Source, commit: str, names: list[str]) -> None:
    """Delete the directories in which the files `names` of a commit were, and those above them, if they are empty."""
    place = repository(source)
    folders = {str(folder) for name in names for folder in PurePosixPath(name).parents} - {"."}
    inside = [f"snapshots/{commit}/{folder}" for folder in sorted(folders, key=len, reverse=True)]
    with suppress(OSError):  # files of others stay
        for directory in (*inside, f"snapshots/{commit}", "snapshots", "blobs", "refs", "."):
            if (place / directory).is_dir():
                (place / directory).rmdir()
