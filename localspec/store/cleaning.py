"""Overwrites deleted text: the search index is merged, the file is rewritten and the write-ahead log is emptied.

SQLite overwrites deleted rows, but two things remain in the file: copies of rows that SQLite moved to another page, and
the words of deleted turns in the index. So each deletion adds a row to `deletion` in the same transaction. The row is
removed after the file was rewritten. If the rewriting was interrupted, the next start repeats it.
"""

import math
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from localspec.errors import LocalspecError

SMALL = 64 * 2**20  # bytes: a file with less content is rewritten at once, which takes a second
MOST_IN_MEMORY = 32 * 2**20  # bytes of a file that is rewritten through memory


def make_deletions(connection: sqlite3.Connection) -> None:
    """Make the table `deletion`, with a row for each deletion whose bytes may still be in the file."""
    # AUTOINCREMENT: a deletion that another process marks meanwhile gets another number.
    connection.execute("CREATE TABLE deletion (number INTEGER PRIMARY KEY AUTOINCREMENT)")


def mark(connection: sqlite3.Connection) -> None:
    """Add a row to the table `deletion`: deleted text may still be in the file."""
    connection.execute("INSERT INTO deletion DEFAULT VALUES")


PROBES = ("SELECT number FROM deletion LIMIT 1",)


def last_mark(connection: sqlite3.Connection) -> int:
    """Return the number of the last row of the table `deletion`; 0 if no deleted bytes are left in the file."""
    return int(connection.execute("SELECT coalesce(max(number), 0) FROM deletion").fetchone()[0])


def content_size(connection: sqlite3.Connection) -> int:
    """Return how many bytes of the database are in use: its pages without the free ones."""
    names = ("page_count", "freelist_count", "page_size")
    pages, free, size = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names)
    return int((pages - free) * size)


def write_anew(connection: sqlite3.Connection, path: Path | None) -> None:
    """Rewrite the database file, so that it contains only present rows and no deleted bytes. Raises sqlite3.Error."""
    connection.execute("INSERT INTO trigram (trigram) VALUES ('optimize')")  # drops the words of deleted turns
    vacuum(connection, path)


def vacuum(connection: sqlite3.Connection, path: Path | None) -> None:
    """Let SQLite rewrite the database file. Its temporary copy is in memory, or in a private file."""
    size = math.prod(connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
    if path is None or size <= MOST_IN_MEMORY:
        connection.execute("VACUUM")
        return
    private = os.fspath(path.parent)
    try:
        connection.execute("PRAGMA temp_store_directory = '{}'".format(private.replace("'", "''")))
        row = connection.execute("PRAGMA temp_store_directory").fetchone()
        # Otherwise the temporary file could be in a directory that everybody can read.
        if row is not None and row[0] == private:
            connection.execute("PRAGMA temp_store = FILE")
        connection.execute("VACUUM")
    finally:
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute("PRAGMA temp_store_directory = ''")


@contextmanager
def without_triggers(connection: sqlite3.Connection, table: str) -> Iterator[None]:
    """Drop a table's triggers within this context, which is faster: SQLite can then empty the table page by page."""
    query = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name = ?"
    triggers = connection.execute(query, (table,)).fetchall()
    for name, _ in triggers:
        connection.execute(f"DROP TRIGGER {name}")
    yield
    for _, statement in triggers:
        connection.execute(statement)


_PIECE = 2**20  # bytes overwritten at a time


def remove_copied(file: Path) -> bool:
    """Overwrite and delete `file`, the last text copied in a chat. Return False if missing. Raises LocalspecError."""
    try:
        erase(file)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise LocalspecError(
            f"The copied text in {file} could not be deleted ({error.strerror}); delete the file yourself."
        ) from None
    return True


def erase(file: Path) -> None:
    """Overwrite a file, if its permissions allow that, and delete it. Raises OSError."""
    with suppress(OSError), open(os.open(file, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0)), "r+b") as opened:
        remaining = os.fstat(opened.fileno()).st_size
        while remaining > 0:
            remaining -= opened.write(bytes(min(remaining, _PIECE)))
        opened.flush()
        os.fsync(opened.fileno())
    file.unlink()
