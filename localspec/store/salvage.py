"""What can be read of a history that is set aside comes over into the one that is begun in its place."""

import contextlib
import sqlite3
import time
from collections.abc import Iterable, Iterator
from typing import Any

from localspec.quantities import counted
from localspec.store import volumes
from localspec.store.history_tables import make_volume
from localspec.store.lost_list import with_list
from localspec.store.opening import code_of, transaction
from localspec.store.schema import MIGRATIONS

SECONDS = 4.0  # after which no more comes over: other processes wait for five
_BLIND = 10_000  # ids that are tried behind the last known one
_CONVERSATION = ("id", "model", "created", "used", "branch_of", "volume", "source")
_TURN = ("id", "conversation", "prompt", "reply", "reason", "figures", "asked", "reasoning")
_ABOUT = ("conversation", "title", "system")
_DRAFT = ("rowid", "process", "began", "text", "server", "conversation")


class _Late(Exception):
    """The time is over."""


def salvage(source: sqlite3.Connection, target: sqlite3.Connection) -> str:
    """Copies conversations and unsent drafts under their own ids, a volume at a time and the newest volume first.

    Returns with what the new history begins, in half a sentence, or nothing. Raises sqlite3.Error of `target`.
    """
    deadline = time.monotonic() + SECONDS
    with contextlib.ExitStack() as opened:
        try:
            version = source.execute("PRAGMA user_version").fetchone()[0]
            if 0 <= version != len(MIGRATIONS):  # below, it is damage, and tells of no version
                return ""
            volumes.every(source)
        except sqlite3.DatabaseError:
            copy = with_list(source)
            if copy is None:
                return ""
            source = opened.enter_context(contextlib.closing(copy))
        return _copied(source, target, deadline)


def _copied(source: sqlite3.Connection, target: sqlite3.Connection, deadline: float) -> str:
    complete = True
    try:
        rows = _rows(source, "conversation", _CONVERSATION, deadline)
        known = {row[0]: row for row in rows if _can_be_true(row)}
        with transaction(target):
            _put(target, "draft", _DRAFT[1:], [row[1:] for row in _rows(source, "draft", _DRAFT, deadline)])
        for number in reversed(volumes.every(source)):
            with transaction(target):
                _volume(source, target, number, known, deadline)
    except _Late:
        complete = False
    with transaction(target):
        for name in ("conversation", "turn"):
            _go_on_from(target, name, _last_id(source, name))
    (came,) = target.execute("SELECT count(*) FROM conversation WHERE newest > 0").fetchone()  # those with a turn
    if not came:
        return ""
    when = "" if complete else f" in {SECONDS:.0f} seconds; the rest is in the old one"
    return f"with the {counted(came, 'conversation')} that could be read{when}"


def _volume(
    source: sqlite3.Connection,
    target: sqlite3.Connection,
    number: int,
    known: dict[object, tuple[object, ...]],
    deadline: float,
) -> None:
    """Copies one."""
    volume = volumes.suffix(number)
    if number:
        make_volume(target, number)
    came: set[int] = set()
    for row in _rows(source, f"turn{volume}", _TURN, deadline):
        conversation, asked = row[1], row[6]
        if not isinstance(conversation, int):
            continue
        about = known.get(conversation, (conversation, "", asked, asked, None, number, None))
        if about[5] != number:  # another program put it here
            continue
        if conversation not in came:  # before its turns, since they tell it which is the newest
            _put(target, "conversation", _CONVERSATION, [about])
            came.add(conversation)
        _put(target, f"turn{volume}", _TURN, [row])
    abouts = (row for row in _rows(source, f"about{volume}", _ABOUT, deadline) if row[0] in came)
    _put(target, f"about{volume}", _ABOUT, abouts)
    (last,) = target.execute(f"SELECT coalesce(max(id), 0) FROM turn{volume}").fetchone()
    _go_on_from(target, "turn", last)


def _can_be_true(conversation: tuple[object, ...]) -> bool:
    """Whether it is a row of that table: on a page that lies in another's place there are rows of something else."""
    _, model, created, used, branch_of, volume, _ = conversation
    times = isinstance(created, int | float) and isinstance(used, int | float)
    return isinstance(model, str) and times and isinstance(branch_of, int | None) and isinstance(volume, int)


def _rows(
    source: sqlite3.Connection, table: str, columns: tuple[str, ...], deadline: float
) -> Iterator[tuple[object, ...]]:
    """The rows that can be read, whose first column is their rowid: from the last on, from the first on, and between
    the two pages that cannot be read each that may be there. Raises _Late."""
    query = f"SELECT {', '.join(columns)} FROM {table} NOT INDEXED WHERE rowid"
    low, high, whole = 0, 2**63 - 1, True
    for order in (" DESC", ""):
        try:
            for row in source.execute(f"{query} > ? AND rowid < ? ORDER BY rowid{order}", (low, high)):
                low, high = (low, row[0]) if order else (row[0], high)
                yield _in_time(row, deadline)
        except sqlite3.DatabaseError as error:
            if code_of(error) == sqlite3.SQLITE_ERROR:  # there is no such table
                return
            whole = False
    if whole:  # from both ends: rows of a damaged page that are none may seem to be the last
        return
    if high == 2**63 - 1:
        high = max(low, _last_id(source, "turn")) + _BLIND
    for number in range(high - 1, low, -1):
        row = None
        with contextlib.suppress(sqlite3.DatabaseError):
            row = source.execute(f"{query} = ?", (number,)).fetchone()
        if _in_time(row, deadline) is not None:
            yield row


def _in_time(row: Any, deadline: float) -> Any:
    if time.monotonic() > deadline:
        raise _Late
    return row


def _put(target: sqlite3.Connection, table: str, columns: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> None:
    """Rows that the table cannot take, such as those without a prompt, are left out."""
    places = ", ".join("?" * len(columns))
    target.executemany(f"INSERT OR IGNORE INTO {table} ({', '.join(columns)}) VALUES ({places})", rows)


def _last_id(source: sqlite3.Connection, name: str) -> int:
    """The last id that was given in a table, as far as that is known."""
    with contextlib.suppress(sqlite3.DatabaseError):
        row = source.execute("SELECT seq FROM sqlite_sequence WHERE name = ?", (name,)).fetchone()
        if row is not None and isinstance(row[0], int) and 0 <= row[0] < 2**62:
            return row[0]
    return 0


def _go_on_from(target: sqlite3.Connection, name: str, last: int) -> None:
    """No id up to this one is given again: it means what it meant."""
    if not target.execute("UPDATE sqlite_sequence SET seq = max(seq, ?) WHERE name = ?", (last, name)).rowcount:
        target.execute("INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)", (name, last))
