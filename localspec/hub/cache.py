"""The shared Hugging Face cache, without any network: finds, verifies and removes revisions.

The cache belongs to every program of this user: <cache>/models--org--name/snapshots/<commit>/FILE is a link to
../../blobs/<digest>.
"""

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from localspec.environment import hub_places
from localspec.errors import LocalspecError, NotHere
from localspec.hub.records import COMMIT, DIGEST, ExpectedFile, PullRecord, all_records, folder, forget, record, records
from localspec.hub.sources import Source
from localspec.outside_files import read_bytes
from localspec.paths import Paths
from localspec.weights.checkpoint import inspect

HEADS = ("medusa_lm_head.safetensors", "medusa_lm_head.pt")  # files of Medusa heads; the first that exists is used
TOKENIZER = "tokenizer.json"  # the only form that is read; others would need a conversion
_PIECE = 2**22  # bytes read at once


@dataclass(frozen=True)
class Verified:
    """The result of verifying a revision: the number of `files`, and a few words about each problem.

    If `recorded`, the files were compared with the record of the pull; otherwise with the names of their blobs, which
    are digests.
    """

    commit: str
    files: int
    recorded: bool
    problems: tuple[str, ...]


@dataclass(frozen=True)
class Removal:
    """The effects of removing a revision: `bytes` are freed, and the names `also` of the same commit disappear. `stay`
    are the repository's other revisions."""

    source: Source
    commit: str
    path: Path
    bytes: int
    also: tuple[str, ...]
    stay: tuple[str, ...]


# -- found -------------------------------------------------------------------------------------------------------------


def repository(source: Source) -> Path:
    """Return the directory of a repository in the cache, whether or not it exists."""
    return hub_places().cache / folder(source)


def snapshot(source: Source, commit: str) -> Path:
    """Return the cache directory of one commit, whether or not it exists."""
    return repository(source) / "snapshots" / commit


def find_snapshot(source: Source, paths: Paths | None = None) -> Path | None:
    """Return the directory of this revision, if all its files are there with the right lengths; otherwise None.

    For a pulled revision, this is the commit of the pull, even if other programs have fetched a newer commit. For GGUF
    files return None, because registrations say where they are.
    """
    if source.gguf:
        return None
    pulled = record(source, paths)
    commit = pulled.commit if pulled else cached_commit(source)
    if commit is None:
        return None
    path = snapshot(source, commit)
    if pulled:
        return path if all(size(path / file.name) == file.bytes for file in pulled.files) else None
    return path if _is_complete(path) else None


def pulled_sources(paths: Paths | None = None) -> list[Source]:
    """Return every revision that was pulled and is complete here, including Medusa heads, sorted by name."""
    return sorted(
        (pulled.source for pulled in all_records(paths) if find_snapshot(pulled.source, paths) is not None), key=str
    )


def cached_commit(source: Source) -> str | None:
    """Return the commit to which a revision (a branch or tag) points in this cache; None if the cache does not say."""
    if COMMIT.fullmatch(source.revision):
        return source.revision
    try:
        commit = read_bytes(repository(source) / "refs" / source.revision).decode("ascii").strip()
    except (OSError, ValueError):
        return None
    return commit if COMMIT.fullmatch(commit) else None


def _is_complete(path: Path) -> bool:
    """Return whether a directory has a model with its tokenizer, or Medusa heads. It is used if another program fetched
    them."""
    if any((path / name).is_file() for name in HEADS) and (path / "config.json").is_file():
        return True
    if not holds_tokenizer(path):
        return False
    try:
        return bool(inspect(path))
    except LocalspecError:
        return False


def holds_tokenizer(path: Path) -> bool:
    """Return whether a directory has a tokenizer that localspec can read."""
    return (path / TOKENIZER).is_file()


def size(file: Path) -> int:
    """Return the size of a file in bytes; -1 if it is missing or a broken link."""
    try:
        return file.stat().st_size
    except OSError:
        return -1


def cached(source: Source, commit: str, file: ExpectedFile) -> Path | None:
    """Return the path of a file in a commit's snapshot, or else of its blob; None if its length is wrong."""
    pointer = snapshot(source, commit) / file.name
    path = pointer if os.path.lexists(pointer) else repository(source) / "blobs" / file.digest
    return path if size(path) == file.bytes else None


def discard(source: Source, commit: str, file: ExpectedFile) -> None:
    """Remove a damaged file from the cache: the link in this commit's directory, and the content that it links to."""
    for link in (snapshot(source, commit) / file.name, repository(source) / "blobs" / file.digest):
        content = Path(os.path.realpath(link))
        # not content that somebody linked from elsewhere
        if content.is_relative_to(os.path.realpath(hub_places().cache)):
            content.unlink(missing_ok=True)
        link.unlink(missing_ok=True)


# -- verified ----------------------------------------------------------------------------------------------------------


def verify(
    source: Source, paths: Paths | None = None, progress: Callable[[int, int], None] = lambda done, total: None
) -> Verified:
    """Compare every file of a revision with the record of the pull, or without a record with its blob's name, a digest.

    `progress` is called with the bytes read and the total bytes. Raises NotHere if the revision is not here.
    """
    pulled = record(source, paths)
    commit = pulled.commit if pulled else cached_commit(source)
    path = snapshot(source, commit or "-")
    if commit is None or not path.is_dir() or source.gguf:
        raise NotHere(f"{source} is not here; fetch it with `localspec pull {source}`.")
    files = pulled.files if pulled else tuple(_linked_files(path))
    problems = damages(path, files, progress)
    if not pulled and not problems and not _is_complete(path):
        problems.append("files are missing, or the files are not a model that localspec can use")
    return Verified(commit, len(files), pulled is not None, tuple(problems))


def damages(path: Path, files: Sequence[ExpectedFile], progress: Callable[[int, int], None]) -> list[str]:
    """Read the given files of a directory. Return a few words about each damaged one."""
    total, offset = sum(max(size(path / file.name), 0) for file in files), 0
    problems = []
    for file in files:

        def show(read: int, offset: int = offset) -> None:
            progress(offset + read, total)

        if problem := damage(path / file.name, file, show):
            problems.append(problem)
        offset += max(size(path / file.name), 0)
    return problems


def _linked_files(path: Path) -> Iterator[ExpectedFile]:
    """Yield the files of a snapshot that link to blobs, which are named by their digests. Copied files are left out."""
    for file in sorted(path.iterdir()):
        with suppress(OSError):
            digest = os.path.basename(os.readlink(file))
            if DIGEST.fullmatch(digest):
                yield ExpectedFile(file.name, size(file), digest)


def damage(path: Path, file: ExpectedFile, progress: Callable[[int], None] = lambda read: None) -> str | None:
    """Return a few words about what is wrong with a file; None if nothing is. `progress` is called with the bytes
    read."""
    length = size(path)
    if length < 0:
        return f"{file.name} is missing"
    if length != file.bytes:
        return f"{file.name} has {length:,} bytes instead of {file.bytes:,}"
    digest, read = _hash_of(file, length), 0
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
    return f"{file.name} is damaged: its {kind} is {digest.hexdigest()[:12]}… instead of {file.digest[:12]}…"


def differs(content: bytes, file: ExpectedFile) -> bool:
    """Return whether `content` has another digest than this file must have."""
    digest = _hash_of(file, len(content))
    digest.update(content)
    actual: str = digest.hexdigest()
    return actual != file.digest


def _hash_of(file: ExpectedFile, length: int) -> Any:
    if len(file.digest) == 64:
        return hashlib.sha256()
    return hashlib.sha1(b"blob %d\0" % length, usedforsecurity=False)


# -- removed -----------------------------------------------------------------------------------------------------------


def removable(source: Source, paths: Paths | None = None) -> Removal:
    """Return what removing a revision would do. Raises NotHere, and LocalspecError if the cache is damaged."""
    if source.gguf:
        raise NotHere(f"{source} is not here, so nothing is removed.")
    known = records(source, paths)
    pulled = known.get(source.revision)
    commit = pulled.commit if pulled else cached_commit(source)
    info = _scan(source)
    repo = next(iter(info.repos), None)
    here = {revision.commit_hash: revision for revision in repo.revisions} if repo else {}
    if commit is None or commit not in here:
        directory = repository(source)
        # An interrupted deletion may leave blobs to which no snapshot refers.
        if directory.is_dir() and not directory.is_symlink() and not any(directory.glob("snapshots/*")):
            rest = (file for file in directory.rglob("*") if file.is_file() and not file.is_symlink())
            return Removal(source, commit or "", directory, sum(max(size(file), 0) for file in rest), (), ())
        if trouble := next((str(warning) for warning in info.warnings if folder(source) in str(warning)), None):
            raise LocalspecError(
                f"The cache of {source.repo} in {repository(source)} is damaged ({trouble}); repair it with "
                f"`localspec pull {source}`, or delete that directory."
            )
        others = ", ".join(sorted(_display_name(source, name, revision.refs, known) for name, revision in here.items()))
        if others:
            raise NotHere(f"{source} is not on this machine, which has only {others}.")
        raise NotHere(f"{source} is not here, so nothing is removed.")
    names = {*here[commit].refs, *(name for name, entry in known.items() if entry.commit == commit)}
    return Removal(
        source,
        commit,
        here[commit].snapshot_path,
        info.delete_revisions(commit).expected_freed_size,
        tuple(sorted(names - {source.revision, commit})),
        tuple(sorted(_display_name(source, name, other.refs, known) for name, other in here.items() if name != commit)),
    )


def _display_name(source: Source, commit: str, refs: frozenset[str], records: dict[str, PullRecord]) -> str:
    """Return a commit's name for display: a branch or tag that points to it, or else the commit itself."""
    names = sorted({*refs, *(name for name, pulled in records.items() if pulled.commit == commit)})
    return str(Source(source.repo, names[0] if names else commit))


def remove(removal: Removal, paths: Paths | None = None) -> None:
    """Remove a revision: its record, and the files that no other revision uses. Raises OSError and LocalspecError.

    If no revision stays, the snapshot is deleted before the blobs. Blobs without a snapshot then show that a deletion
    was interrupted.
    """
    rest = removal.path == repository(removal.source)
    strategy = None if rest else _scan(removal.source).delete_revisions(removal.commit)
    if not removal.stay:
        shutil.rmtree(removal.path)
    if strategy is not None:
        strategy.execute()
    path = removal.path if removal.stay else repository(removal.source)
    if os.path.lexists(path):
        raise LocalspecError(f"{path} could not be deleted; check the permissions of its directory, then try again.")
    forget(removal.source, removal.commit, paths)


def forget_deleted(source: Source) -> None:
    """Delete the record of a revision that another program deleted. Raises OSError."""
    pulled = record(source)
    if pulled and not snapshot(source, pulled.commit).exists():
        forget(source, pulled.commit)


def _scan(source: Source) -> Any:
    """Return huggingface_hub's list of cached files, limited to this repository and to files in its directory.

    With the whole list, huggingface_hub could delete a commit of another repository, or linked files elsewhere.
    """
    from localspec.hub.client import client

    try:
        info = client().scan_cache_dir(hub_places().cache)
    except client().CacheNotFound:
        raise NotHere(f"There is no cache in {hub_places().cache}, so nothing is removed.") from None

    def inside_only(repo: Any) -> Any:
        root, revisions = os.path.realpath(repo.repo_path), []
        for revision in repo.revisions:
            inside = (
                file for file in revision.files if Path(os.path.realpath(file.blob_path.parent)).is_relative_to(root)
            )
            revisions.append(replace(revision, files=frozenset(inside)))
        return replace(repo, revisions=frozenset(revisions))

    repos = (repo for repo in info.repos if repo.repo_type == "model" and repo.repo_id == source.repo)
    return replace(info, repos=frozenset(map(inside_only, repos)))
