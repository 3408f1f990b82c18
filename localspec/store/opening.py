"""Opens the database's file: makes, migrates and checks it, and sets it aside if it is damaged."""

import contextlib
import math
import os
import shlex
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

from localspec.quantities import size as shown
from localspec.store.cleaning import SMALL, content_size, erase
from localspec.text import one_line, shortened

BUSY_SECONDS = 5.0
PATIENCE = 120.0  # seconds that a start waits for another process, which may be rewriting a large file
LONGEST_REASON = 300  # characters
PARTS = ("-wal", "-shm", "-journal")  # files of SQLite next to a database
BROKEN = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}

Result = TypeVar("Result")
Work: TypeAlias = Callable[[sqlite3.Connection], Result]
Notice: TypeAlias = Callable[[str], None]


class Schema(NamedTuple):
    """The tables of a database, made by `migrations`. The first migration sets the file's version (PRAGMA user_version)
    to `first`, and each later one raises it by 1.

    `probes` are quick queries that fail if a table is damaged. If a file is found to be damaged during a session,
    `carry_over` copies its readable rows into a new file, and returns a text that says what was copied. Then `refill`
    adds the rows that the running session needs.
    """

    migrations: Sequence[Work[None]]
    probes: Sequence[str]
    refill: Work[None]
    carry_over: Callable[[sqlite3.Connection, sqlite3.Connection], str] = lambda source, target: ""
    first: int = 1

    @property
    def newest(self) -> int:
        """The version of a file after all migrations."""
        return self.first + len(self.migrations) - 1


class Unfit(Exception):
    """An error: this file cannot be used, and must be set aside to make room for a new database.

    If it is `damaged`, part of it may be readable.
    """

    def __init__(self, suffix: str, reason: str, damaged: bool = False) -> None:
        super().__init__(reason)
        self.suffix, self.damaged = suffix, damaged


def open_writable(path: Path, notice: Notice, schema: Schema) -> sqlite3.Connection:
    """Open the database at `path`: make, migrate and check it. If the file cannot be used, replace it, at most once.

    Raises sqlite3.Error and OSError.
    """
    replaced = False
    _drop(new := Path(f"{path}-new"))  # left by a process that was killed while it made or replaced the file
    if not os.path.lexists(path):
        try:
            _make_complete(new, schema).close()
            for log in ("-wal", "-shm"):  # of a file that was deleted: SQLite would copy it into the new one
                Path(f"{path}{log}").unlink(missing_ok=True)
            os.replace(new, path)
        except BaseException:
            _drop(new)
            raise
    elif size_of(path) == 0:
        notice(
            f"{path} has 0 bytes, so a new database was begun in it. If the file held conversations, restore it "
            "from a backup."
        )
    while True:
        connection = _connect_private(path)
        try:
            return _prepare(connection, path, notice, schema)
        except (sqlite3.Error, Unfit) as error:
            unfit = error if isinstance(error, Unfit) else damage(error)
            try:
                # SQLITE_ERROR: the file has other tables than its version has
                if isinstance(error, sqlite3.Error) and code_of(error) not in {*BROKEN, sqlite3.SQLITE_ERROR}:
                    raise
                if replaced:
                    raise OSError(f"the new file {unfit}, too") from error
                try:
                    notice(replace(path, unfit, connection, notice, schema)[1])
                except (OSError, sqlite3.Error) as trouble:
                    raise OSError(f"the file {unfit} and cannot be set aside: {reason_of(trouble)}") from trouble
                replaced = True
            finally:
                connection.close()


def damage(error: sqlite3.Error) -> Unfit:
    return Unfit("broken", f"is broken ({reason_of(error)})", damaged=True)


def replace(
    path: Path, unfit: Unfit, connection: sqlite3.Connection, notice: Notice, schema: Schema
) -> tuple[Path, str]:
    """Rename an unfit file, and copy its readable part to a new file. Return the renamed file and a notice.

    The new file is complete before it is renamed to `path`. So `path` always has a file, whenever this process is
    killed. If sqlite3.Error or OSError is raised, the old file stays.
    """
    new, copied = Path(f"{path}-new"), ""
    _drop(new)
    try:
        with contextlib.closing(_make_complete(new, schema)) as fresh:
            if unfit.damaged:
                copied = _copy_readable(path, fresh, notice, schema)
        aside = set_aside(path, unfit.suffix, connection, new)
    except BaseException:
        _drop(new)
        raise
    advice = f"To get text back, run `sqlite3 {shlex.quote(os.fspath(aside))} .dump`, or `.recover` if that fails."
    if unfit.suffix == "newer":
        advice = f"To use it again, update localspec and rename {aside.name} to {path.name}."
        if size_of(Path(f"{aside}-wal")):
            advice = (
                f"To use it again, update localspec, and rename {aside.name} to {path.name} and {aside.name}-wal to "
                f"{path.name}-wal."
            )
    moved = f"{path} {unfit} and was set aside as {aside.name}"
    if copied:
        return aside, f"{moved}; a new file was begun with everything that could be read: {copied}. {advice}"
    return aside, f"{moved}; a new file was begun. {advice}"


def _copy_readable(path: Path, fresh: sqlite3.Connection, notice: Notice, schema: Schema) -> str:
    """Copy the readable part of the file at `path`; return a clause on what was copied. Report a long wait."""
    try:
        source = _connect(f"{path.as_uri()}?mode=ro", uri=True)
    except sqlite3.Error:
        return ""
    with contextlib.closing(source):
        try:
            source.execute("SELECT count(*) FROM sqlite_master").fetchone()
            size = content_size(source)
        except sqlite3.Error:
            return ""
        if size > SMALL:
            notice(f"{path} ({shown(size)}) is damaged; copying the readable part may take minutes.")
        with transaction(fresh):
            return schema.carry_over(source, fresh)


def _drop(new: Path) -> None:
    """Overwrite and delete a new database file that is not needed. It may hold private text."""
    for part in ("-journal", ""):
        with contextlib.suppress(OSError):
            erase(Path(f"{new}{part}"))


def open_readable(path: Path, schema: Schema) -> sqlite3.Connection | None:
    """Open the database at `path` only for reading, if that is possible and it has the newest version."""
    # A database in WAL mode needs two files next to it; if they cannot be made, only `immutable` reads it.
    for option in ("mode=ro", "immutable=1"):
        try:
            connection = _connect(f"{path.as_uri()}?{option}", uri=True)
        except sqlite3.Error:
            continue
        try:
            _tune(connection)
            if _version(connection) == schema.newest:
                _check(connection, schema.probes)
                return connection
        except sqlite3.Error:
            pass
        connection.close()
    return None


def _connect_private(path: Path) -> sqlite3.Connection:
    # Created here for its mode, which SQLite copies to -wal and -shm. An existing file is never opened outside of
    # SQLite: closing it again would drop the locks that this process holds on it.
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    for suffix in ("", "-wal", "-shm"):
        with contextlib.suppress(OSError):
            mode = stat.S_IMODE(os.stat(f"{path}{suffix}").st_mode)
            if mode & 0o077:
                os.chmod(f"{path}{suffix}", mode & 0o700)
    return _connect(os.fspath(path))


def _make_complete(new: Path, schema: Schema) -> sqlite3.Connection:
    """Make a complete new database at a temporary path."""
    connection = _connect_private(new)
    try:
        _tune(connection)
        connection.execute("PRAGMA journal_mode = MEMORY").fetchone()
        _migrate(connection, schema)
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection, path: Path, notice: Notice, schema: Schema) -> sqlite3.Connection:
    """Migrate and check an open database, and return its connection. Report a notice if that takes long."""
    version, newest = _version(connection), schema.newest
    if version > newest:
        raise Unfit("newer", f"was written by a newer localspec (version {version}, this one knows {newest})")
    if version < 0:
        raise Unfit("broken", f"is broken (the version number is {version})", damaged=True)
    if 0 < version < schema.first:
        raise Unfit("old", f"was written before the first release (version {version}, this one knows {newest})")
    if version == 0 and connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        raise Unfit("broken", "is a database of another program")
    connection.execute("PRAGMA journal_mode = WAL").fetchone()
    _tune(connection)
    if version < newest and (size := content_size(connection)) > SMALL:
        notice(f"{path} ({shown(size)}) is rewritten once for this version of localspec, which may take minutes.")
    _migrate(connection, schema)
    _check(connection, schema.probes)
    # Changes nothing, but raises if the file is read-only (BEGIN IMMEDIATE does not).
    connection.executescript(f"BEGIN IMMEDIATE; PRAGMA user_version = {newest}; ROLLBACK")
    return connection


def open_in_memory(schema: Schema) -> sqlite3.Connection:
    connection = _connect(":memory:")
    _tune(connection)
    _migrate(connection, schema)
    return connection


def move_to_file(memory: sqlite3.Connection, path: Path) -> sqlite3.Connection:
    """Write a database in memory to a new file; return the file's connection. Raises sqlite3.Error, and OSError if the
    file exists."""
    connection = _connect_private(path)
    try:
        if _version(connection) or connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            raise OSError("the file's content cannot be merged with this session's data")
        connection.execute("PRAGMA journal_mode = WAL").fetchone()
        memory.backup(connection)
        _tune(connection)
    except BaseException:
        connection.close()
        raise
    return connection


class _Connection(sqlite3.Connection):
    """A connection that raises sqlite3.Error in place of UnicodeDecodeError, which a damaged schema causes."""

    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        try:
            return super().execute(*arguments)
        except UnicodeDecodeError as error:
            damage = sqlite3.DatabaseError("the schema is not UTF-8")
            damage.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
            raise damage from error


def _connect(database: str, uri: bool = False) -> sqlite3.Connection:
    connection = sqlite3.connect(
        database, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, uri=uri, factory=_Connection
    )
    connection.text_factory = _decode
    return connection


def _decode(content: bytes) -> str:
    return content.decode("utf-8", "replace")  # invalid text costs only its characters, not the whole query


def _tune(connection: sqlite3.Connection) -> None:
    # temp_store: no private text in /tmp; wal_autocheckpoint: a checkpoint takes as long as several replies, so there
    # are few.
    pragmas = ("secure_delete = ON", "synchronous = NORMAL", "temp_store = MEMORY", "cache_size = -16384")
    for pragma in (*pragmas, "wal_autocheckpoint = 4000"):
        connection.execute(f"PRAGMA {pragma}").fetchone()


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _migrate(connection: sqlite3.Connection, schema: Schema) -> None:
    """Bring the database to the newest version, with one transaction per step."""
    while True:
        with transaction(connection):
            # Read inside the transaction: another process may just have done this step.
            version = max(_version(connection) + 1, schema.first)
            if version > schema.newest:
                return
            schema.migrations[version - schema.first](connection)
            connection.execute(f"PRAGMA user_version = {version}")


def _check(connection: sqlite3.Connection, probes: Sequence[str]) -> None:
    """Raise SQLite's error if a query of `probes` meets damage, such as a missing table. Most pages stay unread."""
    for probe in probes:
        connection.execute(probe).fetchall()


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection, kind: str = "IMMEDIATE") -> Iterator[None]:
    connection.execute(f"BEGIN {kind}")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        # After some errors (disk full) SQLite has already rolled back.
        if connection.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
        raise


@contextlib.contextmanager
def one_at_a_time(path: Path, notice: Notice | None = None) -> Iterator[None]:
    """Let only one process at a time open, migrate, rewrite or set aside the file. The lock ends with its process.

    A long wait is reported to `notice`, if given, because the other process may be rewriting a large file.
    """
    lock_path = f"{path}-lock"
    with contextlib.suppress(FileExistsError):
        os.close(os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    # An empty SQLite file as the lock: it works the same way on every system, with a time limit.
    lock = sqlite3.connect(lock_path, timeout=BUSY_SECONDS, isolation_level=None)
    try:
        _lock(lock, path, notice)
        yield
    finally:
        lock.close()


def _lock(lock: sqlite3.Connection, path: Path, notice: Notice | None) -> None:
    deadline = 0.0  # set once the wait was reported
    while True:
        try:
            lock.execute("BEGIN EXCLUSIVE")
            return
        except sqlite3.OperationalError as error:
            if notice is None or code_of(error) != sqlite3.SQLITE_BUSY or time.monotonic() > (deadline or math.inf):
                raise
        if not deadline:
            notice(f"Another localspec process is rewriting {path}; waiting for it.")
            lock.execute("PRAGMA busy_timeout = 1000").fetchone()  # Ctrl+C takes effect between two attempts
            deadline = time.monotonic() + PATIENCE


def set_aside(path: Path, suffix: str, connection: sqlite3.Connection, new: Path) -> Path:
    """Rename the file with its -wal, -shm and -journal files, and put the file `new` in its place.

    Return the new name of the old file.
    """
    number = 1
    while any(os.path.lexists(f"{path}.{suffix}-{number}{part}") for part in ("", *PARTS)):
        number += 1
    aside = Path(f"{path}.{suffix}-{number}")
    try:
        os.link(path, aside)  # a second name, so that the first name always has a file
    except OSError:  # not supported by every disk
        _rename(path, aside, connection)
    for part in PARTS:  # before the new file gets the name: it must not find the log of the old one
        with contextlib.suppress(FileNotFoundError):
            os.rename(f"{path}{part}", f"{aside}{part}")
    _rename(new, path, connection)
    return aside


def _rename(old: Path, new: Path, connection: sqlite3.Connection) -> None:
    """Rename a database file. If Windows refuses because the file is open, close the `connection` and try again."""
    try:
        os.replace(old, new)
    except PermissionError:  # only after a failure: closing writes the log into the file
        connection.close()
        os.replace(old, new)


def size_of(path: Path) -> int | None:
    """Return the bytes of a file, or None if there is no such file."""
    try:
        return os.path.getsize(path)
    except OSError:
        return None


def identity(path: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def is_broken(error: sqlite3.Error) -> bool:
    return code_of(error) in BROKEN


def code_of(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def reason_of(error: BaseException) -> str:
    """Return the reason of an error, cut to one short line, because SQLite may quote a whole damaged statement."""
    return shortened(one_line((isinstance(error, OSError) and error.strerror) or str(error)), LONGEST_REASON)
