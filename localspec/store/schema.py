"""What the file says of its tables, indexes and triggers is compared with what this version writes, and corrected.

A bit that tipped over there may leave commands that fail each time, or a trigger that does something else unnoticed.
"""

import re
import sqlite3
import zlib
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from typing import NamedTuple

from localspec.store import drafts, history_tables, measurements, phrases, volumes
from localspec.store.comparing import damage
from localspec.store.opening import loaded, open_in_memory, transaction

# Only ever append: files out there have been through the ones that stand here.
MIGRATIONS: list[Callable[[sqlite3.Connection], None]] = [
    phrases.make_pools,
    measurements.make_measurements,
    history_tables.make_conversations,
    history_tables.make_branches,
    drafts.make_drafts,
    phrases.tell_where_from,
    history_tables.make_reasoning,
    history_tables.make_volumes,
    drafts.tell_for_whom,
    history_tables.make_source,
    drafts.tell_where,
]

WRITTEN = 1349158762  # the sum of what a new file says; a test compares
_SAID = """SELECT CAST(type || ' ' || name || ' ' || tbl_name || ' ' || sql AS BLOB) FROM sqlite_master
    WHERE name NOT GLOB '*_[0-9]*'
    OR name GLOB 'turn_{last}*' OR name GLOB 'trigram_{last}*' OR name GLOB 'about_{last}*'"""
_OF_VOLUME = re.compile(r"(?:turn|trigram|about)_(\d{1,9})(?!\d)")
_SPACE = re.compile("[ \t\n\f\r]+")  # as SQLite understands it
_NEWEST = """UPDATE conversation SET newest = said.last
    FROM (SELECT conversation, max(id) AS last FROM turn{volume} NOT INDEXED GROUP BY conversation) AS said
    WHERE said.conversation = conversation.id AND volume = {number} AND newest < said.last"""


class Said(NamedTuple):
    """A row of SQLite's list of tables, without the page where its tree begins; one that SQLite makes has no `sql`."""

    type: str
    name: str
    table: str
    sql: str | None

    @property
    def plain(self) -> tuple[str | None, ...]:
        """The same, however its lines are broken."""
        return tuple(None if part is None else _SPACE.sub(" ", part) for part in self)


class Fault(NamedTuple):
    """What should be said, and what is said in its place, by the number of its row; None where nothing is."""

    right: Said
    row: int | None


def compare_schema(connection: sqlite3.Connection) -> None:
    """Raises sqlite3.DatabaseError, as SQLite does of damage, where the file says something else.

    Of the turns' volumes the first and the last are looked at, and the places of all trees; what is said of others is
    corrected when it fails.
    """
    shared = "SELECT count(DISTINCT rootpage) < count(*) FROM sqlite_master WHERE rootpage > 0"
    if connection.execute(shared).fetchone()[0]:  # what is said to one, or dropped, would be to the other
        raise damage("two of its trees begin on one page")
    last = connection.execute("SELECT max(number) FROM volume").fetchone()[0]
    last = last if isinstance(last, int) and last > 0 else 0
    rows = [row for (row,) in connection.execute(_SAID.format(last=last)).fetchall() if row is not None]
    marks = [b"%s_%d" % (name, last) for name in (b"turn", b"trigram", b"about")]
    first = sorted(row for row in rows if not last or not any(mark in row for mark in marks))
    others = (
        row.replace(b"_%d" % last, b"").replace(b"number = %d;" % last, b"number = 0;")
        for row in rows
        if last and any(mark in row for mark in marks)
    )
    if zlib.crc32(b"\n".join(first)) == WRITTEN and {*others} <= {*first}:
        return
    # Another version of SQLite may word its own parts otherwise, and other programs may have added something.
    if _faults(connection, [last] if last in volumes.every(connection) else []):
        raise damage("what it says of its tables is not what was written")


def correct_schema(connection: sqlite3.Connection) -> bool:
    """Corrects what the file says where it says something else, all of it or nothing; whether anything was.

    No row of a table is touched. What a volume's turns are searched by is struck there, for it may be out of date.
    """
    faults = _faults(connection, _numbers(connection))
    if not faults:
        return False
    derived = {
        part for number in (0, *_numbers(connection)) for part in history_tables.parts_of_index(volumes.suffix(number))
    }
    with transaction(connection):
        connection.execute("PRAGMA writable_schema = ON").fetchone()
        for right, row in faults:
            if row is not None and right.name in derived and right.type != "index":
                connection.execute("DELETE FROM sqlite_master WHERE rowid = ?", (row,))
            elif row is not None:
                correct = "UPDATE sqlite_master SET type = ?, name = ?, tbl_name = ?, sql = ? WHERE rowid = ?"
                connection.execute(correct, (*right, row))
        (version,) = connection.execute("PRAGMA schema_version").fetchone()
        connection.execute(f"PRAGMA schema_version = {version % (2**31 - 1) + 1}")  # so that other processes look again
        connection.execute("PRAGMA writable_schema = RESET").fetchone()
        loaded(connection)
        for right, row in faults:
            if row is None and right.name not in derived and right.type != "table" and right.sql is not None:
                connection.execute(right.sql)
        for number in volumes.every(connection):
            volume = volumes.suffix(number)
            if any(right.name == f"turn{volume}_said" for right, _ in faults):
                connection.execute(_NEWEST.format(volume=volume, number=number))
    return True


def tables_of_lost_indexes(connection: sqlite3.Connection) -> set[str]:
    """The tables of which an index begins where there is no page, or where something else does."""
    rows = connection.execute("SELECT type, tbl_name, rootpage FROM sqlite_master").fetchall()
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    begun = Counter(page for _, _, page in rows)
    return {
        table
        for kind, table, page in rows
        if kind == "index" and not (isinstance(page, int) and 1 < page <= pages and begun[page] == 1)
    }


def _faults(connection: sqlite3.Connection, numbers: list[int]) -> list[Fault]:
    """Where the file does not say what this version writes, of these volumes and all that is in none.

    A table whose words are fewer or more was changed by another program, and is no fault.
    """
    query = "SELECT rowid, type, name, tbl_name, sql FROM sqlite_master"
    found = {
        row: Said(_text(kind), _text(name), _text(table), None if sql is None else _text(sql))
        for row, kind, name, table, sql in connection.execute(query).fetchall()
    }
    written = _written(connection.execute("PRAGMA user_version").fetchone()[0], numbers)
    known, said = {one.plain for one in written}, {one.plain for one in found.values()}
    strangers = {row: one for row, one in found.items() if one.plain not in known}
    faults = []
    for right in written:
        if right.plain in said:
            continue
        row = max(strangers, key=lambda row: _likeness(strangers[row], right), default=None)
        if row is None or _likeness(strangers[row], right) < 3:
            faults.append(Fault(right, None))
        elif right.type != "table" or _is_damage(connection, strangers[row], right):
            faults.append(Fault(right, row))
    return faults


def _written(version: int, numbers: list[int]) -> list[Said]:
    """All that a new file says at this version, with these volumes."""
    with closing(open_in_memory(MIGRATIONS[:version])) as memory:
        if version == len(MIGRATIONS):
            for number in numbers:
                history_tables.make_volume(memory, number)
        return [Said(*row) for row in memory.execute("SELECT type, name, tbl_name, sql FROM sqlite_master").fetchall()]


def _numbers(connection: sqlite3.Connection) -> list[int]:
    """The volumes besides the first; a name in which one digit is wrong makes none."""
    names = connection.execute("SELECT name FROM sqlite_master").fetchall()
    told = Counter(int(found[1]) for (name,) in names if (found := _OF_VOLUME.match(_text(name))))
    return sorted(number for number, count in told.items() if number and count > 2)


def _likeness(one: Said, other: Said) -> int:
    """How many of its four parts are the same; the name counts twice."""
    return sum(mine == theirs for mine, theirs in zip(one.plain, other.plain, strict=True)) + (one.name == other.name)


def _is_damage(connection: sqlite3.Connection, one: Said, right: Said) -> bool:
    """Whether what is said of a table is as long as it should be, or nothing that SQLite reads."""
    texts = (one.sql or "", right.sql or ""), (one.plain[3] or "", right.plain[3] or "")
    if any(len(mine) == len(theirs) for mine, theirs in texts):
        return True
    return connection.execute("SELECT 1 FROM pragma_table_info(?)", (one.name,)).fetchone() is None


def _text(value: object) -> str:
    return value if isinstance(value, str) else repr(value)
