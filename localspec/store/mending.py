"""What is derived from the rest is built anew where it is damaged: the index of words, other indexes, measurements.

A damaged tree is not given up page by page, since it may name pages of another: it is struck from the list of tables,
and its pages are found again when the file is written anew.
"""

import contextlib
import sqlite3
from collections.abc import Iterable, Sequence

from localspec.store import volumes
from localspec.store.comparing import damage
from localspec.store.history_tables import make_index, parts_of_index
from localspec.store.opening import may_be_damage, transaction
from localspec.store.schema import correct_schema, tables_of_lost_indexes
from localspec.store.searched_words import trigram_query
from localspec.store.values import text

PAGES_TO_FIND = -1  # in place of a volume's number in `unclean`: the file is to be written anew
_LOST_CONVERSATION = """SELECT 1 FROM turn{volume} AS said NOT INDEXED WHERE typeof(conversation) = 'integer'
    AND NOT EXISTS (SELECT 1 FROM conversation NOT INDEXED WHERE id = said.conversation) LIMIT 1"""
_LOST_TURN = """SELECT 1 FROM conversation NOT INDEXED
    WHERE volume = {number} AND typeof(newest) = 'integer' AND newest > 0 AND NOT EXISTS
    (SELECT 1 FROM turn{volume} AS said NOT INDEXED WHERE said.id = newest AND said.conversation = conversation.id)
    LIMIT 1"""
_DERIVED = {"measurement", "volume"}  # tables whose rows are measured, or counted, again


def mend(connection: sqlite3.Connection) -> str:
    """Builds anew what is derived and damaged, all of it or nothing; says so in half a sentence, or nothing.

    Raises sqlite3.Error where something else is damaged, or there is no room; then nothing has changed.
    """
    corrected = correct_schema(connection)
    lost = tables_of_lost_indexes(connection)
    # All is looked at before anything is changed: SQLite refuses changes after a check in the same transaction.
    volumes_of = [number for number in volumes.every(connection) if not _holds_together(connection, number)]
    parts = {part for number in volumes.every(connection) for part in parts_of_index(volumes.suffix(number))}
    query = "SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0"
    tables = [table for (table,) in connection.execute(query).fetchall() if table not in parts]
    damaged = {
        table: _can_be_read(connection, table) for table in tables if table in lost or not _is_sound(connection, table)
    }
    _miss_nothing(connection)
    anew = ["what it says of its tables was corrected"] if corrected else []
    if not volumes_of and not damaged:
        return _whole(anew)
    with transaction(connection):
        for table, readable in damaged.items():
            _build_anew(connection, table, readable)
        if still := [number for number in volumes_of if number in volumes.every(connection)]:
            _strike(connection, [part for number in still for part in parts_of_index(volumes.suffix(number))])
        for volume in map(volumes.suffix, still):
            make_index(connection, volume)
            connection.execute(f"INSERT INTO trigram{volume} (trigram{volume}) VALUES ('rebuild')")
        marked = connection.execute("SELECT name FROM sqlite_master WHERE name = 'unclean'").fetchone()
        if marked:
            connection.execute("INSERT INTO unclean (volume) VALUES (?)", (PAGES_TO_FIND,))
    if not marked:  # by a version that had no marks
        with contextlib.suppress(sqlite3.Error):
            connection.execute("VACUUM")
    if volumes_of:
        anew.append("its search index was built anew from the conversations")
    if any(damaged.values()) or not damaged.get("volume", True):
        anew.append("an index was built anew from its table")
    if not damaged.get("measurement", True):
        anew.append("what was measured on this machine is measured again")
    return _whole(anew)


def _whole(anew: Sequence[str]) -> str:
    return f"{', '.join(anew)}, and no conversation is lost" if anew else ""


def _miss_nothing(connection: sqlite3.Connection) -> None:
    """Raises sqlite3.DatabaseError where a turn names a conversation that is not there, or a conversation its last
    turn: then a table has lost rows, though all that is in it can be read.
    """
    (tells,) = connection.execute(
        "SELECT count(*) FROM pragma_table_info('conversation') WHERE name = 'newest'"
    ).fetchone()
    for number in volumes.every(connection):
        for query in (_LOST_CONVERSATION, _LOST_TURN)[: 1 + tells]:  # earlier versions do not tell of the last turn
            if connection.execute(query.format(volume=volumes.suffix(number), number=number)).fetchone():
                raise damage("rows that others tell of are out of reach")


def _holds_together(connection: sqlite3.Connection, number: int) -> bool:
    """Whether what is derived from a volume's turns is there, and its index of words can be read from end to end."""
    volume = volumes.suffix(number)
    there = {name for (name,) in connection.execute("SELECT name FROM sqlite_master").fetchall()}
    if not there.issuperset(parts_of_index(volume)):
        return False
    try:
        connection.execute(f"INSERT INTO trigram{volume} (trigram{volume}) VALUES ('integrity-check')")
        # One that is empty is whole, too: so a turn is looked for that must be in it.
        query = f"SELECT id, substr(reply, 1, 3) FROM turn{volume}_indexed WHERE length(reply) > 2 LIMIT 1"
        for turn, start in connection.execute(query).fetchall():
            query = f"SELECT 1 FROM trigram{volume} WHERE trigram{volume} MATCH ? AND rowid = ?"
            if not connection.execute(query, (trigram_query([text(start)]), turn)).fetchone():
                return False
    except sqlite3.DatabaseError as error:
        return _if_damage(error)
    return all(_is_sound(connection, f"trigram{volume}_{shadow}") for shadow in ("data", "idx", "config"))


def _is_sound(connection: sqlite3.Connection, table: str) -> bool:
    """Whether a table and its indexes are."""
    try:
        return bool(connection.execute(f"PRAGMA integrity_check('{table}')").fetchone()[0] == "ok")
    except sqlite3.DatabaseError as error:
        return _if_damage(error)


def _can_be_read(connection: sqlite3.Connection, table: str) -> bool:
    """Whether all rows of a damaged table can; raises sqlite3.DatabaseError where they cannot, and matter."""
    try:
        for _ in connection.execute(f"SELECT * FROM {table} NOT INDEXED"):
            pass
    except sqlite3.DatabaseError as error:
        if table not in _DERIVED:
            raise
        return _if_damage(error)
    if table not in _DERIVED and _has_lost_rows(connection, table):
        raise damage(f"rows of {table} are out of reach")
    return True


def _has_lost_rows(connection: sqlite3.Connection, table: str) -> bool:
    """Whether pages do not hold together, and an index names rows that the table has not: then the table has lost them,
    and its index is all that tells of them. One that merely stands in the place of another has whole pages.
    """
    with contextlib.suppress(sqlite3.DatabaseError):  # which may be too much even for the check
        said = connection.execute(f"PRAGMA integrity_check('{table}')").fetchall()
        if not any("***" in str(line) for (line,) in said):
            return False
    query = "SELECT name FROM sqlite_master WHERE tbl_name = ? AND type = 'index'"
    for (index,) in connection.execute(query, (table,)).fetchall():
        rows = f"SELECT rowid FROM {table} INDEXED BY {index} EXCEPT SELECT rowid FROM {table} NOT INDEXED LIMIT 1"
        with contextlib.suppress(sqlite3.DatabaseError):  # it is of some rows alone, or cannot be read itself
            if connection.execute(rows).fetchone():
                return True
    return False


def _build_anew(connection: sqlite3.Connection, table: str, readable: bool) -> None:
    """Builds the indexes of a table anew; the table, too, where it has some that only come with it."""
    query = "SELECT name, type, sql FROM sqlite_master WHERE tbl_name = ? AND type IN ('table', 'index')"
    parts = connection.execute(query, (table,)).fetchall()
    if readable and all(statement for _, _, statement in parts):
        parts = [part for part in parts if part[1] == "index"]
        rows = None
    else:
        rows = connection.execute(f"SELECT * FROM {table} NOT INDEXED").fetchall() if readable else []
    _strike(connection, [name for name, _, _ in parts])
    for _, _, statement in sorted(parts, key=lambda part: part[1] != "table"):
        if statement:
            connection.execute(statement)
    if table == "volume" and not readable:
        rows = volumes.sizes(connection)
    for row in rows or ():
        connection.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)


def _strike(connection: sqlite3.Connection, names: Iterable[str]) -> None:
    """Takes these out of the list of tables, and leaves their pages alone."""
    connection.execute("PRAGMA writable_schema = ON").fetchone()
    connection.executemany("DELETE FROM sqlite_master WHERE name = ?", ((name,) for name in names))
    connection.execute("PRAGMA writable_schema = RESET").fetchone()


def _if_damage(error: sqlite3.DatabaseError) -> bool:
    """False where the error tells of damage; else raises it."""
    if not may_be_damage(error):
        raise error
    return False
