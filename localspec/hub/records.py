"""Saves what was pulled, in one small file per repository, so that files can be verified without a network."""

import json
import re
import tempfile
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from localspec.environment import home
from localspec.errors import LocalspecError, UsageMistake
from localspec.hub.sources import Source
from localspec.outside_files import parse_json, read_bytes
from localspec.paths import Paths, private_directory, write_anew
from localspec.weights.packed_file import PackedFile
from localspec.weights.packed_files import packed_files, ranked

FORMAT = 1  # version of the files of records
COMMIT = re.compile(r"[0-9a-f]{40}")
DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")  # of a fetched file: no directory, and harmless
GGUF_NAME = re.compile(rf"({NAME.pattern}/){{0,3}}{NAME.pattern}\.gguf", re.IGNORECASE)  # often in separate folders


@dataclass(frozen=True)
class ExpectedFile:
    """The name, length and digest that a file must have. The digest is a SHA-256 (64 digits) or git's blob id (40)."""

    name: str
    bytes: int
    digest: str


@dataclass(frozen=True)
class PullRecord:
    """A pulled revision of a repository. `commit` is the commit to which `source.revision` pointed at that time."""

    source: Source
    commit: str
    time: str
    files: tuple[ExpectedFile, ...]


def folder(source: Source) -> str:
    """Return the name of a repository's directory in the cache."""
    return "models--" + source.repo.replace("/", "--")


def all_records(paths: Paths | None = None) -> list[PullRecord]:
    """Return the records of all pulled revisions. Unreadable records and invalid names are skipped."""
    directory, pulls = (paths or Paths(home())).pulled, []
    with suppress(OSError):
        for file in sorted(directory.glob("models--*.json")):
            repo = file.stem.removeprefix("models--").replace("--", "/", 1)
            for pulled in records(Source(repo), paths).values():
                with suppress(UsageMistake):
                    pulls.append(replace(pulled, source=Source.parse(f"{repo}@{pulled.source.revision}")))
    return pulls


def must_be_writable(paths: Paths | None = None) -> None:
    """Create the directory of the records. Raises LocalspecError if it cannot be written."""
    directory = (paths or Paths(home())).pulled
    try:
        with tempfile.TemporaryFile(dir=private_directory(directory)):
            pass
    except OSError as error:
        raise LocalspecError(
            f"Fetched models are recorded in {directory}, which cannot be written ({error.strerror}); check its "
            "permissions, or set LOCALSPEC_HOME to another directory."
        ) from None


def _record_file(source: Source, paths: Paths | None) -> Path:
    return (paths or Paths(home())).pulled / f"{folder(source)}.json"


def record(source: Source, paths: Paths | None = None) -> PullRecord | None:
    """Return the record of this revision; None if it was not pulled, or its record cannot be read."""
    return records(source, paths).get(source.revision)


def records(source: Source, paths: Paths | None) -> dict[str, PullRecord]:
    """Return the records of a repository, by revision; empty if its file is damaged."""
    try:
        content: Any = parse_json(read_bytes(_record_file(source, paths)))
        if content["format"] != FORMAT or content["repo"] != source.repo:
            return {}
        return {name: _pulled(Source(source.repo, name), entry) for name, entry in content["revisions"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _pulled(source: Source, entry: Any) -> PullRecord:
    files = tuple(
        ExpectedFile(name, fact["bytes"], fact.get("sha256") or fact["git_sha1"])
        for name, fact in entry["files"].items()
    )
    if not COMMIT.fullmatch(entry["commit"]) or not files or not all(map(is_valid, files)):
        raise ValueError
    return PullRecord(source, entry["commit"], str(entry["time"]), files)


def is_valid(file: ExpectedFile) -> bool:
    """Return whether a file's name is harmless, and its length and digest are possible."""
    harmless = NAME.fullmatch(file.name) or GGUF_NAME.fullmatch(file.name)
    return bool(harmless and type(file.bytes) is int and file.bytes >= 0) and bool(
        isinstance(file.digest, str) and DIGEST.fullmatch(file.digest)
    )


def remember(source: Source, commit: str, files: tuple[ExpectedFile, ...], paths: Paths | None = None) -> str | None:
    """Save a finished pull's record. Return a notice if an unreadable record had to be set aside. Raises OSError."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    with _locked(source, paths):
        file, pulls = _record_file(source, paths), records(source, paths)
        notice = None
        if not pulls and file.exists():
            aside = file.with_suffix(f".{int(datetime.now(UTC).timestamp())}.aside")
            file.replace(aside)
            notice = f"{file} could not be read and was set aside as {aside.name}."
        _write(file, source, {**pulls, source.revision: PullRecord(source, commit, now, files)})
    return notice


def forget(source: Source, commit: str, paths: Paths | None = None) -> None:
    """Remove the records of a commit. Raises OSError."""
    with _locked(source, paths):
        file, pulls = _record_file(source, paths), records(source, paths)
        left = {name: pulled for name, pulled in pulls.items() if pulled.commit != commit}
        if left:
            _write(file, source, left)
        elif pulls:
            file.unlink(missing_ok=True)


def _locked(source: Source, paths: Paths | None) -> Any:
    """Return a lock that keeps two pulls of one repository from overwriting each other's record."""
    from filelock import FileLock

    file = _record_file(source, paths)
    private_directory(file.parent)
    return FileLock(file.with_suffix(".lock"), mode=0o600)


def _write(file: Path, source: Source, pulls: dict[str, PullRecord]) -> None:
    content = {
        "format": FORMAT,
        "repo": source.repo,
        "revisions": {
            name: {
                "commit": pulled.commit,
                "time": pulled.time,
                "files": {
                    fact.name: {"bytes": fact.bytes, "sha256" if len(fact.digest) == 64 else "git_sha1": fact.digest}
                    for fact in pulled.files
                },
            }
            for name, pulled in pulls.items()
        },
    }
    write_anew(file, json.dumps(content, indent=1).encode())


def packed_sources(paths: Paths) -> dict[str, PackedFile]:
    """Return the packed file of each pulled model, by its source.

    If there are several, return the registration, which only names GGUF files, or else the newest.
    """
    pulled = []
    for file in packed_files(paths):
        with suppress(UsageMistake):
            if str(Source.parse(file.header.origin.repo)) == file.header.origin.repo:
                pulled.append(file)
    return {file.header.origin.repo: file for file in ranked(pulled)}
