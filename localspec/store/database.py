"""The open SQLite file of localspec. If it is damaged or cannot be used, a new file or memory takes its place.

It holds private text: the file has mode 0600 in a directory with mode 0700, and deleted text is overwritten.
"""

import contextlib
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from localspec.errors import LocalspecError
from localspec.paths import private_directory
from localspec.quantities import size
from localspec.store import cleaning, opening
from localspec.store.opening import (
    Notice,
    Result,
    Schema,
    Work,
    code_of,
    damage,
    identity,
    is_broken,
    move_to_file,
    one_at_a_time,
    open_in_memory,
    open_readable,
    open_writable,
    reason_of,
    replace,
    transaction,
)

NO_ROOM = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR}
_MAKE_ROOM = "make room on the file's disk to change it"
_REMEDIES = {  # by the reason why a database cannot be written; the first match counts
    "locked": "wait until other programs no longer use it",
    "full": _MAKE_ROOM,
    "No space": _MAKE_ROOM,
    "quota": _MAKE_ROOM,
    "I/O": "check whether the file's disk is full",
    "": "make the file and its directory writable to change it",
}


class StoreTrouble(LocalspecError):
    """An error: the database cannot be written or read now, because the disk is full, read-only, or locked for too
    long.

    `reported` is True if the user was notified when the database was opened.
    """

    exit_code = 1
    reported = False


class NoRoom(StoreTrouble):
    """An error: the disk is full."""


class Database:
    """An open database. Any thread may use it; only one call runs at a time.

    `read_only` is True if nothing can be saved. `path` is None if the database is only in memory. At each save
    localspec tries again to write the file. If that succeeds, the database is in the file and writable again.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        path: Path,
        notice: Notice,
        schema: Schema,
        unwritable: str = "",
        in_memory: bool = False,
    ) -> None:
        self.path = None if in_memory else path
        self.read_only = bool(unwritable) and not in_memory
        self._file, self._why = path, unwritable
        self._connection = connection
        self._notice, self._schema = notice, schema
        self._aside: Path | None = None  # the damaged file of this session
        self.report_damage = notice  # for damage found later; if it raises, so does the call that found it
        self._identity = identity(path)
        self._lock = threading.RLock()

    @classmethod
    def open(cls, path: Path, notice: Notice, schema: Schema) -> Self:
        """Open or make the database at `path`.

        It never fails. A broken file, or a file of a newer version, is set aside, and a new file takes its place. A
        read-only file is only read. If no file can be used, the database is in memory. Each of these cases is reported
        to `notice`.
        """
        path = path.absolute()
        try:
            _make_directory(path)
            with one_at_a_time(path, notice):
                return cls(open_writable(path, notice, schema), path, notice, schema)
        except (OSError, sqlite3.Error, LocalspecError) as error:
            reason = reason_of(error)
        readable = open_readable(path, schema) if os.path.isfile(path) else None
        if readable is not None:
            notice(f"{path} can only be read ({reason}), so nothing new is saved in it.")
            return cls(readable, path, notice, schema, reason)
        notice(f"{path} cannot be used ({reason}), so phrases learned in this session are lost at its end.")
        return cls(open_in_memory(schema), path, notice, schema, reason, in_memory=True)

    @property
    def why_lost(self) -> str:
        """A sentence that says why saved data will be lost when this process ends.

        It is empty if the data is in a file, or if the file was found to be broken only after it was opened.
        """
        if self.path is not None or not self._why:
            return ""
        return f"{self._file} cannot be used ({self._why}): {self._remedy}."

    @property
    def _remedy(self) -> str:
        return next(remedy for mark, remedy in _REMEDIES.items() if mark in self._why)

    def close(self) -> None:
        """Close the file. The database cannot be used afterwards."""
        with self._lock:
            self._connection.close()

    def read(self, work: Work[Result]) -> Result:
        """Return the result of `work`, which gets the connection. Raises StoreTrouble.

        If the file is broken, a new one replaces it, and `work` is called again.
        """
        with self._lock:
            try:
                return work(self._connection)
            except sqlite3.ProgrammingError:
                raise
            except sqlite3.DatabaseError as error:
                if not is_broken(error):
                    raise self._trouble(error) from error
                self._leave_broken_file(error)
            return work(self._connection)

    def at_once(self, work: Work[Result]) -> Result:
        """Return the result of `work`, as `read` does, but in one transaction: writes of other processes are not seen.

        Raises StoreTrouble.
        """

        def in_transaction(connection: sqlite3.Connection) -> Result:
            with transaction(connection, "DEFERRED"):
                return work(connection)

        return self.read(in_transaction)

    def save(self, work: Work[Result]) -> Result:
        """Do `work` in one transaction: either everything is saved or nothing.

        As in `read`, `work` may be called twice. Raises StoreTrouble.
        """
        self.reach_file()
        if self.read_only:
            kind = NoRoom if self._remedy == _MAKE_ROOM else StoreTrouble
            trouble = kind(f"{self.path} was not changed: {self._remedy}.")
            trouble.reported = True  # the reason was reported when it was opened
            raise trouble

        def in_transaction(connection: sqlite3.Connection) -> Result:
            with transaction(connection):
                return work(connection)

        return self.read(in_transaction)

    def reach_file(self) -> None:
        """Try again to open the file for writing, if an earlier attempt failed."""
        with self._lock:
            if not self._why:
                return
            try:
                _make_directory(self._file)
                with one_at_a_time(self._file):
                    if self.path is None:
                        connection = move_to_file(self._connection, self._file)
                    else:
                        connection = open_writable(self._file, self._notice, self._schema)
            except (OSError, sqlite3.Error, LocalspecError) as error:
                self._why = reason_of(error)
                return
            self._connection.close()
            self._connection, self._identity = connection, identity(self._file)
            was_in_memory, self.path, self.read_only, self._why = self.path is None, self._file, False, ""
        if was_in_memory:
            self._notice(f"{self._file} can be used again: this session is saved in it.")

    def delete(self, work: Work[Result]) -> Result:
        """Do `work`, which deletes rows, and record that their bytes may still be in the file. Raises StoreTrouble."""

        def delete_and_mark(connection: sqlite3.Connection) -> Result:
            result = work(connection)
            cleaning.mark(connection)
            return result

        return self.save(delete_and_mark)

    def overwrite_deleted(self, clause: str) -> None:
        """Overwrite deleted text in the file. In a large file the next start does that, as `unfinished` says.

        Raises StoreTrouble if overwriting fails. Its sentence begins with `clause`, which says what was deleted.
        """
        if problem := self.empty_log() if self.unfinished else self._write_anew(wait=True):
            with contextlib.suppress(StoreTrouble):
                self.save(cleaning.mark)
            raise StoreTrouble(
                f"{clause}, but deleted text may still be in {self.path} and its -wal file ({problem}). The next start "
                "overwrites it: make room on the disk, and end every other localspec session."
            )
        if self._aside is not None and self._aside.exists():
            raise StoreTrouble(f"{clause}, but {self._aside} is damaged and may still hold the text: delete that file.")

    @property
    def unfinished(self) -> str:
        """A notice that deleted text stays in a large file until the next start overwrites it; otherwise empty."""
        with self._lock, contextlib.suppress(sqlite3.DatabaseError):
            if cleaning.last_mark(self._connection) and self._is_large:
                return f"{self._path_and_size} is large, so the deleted text in it is overwritten at the next start."
        return ""

    def finish_deletion(self) -> None:
        """Overwrite deleted text that an earlier process left in the file. Report a notice if that takes long."""
        if self.path is None or self.read_only:
            return
        with contextlib.suppress(OSError, sqlite3.Error), contextlib.ExitStack() as stack, self._lock:
            if not cleaning.last_mark(self._connection):
                return
            if large := self._is_large:
                stack.enter_context(one_at_a_time(self.path, self._notice))
                if not cleaning.last_mark(self._connection):  # another process has done it meanwhile
                    return
                needed = 2 * cleaning.content_size(self._connection)  # for a temporary file and the log
                if shutil.disk_usage(self.path.parent).free < needed:
                    self._notice(f"Deleted text is still in {self.path}: make room for {size(needed)} on its disk.")
                    return
                self._notice(f"Deleted text in {self._path_and_size} is overwritten first, which may take a minute.")
            if (problem := self._write_anew(wait=large)) and large:
                self._notice(f"Deleted text may still be in {self.path} ({problem}) until the next start.")
            if self._aside is not None:
                self._notice(f"Deleted text may still be in {self._aside}: delete that file.")

    def give_back(self) -> None:
        """Shrink the file, unless it is so large that shrinking takes long."""
        with self._lock, contextlib.suppress(sqlite3.DatabaseError):
            if not self._is_large:
                cleaning.vacuum(self._connection, self.path)

    @property
    def _is_large(self) -> bool:
        return cleaning.content_size(self._connection) > cleaning.SMALL

    @property
    def _path_and_size(self) -> str:
        return f"{self.path} ({size(cleaning.content_size(self._connection))})"

    def _write_anew(self, wait: bool) -> str:
        """Overwrite deleted text. Return a clause with the reason if that fails, or an empty text."""
        with self._lock:
            try:
                last = cleaning.last_mark(self._connection)
                if last:
                    with _patience(self._connection, wait):
                        cleaning.write_anew(self._connection, self.path)
                problem = self.empty_log(wait)
                if last and not problem:
                    self._connection.execute("DELETE FROM deletion WHERE number <= ?", (last,))
                return problem
            except sqlite3.DatabaseError as error:
                if not is_broken(error):
                    return str(error)
                self._leave_broken_file(error, self._notice)
                return ""

    def empty_log(self, wait: bool = True) -> str:
        """Move the write-ahead log into the file. Return the reason if that fails, or an empty text."""
        if self.read_only:  # a log that cannot be read here seems to be empty
            return self._why if self.path and opening.size_of(Path(f"{self.path}-wal")) else ""
        deadline = time.monotonic() + (opening.BUSY_SECONDS if wait else 0)
        try:
            with self._lock, _patience(self._connection, wait):
                while self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
                    if time.monotonic() > deadline:
                        return "another process is using the file"
                    time.sleep(0.01)  # SQLite waits for readers and writers, but not for another process's checkpoint
            return ""
        except sqlite3.DatabaseError as error:
            return str(error)

    def _trouble(self, error: sqlite3.DatabaseError) -> StoreTrouble:
        kind = NoRoom if code_of(error) == sqlite3.SQLITE_FULL else StoreTrouble
        return kind(f"{_problem(self.path, error)} ({reason_of(error)}).")

    def _leave_broken_file(self, error: sqlite3.DatabaseError, report: Notice | None = None) -> None:
        """Continue with a new file that has the readable rows of the broken file, or else in memory.

        `report`, by default the attribute `report_damage`, is called with a sentence about the damage.
        """
        if self.path is None:
            raise error
        broken, path, unfit = self._connection, self.path, damage(error)
        try:
            with one_at_a_time(path, self._notice):
                # Another process may have been faster; then the file of this name is a new and good one.
                sentence = f"{path} {unfit} and was set aside by another process."
                if identity(path) == self._identity:
                    self._aside, sentence = replace(path, unfit, broken, self._notice, self._schema)
                self._connection = open_writable(self._file, self._notice, self._schema)
            self._identity = identity(path)
        except (OSError, sqlite3.Error) as trouble:
            sentence = (
                f"{path} {unfit} and cannot be set aside ({reason_of(trouble)});"
                " phrases learned in this session are lost at its end."
            )
            self._connection, self.path, self._aside = open_in_memory(self._schema), None, self._aside or path
        self.read_only, self._why = False, ""
        with contextlib.suppress(sqlite3.Error):
            broken.close()
        self._schema.refill(self._connection)
        (report or self.report_damage)(sentence)


def _make_directory(path: Path) -> None:
    """Make the directory for a database. Raises OSError, also if `path` is something other than a file."""
    if path.exists() and not path.is_file():
        raise OSError("the path is not a file")
    private_directory(path.parent)


@contextlib.contextmanager
def _patience(connection: sqlite3.Connection, wait: bool) -> Iterator[None]:
    """Set within this context whether SQLite waits for other processes that use the file (`wait`), or fails at once."""
    connection.execute(f"PRAGMA busy_timeout = {opening.BUSY_SECONDS * wait * 1000:.0f}").fetchone()
    try:
        yield
    finally:
        connection.execute(f"PRAGMA busy_timeout = {opening.BUSY_SECONDS * 1000:.0f}").fetchone()


def _problem(path: Path | None, error: sqlite3.DatabaseError) -> str:
    """Return what an error of SQLite means for the file at `path`, and what to do."""
    code, seconds = code_of(error), f"{opening.BUSY_SECONDS:.0f}"
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return f"{path} was in use by another process for more than {seconds} seconds, so nothing more is saved"
    if code in NO_ROOM:
        return f"{path} could not be read or written, so nothing more is saved: check whether the disk is full"
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
        return f"{path} may not be written, so nothing more is saved: make the file and its directory writable"
    return f"{path} cannot be used now, so nothing more is saved"
