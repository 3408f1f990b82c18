"""What is free in a database's file is given back."""

import math
import os
import sqlite3
from pathlib import Path

MOST_IN_MEMORY = 32 * 2**20  # bytes of a database that is shrunk without a file beside it


def is_mostly_free(connection: sqlite3.Connection) -> bool:
    """Whether little is left to be written anew, and something to gain; or most of the file is."""
    pages, free, size = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
    )
    small = (pages - free) * size <= MOST_IN_MEMORY
    return bool(free * (4 if small else 2) > pages)


def shrink(connection: sqlite3.Connection, path: Path | None) -> None:
    """Writes the database anew without what is free in it: by way of memory, or of a private file."""
    size = math.prod(connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
    if path is None or size <= MOST_IN_MEMORY:
        connection.execute("VACUUM")
        return
    private = os.fspath(path.parent)
    try:
        connection.execute("PRAGMA temp_store_directory = '{}'".format(private.replace("'", "''")))
        found = connection.execute("PRAGMA temp_store_directory").fetchone()
        if found is not None and found[0] == private:  # else the file would lie where everybody's do
            connection.execute("PRAGMA temp_store = FILE")
        connection.execute("VACUUM")
    finally:
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute("PRAGMA temp_store_directory = ''")
