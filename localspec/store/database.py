"""The SQLite file that localspec keeps things in: opened, migrated, and survived when something happens to it.

What is kept is private text: the file is 0600 in a 0700 directory and what is deleted is overwritten.
"""

import contextlib
import os
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Self, TypeAlias, TypeVar

from localspec.errors import LocalspecError
from localspec.paths import private_directory
from localspec.store.log_tail import log_size, overwrite_tail
from localspec.store.shrinking import is_mostly_free, shrink

BUSY_SECONDS = 5.0
BROKEN = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
NO_ROOM = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR}
_REMEDIES = {  # by what is said of why a database can only be read; the first that fits
    "locked": "wait for what else uses it",
    "full": "make room on its disk to change it",
    "No space": "make room on its disk to change it",
    "quota": "make room on its disk to change it",
    "I/O": "see whether its disk is full, to change it",
    "": "make it and its directory writable to change it",
}

Result = TypeVar("Result")
Work: TypeAlias = Callable[[sqlite3.Connection], Result]


class StoreTrouble(LocalspecError):
    """The database cannot be written or read now: disk full, read-only, or locked for too long."""

    exit_code = 1


class _Unfit(Exception):
    """This file cannot serve as the database, for a reason that only setting it aside cures."""

    def __init__(self, suffix: str, reason: str) -> None:
        super().__init__(reason)
        self.suffix = suffix


class Database:
    """The open database. It may be used from any thread; calls wait for each other.

    `read_only` is True where nothing can be saved. `path` is None where the database lives in memory only.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        path: Path | None,
        notice: Callable[[str], None],
        migrations: Sequence[Work[None]],
        refill: Work[None],
        read_only: str = "",
    ) -> None:
        self.path = path
        self.read_only = bool(read_only)
        self._why_read_only = read_only
        self._connection = connection
        self._notice = notice
        self._migrations = migrations
        self._refill = refill
        self._identity = _identity(path) if path else None
        self._lock = threading.RLock()

    @classmethod
    def open(
        cls,
        path: Path,
        notice: Callable[[str], None],
        migrations: Sequence[Work[None]],
        probes: Sequence[str],
        refill: Work[None],
    ) -> Self:
        """Opens or makes the database at `path`.

        The version of a file (PRAGMA user_version) is the number of `migrations` that it has been through. `probes`
        are quick queries that fail where a table or an index is damaged. `refill` puts into an empty database in
        memory what a session cannot go on without, should its file turn out to be broken.

        Never fails: a broken file or one of a newer version is set aside, one that can only be read is read, and
        where nothing works the database lives in memory. Each of these is reported to `notice` in one sentence.
        """
        path = path.absolute()
        try:
            if path.exists() and not path.is_file():
                raise OSError("it is not a file")
            private_directory(path.parent)
            with _one_at_a_time(path):
                return cls(_open_writable(path, notice, migrations, probes), path, notice, migrations, refill)
        except (OSError, sqlite3.Error, LocalspecError) as error:
            reason = _reason(error)
        if os.path.isfile(path):
            # A database in WAL mode needs two files beside it; where they cannot be made, only `immutable` reads it.
            for option in ("mode=ro", "immutable=1"):
                try:
                    connection = _connect(f"{path.as_uri()}?{option}", uri=True)
                except sqlite3.Error:
                    continue
                try:
                    _tune(connection)
                    _check(connection, probes)
                    if _version(connection) == len(migrations):
                        notice(f"{path} can only be read ({reason}), so nothing new is kept in it.")
                        return cls(connection, path, notice, migrations, refill, read_only=reason)
                except (sqlite3.Error, _Unfit):
                    pass
                connection.close()
        notice(f"{path} cannot be used ({reason}), so what is learned in this session is forgotten at its end.")
        return cls(_open_in_memory(migrations), None, notice, migrations, refill)

    def close(self) -> None:
        """Closes the file; the database cannot be used afterwards."""
        with self._lock:
            self._connection.close()

    def read(self, work: Work[Result]) -> Result:
        """What `work` finds; it is given the connection and may be called twice. Raises StoreTrouble."""
        with self._lock:
            try:
                return work(self._connection)
            except sqlite3.ProgrammingError:
                raise
            except sqlite3.DatabaseError as error:
                if not _is_broken(error):
                    if _code(error) in NO_ROOM:
                        self._forget_half_saved()
                    raise StoreTrouble(f"{self.path} {_remedy(error)} ({error}).") from error
                self._leave_broken_file(error)
                return work(self._connection)

    def at_once(self, work: Work[Result]) -> Result:
        """The same, and all that `work` reads is of one moment, whatever other processes do. Raises StoreTrouble."""

        def whole(connection: sqlite3.Connection) -> Result:
            with _transaction(connection, "DEFERRED"):
                return work(connection)

        return self.read(whole)

    def save(self, work: Work[Result]) -> Result:
        """Does `work` in one transaction: all of it is kept or nothing. It may be called twice. Raises StoreTrouble."""
        if self.read_only:
            why = self._why_read_only
            remedy = next(do for mark, do in _REMEDIES.items() if mark in why)
            raise StoreTrouble(f"{self.path} can only be read ({why}): {remedy}.")

        def whole(connection: sqlite3.Connection) -> Result:
            with _transaction(connection):
                return work(connection)

        return self.read(whole)

    def scrub(self) -> str:
        """Takes what was deleted out of the files too; returns what stood in the way, or nothing."""
        with self._lock:
            # Where there is no room to write all of it anew, most bytes are gone all the same (secure_delete).
            with contextlib.suppress(sqlite3.DatabaseError):
                shrink(self._connection, self.path)
            return self.empty_log()

    def give_back(self) -> None:
        """Shrinks the file, if that is quick or a great part of it is free."""
        with self._lock, contextlib.suppress(sqlite3.DatabaseError):
            if is_mostly_free(self._connection):
                shrink(self._connection, self.path)

    def empty_log(self, wait: bool = True) -> str:
        """Takes what was overwritten out of the write-ahead log too; returns what stood in the way, or nothing."""
        if self.read_only:  # a log that cannot be read here seems to be empty
            return self._why_read_only if self.path and log_size(self.path) else ""
        deadline = time.monotonic() + (BUSY_SECONDS if wait else 0)
        try:
            with self._lock, _patience(self._connection, wait):
                while self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
                    if time.monotonic() > deadline:
                        return "another process is using it"
                    time.sleep(0.01)  # SQLite waits for readers and writers, not for another process's checkpoint
            return ""
        except sqlite3.DatabaseError as error:
            return str(error)

    def _forget_half_saved(self) -> None:
        """What a transaction had written before it failed would stay in the log for as long as that is not emptied."""
        with contextlib.suppress(OSError, sqlite3.Error), _transaction(self._connection):  # nobody adds to it meanwhile
            if self.path is not None:
                overwrite_tail(self.path)

    def _leave_broken_file(self, error: sqlite3.DatabaseError) -> None:
        """Damage found while at work: sets the file aside and goes on in memory."""
        if self.path is None:
            raise error
        broken, path = self._connection, self.path
        try:
            with _one_at_a_time(path):
                # Another process may have been quicker; then the file of this name is a new and good one.
                aside = _set_aside(path, "broken", broken) if _identity(path) == self._identity else None
            fate = f"was set aside as {aside.name}" if aside else "was set aside by another process"
        except (OSError, sqlite3.Error) as trouble:
            fate = f"cannot be set aside ({_reason(trouble)})"
        with contextlib.suppress(sqlite3.Error):
            broken.close()
        self._connection = _open_in_memory(self._migrations)
        self.path, self.read_only = None, False
        self._refill(self._connection)
        self._notice(f"{path} is broken ({error}) and {fate}; what is learned in this session is forgotten at its end.")


def _open_writable(
    path: Path, notice: Callable[[str], None], migrations: Sequence[Work[None]], probes: Sequence[str]
) -> sqlite3.Connection:
    """The database at `path`, made, migrated and checked; what cannot serve is set aside first, once."""
    for attempt in range(2):
        # Made here for its mode, which SQLite copies to -wal and -shm. An existing file is never opened outside
        # SQLite: closing it again would drop the locks that this process holds on it.
        with contextlib.suppress(FileExistsError):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        for suffix in ("", "-wal", "-shm"):
            with contextlib.suppress(OSError):
                mode = stat.S_IMODE(os.stat(f"{path}{suffix}").st_mode)
                if mode & 0o077:
                    os.chmod(f"{path}{suffix}", mode & 0o700)
        connection = _connect(os.fspath(path))
        try:
            if _version(connection) > len(migrations):
                raise _Unfit(
                    "newer",
                    f"was written by a newer localspec (version {_version(connection)}, this one knows"
                    f" {len(migrations)})",
                )
            if _version(connection) == 0 and connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                raise _Unfit("broken", "is a database of something else")
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
            _tune(connection)
            _migrate(connection, migrations)
            _check(connection, probes)
            # Changes nothing, but raises where the file can only be read (BEGIN IMMEDIATE does not).
            connection.executescript(f"BEGIN IMMEDIATE; PRAGMA user_version = {len(migrations)}; ROLLBACK")
            return connection
        except (sqlite3.Error, _Unfit) as error:
            if isinstance(error, sqlite3.Error):
                if not _is_broken(error):
                    connection.close()
                    raise
                error = _Unfit("broken", f"is broken ({error})")
            if attempt:
                connection.close()
                raise OSError(f"it {error} again") from error
            try:
                aside = _set_aside(path, error.suffix, connection)
            except OSError as trouble:
                raise OSError(f"it {error} and cannot be set aside: {_reason(trouble)}") from trouble
            finally:
                connection.close()
            notice(f"{path} {error} and was set aside as {aside.name}; a new one was begun.")
    raise AssertionError("unreachable")


def _open_in_memory(migrations: Sequence[Work[None]]) -> sqlite3.Connection:
    connection = _connect(":memory:")
    _tune(connection)
    _migrate(connection, migrations)
    return connection


def _connect(place: str, uri: bool = False) -> sqlite3.Connection:
    connection = sqlite3.connect(place, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, uri=uri)
    connection.text_factory = _decoded
    return connection


def _decoded(content: bytes) -> str:
    return content.decode("utf-8", "replace")  # what is no text costs its characters, and not the whole query


def _tune(connection: sqlite3.Connection) -> None:
    # temp_store: no private text in /tmp; wal_autocheckpoint: a checkpoint costs several replies, so few do it.
    pragmas = ("secure_delete = ON", "synchronous = NORMAL", "temp_store = MEMORY", "cache_size = -16384")
    for pragma in (*pragmas, "wal_autocheckpoint = 4000"):
        connection.execute(f"PRAGMA {pragma}").fetchone()


@contextlib.contextmanager
def _patience(connection: sqlite3.Connection, wait: bool) -> Iterator[None]:
    """Without `wait`, what is in use is not waited for."""
    connection.execute(f"PRAGMA busy_timeout = {BUSY_SECONDS * wait * 1000:.0f}").fetchone()
    try:
        yield
    finally:
        connection.execute(f"PRAGMA busy_timeout = {BUSY_SECONDS * 1000:.0f}").fetchone()


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _migrate(connection: sqlite3.Connection, migrations: Sequence[Work[None]]) -> None:
    """Brings the database to the newest version, a transaction a step."""
    while True:
        with _transaction(connection):
            # Read inside the transaction: another process may have done this step just now.
            version = _version(connection)
            if version >= len(migrations):
                return
            migrations[version](connection)
            connection.execute(f"PRAGMA user_version = {version + 1}")


def _check(connection: sqlite3.Connection, probes: Sequence[str]) -> None:
    """Cheap signs of damage (a full check reads every page); a table that is missing is one of them."""
    for probe in probes:
        try:
            connection.execute(probe).fetchall()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_ERROR:
                raise _Unfit("broken", f"is broken ({error})") from error
            raise


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection, kind: str = "IMMEDIATE") -> Iterator[None]:
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
def _one_at_a_time(path: Path) -> Iterator[None]:
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


def _set_aside(path: Path, suffix: str, connection: sqlite3.Connection) -> Path:
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


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _is_broken(error: sqlite3.Error) -> bool:
    return _code(error) in BROKEN


def _code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _reason(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)


def _remedy(error: sqlite3.DatabaseError) -> str:
    code = _code(error)
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return f"was in use by another process for more than {BUSY_SECONDS:.0f} seconds, so nothing more was saved"
    if code in NO_ROOM:
        return "could not be read or written, so nothing more was saved: see whether the disk is full"
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
        return "may not be written, so nothing more was saved: make it and its directory writable"
    return "cannot be used now, so nothing more was saved"
