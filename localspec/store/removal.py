"""Conversations are deleted to the last byte; what a stopped deletion left, the next start or deletion finishes."""

import contextlib
import sqlite3
import time
from collections.abc import Sequence

from localspec.quantities import size as shown
from localspec.store import volumes
from localspec.store.database import Database, NoRoom, StoreTrouble
from localspec.store.mending import PAGES_TO_FIND
from localspec.store.shrinking import shrink

PAUSE = 0.11  # seconds between transactions: who waits for the file looks every 0.1 s whether it is free

AT_ONCE = 10_000  # conversations that a volume is searched for in one pass
ROOM = 6 * volumes.LIMIT  # bytes that the log may take: a volume with its index, and what pushes it out of memory

# What is said where it takes long.
DIVIDED = (
    "an earlier version kept the history in one piece; to delete from it, it is divided once, which takes two to three"
    " minutes a gigabyte. After that a deletion takes a second."
)


def remove(database: Database, conversations: Sequence[int]) -> int:
    """Deletes these conversations, so that their bytes are gone from the files too; returns how many there were.

    Without any, what could not be saved goes out of the log, and what a stopped deletion left. Raises StoreTrouble;
    its sentence says what was done and what is left to do.
    """
    path, removed = database.path, 0
    try:
        # Again where one was moved meanwhile, by another process that divides a volume.
        while chosen := database.at_once(lambda connection: _by_volume(connection, conversations)):
            for place, ids in chosen.items():
                removed += database.save(lambda connection, place=place, ids=ids: _delete(connection, place, ids))  # type: ignore[misc]
    except StoreTrouble as trouble:
        if not removed and isinstance(trouble, NoRoom):
            raise NoRoom(f"Nothing was removed, since the disk of {path} is full: {_room(database)}.") from trouble
        if not removed:
            raise
        raise StoreTrouble(f"{_counted(removed)} removed, and then no more: {trouble}") from trouble
    if database.path != path:
        raise StoreTrouble(f"Nothing was removed, because {path} is broken: delete what it was set aside as.")
    done = f"{_counted(removed)} removed, but their bytes may still be in {path}"
    try:
        marks = _clean(database)
    except StoreTrouble as trouble:
        why = trouble.__cause__ or trouble
        room = f": {_room(database)}" if isinstance(trouble, NoRoom) else ""
        raise StoreTrouble(f"{done} until the next start or deletion ({why}){room}.") from trouble
    database.give_back()
    if problem := database.empty_log():
        if not (removed or marks):
            raise StoreTrouble(
                f"Text that could not be saved or was deleted may still be in {path}-wal ({problem}): see whether the"
                " disk is full, end every other localspec session, and delete again."
            )
        raise StoreTrouble(f"{done} and its -wal file ({problem}) until every other localspec session is closed.")
    _forget(database, marks)
    return removed


def take_back(database: Database, conversation: int) -> None:
    """Deletes it; its bytes go with the next start or deletion. Raises StoreTrouble."""

    def delete(connection: sqlite3.Connection) -> int:
        return sum(_delete(connection, *chosen) for chosen in _by_volume(connection, [conversation]).items())

    database.save(delete)


def _room(database: Database) -> str:
    """What to do about a full disk: how much of it a deletion takes, which overwrites by way of the log."""

    def most(connection: sqlite3.Connection) -> int:
        pages, size = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
        divided = any(volumes.is_large(connection, number) for number in volumes.every(connection))
        return int(2 * pages * size if divided else min(2 * pages * size, ROOM))

    return f"a deletion needs up to {shown(database.read(most))} of it for a moment; make room and delete again"


def strays(database: Database) -> int:
    """How many rows belong to no listed conversation, as another program may leave them. Raises StoreTrouble."""

    def count(connection: sqlite3.Connection) -> int:
        found = (_strays(connection, place) for place in volumes.every(connection))
        queries = [*(query for queries in found for query in queries), _nowhere(connection)]
        return sum(connection.execute(f"SELECT count(*) FROM {query}").fetchone()[0] for query in queries)

    return database.at_once(count)


def remove_strays(database: Database) -> int:
    """Deletes those rows; returns how many there were. Their bytes go with the next `remove`. Raises StoreTrouble."""

    def delete(connection: sqlite3.Connection) -> int:
        removed = 0
        for place in volumes.every(connection):
            gone = sum(connection.execute(f"DELETE FROM {query}").rowcount for query in _strays(connection, place))
            if gone:
                connection.execute("INSERT INTO unclean (volume) VALUES (?)", (place,))
            removed += gone
        gone = connection.execute(f"DELETE FROM {_nowhere(connection)}").rowcount
        if gone:
            connection.execute("INSERT INTO unclean (volume) VALUES (0)")
        return removed + gone

    return database.save(delete)


def _strays(connection: sqlite3.Connection, place: int) -> list[str]:
    """Which rows of this volume belong to no conversation, and which conversations have no turn in it."""
    volume = volumes.suffix(place)
    turns = f"SELECT conversation FROM turn{volume} NOT INDEXED"  # an index might hide some
    there = f"SELECT id FROM conversation WHERE volume = {place} AND id IN ({turns})"
    return [
        f"turn{volume} WHERE conversation NOT IN ({there})",
        f"about{volume} WHERE conversation NOT IN ({there})",
        f"conversation WHERE volume = {place} AND id NOT IN ({turns})",
    ]


def _nowhere(connection: sqlite3.Connection) -> str:
    """Which conversations are in no volume that there is."""
    places = ", ".join(map(str, volumes.every(connection)))
    return f"conversation WHERE volume NOT IN ({places})"


def takes_long(database: Database, conversations: Sequence[int]) -> bool:
    """Whether a volume has to be divided for it: those of earlier versions have any size. Raises StoreTrouble."""

    def look(connection: sqlite3.Connection) -> bool:
        chosen = _by_volume(connection, conversations)
        large = {
            place
            for place in (*chosen, *(volume for _, volume in _marks(connection)))
            if volumes.is_large(connection, place)
        }
        query = "SELECT count(*) FROM conversation WHERE volume = ?"
        return any(connection.execute(query, (place,)).fetchone()[0] > len(chosen.get(place, ())) for place in large)

    return database.at_once(look)


def finish_stopped(database: Database) -> None:
    """Overwrites what a deletion that was stopped has left, if that is quick and nobody is in the way."""
    if database.read_only:
        return
    with contextlib.suppress(StoreTrouble):
        if database.read(_marks) and not takes_long(database, ()):
            marks = _clean(database)
            if not database.empty_log(wait=False):
                _forget(database, marks)


def _by_volume(connection: sqlite3.Connection, conversations: Sequence[int]) -> dict[int, list[int]]:
    """Those that there are."""
    found: dict[int, list[int]] = {}
    for conversation in dict.fromkeys(conversations):
        place = volumes.of_conversation(connection, conversation)
        if place is not None:
            found.setdefault(place, []).append(conversation)
    return found


def _delete(connection: sqlite3.Connection, place: int, conversations: Sequence[int]) -> int:
    """Deletes those that are in this volume, and marks it."""
    if place not in volumes.every(connection):  # divided meanwhile
        return 0
    rows = [(conversation, place) for conversation in conversations]
    removed = connection.executemany("DELETE FROM conversation WHERE id = ? AND volume = ?", rows).rowcount
    if connection.execute("SELECT id FROM conversation WHERE volume = ? LIMIT 1", (place,)).fetchone() is None:
        volumes.empty(connection, place)
    else:
        volume = volumes.suffix(place)
        connection.executemany(f"DELETE FROM about{volume} WHERE conversation = ?", ((one,) for one in conversations))
        for start in range(0, len(conversations), AT_ONCE):
            chosen = ", ".join(map(str, conversations[start : start + AT_ONCE]))
            # All turns are looked at: what an index hides is deleted, too.
            connection.execute(f"DELETE FROM turn{volume} NOT INDEXED WHERE conversation IN ({chosen})")
    # Until its pages are clean and the log is empty, which may be after this process.
    connection.execute("INSERT INTO unclean (volume) VALUES (?)", (place,))
    return removed


def _marks(connection: sqlite3.Connection) -> list[tuple[int, int]]:
    return connection.execute("SELECT mark, volume FROM unclean").fetchall()


def _clean(database: Database) -> list[int]:
    """Writes anew what was deleted from, also by deletions that were stopped; returns the marks that say so."""
    marks = database.read(_marks)
    if marks:  # when it was, and with which model
        database.save(lambda connection: volumes.write_anew(connection, "conversation"))
    places = {volume for _, volume in marks}
    if PAGES_TO_FIND in places:
        database.read(lambda connection: shrink(connection, database.path))
    for place in places - {PAGES_TO_FIND}:
        while not database.save(lambda connection, place=place: volumes.clean(connection, place)):  # type: ignore[misc]
            time.sleep(PAUSE)
    return [mark for mark, _ in marks]


def _forget(database: Database, marks: Sequence[int]) -> None:
    if marks:
        forget = "DELETE FROM unclean WHERE mark = ?"
        database.save(lambda connection: connection.executemany(forget, ((mark,) for mark in marks)).rowcount)


def _counted(removed: int) -> str:
    return f"{removed} conversation{'' if removed == 1 else 's'}"
