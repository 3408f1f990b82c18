"""Unsent prompts of a chat. They are saved while the user types, so that they survive the end of the process."""

import os
import sqlite3
from collections.abc import Callable
from functools import cached_property

from localspec.store.database import Database, StoreTrouble

_Row = tuple[int, float, str, str | None, int | None]  # process, began, text, server, conversation
CLOCK = 2.0  # by this many seconds the start of a process may seem to move when the clock is set


def make_drafts(connection: sqlite3.Connection) -> None:
    # `began` distinguishes a process from a later one with the same number.
    # `server` is NULL if no server was to get the draft, and `conversation` if it was the first prompt of a new one.
    connection.execute(
        """CREATE TABLE draft (process INTEGER NOT NULL, began REAL NOT NULL, text TEXT NOT NULL, server TEXT,
            conversation INTEGER, PRIMARY KEY (process, began))"""
    )


PROBES = ("SELECT process, began, text, server, conversation FROM draft LIMIT 1",)


class Drafts:
    """The saved drafts, which are unsent prompts: one per process. Any thread may use this object; all calls may raise
    StoreTrouble.

    `server` is the address to which a draft would be sent. A draft for one server is never offered for another server.
    A draft of a `conversation` is offered only there or, after its deletion, in a new conversation.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    @cached_property
    def _owner(self) -> tuple[int, float]:
        import psutil  # only if somebody types: importing it takes longer than the rest of the store

        return os.getpid(), psutil.Process().create_time()

    def keep(self, text: str, server: str | None = None, conversation: int | None = None) -> None:
        """Replace the draft of this process by this text, or delete the draft if the text is empty."""

        def write(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM draft WHERE process = ? AND began = ?", self._owner)
            if text:
                storable = text.encode("utf-8", "replace").decode().replace("\0", "\N{SYMBOL FOR NULL}")
                connection.execute(
                    "INSERT INTO draft (process, began, text, server, conversation) VALUES (?, ?, ?, ?, ?)",
                    (*self._owner, storable, server, conversation),
                )

        self._database.save(write)
        if text and (reason := self._database.why_lost):
            raise StoreTrouble(reason)

    def orphaned(self) -> int:
        """Return the number of drafts of processes that have ended."""
        return len(self._database.read(_orphaned))

    def take_orphaned(self, server: str | None = None, conversation: int | None = None) -> list[str]:
        """Delete the drafts of ended processes for this server and conversation. Return them, the oldest process first.

        If `conversation` is None, return the drafts for a new conversation, and those of deleted conversations.
        """
        return self._database.save(
            lambda connection: _remove(connection, lambda row: row[3:] == (server, conversation))
        )

    def waiting(self, server: str | None = None) -> list[int]:
        """Return the ids of conversations for which an ended process left a draft for this server."""
        orphaned = self._database.read(_orphaned)
        return [row[4] for row in orphaned if row[3] == server and row[4] is not None]

    def remove_orphaned(self) -> int:
        """Delete the drafts of ended processes, and overwrite them in the database's files.

        Return their number. Raises StoreTrouble.
        """
        removed = len(self._database.delete(lambda connection: _remove(connection, lambda _: True)))
        self._database.overwrite_deleted("The unsent prompts were removed")
        return removed


def _orphaned(connection: sqlite3.Connection) -> list[_Row]:
    existing = "SELECT id FROM conversation WHERE conversation.id = draft.conversation"
    query = f"SELECT process, began, text, server, ({existing}) FROM draft ORDER BY began"
    rows = connection.execute(query).fetchall()
    return [row for row in rows if not _is_alive(*row[:2])]


def _remove(connection: sqlite3.Connection, condition: Callable[[_Row], bool]) -> list[str]:
    orphaned = [row for row in _orphaned(connection) if condition(row)]
    connection.executemany("DELETE FROM draft WHERE process = ? AND began = ?", (row[:2] for row in orphaned))
    return [row[2] for row in orphaned]


def _is_alive(process: int, began: float) -> bool:
    import psutil

    try:
        return bool(abs(psutil.Process(process).create_time() - began) < CLOCK)
    except psutil.Error:
        return False
