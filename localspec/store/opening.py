"""How the database's file is opened: made, migrated, checked, mended where that can be, else set aside."""

import contextlib
import math
import os
import re
import sqlite3
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from localspec.store.comparing import Comparison, compare, damage
from localspec.text import one_line

BUSY_SECONDS = 5.0
LONGEST_REASON = 300  # characters
MOST_COPIED = 2**30  # bytes of a database that is mended in memory
# What SQLite says where a file has other tables than its version promises.
_OTHER_TABLES = re.compile("^(no such (table|column|index|trigger)|duplicate column|.* already exists)")
BROKEN = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}

Result = TypeVar("Result")
Work: TypeAlias = Callable[[sqlite3.Connection], Result]
Probe: TypeAlias = str | Work[None]
Salvage: TypeAlias = Callable[[sqlite3.Connection, sqlite3.Connection], str]


class _Unfit(Exception):
    """This file cannot serve as the database, for a reason that only setting it aside cures, unless `mendable`."""

    def __init__(self, suffix: str, reason: str, mendable: bool = False) -> None:
        super().__init__(reason)
        self.suffix = suffix
        self.mendable = mendable


def open_writable(
    path: Path,
    notice: Callable[[str], None],
    migrations: Sequence[Work[None]],
    probes: Sequence[Probe],
    mend: Work[str],
    salvage: Salvage,
) -> sqlite3.Connection:
    """The database at `path`, made, migrated and checked; what cannot serve is mended or set aside first, each once.

    What `salvage` can read of a broken one comes over. Raises sqlite3.Error and OSError.
    """
    mended: str | None = None
    aside = False
    while True:
        connection = _made(path)
        try:
            checked = _checked(connection, migrations, probes)
            if mended:
                notice(mended)
            return checked
        except (sqlite3.Error, _Unfit) as error:
            unfit = (
                error
                if isinstance(error, _Unfit)
                else _Unfit("broken", f"is broken ({reason_of(error)})", mendable=True)
            )
            try:
                if isinstance(error, sqlite3.Error) and not is_broken(error):
                    raise
                if unfit.mendable and mended is None:
                    mended = mended_by(mend, connection, path, unfit.__cause__ or error)
                    if mended is not None:
                        continue
                if aside:
                    raise OSError(f"it {unfit} again") from error
                try:
                    file = set_aside(path, unfit.suffix, connection)
                except OSError as trouble:
                    raise OSError(f"it {unfit} and cannot be set aside: {reason_of(trouble)}") from trouble
                came = begun_anew(path, file, migrations, salvage) if unfit.mendable else ""
                notice(f"{path} {unfit} and was set aside as {file.name}; a new one was begun{came and ' '}{came}.")
                aside, mended = True, ""
            finally:
                connection.close()


def open_readable(
    path: Path, version: int, probes: Sequence[Probe], mend: Work[str], notice: Callable[[str], None]
) -> sqlite3.Connection | None:
    """The database at `path` where it can only be read, if it can and is of this version; a copy where that is mended.

    `notice` is told of such a copy.
    """
    # A database in WAL mode needs two files beside it; where they cannot be made, only `immutable` reads it.
    for option in ("mode=ro", "immutable=1"):
        try:
            connection = _connect(f"{path.as_uri()}?{option}", uri=True)
        except sqlite3.Error:
            continue
        try:
            _tune(connection)
            if _version(connection) == version:
                _check(connection, probes)
                return connection
        except (sqlite3.Error, _Unfit) as error:
            copied = mended_copy(mend, connection, path, error.__cause__ or error)
            if copied is not None:
                copy, told = copied
                with contextlib.suppress(sqlite3.Error, _Unfit):
                    _check(copy, probes)
                    connection.close()
                    notice(told)
                    return copy
                copy.close()
        connection.close()
    return None


def mended_copy(
    mend: Work[str], connection: sqlite3.Connection, path: Path, error: BaseException
) -> tuple[sqlite3.Connection, str] | None:
    """A copy in memory of what can only be read and is damaged, mended there, and a sentence that says so, to be told
    once the copy serves; None where it cannot be mended.
    """
    if not isinstance(error, sqlite3.Error) or not may_be_damage(error):
        return None
    copy = _connect(":memory:")
    try:
        loaded(connection)
        size = math.prod(connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
        if size <= MOST_COPIED:
            connection.backup(copy)
            loaded(copy)
            _tune(copy)
            if anew := mend(copy):
                return copy, (
                    f"{path} is damaged ({reason_of(error)}) and can only be read, so a copy of it in memory is what "
                    f"is read now: there {anew}; the file is mended once it can be written."
                )
    except sqlite3.Error:  # what else is damaged, or is not there, costs the file as before
        pass
    copy.close()
    return None


def mended_by(mend: Work[str], connection: sqlite3.Connection, path: Path, error: BaseException) -> str | None:
    """What was found damaged may work now: `mend` was done, which the sentence says that is to be told once it works,
    or a quicker process did it (nothing to tell). None where it cannot be done; then nothing has changed.

    Raises sqlite3.Error where only something else stood in the way, such as a full disk.
    """
    if connection.in_transaction:
        return None
    try:
        loaded(connection)
        _tune(connection)
        anew = mend(connection)
    except sqlite3.Error as trouble:
        if may_be_damage(trouble):
            return None
        raise
    finally:
        # What a connection knows of its tables is no part of a transaction that was taken back.
        with contextlib.suppress(sqlite3.Error):
            connection.execute("PRAGMA writable_schema = RESET").fetchone()
    return f"{path} was damaged ({reason_of(error)}); {anew}." if anew else ""


def _made(path: Path) -> sqlite3.Connection:
    # Made here for its mode, which SQLite copies to -wal and -shm. An existing file is never opened outside
    # SQLite: closing it again would drop the locks that this process holds on it.
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    for suffix in ("", "-wal", "-shm"):
        with contextlib.suppress(OSError):
            mode = stat.S_IMODE(os.stat(f"{path}{suffix}").st_mode)
            if mode & 0o077:
                os.chmod(f"{path}{suffix}", mode & 0o700)
    return _connect(os.fspath(path))


def _checked(
    connection: sqlite3.Connection, migrations: Sequence[Work[None]], probes: Sequence[Probe]
) -> sqlite3.Connection:
    version = _version(connection)
    if version > len(migrations):
        raise _Unfit("newer", f"was written by a newer localspec (version {version}, this one knows {len(migrations)})")
    if version < 0:
        raise _Unfit("broken", f"is broken (it says that its version is {version})", mendable=True)
    if version == 0 and connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        raise _Unfit("broken", "is a database of something else")
    connection.execute("PRAGMA journal_mode = WAL").fetchone()
    _tune(connection)
    try:
        _migrate(connection, migrations)
    except sqlite3.OperationalError as error:
        if not _OTHER_TABLES.search(str(error)):
            raise
        raise _Unfit("broken", f"is broken ({reason_of(error)})", mendable=True) from error
    _check(connection, probes)
    # Changes nothing, but raises where the file can only be read (BEGIN IMMEDIATE does not).
    connection.executescript(f"BEGIN IMMEDIATE; PRAGMA user_version = {len(migrations)}; ROLLBACK")
    return connection


def loaded(connection: sqlite3.Connection) -> None:
    """Has SQLite go by what it can make of the list of tables, though it finds fault with some of it."""
    connection.execute("PRAGMA writable_schema = ON").fetchone()
    with contextlib.suppress(sqlite3.DatabaseError):  # told once; from then on it takes what there is
        connection.execute("SELECT 1 FROM sqlite_master").fetchone()
    connection.execute("PRAGMA writable_schema = OFF").fetchone()


def open_in_memory(migrations: Sequence[Work[None]]) -> sqlite3.Connection:
    connection = _connect(":memory:")
    _tune(connection)
    _migrate(connection, migrations)
    return connection


def moved(memory: sqlite3.Connection, path: Path) -> sqlite3.Connection:
    """The database in memory, written to a new file at `path`. Raises sqlite3.Error, and OSError where one is there."""
    connection = _made(path)
    try:
        if _version(connection) or connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            raise OSError("what it holds cannot be joined with what this session has learned")
        connection.execute("PRAGMA journal_mode = WAL").fetchone()
        memory.backup(connection)
        _tune(connection)
    except BaseException:
        connection.close()
        raise
    return connection


class _Connection(sqlite3.Connection):
    """One whose errors are always of sqlite3: of a damaged schema SQLite quotes words that are no text."""

    def execute(self, *given: Any) -> sqlite3.Cursor:
        try:
            return super().execute(*given)
        except UnicodeDecodeError as error:
            raise damage("what it says of itself is no text") from error


def _connect(place: str, uri: bool = False) -> sqlite3.Connection:
    connection = sqlite3.connect(
        place, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, uri=uri, factory=_Connection
    )
    connection.text_factory = _decoded
    return connection


def _decoded(content: bytes) -> str:
    return content.decode("utf-8", "replace")  # what is no text costs its characters, and not the whole query


def _tune(connection: sqlite3.Connection) -> None:
    # temp_store: no private text in /tmp; wal_autocheckpoint: a checkpoint costs several replies, so few do it.
    pragmas = ("secure_delete = ON", "synchronous = NORMAL", "temp_store = MEMORY", "cache_size = -16384")
    for pragma in (*pragmas, "wal_autocheckpoint = 4000"):
        connection.execute(f"PRAGMA {pragma}").fetchone()


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _migrate(connection: sqlite3.Connection, migrations: Sequence[Work[None]]) -> None:
    """Brings the database to the newest version, a transaction a step."""
    while True:
        with transaction(connection):
            # Read inside the transaction: another process may have done this step just now.
            version = _version(connection)
            if version >= len(migrations):
                return
            migrations[version](connection)
            connection.execute(f"PRAGMA user_version = {version + 1}")


def _check(connection: sqlite3.Connection, probes: Sequence[Probe]) -> None:
    """Cheap signs of damage (a full check reads every page); a table that is missing is one of them."""
    for probe in probes:
        try:
            if callable(probe):
                probe(connection)
            elif isinstance(probe, Comparison):
                compare(connection, probe)
            else:
                connection.execute(probe).fetchall()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_ERROR:
                raise _Unfit("broken", f"is broken ({reason_of(error)})", mendable=True) from error
            raise


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection, kind: str = "IMMEDIATE") -> Iterator[None]:
    connection.execute(f"BEGIN {kind}")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        # After some errors (disk full) SQLite has rolled back already.
        if connection.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
        raise


@contextlib.contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """Lets one process at a time open, migrate or set aside the file; a process that dies lets go."""
    place = f"{path}-lock"
    with contextlib.suppress(FileExistsError):
        os.close(os.open(place, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    # An empty SQLite file as the lock: the one lock that works alike on every system, with a time limit.
    lock = sqlite3.connect(place, timeout=BUSY_SECONDS, isolation_level=None)
    try:
        lock.execute("BEGIN EXCLUSIVE")
        yield
    finally:
        lock.close()


def set_aside(path: Path, suffix: str, connection: sqlite3.Connection) -> Path:
    """Renames the file with its -wal, -shm and -journal, byte for byte; returns its new name."""
    number = 1
    while any(os.path.lexists(f"{path}.{suffix}-{number}{part}") for part in ("", "-wal", "-shm", "-journal")):
        number += 1
    aside = Path(f"{path}.{suffix}-{number}")
    try:
        # Before it is closed: closing would first write the log into the file.
        os.rename(path, aside)
    except PermissionError:
        # Windows renames no open file.
        connection.close()
        os.rename(path, aside)
    for part in ("-wal", "-shm", "-journal"):
        with contextlib.suppress(FileNotFoundError):
            os.rename(f"{path}{part}", f"{aside}{part}")
    return aside


def begun_anew(path: Path, aside: Path, migrations: Sequence[Work[None]], salvage: Salvage) -> str:
    """Makes a new file at `path` with what can be read of the one that was set aside; says with what, or nothing."""
    with contextlib.suppress(OSError, sqlite3.Error):
        place = f"{aside.as_uri()}?mode=ro"  # it stays as it is
        with contextlib.closing(_connect(place, uri=True)) as source, contextlib.closing(_made(path)) as target:
            loaded(source)
            target.execute("PRAGMA journal_mode = WAL").fetchone()
            _tune(target)
            _migrate(target, migrations)
            return salvage(source, target)
    return ""


def identity(path: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def is_broken(error: sqlite3.Error) -> bool:
    return code_of(error) in BROKEN


def may_be_damage(error: sqlite3.Error) -> bool:
    """Also where a part of the search index is missing: then SQLite finds fault with the statement, or the row."""
    return is_broken(error) or code_of(error) in (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CONSTRAINT)


def code_of(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def reason_of(error: BaseException) -> str:
    """In one line and not much: SQLite quotes a damaged statement from where it does not understand it to its end."""
    line = one_line((isinstance(error, OSError) and error.strerror) or str(error))
    return line if len(line) <= LONGEST_REASON else f"{line[: LONGEST_REASON - 1]}…"
