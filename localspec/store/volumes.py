"""The volumes that turns are kept in: tables of some megabytes each, so that one can be written anew on its own.

SQLite overwrites what is deleted, but where it rebuilds a page of a tree, copies of rows that moved to another page may
stay behind. Pages that a tree gives up are zeroed, whatever stands on them: so where a whole tree is emptied nothing of
it is left, nor of what was in it before. A conversation lies in one volume, and with it its part of the index of words.
"""

import contextlib
import heapq
import sqlite3
from collections.abc import Generator, Iterator, MutableMapping, Sequence
from typing import Any

from localspec.store.comparing import compare, damage
from localspec.store.history_tables import NOT_INDEXED, comparisons_of, make_volume

LIMIT = 8 * 2**20  # bytes of text, after which another volume is begun
ONE_BY_ONE = 2 * LIMIT  # more than that is not held in memory to be written anew
MOVED_AT_ONCE = LIMIT // 2  # bytes, in one transaction
MOST_MOVED = 10_000  # conversations in one
SIZED_AT_ONCE = 256  # conversations
MOST_COUNTED = 8 * LIMIT  # bytes of text whose unanswered turns searches of one process count: some 2 ms for each 8 MiB

_IS_THERE = """typeof(volume) = 'integer'
    AND EXISTS (SELECT 1 FROM pragma_table_info(iif(volume = 0, 'turn', 'turn_' || volume)))"""
_HIDDEN = """SELECT 1 FROM conversation AS owner JOIN turn{volume} AS said NOT INDEXED ON said.id = owner.newest
    WHERE owner.id IN ({ids}) AND said.conversation = owner.id AND NOT EXISTS (SELECT 1 FROM turn{volume} AS found
    INDEXED BY turn{volume}_by_conversation WHERE found.conversation = owner.id AND found.id = owner.newest)"""
SIZE = "length(CAST(prompt AS BLOB)) + length(CAST(reply AS BLOB)) + length(figures) + length(CAST(reasoning AS BLOB))"
SYSTEM_SIZE = "coalesce(length(CAST(system AS BLOB)), 0)"


def suffix(volume: int) -> str:
    """How the names of a volume's tables end; the first one is older than the others."""
    return f"_{volume}" if volume else ""


def every(connection: sqlite3.Connection) -> list[int]:
    """The numbers of all volumes: of those whose tables there are, whatever another program wrote into `volume`."""
    found = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name GLOB 'turn*'")
    ends = (name.removeprefix("turn").removeprefix("_") for (name,) in found)
    return sorted(int(end or 0) for end in ends if not end or end.isdecimal())


def of_conversation(connection: sqlite3.Connection, conversation: int | None) -> int | None:
    """Where it lies, or None where there is none of that id, or no volume of the number that it has."""
    row = connection.execute(
        f"SELECT volume FROM conversation WHERE id = ? AND {_IS_THERE}", (conversation,)
    ).fetchone()
    return None if row is None else int(row[0])


def of_turn(connection: sqlite3.Connection, turn: int) -> int | None:
    """Where it lies, or None where there is none of that id."""
    # Nearly always the turn is the newest of its conversation.
    likely = connection.execute(f"SELECT volume FROM conversation WHERE newest = ? AND {_IS_THERE}", (turn,)).fetchall()
    for number in [*(row[0] for row in likely), *reversed(every(connection))]:
        if connection.execute(f"SELECT id FROM turn{suffix(number)} WHERE id = ?", (turn,)).fetchone():
            return int(number)
    return None


def compare_turns(connection: sqlite3.Connection, number: int, conversation: int) -> None:
    """Raises sqlite3.DatabaseError where an index hides the newest turn of a conversation, or others of its volume."""
    compare(connection, _HIDDEN.format(volume=suffix(number), ids=conversation), *comparisons_of(suffix(number)))


def _count_turns(connection: sqlite3.Connection, number: int, counted: MutableMapping[int, int]) -> None:
    """Raises sqlite3.DatabaseError where the index of turns that are in no index of words has more or less of them.

    `counted` is what was counted by this process: bytes by volume. It ends with MOST_COUNTED.
    """
    row = connection.execute("SELECT bytes FROM volume WHERE number = ?", (number,)).fetchone()
    size = row[0] if row is not None and isinstance(row[0], int) else MOST_COUNTED + 1
    if number in counted or sum(counted.values()) + size > MOST_COUNTED:
        return
    turn = f"turn{suffix(number)}"
    ways = ("NOT INDEXED", f"INDEXED BY {turn}_not_indexed")
    counts = [f"(SELECT count(*) FROM {turn} {way} WHERE {NOT_INDEXED})" for way in ways]
    if connection.execute(f"SELECT {' <> '.join(counts)}").fetchone()[0]:
        raise damage("an index has not as many rows as its table")
    counted[number] = size


def new_turn_id(connection: sqlite3.Connection) -> int:
    """One that no turn has had, in any volume."""
    # The counter that SQLite keeps for the first volume counts for all.
    if not connection.execute("UPDATE sqlite_sequence SET seq = seq + 1 WHERE name = 'turn'").rowcount:
        connection.execute("INSERT INTO sqlite_sequence (name, seq) VALUES ('turn', 1)")
    return int(connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'turn'").fetchone()[0])


def with_room(connection: sqlite3.Connection, size: int = 1, besides: int | None = None) -> int:
    """A volume, not `besides`, for a conversation of `size` bytes; one is made where all are full."""
    numbers = every(connection)
    query = "SELECT number FROM volume WHERE bytes + ? <= ? AND number IS NOT ? ORDER BY number"
    for (number,) in connection.execute(query, (size, LIMIT, besides)):
        if number in numbers:
            return int(number)
    number = numbers[-1] + 1
    make_volume(connection, number)
    return number


def newest_first(
    connection: sqlite3.Connection,
    query: str,
    values: tuple[object, ...] = (),
    counted: MutableMapping[int, int] | None = None,
) -> Generator[Any]:
    """The rows of a query in all volumes; it has `{volume}` in its tables' names, and orders by the turn's id, first in
    a row, from the highest on. A volume is asked when all that is newer has been taken, so mostly few are.

    Where it finds turns by indexes it is given what was `counted` of them, and sqlite3.DatabaseError is raised for one
    that is another's, or has not as many rows.
    """
    newest = [
        (connection.execute(f"SELECT max(id) FROM turn{suffix(number)}").fetchone()[0], number)
        for number in every(connection)
    ]
    waiting = sorted(place for place in newest if place[0] is not None)
    heads: list[tuple[int, int, Any, sqlite3.Cursor]] = []  # the next row of each that was asked
    with contextlib.ExitStack() as opened:  # a cursor that is left open would keep the log from being emptied
        while waiting or heads:
            if waiting and (not heads or waiting[-1][0] > -heads[0][0]):
                number = waiting.pop()[1]
                if counted is not None:
                    compare(connection, *comparisons_of(suffix(number)))
                    _count_turns(connection, number, counted)
                cursor = connection.execute(query.format(volume=suffix(number)), values)
                opened.enter_context(contextlib.closing(cursor))
            else:
                _, number, row, cursor = heapq.heappop(heads)
                yield row
            following = cursor.fetchone()
            if following is not None:
                heapq.heappush(heads, (-following[0], number, following, cursor))


def write_anew(connection: sqlite3.Connection, table: str) -> None:
    """Zeroes every page that the table has, and puts back what is in it. All of it goes through memory."""
    with without_triggers(connection, table):
        connection.execute(f"CREATE TEMP TABLE kept AS SELECT * FROM {table}")
        # Without WHERE and triggers, SQLite gives up all pages at once in place of one row after the other.
        connection.execute(f"DELETE FROM main.{table}")
        connection.execute(f"INSERT INTO main.{table} SELECT * FROM kept")
        connection.execute("DROP TABLE kept")


def is_large(connection: sqlite3.Connection, number: int) -> bool:
    """Whether to clean it means to divide it, which takes as long as it is large."""
    query = "SELECT EXISTS (SELECT 1 FROM volume WHERE number = ? AND bytes > ?)"
    return bool(connection.execute(query, (number, ONE_BY_ONE)).fetchone()[0])


def clean(connection: sqlite3.Connection, number: int) -> bool:
    """Leaves nothing in the pages of a volume but what is in its tables; False where it has to be called again.

    One that is too large is divided among others, some megabytes each time.
    """
    if number not in every(connection):
        return True
    if is_large(connection, number):
        if _move(connection, number):
            return False
        empty(connection, number)
        return True
    volume = suffix(number)
    # Deleting a row only adds a note to the index that its trigrams no longer count; where all is merged, both go.
    connection.execute(f"INSERT INTO trigram{volume} (trigram{volume}) VALUES ('optimize')")
    for table in (f"about{volume}", f"turn{volume}", f"trigram{volume}_data", f"trigram{volume}_idx"):
        write_anew(connection, table)
    connection.execute("UPDATE volume SET bytes = ? WHERE number = ?", (_size(connection, volume), number))
    return True


def empty(connection: sqlite3.Connection, number: int) -> None:
    """Zeroes every page of a volume; what is in it is gone."""
    if number:
        connection.execute(f"DROP TABLE about_{number}")
        connection.execute(f"DROP TABLE turn_{number}")
        connection.execute(f"DROP VIEW turn_{number}_indexed")
        connection.execute(f"DROP TABLE trigram_{number}")
        connection.execute("DELETE FROM volume WHERE number = ?", (number,))
        return
    for table in ("about", "turn"):
        with without_triggers(connection, table):
            connection.execute(f"DELETE FROM {table}")
    connection.execute("INSERT INTO trigram (trigram) VALUES ('delete-all')")
    connection.execute("UPDATE volume SET bytes = 0 WHERE number = 0")


def sizes(connection: sqlite3.Connection) -> list[tuple[int, int]]:
    """Each volume with its bytes of text, as they are."""
    return [(number, _size(connection, suffix(number))) for number in every(connection)]


def _size(connection: sqlite3.Connection, volume: str) -> int:
    """Bytes of text in it."""
    sums = [(SIZE, f"turn{volume}"), (SYSTEM_SIZE, f"about{volume}")]
    queries = [f"SELECT coalesce(sum({size}), 0) FROM {table}" for size, table in sums]
    return sum(connection.execute(query).fetchone()[0] for query in queries)


def _move(connection: sqlite3.Connection, number: int) -> bool:
    """Moves some of a volume's conversations to others, as many at once as a volume has room for.

    Returns False where there are none.
    """
    source, about = f"turn{suffix(number)}", f"about{suffix(number)}"
    chosen, size = _to_move(connection, number)
    if not chosen:
        return False
    ids = ", ".join(map(str, chosen))
    hidden = _HIDDEN.format(volume=suffix(number), ids=ids)  # what is not seen here would go with the volume
    compare(connection, hidden, *comparisons_of(suffix(number)))
    target = with_room(connection, size, besides=number)
    with without_triggers(connection, source):  # its part of the index goes as a whole in the end
        into = f"INSERT INTO turn{suffix(target)} SELECT * FROM {source} WHERE conversation IN ({ids}) ORDER BY id"
        connection.execute(into)
        connection.execute(f"INSERT INTO about{suffix(target)} SELECT * FROM {about} WHERE conversation IN ({ids})")
        for table in (source, about):
            connection.execute(f"DELETE FROM {table} WHERE conversation IN ({ids})")
        connection.execute(f"UPDATE conversation SET volume = ? WHERE id IN ({ids})", (target,))
    return True


def _to_move(connection: sqlite3.Connection, number: int) -> tuple[list[int], int]:
    """Return the first conversations of a volume that make MOVED_AT_ONCE bytes, at least one, and their bytes."""
    query = "SELECT id FROM conversation WHERE volume = ? ORDER BY id LIMIT ?"
    ids = [one for (one,) in connection.execute(query, (number, MOST_MOVED)).fetchall()]
    chosen: list[int] = []
    total = 0
    for start in range(0, len(ids), SIZED_AT_ONCE):
        some = ids[start : start + SIZED_AT_ONCE]
        for conversation, size in _sizes(connection, suffix(number), some).items():
            if chosen and total + size > MOVED_AT_ONCE:
                return chosen, total
            chosen.append(conversation)
            total += size
    return chosen, total


def _sizes(connection: sqlite3.Connection, volume: str, conversations: Sequence[int]) -> dict[int, int]:
    """Return the bytes of text of these conversations, in their order."""
    sizes, ids = dict.fromkeys(conversations, 0), ", ".join(map(str, conversations))
    for size, table in ((SIZE, f"turn{volume}"), (SYSTEM_SIZE, f"about{volume}")):
        query = f"SELECT conversation, sum({size}) FROM {table} WHERE conversation IN ({ids}) GROUP BY conversation"
        for conversation, found in connection.execute(query).fetchall():
            sizes[conversation] += found
    return sizes


@contextlib.contextmanager
def without_triggers(connection: sqlite3.Connection, table: str) -> Iterator[None]:
    """In a transaction, which takes everything back where something is raised."""
    query = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name = ?"
    triggers = connection.execute(query, (table,)).fetchall()
    for name, _ in triggers:
        connection.execute(f"DROP TRIGGER {name}")
    yield
    for _, statement in triggers:
        connection.execute(statement)
