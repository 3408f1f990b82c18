"""What localspec keeps between sessions, in one SQLite file: the pools of phrases that replies were made of.

Phrases are verbatim private text: the file is 0600 in a 0700 directory and what is cleared is overwritten.
"""

import contextlib
import os
import sqlite3
import stat
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Self, TypeVar

from localspec.errors import LocalspecError
from localspec.paths import private_directory

PER_KEY = 16
BUSY_SECONDS = 5.0
BROKEN = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
EXPORT_PAGE = 1000

Result = TypeVar("Result")


class StoreTrouble(LocalspecError):
    """The store cannot be written or read now: disk full, read-only, or locked for too long."""

    exit_code = 1


class Phrase(NamedTuple):
    """Tokens that followed a context: `key` packs the two tokens before them, `before` up to six earlier ones."""

    key: int
    before: bytes
    after: bytes
    uses: int


class PoolInfo(NamedTuple):
    """One pool: `bytes` counts its tokens (4 bytes each), `last_used` is in seconds since 1970."""

    pool: int
    model: str
    tokenizer: str
    path: str | None
    phrases: int
    bytes: int
    last_used: float


def pack_key(first: int, second: int) -> int:
    """The key of a context that ends in these two tokens."""
    return (first << 32) | second


def unpack_key(key: int) -> tuple[int, int]:
    """The two tokens that `pack_key` packed."""
    return (key >> 32) & 0xFFFFFFFF, key & 0xFFFFFFFF


def pack_tokens(tokens: Sequence[int]) -> bytes:
    """Token ids as little-endian unsigned 32-bit integers."""
    return struct.pack(f"<{len(tokens)}I", *tokens)


def unpack_tokens(packed: bytes) -> tuple[int, ...]:
    """The token ids that `pack_tokens` packed."""
    return struct.unpack(f"<{len(packed) // 4}I", packed)


def make_pools(connection: sqlite3.Connection) -> None:
    connection.execute(
        """CREATE TABLE pool (
            id INTEGER PRIMARY KEY, model TEXT NOT NULL, tokenizer TEXT NOT NULL, path TEXT,
            created REAL NOT NULL, used REAL NOT NULL,
            tick INTEGER NOT NULL DEFAULT 0, phrases INTEGER NOT NULL DEFAULT 0, UNIQUE (model, tokenizer))"""
    )
    connection.execute(
        """CREATE TABLE phrase (
            pool INTEGER NOT NULL, key INTEGER NOT NULL, before BLOB NOT NULL, after BLOB NOT NULL,
            uses INTEGER NOT NULL, used INTEGER NOT NULL,
            PRIMARY KEY (pool, key, before, after)) WITHOUT ROWID"""
    )
    connection.execute("CREATE INDEX phrase_by_use ON phrase (pool, used)")
    # Triggers keep the count, so that the bound on the whole pool costs no scan.
    connection.execute(
        """CREATE TRIGGER phrase_in AFTER INSERT ON phrase
        BEGIN UPDATE pool SET phrases = phrases + 1 WHERE id = new.pool; END"""
    )
    connection.execute(
        """CREATE TRIGGER phrase_out AFTER DELETE ON phrase
        BEGIN UPDATE pool SET phrases = phrases - 1 WHERE id = old.pool; END"""
    )


# The version of a file (PRAGMA user_version) is the number of these that it has been through. Only ever append.
MIGRATIONS: list[Callable[[sqlite3.Connection], None]] = [make_pools]

# One statement for each part: together they touch every table and index from its root to a leaf.
PROBES = (
    "SELECT id, model, tokenizer, path, created, used, tick, phrases FROM pool ORDER BY id LIMIT 1",
    "SELECT id FROM pool WHERE model = '' AND tokenizer = ''",
    "SELECT key, before, after, uses, used FROM phrase LIMIT 1",
    "SELECT used FROM phrase INDEXED BY phrase_by_use WHERE pool = 1 ORDER BY used DESC LIMIT 1",
)

REMEMBER = """INSERT INTO phrase (pool, key, before, after, uses, used) VALUES (?, ?, ?, ?, 1, ?)
    ON CONFLICT (pool, key, before, after) DO UPDATE SET uses = uses + 1, used = excluded.used"""
TOUCH = "UPDATE phrase SET used = ? WHERE pool = ? AND key = ? AND before = ? AND after = ?"
# `+used`: the few rows of a key are sorted; without it the index by use might be walked from end to end.
BOUND_KEY = f"""DELETE FROM phrase WHERE pool = ?1 AND key = ?2 AND +used <
    (SELECT used FROM phrase WHERE pool = ?1 AND key = ?2 ORDER BY +used DESC LIMIT 1 OFFSET {PER_KEY - 1})"""
BOUND_POOL = """DELETE FROM phrase WHERE pool = ?1 AND used <=
    (SELECT used FROM phrase WHERE pool = ?1 ORDER BY used LIMIT 1 OFFSET ?2)"""


class _Unfit(Exception):
    """This file cannot serve as the store, for a reason that only setting it aside cures."""

    def __init__(self, suffix: str, reason: str) -> None:
        super().__init__(reason)
        self.suffix = suffix


class Store:
    """The open store. It may be used from any thread; calls wait for each other.

    `read_only` is True where phrases can be used and none kept. `path` is None where the store lives in memory only.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        path: Path | None,
        notice: Callable[[str], None],
        limit: int,
        read_only: bool = False,
    ) -> None:
        self.path = path
        self.read_only = read_only
        self.limit = limit
        self._connection = connection
        self._notice = notice
        self._identity = _identity(path) if path else None
        self._lock = threading.RLock()
        self._known: dict[int, tuple[str, str, str | None]] = {}
        self._lookups: dict[int, str] = {}
        self._told_of_reading = False

    @classmethod
    def open(cls, path: Path, notice: Callable[[str], None], limit: int = 100_000) -> Self:
        """Opens or makes the store at `path`; `limit` bounds the phrases of one pool.

        Never fails: a broken file or one of a newer version is set aside, one that can only be read is read, and
        where nothing works the store lives in memory. Each of these is told to `notice` in one sentence.
        """
        path = path.absolute()
        try:
            private_directory(path.parent)
            with _one_at_a_time(path):
                return cls(_open_writable(path, notice), path, notice, limit)
        except (OSError, sqlite3.Error, LocalspecError) as error:
            reason = _reason(error)
        if path.exists():
            # A database in WAL mode needs two files beside it; where they cannot be made, only `immutable` reads it.
            for option in ("mode=ro", "immutable=1"):
                try:
                    connection = _connect(f"{path.as_uri()}?{option}", uri=True)
                except sqlite3.Error:
                    continue
                try:
                    _tune(connection)
                    _check(connection)
                    if _version(connection) == len(MIGRATIONS):
                        notice(f"{path} can only be read ({reason}), so nothing new is kept in it.")
                        return cls(connection, path, notice, limit, read_only=True)
                except (sqlite3.Error, _Unfit):
                    pass
                connection.close()
        notice(f"{path} cannot be used ({reason}), so what is learned in this session is forgotten at its end.")
        return cls(_open_in_memory(), None, notice, limit)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file; the store cannot be used afterwards."""
        with self._lock:
            self._connection.close()

    def pool(self, model: str, tokenizer: str, path: str | os.PathLike[str] | None = None) -> int | None:
        """The pool of this model and tokenizer hash, made if it is absent (None there if the store is read-only).

        `path` is the model's directory, kept so that phrases can be shown as text. Raises StoreTrouble.
        """
        place = os.fspath(path) if path is not None else None

        def find_or_make(connection: sqlite3.Connection) -> int | None:
            find = "SELECT id, path FROM pool WHERE model = ? AND tokenizer = ?"
            row = connection.execute(find, (model, tokenizer)).fetchone()
            if not self.read_only and (row is None or place not in (None, row[1])):
                now = time.time()
                with _transaction(connection):
                    connection.execute(
                        """INSERT INTO pool (model, tokenizer, path, created, used) VALUES (?, ?, ?, ?, ?)
                        ON CONFLICT (model, tokenizer) DO UPDATE SET path = coalesce(excluded.path, path)""",
                        (model, tokenizer, place, now, now),
                    )
                    row = connection.execute(find, (model, tokenizer)).fetchone()
            return None if row is None else int(row[0])

        pool = self._do(find_or_make)
        if pool is not None:
            self._known[pool] = (model, tokenizer, place)
        return pool

    def phrases(self, pool: int, keys: Sequence[int]) -> list[Phrase]:
        """The phrases of these keys (at most 16 a key), most recently used first.

        Never raises for what goes wrong with the file: a reply does without phrases and `notice` is told once.
        """
        count = len(keys)
        query = self._lookups.get(count)
        if query is None:
            places = ", ".join("?" * count)
            query = (
                f"SELECT key, before, after, uses FROM phrase WHERE pool = ? AND key IN ({places}) ORDER BY +used DESC"
            )
            self._lookups[count] = query
        try:
            with self._lock:
                return list(map(Phrase._make, self._connection.execute(query, (pool, *keys)).fetchall()))
        except sqlite3.ProgrammingError:
            raise
        except sqlite3.DatabaseError as error:
            if _is_broken(error):
                with self._lock:
                    self._leave_broken_file(error)
            elif not self._told_of_reading:
                self._told_of_reading = True
                self._notice(
                    f"The phrases in {self.path} cannot be read now ({error}), so this session drafts without."
                )
            return []

    def learn(
        self,
        pool: int,
        phrases: Sequence[tuple[int, bytes, bytes]],
        used: Sequence[tuple[int, bytes, bytes]] = (),
    ) -> None:
        """Keeps the phrases (key, before, after) of one reply, all or none, the oldest first, and counts known ones.

        The `used` ones count as just used. Then at most 16 a key and `limit` in all stay; those used least recently
        go first. Raises StoreTrouble where nothing could be saved; the store stays usable.
        """
        if not phrases and not used:
            return

        def keep(connection: sqlite3.Connection) -> None:
            with _transaction(connection):
                # Every phrase has a tick of its own, so "least recently used" never ties, also between processes.
                changed = connection.execute(
                    "UPDATE pool SET tick = tick + ?, used = ? WHERE id = ?",
                    (len(phrases) + len(used), time.time(), pool),
                )
                if changed.rowcount != 1:
                    raise ValueError(f"there is no pool {pool} in this store")
                end = connection.execute("SELECT tick FROM pool WHERE id = ?", (pool,)).fetchone()[0]
                tick = end - len(phrases) - len(used)
                connection.executemany(REMEMBER, ((pool, *phrase, tick + n) for n, phrase in enumerate(phrases, 1)))
                tick += len(phrases)
                connection.executemany(TOUCH, ((tick + n, pool, *phrase) for n, phrase in enumerate(used, 1)))
                connection.executemany(BOUND_KEY, ((pool, key) for key in {phrase[0] for phrase in phrases}))
                count = connection.execute("SELECT phrases FROM pool WHERE id = ?", (pool,)).fetchone()[0]
                if count > self.limit:
                    connection.execute(BOUND_POOL, (pool, count - self.limit - 1))

        self._save(keep)

    def pools(self) -> list[PoolInfo]:
        """Every pool, the most recently used first. Raises StoreTrouble."""
        query = """SELECT id, model, tokenizer, path, phrases,
            (SELECT coalesce(sum(8 + length(before) + length(after)), 0) FROM phrase WHERE phrase.pool = pool.id), used
            FROM pool ORDER BY used DESC, id DESC"""
        return self._do(lambda connection: [PoolInfo._make(row) for row in connection.execute(query).fetchall()])

    def export(self, pool: int) -> Iterator[Phrase]:
        """The phrases of a pool, most recently used first. Raises StoreTrouble."""
        query = f"""SELECT used, key, before, after, uses FROM phrase WHERE pool = ? AND used < ?
            ORDER BY used DESC LIMIT {EXPORT_PAGE}"""

        # Page by page: an open cursor would keep other processes from emptying the write-ahead log.
        def page(connection: sqlite3.Connection) -> list[tuple[int, int, bytes, bytes, int]]:
            return connection.execute(query, (pool, last)).fetchall()

        last = 2**63 - 1
        while rows := self._do(page):
            for row in rows:
                yield Phrase._make(row[1:])
            last = rows[-1][0]

    def clear(self, pool: int | None = None) -> int:
        """Deletes the phrases of a pool, or of all, so that their bytes are gone from the files too.

        Returns how many were removed. Raises StoreTrouble; then its sentence says what is left to do.
        """

        def remove(connection: sqlite3.Connection) -> int:
            with _transaction(connection):
                if pool is None:
                    return connection.execute("DELETE FROM phrase").rowcount
                return connection.execute("DELETE FROM phrase WHERE pool = ?", (pool,)).rowcount

        path = self.path
        removed = self._save(remove)
        if self.path != path:
            raise StoreTrouble(f"Nothing was removed, because {path} is broken: delete what it was set aside as.")
        # The deleted text is overwritten in the database (secure_delete), but still stands in the write-ahead log.
        try:
            with self._lock:
                # Only gives the space back; where there is no room to do so, the bytes are gone all the same.
                with contextlib.suppress(sqlite3.DatabaseError):
                    self._connection.execute("VACUUM")
                busy = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
            problem = "another process is using it" if busy else ""
        except sqlite3.DatabaseError as error:
            problem = str(error)
        if problem:
            raise StoreTrouble(
                f"{removed} phrases were removed, but their bytes may still be in {self.path} and its -wal file"
                f" ({problem}): close other localspec sessions and clear once more."
            )
        return removed

    def _save(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        if self.read_only:
            raise StoreTrouble(f"{self.path} can only be read: make it and its directory writable to change it.")
        return self._do(work)

    def _do(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        with self._lock:
            try:
                return work(self._connection)
            except sqlite3.ProgrammingError:
                raise
            except sqlite3.DatabaseError as error:
                if not _is_broken(error):
                    raise StoreTrouble(f"{self.path} {_remedy(error)} ({error}).") from error
                self._leave_broken_file(error)
                return work(self._connection)

    def _leave_broken_file(self, error: sqlite3.DatabaseError) -> None:
        """Damage found while at work: sets the file aside and goes on in memory, with the pools under the same ids."""
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
        self._connection = _open_in_memory()
        self.path, self.read_only = None, False
        for pool, (model, tokenizer, place) in self._known.items():
            self._connection.execute(
                "INSERT INTO pool (id, model, tokenizer, path, created, used) VALUES (?, ?, ?, ?, 0, 0)",
                (pool, model, tokenizer, place),
            )
        self._notice(f"{path} is broken ({error}) and {fate}; what is learned in this session is forgotten at its end.")


def _open_writable(path: Path, notice: Callable[[str], None]) -> sqlite3.Connection:
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
            if _version(connection) > len(MIGRATIONS):
                raise _Unfit(
                    "newer",
                    f"was written by a newer localspec (version {_version(connection)}, this one knows"
                    f" {len(MIGRATIONS)})",
                )
            if _version(connection) == 0 and connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                raise _Unfit("broken", "is a database of something else")
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
            _tune(connection)
            _migrate(connection)
            _check(connection)
            # Changes nothing, but raises where the file can only be read (BEGIN IMMEDIATE does not).
            connection.execute("DELETE FROM pool WHERE 0")
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


def _open_in_memory() -> sqlite3.Connection:
    connection = _connect(":memory:")
    _tune(connection)
    _migrate(connection)
    return connection


def _connect(place: str, uri: bool = False) -> sqlite3.Connection:
    return sqlite3.connect(place, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, uri=uri)


def _tune(connection: sqlite3.Connection) -> None:
    # temp_store: no private text in /tmp; wal_autocheckpoint: a checkpoint costs several replies, so few do it.
    pragmas = ("secure_delete = ON", "synchronous = NORMAL", "temp_store = MEMORY", "cache_size = -16384")
    for pragma in (*pragmas, "wal_autocheckpoint = 4000"):
        connection.execute(f"PRAGMA {pragma}").fetchone()


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _migrate(connection: sqlite3.Connection) -> None:
    """Brings the database to the newest version, a transaction a step."""
    while True:
        with _transaction(connection):
            # Read inside the transaction: another process may have done this step just now.
            version = _version(connection)
            if version >= len(MIGRATIONS):
                return
            MIGRATIONS[version](connection)
            connection.execute(f"PRAGMA user_version = {version + 1}")


def _check(connection: sqlite3.Connection) -> None:
    """Cheap signs of damage (a full check reads every page); a table that is missing is one of them."""
    for probe in PROBES:
        try:
            connection.execute(probe).fetchall()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_ERROR:
                raise _Unfit("broken", f"is broken ({error})") from error
            raise


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
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
    return (getattr(error, "sqlite_errorcode", 0) & 0xFF) in BROKEN


def _reason(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)


def _remedy(error: sqlite3.DatabaseError) -> str:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return f"was in use by another process for more than {BUSY_SECONDS:.0f} seconds, so nothing was saved"
    if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
        return "could not be read or written, so nothing was saved: see whether the disk is full"
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
        return "may not be written, so nothing was saved: make it and its directory writable"
    return "cannot be used now, so nothing was saved"
