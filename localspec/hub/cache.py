"""What lies in the common Hugging Face cache, without any network: found, recorded, verified, removed.

The cache belongs to every program of this user: <cache>/models--org--name/snapshots/<commit>/FILE is a link to
../../blobs/<digest>.
"""

import hashlib
import os
from collections.abc import Callable, Container, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from localspec.checkpoint import inspect
from localspec.config import hub_places
from localspec.errors import LocalspecError, NotHere
from localspec.hub.records import COMMIT, DIGEST, FileFact, Pulled, folder, forget, pulls, record, records
from localspec.hub.sources import Source
from localspec.paths import Paths

HEADS = ("medusa_lm_head.safetensors", "medusa_lm_head.pt")  # Medusa heads, the first that is there
TOKENIZERS = (("tokenizer.json",), ("tokenizer.model",), ("vocab.json", "merges.txt"))  # one of these is needed
_PIECE = 2**22  # bytes read at once


@dataclass(frozen=True)
class Verified:
    """How many files were compared, with a record of ours or with their names in the cache, and what is wrong."""

    commit: str
    files: int
    recorded: bool
    problems: tuple[str, ...]


@dataclass(frozen=True)
class Removal:
    """What removing one revision would do. `bytes` become free; `also` are its other names, `stay` other revisions."""

    source: Source
    commit: str
    path: Path
    bytes: int
    also: tuple[str, ...]
    stay: tuple[str, ...]


# -- found -------------------------------------------------------------------------------------------------------------


def repository(source: Source) -> Path:
    """The directory of a repository in the cache, whether or not it is there."""
    return hub_places().cache / folder(source)


def snapshot(source: Source, commit: str) -> Path:
    """The directory of one commit, whether or not it is there."""
    return repository(source) / "snapshots" / commit


def located(source: Source, paths: Paths | None = None) -> Path | None:
    """The directory of this revision if it is here whole; an interrupted pull is not, nor is a file of another length.

    A revision that was pulled is the commit that it meant then, whatever other programs have fetched since.
    """
    pulled = record(source, paths)
    commit = pulled.commit if pulled else resolved(source)
    if commit is None:
        return None
    path = snapshot(source, commit)
    if pulled:
        return path if all(size(path / file.name) == file.bytes for file in pulled.files) else None
    return path if _whole(path) else None


def pulled_sources(paths: Paths | None = None) -> list[Source]:
    """Every revision of a repository that was pulled and is here whole, by name; Medusa heads are among them."""
    return sorted((one.source for one in pulls(paths) if located(one.source, paths) is not None), key=str)


def resolved(source: Source) -> str | None:
    """The commit that this cache takes a revision for."""
    if COMMIT.fullmatch(source.revision):
        return source.revision
    try:
        commit = (repository(source) / "refs" / source.revision).read_text("ascii").strip()
    except (OSError, ValueError):
        return None
    return commit if COMMIT.fullmatch(commit) else None


def _whole(path: Path) -> bool:
    """Whether a directory that another program fetched is a model with its tokenizer, or Medusa heads."""
    if any((path / name).is_file() for name in HEADS) and (path / "config.json").is_file():
        return True
    if not tokenized(path):
        return False
    try:
        return bool(inspect(path))
    except LocalspecError:
        return False


def tokenized(path: Path) -> bool:
    """Whether a directory holds what a tokenizer is made of."""
    return has_tokenizer({name for names in TOKENIZERS for name in names if (path / name).is_file()})


def has_tokenizer(names: Container[str]) -> bool:
    """Whether files of these names are enough to make a tokenizer of."""
    return any(all(name in names for name in needed) for needed in TOKENIZERS)


def size(file: Path) -> int:
    """In bytes; -1 where there is none, or a link leads nowhere."""
    try:
        return file.stat().st_size
    except OSError:
        return -1


def cached(source: Source, commit: str, file: FileFact) -> Path | None:
    """Where the client will find this file in the cache: under its name, or its content under that of another."""
    pointer = snapshot(source, commit) / file.name
    path = pointer if os.path.lexists(pointer) else repository(source) / "blobs" / file.digest
    return path if size(path) == file.bytes else None


def discard(source: Source, commit: str, file: FileFact) -> None:
    """Removes a damaged file from the cache: its name in this revision, and the content behind it."""
    for link in (snapshot(source, commit) / file.name, repository(source) / "blobs" / file.digest):
        behind = Path(os.path.realpath(link))
        if behind.is_relative_to(os.path.realpath(hub_places().cache)):  # and was not linked in from elsewhere
            behind.unlink(missing_ok=True)
        link.unlink(missing_ok=True)


# -- verified ----------------------------------------------------------------------------------------------------------


def verify(
    source: Source, paths: Paths | None = None, progress: Callable[[int, int], None] = lambda done, total: None
) -> Verified:
    """Reads every file of a revision and compares it with what was recorded, else with its name in the cache.

    `progress` is told bytes read and bytes in all. Raises NotHere.
    """
    pulled = record(source, paths)
    commit = pulled.commit if pulled else resolved(source)
    path = snapshot(source, commit or "-")
    if commit is None or not path.is_dir():
        raise NotHere(f"{source} is not here; fetch it with `localspec pull {source}`.")
    files = pulled.files if pulled else tuple(_named(path))
    total, before = sum(max(size(path / file.name), 0) for file in files), 0
    problems = []
    for file in files:

        def show(read: int, before: int = before) -> None:
            progress(before + read, total)

        if problem := damage(path / file.name, file, show):
            problems.append(problem)
        before += max(size(path / file.name), 0)
    if not pulled and not problems and not _whole(path):
        problems.append("files are missing, or they are no model that localspec can use")
    return Verified(commit, len(files), pulled is not None, tuple(problems))


def _named(path: Path) -> Iterator[FileFact]:
    """What the names in the cache say: a link leads to a file that is called by its digest. Copies are passed over."""
    for file in sorted(path.iterdir()):
        with suppress(OSError):
            digest = os.path.basename(os.readlink(file))
            if DIGEST.fullmatch(digest):
                yield FileFact(file.name, size(file), digest)


def damage(path: Path, file: FileFact, progress: Callable[[int], None] = lambda read: None) -> str | None:
    """What is wrong with a file, in words that go behind a name; `progress` is told the bytes that were read."""
    length = size(path)
    if length < 0:
        return f"{file.name} is missing"
    if length != file.bytes:
        return f"{file.name} has {length:,} bytes where {file.bytes:,} belong"
    digest = hashlib.sha256() if len(file.digest) == 64 else hashlib.sha1(b"blob %d\0" % length, usedforsecurity=False)
    read = 0
    try:
        with path.open("rb") as stream:
            while piece := stream.read(_PIECE):
                digest.update(piece)
                read += len(piece)
                progress(read)
    except OSError as error:
        return f"{file.name} cannot be read ({error.strerror})"
    if digest.hexdigest() == file.digest:
        return None
    kind = "sha256" if len(file.digest) == 64 else "git's sha1"
    return f"{file.name} is damaged: its {kind} is {digest.hexdigest()[:12]}… where {file.digest[:12]}… belongs"


# -- removed -----------------------------------------------------------------------------------------------------------


def removable(source: Source, paths: Paths | None = None) -> Removal:
    """What removing this revision would do. Raises NotHere, and LocalspecError where the cache cannot be understood."""
    known = records(source, paths)
    pulled = known.get(source.revision)
    commit = pulled.commit if pulled else resolved(source)
    info = _scanned(source)
    repo = next(iter(info.repos), None)
    here = {revision.commit_hash: revision for revision in repo.revisions} if repo else {}
    if commit is None or commit not in here:
        if trouble := next((str(one) for one in info.warnings if folder(source) in str(one)), None):
            raise LocalspecError(
                f"The cache of {source.repo} in {repository(source)} is damaged ({trouble}); "
                f"mend it with `localspec pull {source}`, or delete that directory."
            )
        others = ", ".join(sorted(_called(source, hash_, found.refs, known) for hash_, found in here.items()))
        raise NotHere(f"{source} is not here{f'; of it there is {others}' if others else ', so nothing is removed'}.")
    names = {*here[commit].refs, *(name for name, one in known.items() if one.commit == commit)}
    return Removal(
        source,
        commit,
        here[commit].snapshot_path,
        info.delete_revisions(commit).expected_freed_size,
        tuple(sorted(names - {source.revision, commit})),
        tuple(sorted(_called(source, name, one.refs, known) for name, one in here.items() if name != commit)),
    )


def _called(source: Source, commit: str, refs: frozenset[str], records: dict[str, Pulled]) -> str:
    """What a person may call a commit: a name that means it, else the commit itself."""
    names = sorted({*refs, *(name for name, pulled in records.items() if pulled.commit == commit)})
    return str(Source(source.repo, names[0] if names else commit))


def remove(removal: Removal, paths: Paths | None = None) -> None:
    """Deletes what no other revision uses, and the record of it. Raises OSError."""
    _scanned(removal.source).delete_revisions(removal.commit).execute()
    forget(removal.source, removal.commit, paths)
    if os.path.lexists(removal.path):
        raise LocalspecError(f"{removal.path} could not be deleted; correct its permissions.")


def _scanned(source: Source) -> Any:
    """The client's own view of the cache, with this repository alone in it, and with no file that lies outside of it.

    The client deletes a commit wherever it finds it first, and two repositories may have the same: one that was moved,
    or copied. It also deletes what somebody linked in from elsewhere.
    """
    from localspec.hub.client import client

    try:
        info = client().scan_cache_dir(hub_places().cache)
    except client().CacheNotFound:
        raise NotHere(f"There is no cache in {hub_places().cache}, so nothing is removed.") from None
    found = (repo for repo in info.repos if repo.repo_type == "model" and repo.repo_id == source.repo)
    return replace(info, repos=frozenset(map(_only_its_own, found)))


def _only_its_own(repo: Any) -> Any:
    """The client's view of a repository without the files whose content lies outside of its directory."""
    root = os.path.realpath(repo.repo_path)

    def own(revision: Any) -> Any:
        files = (file for file in revision.files if Path(os.path.realpath(file.blob_path.parent)).is_relative_to(root))
        return replace(revision, files=frozenset(files))

    return replace(repo, revisions=frozenset(map(own, repo.revisions)))
