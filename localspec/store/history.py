"""Conversations, kept as they happen: verbatim private text, found again by its words, deleted to the last byte."""

import json
import re
import sqlite3
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from itertools import islice
from typing import Any

from localspec.errors import LocalspecError
from localspec.store import removal, volumes
from localspec.store.conversation_rows import figures_from, info_from, info_of, parting_of, turn_from
from localspec.store.conversations import ConversationInfo, Found, Saved, Source, Turn
from localspec.store.database import Database
from localspec.store.presence import Presence
from localspec.store.searched_words import excerpt, folded_words, hold, index_query
from localspec.store.values import text

_UNSTORABLE = re.compile("[\0\ud800-\udfff]")


# Ids and not times put them in order: a clock that was set back must not hide the newest one.
NEWEST_FIRST = "SELECT id, volume FROM conversation ORDER BY newest DESC"
WHOLE = """SELECT turn.id, prompt, reply, reason, figures, asked, reasoning,
    model, about.system, created, used, about.title, branch_of, source
    FROM turn{volume} AS turn JOIN conversation ON conversation.id = turn.conversation
    LEFT JOIN about{volume} AS about ON about.conversation = turn.conversation
    WHERE turn.conversation = ? ORDER BY turn.id"""
ABOUT = """INSERT INTO about{volume} (conversation, {column}) VALUES (?, ?)
    ON CONFLICT (conversation) DO UPDATE SET {column} = excluded.{column}"""
TAKE_BACK = "DELETE FROM turn{volume} WHERE id = ? AND conversation = ? AND reply = '' AND reasoning = ''"
CANDIDATES = """SELECT id, conversation, prompt, reply FROM turn{volume} WHERE id IN
    (SELECT rowid FROM trigram{volume} WHERE trigram{volume} MATCH ?
    UNION ALL SELECT id FROM turn{volume} WHERE reason IS NULL OR reply = '') ORDER BY id DESC"""
EVERY_TURN = "SELECT id, conversation, prompt, reply FROM turn{volume} ORDER BY id DESC"
TITLED = """SELECT newest, named.conversation, named.title FROM about{volume} AS named
    JOIN conversation ON conversation.id = named.conversation
    WHERE named.title IS NOT NULL AND typeof(newest) = 'integer' ORDER BY newest DESC"""
EVERY_PROMPT = "SELECT id, prompt, figures FROM turn{volume} ORDER BY id DESC"


class WentOn(LocalspecError):
    """Another process has said something in this conversation."""


class History:
    """The conversations in a database. It may be used from any thread; every call may raise StoreTrouble.

    `presence` tells which of them is open here, and whether another window has it open, too.
    What SQLite cannot hold or would stop at is replaced in the text it is given: lone surrogates and NUL.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self.presence = Presence(database.path)
        self._counted: dict[int, int] = {}

    @property
    def lasts(self) -> bool:
        """Whether what is kept here outlives the process: it does not in memory, where no file could be used."""
        return self._database.path is not None

    @property
    def why_lost(self) -> str:
        """The sentence on why it does not, where no file could be used from the beginning; else nothing."""
        return self._database.why_lost

    def reach_file(self) -> None:
        """Where no file could be used: tries once more."""
        self._database.reach_file()

    @property
    def ever_kept(self) -> bool:
        """Whether a conversation was ever kept in this file, also one that has been deleted since."""
        query = "SELECT count(*) FROM sqlite_sequence WHERE name = 'conversation' AND seq > 0"
        return bool(self._database.read(lambda connection: connection.execute(query).fetchone()[0]))

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
        """Begins a turn; returns the ids of its conversation and of the turn.

        A new conversation is made where there is none of that id (any more). The turn `instead` of which this one is
        begun is taken back, if it is unanswered: another process may be about to answer the last one. Raises WentOn,
        with nothing said, where the `newest` turn that the caller knows, if it is given, is not that of the
        conversation. `asked` is when it was said, if that was earlier. `source` is where; a conversation of pipes that
        somebody goes on with in a chat is no longer one of pipes.
        """
        now = time.time()
        about, used = None if system is None else _storable(system), (_storable(model), now)
        first = (_storable(prompt), now if asked is None else asked)

        def write(connection: sqlite3.Connection) -> tuple[int, int]:
            place = volumes.of_conversation(connection, conversation)
            if conversation is None or place is None:
                place = volumes.with_room(connection)
                insert = "INSERT INTO conversation (model, used, created, volume, source) VALUES (?, ?, ?, ?, ?)"
                number = _made(connection.execute(insert, (*used, now, place, source)))
                volume = volumes.suffix(place)
            else:
                number, volume = conversation, volumes.suffix(place)
                query = f"SELECT max(id) FROM turn{volume} WHERE conversation = ?"
                if newest is not None and connection.execute(query, (number,)).fetchone()[0] not in (None, newest):
                    raise WentOn(f"Conversation {number} has gone on elsewhere.")
                connection.execute("UPDATE conversation SET model = ?, used = ? WHERE id = ?", (*used, number))
                if source == "chat":
                    connection.execute(
                        "UPDATE conversation SET source = 'run' WHERE id = ? AND source = 'pipe'", (number,)
                    )
                connection.execute(TAKE_BACK.format(volume=volume), (instead, number))
            connection.execute(ABOUT.format(volume=volume, column="system"), (number, about))
            turn = volumes.new_turn_id(connection)
            columns = "(id, conversation, prompt, asked, reply, figures)"
            insert = f"INSERT INTO turn{volume} {columns} VALUES (?, ?, ?, ?, '', '{{}}')"
            connection.execute(insert, (turn, number, *first))
            return number, turn

        return self._database.save(write)

    def branch(
        self, origin: int, turns: Sequence[Turn], *, model: str, system: str | None, source: Source = "chat"
    ) -> tuple[int, list[int]]:
        """Keeps these turns once more, as the beginning of another conversation; returns its id and theirs.

        Where there is no conversation `origin` (any more) nothing is kept again that was deleted: id 0, and no turns.
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
            there = volumes.of_conversation(connection, origin)
            if there is None:
                return 0, []
            place = volumes.with_room(connection)
            columns = "(model, used, created, volume, branch_of, source)"
            insert = f"INSERT INTO conversation {columns} VALUES (?, ?, ?, ?, ?, ?)"
            number = _made(connection.execute(insert, (_storable(model), now, now, place, origin, source)))
            # The title that a person gave goes along; the conversations are told apart by what was said last.
            title = f"SELECT title FROM about{volumes.suffix(there)} WHERE conversation = ?"
            insert = f"INSERT INTO about{volumes.suffix(place)} VALUES (?, ({title}), ?)"
            connection.execute(insert, (number, origin, None if system is None else _storable(system)))
            insert = f"""INSERT INTO turn{volumes.suffix(place)}
                (id, conversation, prompt, reply, reason, figures, asked, reasoning) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"""
            ids = [volumes.new_turn_id(connection) for _ in rows]
            connection.executemany(insert, ((turn, number, *row) for turn, row in zip(ids, rows, strict=True)))
            return number, ids

        return self._database.save(copy)

    def rename(self, conversation: int, title: str) -> bool:
        """Gives it a title; an empty one gives back that of its first prompt. False where there is none of that id."""
        return self._tell_about(conversation, "title", _storable(title).strip() or None)

    def instruct(self, conversation: int, system: str | None) -> bool:
        """Keeps its system prompt, or that it has none. False where there is no conversation of that id."""
        return self._tell_about(conversation, "system", None if system is None else _storable(system))

    def _tell_about(self, conversation: int, column: str, value: str | None) -> bool:
        def update(connection: sqlite3.Connection) -> bool:
            place = volumes.of_conversation(connection, conversation)
            if place is not None:
                connection.execute(ABOUT.format(volume=volumes.suffix(place), column=column), (conversation, value))
            return place is not None

        return self._database.save(update)

    def write(
        self,
        turn: int,
        reply: str,
        reason: str | None = None,
        figures: Mapping[str, Any] | None = None,
        reasoning: str = "",
    ) -> bool:
        """Keeps the reply so far, and with a `reason` the whole of it. False where the turn is gone."""
        row = (_storable(reply), reason, json.dumps(dict(figures or {})), _storable(reasoning), turn)

        def update(connection: sqlite3.Connection) -> bool:
            place = volumes.of_turn(connection, turn)
            if place is None:
                return False
            table = f"turn{volumes.suffix(place)}"
            connection.execute(
                f"UPDATE {table} SET reply = ?, reason = ?, figures = ?, reasoning = ? WHERE id = ?", row
            )
            if reason is not None:
                query = f"UPDATE conversation SET used = ? WHERE id = (SELECT conversation FROM {table} WHERE id = ?)"
                connection.execute(query, (time.time(), turn))
            return True

        return self._database.save(update)

    def conversations(
        self, limit: int | None = None, among: Callable[[ConversationInfo], bool] = lambda info: True
    ) -> list[ConversationInfo]:
        """The most recently used first, only those `among` which they are meant to be."""

        def find(connection: sqlite3.Connection) -> list[ConversationInfo]:
            numbers = set(volumes.every(connection))
            with closing(connection.execute(NEWEST_FIRST)) as places:
                found = (info_of(connection, *place) for place in places if place[1] in numbers)
                infos = (info for info in found if info is not None and among(info))
                return list(islice(infos, None if limit is None else min(limit, sys.maxsize)))

        return self._database.at_once(find)

    def partings(self, pairs: Sequence[tuple[int, int]]) -> dict[tuple[int, int], tuple[Turn | None, Turn | None]]:
        """Return the first turns of two conversations that are unlike, by pairs of ids; None where one has no more.

        Of two that are alike they are the last turns. Pairs of which one is not there (any more) are left out.
        """

        def find(connection: sqlite3.Connection) -> dict[tuple[int, int], tuple[Turn | None, Turn | None]]:
            return {pair: parting for pair in pairs if (parting := parting_of(connection, *pair)) is not None}

        return self._database.at_once(find)

    def unused_since(self, seconds: float) -> list[ConversationInfo]:
        """Those used last before a time in seconds since 1970; one without a time is not known to be old."""
        return [info for info in self.conversations() if 0 < info.used < seconds]

    def info(self, conversation: int) -> ConversationInfo | None:
        """What is said of one conversation in a list, or None where there is none of that id."""
        return self._database.at_once(lambda connection: info_of(connection, conversation))

    def latest(self, among: Callable[[ConversationInfo], bool] = lambda info: True) -> int | None:
        """The conversation used most recently, `among` these."""
        infos = self.conversations(1, among)
        return infos[0].id if infos else None

    def read(self, conversation: int) -> Saved | None:
        """All of a conversation, or None where there is none of that id."""
        if not 0 < conversation < 2**63:  # SQLite takes no larger number
            return None

        def find(connection: sqlite3.Connection) -> list[Any]:
            place = volumes.of_conversation(connection, conversation)
            if place is None:
                return []
            volumes.compare_turns(connection, place, conversation)
            return connection.execute(WHOLE.format(volume=volumes.suffix(place)), (conversation,)).fetchall()

        rows = self._database.at_once(find)
        if not rows:
            return None
        model, system, created, used, title, branch_of, source = rows[0][7:]
        turns = tuple(turn_from(row[:7]) for row in rows)
        system = None if system is None else text(system)
        given = (title, model, created, used, len(turns), branch_of, source)
        info = info_from((conversation, turns[0].prompt, *given))
        return Saved(info, system, turns)

    def search(self, words: str, limit: int = 50) -> list[Found]:
        """The conversations with a turn that holds all the words, in prompt or reply: the newest such turn of each.

        A title that somebody gave is looked at as well, and stands for the newest turn of all. Words are parts of text
        between white space, whatever characters they are made of; case does not count, nor how accents are written.
        """
        wanted = folded_words(_storable(words))
        match = index_query(_storable(words).split())
        query, values = (CANDIDATES, (match,)) if match else (EVERY_TURN, ())

        def find(connection: sqlite3.Connection) -> list[Found]:
            found: dict[int, Found] = {}
            called = 0
            with closing(volumes.newest_first(connection, TITLED)) as titles:
                for turn, conversation, title in titles if limit > 0 else ():
                    title = text(title)
                    if hold(wanted, title):
                        info = info_of(connection, conversation)
                        if info is not None:
                            found[conversation] = Found(info, turn, excerpt(wanted[0], title, ""))
                    if (called := len(found)) >= limit:
                        break
            with closing(volumes.newest_first(connection, query, values, self._counted if match else None)) as turns:
                for turn, conversation, prompt, reply in turns if limit > 0 else ():
                    prompt, reply = text(prompt), text(reply)
                    if conversation not in found and hold(wanted, prompt, reply):
                        info = info_of(connection, conversation)
                        if info is not None:
                            found[conversation] = Found(info, turn, excerpt(wanted[0], prompt, reply))
                    if len(found) >= called + limit:
                        break
            newest = sorted(found.values(), key=lambda one: -one.turn)
            return newest[:limit]

        return self._database.at_once(find) if wanted else []

    def prompts(self, limit: int) -> list[str]:
        """The newest distinct prompts as they were typed, newest first."""

        def find(connection: sqlite3.Connection) -> list[str]:
            found: dict[str, None] = {}
            with closing(volumes.newest_first(connection, EVERY_PROMPT)) as turns:
                for _, prompt, figures in turns:
                    if len(found) >= limit:
                        break
                    found[Turn(0, text(prompt), "", None, figures_from(figures)).typed] = None
            return list(found)

        return self._database.at_once(find)

    def remove(self, conversations: Sequence[int]) -> int:
        """Deletes these conversations, so that their bytes are gone from the files too; returns how many there were.

        Without any, what could not be saved goes out of the log. Raises StoreTrouble; its sentence says what was done
        and what is left to do.
        """
        return removal.remove(self._database, conversations)

    def take_back(self, conversation: int) -> None:
        """Deletes it without waiting until its bytes are gone too, which the next start or deletion sees to."""
        removal.take_back(self._database, conversation)

    def strays(self) -> int:
        """How many rows belong to no conversation that is listed, as another program may leave them."""
        return removal.strays(self._database)

    def remove_strays(self) -> int:
        """Deletes those; returns how many there were. Their bytes go with the next `remove`."""
        return removal.remove_strays(self._database)

    def takes_long_to_remove(self, conversations: Sequence[int]) -> bool:
        """Whether they lie where an earlier localspec kept all in one piece, which the next deletion divides."""
        return removal.takes_long(self._database, conversations)

    def finish_removal(self) -> None:
        """Overwrites what a deletion that was stopped has left, if that is quick; else the next deletion will."""
        removal.finish_stopped(self._database)


def _storable(text: str) -> str:
    return _UNSTORABLE.sub(lambda found: "\N{SYMBOL FOR NULL}" if found[0] == "\0" else "\ufffd", text)


def _made(cursor: sqlite3.Cursor) -> int:
    """The id of the row just inserted."""
    number = cursor.lastrowid
    assert number is not None
    return number
