"""Copies the readable rows of a damaged file into a new one.

SQLite stops at a damaged page. So a table is read from both ends, and the part in between is halved until each piece
was read or is unreadable. Only rows are copied, so deleted text does not return.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

from localspec.quantities import counted
from localspec.store.cleaning import mark, without_triggers

# sqlite_sequence comes first: it keeps ids from being used again.
TABLES = ("sqlite_sequence", "conversation", "turn", "pool", "measurement", "draft")
LAST = 2**63 - 1
MOST_HALVINGS = 20_000  # of one table; each takes about 20 µs

Gap = tuple[int, int]  # the first and the last key of an unreadable range


def carry_over(source: sqlite3.Connection, target: sqlite3.Connection) -> str:
    """Copy the readable part of a damaged store into an empty one, in a transaction. Return a description of the copied
    part, or "".

    Raises sqlite3.Error only for errors of the target.
    """
    with without_triggers(target, "turn"), without_triggers(target, "phrase"):
        gaps = {table: _copy(source, target, table, "rowid") for table in TABLES}
        pools = dict(target.execute("SELECT id, phrases FROM pool").fetchall())
        for pool in pools:
            _copy(source, target, "phrase", "key", f"pool={pool} AND ")
        _join(target, gaps["conversation"])
    target.execute("UPDATE pool SET phrases = (SELECT count(*) FROM phrase WHERE pool = pool.id)")
    target.execute("INSERT INTO trigram (trigram) VALUES ('rebuild')")
    phrase_count = None if gaps["pool"] else sum(count for count in pools.values() if count > 0)
    return _account(source, target, bool(gaps["turn"]), phrase_count)


def _join(target: sqlite3.Connection, gaps: Sequence[Gap]) -> None:
    """Make turns and conversations consistent: each turn has a conversation, and each conversation a turn.

    Conversations that were in unreadable `gaps` get a substitute row. Other turns without a conversation are deleted.
    """
    query = """SELECT conversation, min(asked), max(asked) FROM turn
        WHERE conversation NOT IN (SELECT id FROM conversation) GROUP BY conversation"""
    for conversation, first, last in target.execute(query).fetchall():
        if any(low <= conversation <= high for low, high in gaps):  # otherwise the conversation was deleted
            insert = "INSERT INTO conversation (id, model, created, used) VALUES (?, '', ?, ?)"
            target.execute(insert, (conversation, first, last))
    if target.execute("DELETE FROM turn WHERE conversation NOT IN (SELECT id FROM conversation)").rowcount:
        mark(target)
    target.execute("DELETE FROM conversation WHERE id NOT IN (SELECT conversation FROM turn)")
    target.execute("UPDATE conversation SET newest = (SELECT max(id) FROM turn WHERE conversation = conversation.id)")


def _account(source: sqlite3.Connection, target: sqlite3.Connection, gaps: bool, phrase_count: int | None) -> str:
    """Return what was copied: "3 of 4 conversations, 70 of 90 phrases and 5 measurements"; empty if nothing was.

    Lost conversations are found in an index of the file. `phrase_count` counts the file's phrases; None if unknown.
    """
    index, unknown = "SELECT conversation, id FROM turn INDEXED BY turn_by_conversation", list[Gap]()
    turns = set(target.execute("SELECT conversation, id FROM turn").fetchall())
    lost = {row[0] for row in _rows(source, index, "conversation", "", unknown) if row not in turns}
    conversations = {conversation for conversation, _ in turns}
    phrases, measurements = (
        target.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ("phrase", "measurement")
    )
    if not (conversations or lost or phrases or measurements):
        return ""
    copied, every = len(conversations), counted(len(conversations | lost), "conversation")
    every = f"at least {every}" if gaps and unknown else every
    part = f" ({len(lost & conversations):,} of them incomplete)" if lost & conversations else ""
    copied_phrases = "" if phrase_count is None else f"{phrases:,} of "
    copied_phrases += counted(max(phrases, phrase_count or 0), "phrase")
    copied_measurements = counted(measurements, "measurement")
    return f"{copied:,} of {every}{part}, {copied_phrases} and {copied_measurements}"


def _copy(
    source: sqlite3.Connection, target: sqlite3.Connection, table: str, key: str, condition: str = ""
) -> list[Gap]:
    """Copy the readable rows of a table. Return the ranges of `key` with unreadable rows."""
    try:
        present = {name for _, name, *_ in source.execute(f"PRAGMA table_info({table})")}
    except sqlite3.DatabaseError:
        present = set()
    names = [name for _, name, *_ in target.execute(f"PRAGMA table_info({table})") if name in present]
    if not names:
        return [(0, LAST)]
    columns, gaps = ", ".join(names), list[Gap]()
    insert = f"INSERT OR IGNORE INTO {table} ({columns}) VALUES ({', '.join('?' * len(names))})"
    for row in _rows(source, f"SELECT {key}, {columns} FROM {table}", key, condition, gaps):
        target.execute(insert, row[1:])
    return gaps


def _rows(
    source: sqlite3.Connection, select: str, key: str, condition: str, gaps: list[Gap]
) -> Iterator[tuple[Any, ...]]:
    """Yield the readable rows, whose first column is `key`. Add the ranges of unreadable rows to `gaps`."""
    ranges, halvings = [(0, LAST)], 0
    while ranges:
        low, high = ranges.pop()
        for order in ("ASC", "DESC"):
            query = f"{select} WHERE {condition}{key} BETWEEN ? AND ? ORDER BY {key} {order}"
            try:
                for row in source.execute(query, (low, high)):
                    yield row
                    low, high = (min(row[0] + 1, LAST), high) if order == "ASC" else (low, row[0] - 1)
                break
            except sqlite3.DatabaseError:  # this page cannot be read: rows after it are reached from the other end
                pass
        else:
            halvings += 1
            if low < high and halvings < MOST_HALVINGS:
                middle = (low + high) // 2
                ranges += [(middle + 1, high), (low, middle)]
            elif low <= high:
                gaps.append((low, high))
