"""`localspec uninstall`: lists all that localspec wrote, and deletes it after a question."""

import errno
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from localspec.cli.console import may_delete
from localspec.environment import home
from localspec.errors import LocalspecError
from localspec.hub.cache import Removal, removable, remove
from localspec.hub.cached_gguf import CachedGguf, cached_gguf, discard_gguf
from localspec.hub.records import all_records, packed_sources
from localspec.hub.sources import Source
from localspec.paths import Paths
from localspec.quantities import size
from localspec.store.cleaning import erase
from localspec.text import one_line

app = typer.Typer()

# After its name; a file set aside has a number.
_DATABASE = re.compile(r"(\.[a-z]+-\d+)?(-wal|-shm|-journal|-lock|-open)*")
_PACKED = re.compile(r"\.(packed|safetensors|lock|new|partial|part)\b|^\.|^digests\.json$")

PROGRAM = (
    "To remove the program itself: `uv tool uninstall localspec`, or `pip uninstall localspec` if pip installed it."
)


class OwnedPath(NamedTuple):
    """A file or directory that localspec writes. `private` says that it may contain text of the user, or a secret.

    If it is a symbolic link, its target stays. With `followed`, the target is deleted too, because only localspec
    writes such a file. If `names` is given, only those files of the directory that match this pattern are localspec's;
    the others stay.
    """

    path: Path
    description: str
    private: bool = False
    followed: bool = False
    names: re.Pattern[str] | None = None

    @property
    def stays(self) -> Path | None:
        """Return the target of a link if only the link is deleted; None otherwise."""
        return Path(os.path.realpath(self.path)) if self.path.is_symlink() and not self.followed else None

    def foreign(self) -> list[Path]:
        """Return the files of other programs in this directory, not in its subdirectories. Raises OSError."""
        if self.names is None or self.path.is_symlink() or not self.path.is_dir():
            return []
        return sorted(file for file in self.path.iterdir() if not self.names.search(file.name))


class FoundPlace(NamedTuple):
    """An existing file or directory to delete (`place`), with the bytes that become free.

    `unreadable` says that some directory in `place` cannot be read.
    """

    place: OwnedPath
    bytes: int
    foreign: tuple[Path, ...]
    unreadable: bool

    @classmethod
    def of(cls, place: OwnedPath) -> "FoundPlace":
        """Return an existing file or directory with its size, which is determined only once."""
        failures: list[OSError] = []
        foreign: tuple[Path, ...] = ()
        try:
            foreign = tuple(place.foreign())
        except OSError as error:
            failures.append(error)
        stay, total = set(foreign), 0
        files = [place.path] if place.path.is_file() and not place.stays else []
        for folder, folders, names in os.walk(place.path, onerror=failures.append) if not place.stays else ():
            folders[:] = [name for name in folders if Path(folder, name) not in stay]
            files += [file for name in names if (file := Path(folder, name)) not in stay and not file.is_symlink()]
        for file in files:
            with suppress(OSError):
                total += file.stat().st_size
        failures = [error for error in failures if not isinstance(error, FileNotFoundError | NotADirectoryError)]
        return cls(place, total, foreign, bool(failures))

    @property
    def root(self) -> Path:
        """Return the directory that contains the file or directory."""
        return self.place.path.parent

    @property
    def size(self) -> str:
        """Return the size in words."""
        if not self.unreadable:
            return size(self.bytes)
        return f"over {size(self.bytes)}" if self.bytes else "unreadable"


@app.command()
def uninstall(
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    fetched: Annotated[
        bool, typer.Option("--fetched", help="With --yes: also the models that `pull` put into the Hugging Face cache.")
    ] = False,
) -> None:
    """Delete everything that localspec keeps on this machine, after listing it and asking.

    Conversations, phrases, settings and secrets are overwritten first.
    """
    paths = Paths(home())
    for root in places_of(paths):  # raise for a place that cannot be read, which would seem to be missing
        with suppress(FileNotFoundError, NotADirectoryError):
            for name in os.listdir(root):
                os.lstat(root / name)
    _refuse_while_in_use(paths)
    owned = (place for places in places_of(paths).values() for place in places)
    entries, removals = [FoundPlace.of(place) for place in owned if os.path.lexists(place.path)], _fetched(paths)
    for line in _listing(entries, removals):
        typer.echo(line)
    if not entries and not removals:
        typer.echo(f"localspec keeps nothing on this machine. {PROGRAM}")
        return
    total, models = sum(entry.bytes for entry in entries), sum(removal.bytes for removal in removals)
    if entries and not may_delete(f"everything in these directories of localspec ({size(total)})", yes):
        return
    delete_fetched = bool(removals) and (
        fetched if yes else may_delete(f"the fetched models as well ({size(models)})", False)
    )
    failures, deleted = _delete_all(entries, removals if delete_fetched else [], paths)
    if failures:
        rest = "localspec's other files are deleted" if deleted else "Nothing was deleted"
        raise LocalspecError(
            f"{'; '.join(failures)}. {rest}. Check the permissions of these files and their folders, then try again."
        )
    typer.echo(f"Deleted; {size(total + (models if delete_fetched else 0))} freed.")
    for root in filter(Path.is_dir, dict.fromkeys(entry.root for entry in entries)):
        reason = "because it has files that localspec did not write"
        typer.echo(one_line(f"{root} stays, {reason}." if os.listdir(root) else f"{root} stays, but is empty now."))
    if removals and not delete_fetched:
        typer.echo(
            f"{size(models)} of fetched models stay in the Hugging Face cache, where other tools can use or delete "
            "them."
        )
    typer.echo(PROGRAM)


def _listing(entries: Sequence[FoundPlace], removals: Sequence[Removal | CachedGguf]) -> Iterator[str]:
    """Yield a line for each file and directory to delete, each fetched model, and each file that stays."""
    for root, places in groupby(entries, lambda entry: entry.root):
        yield one_line(str(root))
        for entry in places:
            link = f"; it is a link to {entry.place.stays}, which stays" if entry.place.stays else ""
            yield f"  {entry.size:>10}  {one_line(f'{entry.place.path.name}: {entry.place.description}{link}')}"
            for file in entry.foreign:
                yield f"              {one_line(str(file))} stays, because localspec did not write it"
    if removals:
        yield "In the Hugging Face cache, which other programs use too, fetched by `localspec pull`:"
    for removal in removals:
        yield f"  {size(removal.bytes):>10}  {one_line(f'{removal.source}, in {removal.path}')}"


def _delete_all(
    entries: Sequence[FoundPlace], removals: Sequence[Removal | CachedGguf], paths: Paths
) -> tuple[list[str], bool]:
    """Delete models, files and directories. Return a clause for each failure, and whether anything was deleted."""
    failures: list[str] = []
    stuck: dict[str, list[str]] = {}  # paths by the reason why they cannot be deleted
    deleted = False
    for removal in removals:  # before the places, because their records are there
        try:
            discard_gguf(removal) if isinstance(removal, CachedGguf) else remove(removal, paths)
            deleted = True
        except (OSError, LocalspecError) as error:
            failures.append(str(error).rstrip("."))
    for entry in entries:
        try:
            _delete(entry.place)
            deleted = True
        except OSError as error:
            stuck.setdefault(error.strerror or str(error), []).append(str(error.filename or entry.place.path))
            deleted = deleted or FoundPlace.of(entry.place).bytes < entry.bytes
    for root in dict.fromkeys(entry.root for entry in entries):
        with suppress(OSError):  # it may hold files that localspec did not write, or be a link
            root.rmdir()
    failures += (f"{', '.join(files)} could not be deleted ({reason})" for reason, files in stuck.items())
    return failures, deleted


def places_of(paths: Paths) -> dict[Path, list[OwnedPath]]:
    """Return the files and directories that localspec writes, by parent. `uninstall` deletes nothing else there."""
    database, contents = paths.database.name, "conversations, phrases and measurements"
    data = [
        OwnedPath(file, contents if file.name == database else "a file of localspec's database", True, True)
        for file in sorted(paths.data_dir.glob(f"{database}*"))
        if _DATABASE.fullmatch(file.name.removeprefix(database))
    ]
    places = [
        OwnedPath(paths.config_file, "settings", True),
        OwnedPath(paths.user_models_file, "names of models", True),
        *data,
        OwnedPath(paths.copied, "the text that was copied last", True, True),
        OwnedPath(paths.serving_key, "the key of `localspec serve`", True, True),
        OwnedPath(paths.choice, "the model that answers"),
        OwnedPath(paths.former_names, "former names of models"),
        OwnedPath(
            paths.imports, "models from GGUF files, and models that are here only as packed files", names=_PACKED
        ),
        OwnedPath(paths.drafters, "trained drafters"),
        OwnedPath(paths.answers, "answers of models, as training data for drafters"),
        OwnedPath(paths.pulled, "records of the fetched models"),
        OwnedPath(paths.socket, "the socket of `localspec serve`"),
        OwnedPath(paths.socket.with_name(f"{paths.socket.name}.lock"), "the lock of `localspec serve`"),
        OwnedPath(paths.last_notice, "the time of the last notice that named the answering model"),
        OwnedPath(paths.logs, "logs of localspec", True),
        OwnedPath(paths.packed, "packed models", names=_PACKED),
        OwnedPath(paths.tokenizers, "records of tokenizers that can be loaded safely"),
        OwnedPath(paths.kernels, "compiled kernels"),
    ]
    by_directory: dict[Path, list[OwnedPath]] = {}
    for place in places:  # two places may be the same directory
        root = place.path.parent
        unfinished = (
            OwnedPath(path, place.description, place.private) for path in root.glob(f".{place.path.name}.*.new")
        )
        by_directory.setdefault(root, []).extend([place, *unfinished])
    return by_directory


def _fetched(paths: Paths) -> list[Removal | CachedGguf]:
    """Return the models that `pull` put into the shared Hugging Face cache and that are still there."""
    removals = dict[tuple[str, str], Removal]()
    for record in all_records(paths):
        with suppress(LocalspecError):
            removal = removable(record.source, paths)
            removals.setdefault((removal.source.repo, removal.commit), removal)
    origins = [packed.header.origin for packed in packed_sources(paths).values() if packed.header.registered]
    files = (
        gguf for origin in origins for gguf in cached_gguf(replace(Source.parse(origin.repo), revision=origin.commit))
    )
    return [*removals.values(), *files]


def _delete(place: OwnedPath) -> None:
    """Delete a file or a directory, except files of other programs. Private files are overwritten. Raises OSError."""
    path = place.path
    if not os.access(path.parent, os.W_OK):  # check before private files are overwritten
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    if path.is_symlink() or not path.is_dir():
        if place.private and path.is_file() and not place.stays:
            erase(Path(os.path.realpath(path)))
        with suppress(FileNotFoundError):
            path.unlink()
    elif foreign := {*place.foreign()}:
        for file in {*path.iterdir()} - foreign:
            _delete(OwnedPath(file, place.description, place.private))
    else:
        for file in (file for file in path.rglob("*") if place.private and file.is_file() and not file.is_symlink()):
            erase(file)
        shutil.rmtree(path)


def _refuse_while_in_use(paths: Paths) -> None:
    """Raise LocalspecError if another process has a file of localspec open."""
    import psutil  # slow to import

    roots = [Path(os.path.realpath(place.path)) for places in places_of(paths).values() for place in places]
    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        with suppress(psutil.Error, OSError):
            opened = [Path(file.path) for file in process.open_files()]
            used = next((file for file in opened if any(file.is_relative_to(root) for root in roots)), None)
            if used is not None:
                command = " ".join(process.cmdline())[:100]
                raise LocalspecError(
                    f"Process {process.pid} ({command}) uses {used}; end the process first, so that it loses no data."
                )
