"""Conversations, saved while they happen.

Conversations are private text, word for word. They can be searched, and deleted without traces.
"""

import json
import os
import re
import sqlite3
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path
from typing import Any

from localspec.errors import LocalspecError
from localspec.quantities import counted
from localspec.store.cleaning import without_triggers
from localspec.store.conversations import (
    ConversationInfo,
    Found,
    Saved,
    Source,
    Turn,
    figures_from,
    info_from,
    info_of,
    parting_of,
    text,
    turn_from,
)
from localspec.store.database import Database
from localspec.store.searched_words import all_in, excerpt, folded_words, index_query

if sys.platform != "win32":
    import fcntl


class Presence:
    """A lock in a file that shows other windows which conversation is open in this window.

    Each window holds a shared lock on one byte of a file; the byte's offset is the conversation's id. The system
    releases the lock when the process ends, for any reason. On Windows, other windows are not noticed.
    """

    def __init__(self, database: Path | None) -> None:
        """Begin without an open conversation.

        `database` is the file of conversations; None if other windows cannot share them.
        """
        self._path = f"{database}-open" if database is not None and sys.platform != "win32" else ""
        self._file = -1
        self._open: int | None = None

    def enter(self, conversation: int | None) -> bool:
        """Mark this conversation as the only one open in this window. Return whether another window has it open."""
        if not self._path or conversation == self._open:
            return False
        previous, self._open, alone = self._open, conversation, True
        with suppress(OSError, OverflowError):  # a read-only disk, one without locks, or an id without a byte
            if self._file < 0:
                self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            if previous is not None:
                fcntl.lockf(self._file, fcntl.LOCK_UN, 1, previous)
            if conversation is not None:
                alone = self._lock(fcntl.LOCK_EX, conversation)
                self._lock(fcntl.LOCK_SH, conversation)
        return not alone

    def _lock(self, operation: int, conversation: int) -> bool:
        """Lock the conversation's byte of the file without waiting. Return whether that succeeded.

        A window that checks for others holds an exclusive lock for a moment.
        """
        try:
            fcntl.lockf(self._file, operation | fcntl.LOCK_NB, 1, conversation)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def close(self) -> None:
        """Release the mark: no conversation is open in this window."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


_UNSTORABLE = re.compile("[\0\ud800-\udfff]")


# Ordered by ids instead of times: a clock that was set back must not hide the newest one.
NEWEST_FIRST = "SELECT id FROM conversation ORDER BY newest DESC"
WHOLE = """SELECT turn.id, prompt, reply, reason, figures, asked, reasoning,
    model, system, created, used, title, branch_of, source
    FROM turn JOIN conversation ON conversation.id = turn.conversation WHERE turn.conversation = ? ORDER BY turn.id"""
TAKE_BACK = "DELETE FROM turn WHERE id = ? AND conversation = ? AND reply = '' AND reasoning = ''"
ADOPT = """UPDATE conversation SET branch_of = (SELECT branch_of FROM conversation WHERE id = ?)
    WHERE branch_of = ? AND (SELECT branch_of FROM conversation WHERE id = ?) IS NOT NULL"""
CANDIDATES = """SELECT id, conversation, prompt, reply FROM turn WHERE id IN
    (SELECT rowid FROM trigram WHERE trigram MATCH ?
    UNION ALL SELECT id FROM turn WHERE reason IS NULL OR reply = '') ORDER BY id DESC"""
EVERY_TURN = "SELECT id, conversation, prompt, reply FROM turn ORDER BY id DESC"
TITLED = """SELECT newest, id, title FROM conversation
    WHERE title IS NOT NULL AND typeof(newest) = 'integer' ORDER BY newest DESC"""
EVERY_PROMPT = "SELECT prompt, figures FROM turn ORDER BY id DESC"


class WentOn(LocalspecError):
    """An error: another window has continued this conversation."""


class History:
    """The conversations in a database. It may be used from any thread; every call may raise StoreTrouble.

    `database` is where they are saved, perhaps only in memory. `presence` marks the conversation that is open in this
    window. SQLite cannot store lone surrogates, and stops at NUL, so these characters are replaced.
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        self.presence = Presence(database.path)

    @property
    def ever_saved(self) -> bool:
        """Return whether a conversation was ever saved in this file, even if it was deleted later."""
        query = "SELECT count(*) FROM sqlite_sequence WHERE name = 'conversation' AND seq > 0"
        return bool(self.database.read(lambda connection: connection.execute(query).fetchone()[0]))

    def say(
        self,
        conversation: int | None,
        prompt: str,
        *,
        model: str,
        system: str | None,
        instead: int | None = None,
        newest: int | None = None,
        asked: float | None = None,
        source: Source = "chat",
    ) -> tuple[int, int]:
        """Save the prompt of a new turn. Return the ids of its conversation and of the turn.

        A new conversation is made if `conversation` is None or was deleted. The new turn replaces the turn `instead`,
        which is deleted unless another process has answered it. If `newest` is given, but another turn is the newest of
        the conversation, WentOn is raised and nothing changes. `asked` is the time of the prompt, by default now.
        `source` says where the prompt comes from. If `chat` continues a conversation of `run`, both can continue it
        from then on.
        """
        now = time.time()
        conversation_values = (_storable(model), None if system is None else _storable(system), now)
        turn_values = (_storable(prompt), now if asked is None else asked)

        def write(connection: sqlite3.Connection) -> tuple[int, int]:
            number = conversation if _is_there(connection, conversation) else None
            if number is None:
                insert = "INSERT INTO conversation (model, system, used, created, source) VALUES (?, ?, ?, ?, ?)"
                number = _inserted_id(connection.execute(insert, (*conversation_values, now, source)))
            else:
                query = "SELECT max(id) FROM turn WHERE conversation = ?"
                if newest is not None and connection.execute(query, (number,)).fetchone()[0] not in (None, newest):
                    raise WentOn(f"Conversation {number} was continued elsewhere.")
                update = "UPDATE conversation SET model = ?, system = ?, used = ? WHERE id = ?"
                connection.execute(update, (*conversation_values, number))
                if source == "chat":
                    connection.execute(
                        "UPDATE conversation SET source = NULL WHERE id = ? AND source <> 'chat'", (number,)
                    )
                connection.execute(TAKE_BACK, (instead, number))
            insert = "INSERT INTO turn (conversation, prompt, asked, reply, figures) VALUES (?, ?, ?, '', '{}')"
            return number, _inserted_id(connection.execute(insert, (number, *turn_values)))

        return self.database.save(write)

    def branch(
        self, origin: int, turns: Sequence[Turn], *, model: str, system: str | None, source: Source = "chat"
    ) -> tuple[int, list[int]]:
        """Save these turns again, as the beginning of another conversation. Return the ids of the conversation and of
        its turns.

        If there is no conversation `origin` (any more), nothing is saved, because deleted text must not return. The
        result is then id 0 and no turns.
        """
        now = time.time()
        rows = [
            (
                _storable(turn.prompt),
                _storable(turn.reply),
                turn.reason,
                json.dumps(dict(turn.figures)),
                turn.asked,
                _storable(turn.reasoning),
            )
            for turn in turns
        ]

        def copy(connection: sqlite3.Connection) -> tuple[int, list[int]]:
            if not _is_there(connection, origin):
                return 0, []
            # A user's title is copied; the last prompts distinguish the conversations.
            columns = "(model, system, used, created, branch_of, source, title)"
            title = "SELECT title FROM conversation WHERE id = ?"
            insert = f"INSERT INTO conversation {columns} VALUES (?, ?, ?, ?, ?, ?, ({title}))"
            stored_system = None if system is None else _storable(system)
            values = (_storable(model), stored_system, now, now, origin, source, origin)
            number = _inserted_id(connection.execute(insert, values))
            insert = """INSERT INTO turn (conversation, prompt, reply, reason, figures, asked, reasoning)
                VALUES (?, ?, ?, ?, ?, ?, ?)"""
            return number, [_inserted_id(connection.execute(insert, (number, *row))) for row in rows]

        return self.database.save(copy)

    def rename(self, conversation: int, title: str) -> bool:
        """Set the title of a conversation.

        An empty title restores the title made from the first prompt. Return False if the conversation does not exist.
        """
        return self._set_column(conversation, "title", _storable(title).strip() or None)

    def instruct(self, conversation: int, system: str | None) -> bool:
        """Save the system prompt of a conversation, or remove it (None). Return False if no row has this id."""
        return self._set_column(conversation, "system", None if system is None else _storable(system))

    def _set_column(self, conversation: int, column: str, value: str | None) -> bool:
        update = f"UPDATE conversation SET {column} = ? WHERE id = ?"
        return self.database.save(lambda connection: connection.execute(update, (value, conversation)).rowcount > 0)

    def write(
        self,
        turn: int,
        reply: str,
        reason: str | None = None,
        figures: Mapping[str, Any] | None = None,
        reasoning: str = "",
    ) -> bool:
        """Save the reply so far. A `reason` says why the reply ended. Return False if the turn no longer exists."""
        row = (_storable(reply), reason, json.dumps(dict(figures or {})), _storable(reasoning), turn)

        def update(connection: sqlite3.Connection) -> bool:
            change = "UPDATE turn SET reply = ?, reason = ?, figures = ?, reasoning = ? WHERE id = ?"
            if not connection.execute(change, row).rowcount:
                return False
            if reason is not None:
                query = "UPDATE conversation SET used = ? WHERE id = (SELECT conversation FROM turn WHERE id = ?)"
                connection.execute(query, (time.time(), turn))
            return True

        return self.database.save(update)

    def conversations(
        self, limit: int | None = None, among: Callable[[ConversationInfo], bool] = lambda info: True
    ) -> list[ConversationInfo]:
        """Return at most `limit` conversations for which `among` returns True, the most recently used first."""

        def find(connection: sqlite3.Connection) -> list[ConversationInfo]:
            with closing(connection.execute(NEWEST_FIRST)) as numbers:
                candidates = (info_of(connection, number) for (number,) in numbers)
                infos = (info for info in candidates if info is not None and among(info))
                return list(islice(infos, None if limit is None else min(limit, sys.maxsize)))

        return self.database.at_once(find)

    def partings(self, pairs: Sequence[tuple[int, int]]) -> dict[tuple[int, int], tuple[Turn | None, Turn | None]]:
        """Return, for each pair of ids, the first turns in which both conversations differ, as `parting_of` does.

        Pairs with a missing conversation are left out.
        """

        def find(connection: sqlite3.Connection) -> dict[tuple[int, int], tuple[Turn | None, Turn | None]]:
            return {pair: parting for pair in pairs if (parting := parting_of(connection, *pair)) is not None}

        return self.database.at_once(find)

    def unused_since(self, seconds: float) -> list[ConversationInfo]:
        """Return the conversations last used before a time in seconds since 1970.

        Conversations without a known time are left out.
        """
        return [info for info in self.conversations() if 0 < info.used < seconds]

    def info(self, conversation: int) -> ConversationInfo | None:
        """Return a conversation without its turns; None if it does not exist."""
        return self.database.at_once(lambda connection: info_of(connection, conversation))

    def latest(self, among: Callable[[ConversationInfo], bool] = lambda info: True) -> int | None:
        """Return the id of the most recently used conversation for which `among` returns True, or None."""
        infos = self.conversations(1, among)
        return infos[0].id if infos else None

    def read(self, conversation: int) -> Saved | None:
        """Return a whole conversation; None if it does not exist."""
        if not 0 < conversation < 2**63:  # SQLite takes no larger number
            return None

        rows = self.database.read(lambda connection: connection.execute(WHOLE, (conversation,)).fetchall())
        if not rows:
            return None
        model, system, created, used, title, branch_of, source = rows[0][7:]
        turns = tuple(turn_from(row[:7]) for row in rows)
        system = None if system is None else text(system)
        columns = (title, model, created, used, len(turns), branch_of, source)
        info = info_from((conversation, turns[0].prompt, *columns))
        return Saved(info, system, turns)

    def search(self, words: str, limit: int = 50) -> list[Found]:
        """Return the conversations with a turn that contains all the words, and the newest such turn of each.

        If a title that the user gave contains the words, the conversation is found, too, with its newest turn. Words
        are separated by white space and may contain any characters. Case does not matter, nor how accents are encoded.
        """
        terms = folded_words(_storable(words))
        match = index_query(_storable(words).split())
        query, values = (CANDIDATES, (match,)) if match else (EVERY_TURN, ())

        def find(connection: sqlite3.Connection) -> list[Found]:
            results: dict[int, Found] = {}
            title_count = 0
            with closing(connection.execute(TITLED)) as titles:
                for turn, conversation, title in titles if limit > 0 else ():
                    title = text(title)
                    if all_in(terms, title):
                        info = info_of(connection, conversation)
                        if info is not None:
                            results[conversation] = Found(info, turn, excerpt(terms[0], title, ""))
                    if (title_count := len(results)) >= limit:
                        break
            with closing(connection.execute(query, values)) as turns:
                for turn, conversation, prompt, reply in turns if limit > 0 else ():
                    prompt, reply = text(prompt), text(reply)
                    if conversation not in results and all_in(terms, prompt, reply):
                        info = info_of(connection, conversation)
                        if info is not None:
                            results[conversation] = Found(info, turn, excerpt(terms[0], prompt, reply))
                    if len(results) >= title_count + limit:
                        break
            newest = sorted(results.values(), key=lambda result: -result.turn)
            return newest[:limit]

        return self.database.at_once(find) if terms else []

    def prompts(self, limit: int) -> list[str]:
        """Return the newest distinct prompts as they were typed, newest first."""

        def find(connection: sqlite3.Connection) -> list[str]:
            prompts: dict[str, None] = {}
            with closing(connection.execute(EVERY_PROMPT)) as turns:
                for prompt, figures in turns:
                    if len(prompts) >= limit:
                        break
                    prompts[Turn(0, text(prompt), "", None, figures_from(figures)).typed] = None
            return list(prompts)

        return self.database.at_once(find)

    def remove(self, conversations: Sequence[int], everything: bool = False) -> int:
        """Delete these conversations, and their bytes in the files. Return how many conversations were deleted.

        With `everything`, also delete rows without a conversation or turn, left by another program. Raises
        StoreTrouble, whose sentence says what was deleted, and what the user must still do.
        """
        removed = self._delete(conversations, everything)
        self.database.overwrite_deleted(f"{counted(removed, 'conversation')} removed")
        return removed

    def take_back(self, conversation: int) -> None:
        """Delete a conversation; the next start overwrites its bytes."""
        self._delete([conversation], everything=False)

    def _delete(self, conversations: Sequence[int], everything: bool) -> int:
        numbers = [(number,) for number in dict.fromkeys(conversations)]

        def delete(connection: sqlite3.Connection) -> int:
            for number in numbers:  # branches of a deleted branch become branches of its origin
                connection.execute(ADOPT, number * 3)
            removed = (
                connection.executemany("DELETE FROM conversation WHERE id = ?", numbers).rowcount if numbers else 0
            )
            if everything:
                connection.execute("DELETE FROM conversation WHERE id NOT IN (SELECT conversation FROM turn)")
            if connection.execute("SELECT 1 FROM conversation LIMIT 1").fetchone() is None:
                _delete_all_turns(connection)
            elif everything:
                connection.execute("DELETE FROM turn WHERE conversation NOT IN (SELECT id FROM conversation)")
            else:
                connection.executemany("DELETE FROM turn WHERE conversation = ?", numbers)
            return removed

        return self.database.delete(delete) if numbers or everything else 0


def _delete_all_turns(connection: sqlite3.Connection) -> None:
    """Delete every turn and the whole search index, each table at once."""
    with without_triggers(connection, "turn"):
        connection.execute("DELETE FROM turn")
    connection.execute("INSERT INTO trigram (trigram) VALUES ('delete-all')")


def _storable(text: str) -> str:
    return _UNSTORABLE.sub(lambda match: "\N{SYMBOL FOR NULL}" if match[0] == "\0" else "\ufffd", text)


def _is_there(connection: sqlite3.Connection, conversation: int | None) -> bool:
    query = "SELECT 1 FROM conversation WHERE id = ?"
    return connection.execute(query, (conversation,)).fetchone() is not None


def _inserted_id(cursor: sqlite3.Cursor) -> int:
    number = cursor.lastrowid
    assert number is not None
    return number
