"""Conversations, kept as they happen: verbatim private text, found again by its words, deleted to the last byte."""

import json
import re
import sqlite3
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from localspec.errors import LocalspecError
from localspec.outside_files import parse_json
from localspec.store.database import Database, StoreTrouble
from localspec.store.titles import cut, title_of
from localspec.store.values import moment, text
from localspec.text import one_line

EXCERPT = 100
REASONS = ("stop", "length", "interrupted")
BEFORE_HIT = 30
TRIGRAMS = 60

_UNSTORABLE = re.compile("[\0\ud800-\udfff]")


@dataclass(frozen=True)
class Turn:
    """A prompt and its reply; `asked` is in seconds since 1970.

    `reason` is "stop", "length" or "interrupted"; None while the reply is being written, or where its process was
    killed. A turn without a reply is unanswered; only the last of a conversation can be.
    """

    id: int
    prompt: str
    reply: str
    reason: str | None
    figures: Mapping[str, Any] = field(default_factory=dict)
    asked: float = 0.0


class ConversationInfo(NamedTuple):
    """One conversation; times in seconds since 1970.

    Its `title` is the one it was given, else made of its first prompt: safe, and on one short line. `branch_of` is the
    conversation that it went on from in another way.
    """

    id: int
    title: str
    model: str
    created: float
    used: float
    turns: int
    branch_of: int | None = None


class Saved(NamedTuple):
    """All of one conversation."""

    info: ConversationInfo
    system: str | None
    turns: tuple[Turn, ...]


class Found(NamedTuple):
    """A conversation that holds some words: the id of its newest turn with all of them, and a safe line around one."""

    info: ConversationInfo
    turn: int
    excerpt: str


def make_conversations(connection: sqlite3.Connection) -> None:
    # AUTOINCREMENT: the id of what was deleted never means something else.
    connection.execute(
        """CREATE TABLE conversation (
            id INTEGER PRIMARY KEY AUTOINCREMENT, model TEXT NOT NULL, system TEXT,
            created REAL NOT NULL, used REAL NOT NULL)"""
    )
    connection.execute(
        """CREATE TABLE turn (
            id INTEGER PRIMARY KEY AUTOINCREMENT, conversation INTEGER NOT NULL, prompt TEXT NOT NULL,
            reply TEXT NOT NULL, reason TEXT, figures TEXT NOT NULL, asked REAL NOT NULL)"""
    )
    connection.execute("CREATE INDEX turn_by_conversation ON turn (conversation)")
    # A growing reply is saved every second, and an unanswered prompt is taken back: neither is worth indexing, and
    # so few are searched without.
    connection.execute("CREATE INDEX turn_not_indexed ON turn (id) WHERE reason IS NULL OR reply = ''")
    connection.execute(
        "CREATE VIEW turn_indexed AS SELECT id, prompt, reply FROM turn WHERE reason IS NOT NULL AND reply <> ''"
    )
    # detail=none: which turns hold a trigram and not where, a fifth of the size; the text itself is looked at anyway.
    connection.execute(
        """CREATE VIRTUAL TABLE trigram USING fts5 (prompt, reply, content='turn_indexed', content_rowid='id',
            tokenize='trigram', detail=none, columnsize=0)"""
    )
    insert = "INSERT INTO trigram (rowid, prompt, reply) VALUES (new.id, new.prompt, new.reply)"
    delete = "INSERT INTO trigram (trigram, rowid, prompt, reply) VALUES ('delete', old.id, old.prompt, old.reply)"
    for name, when, row, statement in (
        ("turn_in", "AFTER INSERT", "new", insert),
        ("turn_changes", "BEFORE UPDATE", "old", delete),
        ("turn_changed", "AFTER UPDATE", "new", insert),
        ("turn_out", "BEFORE DELETE", "old", delete),
    ):
        connection.execute(
            f"""CREATE TRIGGER {name} {when} ON turn WHEN {row}.reason IS NOT NULL AND {row}.reply <> ''
            BEGIN {statement}; END"""
        )


def make_branches(connection: sqlite3.Connection) -> None:
    connection.execute("ALTER TABLE conversation ADD COLUMN title TEXT")
    connection.execute("ALTER TABLE conversation ADD COLUMN branch_of INTEGER")


# One statement for each part: together they touch every table and index from its root to a leaf.
PROBES = (
    "SELECT id, model, system, created, used, title, branch_of FROM conversation LIMIT 1",
    "SELECT seq FROM sqlite_sequence LIMIT 1",
    "SELECT id, conversation, prompt, reply, reason, figures, asked FROM turn ORDER BY id DESC LIMIT 1",
    "SELECT conversation FROM turn INDEXED BY turn_by_conversation WHERE conversation = 1 LIMIT 1",
    "SELECT id FROM turn INDEXED BY turn_not_indexed WHERE reason IS NULL OR reply = '' LIMIT 1",
    "SELECT block FROM trigram_data ORDER BY id DESC LIMIT 1",
    "SELECT v FROM trigram_config",
    "SELECT rowid FROM trigram WHERE trigram MATCH '\"...\"' LIMIT 1",
)

# Ids and not times put them in order: a clock that was set back must not hide the newest one.
INFOS = """SELECT id, (SELECT substr(prompt, 1, 1000) FROM turn WHERE conversation = owner ORDER BY id LIMIT 1),
    title, model, created, used, turns, branch_of FROM conversation
    JOIN (SELECT conversation AS owner, count(*) AS turns, max(id) AS newest FROM turn {where} GROUP BY conversation)
    ON owner = id ORDER BY newest DESC LIMIT ?"""
ALL_INFOS, ONE_INFO = INFOS.format(where=""), INFOS.format(where="WHERE conversation = ?")
# One statement, so that what another process deletes meanwhile is there altogether or not at all.
WHOLE = """SELECT turn.id, prompt, reply, reason, figures, asked, model, system, created, used, title, branch_of
    FROM turn JOIN conversation ON conversation.id = conversation WHERE conversation = ? ORDER BY turn.id"""
TAKE_BACK = "DELETE FROM turn WHERE id = ? AND conversation = ? AND reply = ''"
CANDIDATES = """SELECT id, conversation, prompt, reply FROM turn WHERE id IN
    (SELECT rowid FROM trigram WHERE trigram MATCH ?
    UNION ALL SELECT id FROM turn WHERE reason IS NULL OR reply = '') ORDER BY id DESC"""
EVERY_TURN = "SELECT id, conversation, prompt, reply FROM turn ORDER BY id DESC"


class WentOn(LocalspecError):
    """Another process has said something in this conversation."""


class History:
    """The conversations in a database. It may be used from any thread; every call may raise StoreTrouble.

    What SQLite cannot hold or would stop at is replaced in the text it is given: lone surrogates and NUL.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    @property
    def ever_kept(self) -> bool:
        """Whether a conversation was ever kept in this file, also one that has been deleted since."""
        query = "SELECT count(*) FROM sqlite_sequence WHERE name = 'conversation'"
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
    ) -> tuple[int, int]:
        """Begins a turn; returns the ids of its conversation and of the turn.

        A new conversation is made where there is none of that id (any more). The turn `instead` of which this one is
        begun is taken back, if it is unanswered: another process may be about to answer the last one. Raises WentOn,
        with nothing said, where the `newest` turn that the caller knows, if it is given, is not that of the
        conversation.
        """
        now = time.time()
        about = (_storable(model), None if system is None else _storable(system), now)
        first = (_storable(prompt), now)

        def write(connection: sqlite3.Connection) -> tuple[int, int]:
            if newest is not None:
                query = "SELECT max(id) FROM turn WHERE conversation = ?"
                if connection.execute(query, (conversation,)).fetchone()[0] not in (None, newest):
                    raise WentOn(f"Conversation {conversation} has gone on elsewhere.")
            update = "UPDATE conversation SET model = ?, system = ?, used = ? WHERE id = ?"
            if conversation is not None and connection.execute(update, (*about, conversation)).rowcount:
                number = conversation
                connection.execute(TAKE_BACK, (instead, number))
            else:
                insert = "INSERT INTO conversation (model, system, used, created) VALUES (?, ?, ?, ?)"
                number = _made(connection.execute(insert, (*about, now)))
            insert = "INSERT INTO turn (conversation, prompt, asked, reply, figures) VALUES (?, ?, ?, '', '{}')"
            return number, _made(connection.execute(insert, (number, *first)))

        return self._database.save(write)

    def branch(self, origin: int, turns: Sequence[Turn], *, model: str, system: str | None) -> tuple[int, list[int]]:
        """Keeps these turns once more, as the beginning of another conversation; returns its id and theirs.

        Where there is no conversation `origin` (any more) nothing is kept again that was deleted: id 0, and no turns.
        """
        now = time.time()
        rows = [
            (_storable(turn.prompt), _storable(turn.reply), turn.reason, json.dumps(dict(turn.figures)), turn.asked)
            for turn in turns
        ]

        def copy(connection: sqlite3.Connection) -> tuple[int, list[int]]:
            if connection.execute("SELECT id FROM conversation WHERE id = ?", (origin,)).fetchone() is None:
                return 0, []
            # The title that a person gave goes along; the conversations are told apart by what was said last.
            insert = """INSERT INTO conversation (model, system, used, created, title, branch_of)
                SELECT ?, ?, ?, ?, title, id FROM conversation WHERE id = ?"""
            about = (_storable(model), None if system is None else _storable(system), now, now, origin)
            number = _made(connection.execute(insert, about))
            insert = "INSERT INTO turn (conversation, prompt, reply, reason, figures, asked) VALUES (?, ?, ?, ?, ?, ?)"
            return number, [_made(connection.execute(insert, (number, *row))) for row in rows]

        return self._database.save(copy)

    def rename(self, conversation: int, title: str) -> bool:
        """Gives it a title; an empty one gives back that of its first prompt. False where there is none of that id."""
        row = (_storable(title).strip() or None, conversation)

        def update(connection: sqlite3.Connection) -> bool:
            return connection.execute("UPDATE conversation SET title = ? WHERE id = ?", row).rowcount == 1

        return self._database.save(update)

    def write(self, turn: int, reply: str, reason: str | None = None, figures: Mapping[str, Any] | None = None) -> bool:
        """Keeps the reply so far, and with a `reason` the whole of it. False where the turn is gone."""
        row = (_storable(reply), reason, json.dumps(dict(figures or {})), turn)

        def update(connection: sqlite3.Connection) -> bool:
            found = connection.execute("UPDATE turn SET reply = ?, reason = ?, figures = ? WHERE id = ?", row).rowcount
            if reason is not None:
                query = "UPDATE conversation SET used = ? WHERE id = (SELECT conversation FROM turn WHERE id = ?)"
                connection.execute(query, (time.time(), turn))
            return found == 1

        return self._database.save(update)

    def conversations(self, limit: int | None = None) -> list[ConversationInfo]:
        """The most recently used first."""
        bound = -1 if limit is None else min(limit, 2**63 - 1)  # SQLite takes no larger number
        return self._database.read(lambda connection: [_info(row) for row in connection.execute(ALL_INFOS, (bound,))])

    def latest(self) -> int | None:
        """The conversation used most recently."""
        infos = self.conversations(1)
        return infos[0].id if infos else None

    def read(self, conversation: int) -> Saved | None:
        """All of a conversation, or None where there is none of that id."""

        if not 0 < conversation < 2**63:  # SQLite takes no larger number
            return None
        rows = self._database.read(lambda connection: connection.execute(WHOLE, (conversation,)).fetchall())
        if not rows:
            return None
        model, system, created, used, title, branch_of = rows[0][6:]
        turns = tuple(
            Turn(number, text(prompt), text(reply), _reason(reason), _figures(figures), moment(asked))
            for number, prompt, reply, reason, figures, asked, *_ in rows
        )
        system = None if system is None else text(system)
        given = (title, model, created, used, len(turns), branch_of)
        info = _info((conversation, turns[0].prompt, *given))
        return Saved(info, system, turns)

    def search(self, words: str, limit: int = 50) -> list[Found]:
        """The conversations with a turn that holds all the words, in prompt or reply: the newest such turn of each.

        Words are parts of text between white space, whatever characters they are made of; case does not count.
        """
        wanted = [re.compile(re.escape(word), re.IGNORECASE) for word in _storable(words).split()]
        match = _match(_storable(words).split())
        query, values = (CANDIDATES, (match,)) if match else (EVERY_TURN, ())

        def find(connection: sqlite3.Connection) -> list[Found]:
            found: dict[int, Found] = {}
            for turn, conversation, prompt, reply in connection.execute(query, values):
                if len(found) >= limit:
                    break
                prompt, reply = text(prompt), text(reply)
                if conversation not in found and all(word.search(prompt) or word.search(reply) for word in wanted):
                    for row in connection.execute(ONE_INFO, (conversation, 1)):
                        found[conversation] = Found(_info(row), turn, _excerpt(wanted[0], prompt, reply))
            return list(found.values())

        return self._database.read(find) if wanted else []

    def prompts(self, limit: int) -> list[str]:
        """The newest distinct prompts, newest first."""

        def find(connection: sqlite3.Connection) -> list[str]:
            found: dict[str, None] = {}
            for (prompt,) in connection.execute("SELECT prompt FROM turn ORDER BY id DESC"):
                if len(found) >= limit:
                    break
                found[text(prompt)] = None
            return list(found)

        return self._database.read(find)

    def remove(self, conversations: Sequence[int]) -> int:
        """Deletes these conversations, so that their bytes are gone from the files too; returns how many there were.

        Raises StoreTrouble; its sentence says what was done and what is left to do.
        """
        chosen = [(conversation,) for conversation in conversations]

        def delete(connection: sqlite3.Connection) -> int:
            connection.executemany("DELETE FROM turn WHERE conversation = ?", chosen)
            removed = connection.executemany("DELETE FROM conversation WHERE id = ?", chosen).rowcount
            # Deleting a row only adds a note to the index that its trigrams no longer count.
            connection.execute("INSERT INTO trigram (trigram) VALUES ('rebuild')")
            return removed

        path = self._database.path
        removed = self._database.save(delete)
        if self._database.path != path:
            raise StoreTrouble(f"Nothing was removed, because {path} is broken: delete what it was set aside as.")
        if problem := self._database.scrub():
            raise StoreTrouble(
                f"{removed} conversation{'' if removed == 1 else 's'} removed, but their bytes may still be in {path}"
                f" and its -wal file ({problem}) until every other localspec session is closed."
            )
        return removed


def _storable(text: str) -> str:
    return _UNSTORABLE.sub(lambda found: "\N{SYMBOL FOR NULL}" if found[0] == "\0" else "\ufffd", text)


def _made(cursor: sqlite3.Cursor) -> int:
    """The id of the row just inserted."""
    number = cursor.lastrowid
    assert number is not None
    return number


def _info(row: tuple[Any, ...]) -> ConversationInfo:
    number, prompt, given, model, created, used, turns, origin = row
    title = title_of(text(prompt)) if given is None else cut(one_line(text(given)))
    branch_of = origin if isinstance(origin, int) else None
    return ConversationInfo(number, title, text(model), moment(created), moment(used), turns, branch_of)


def _reason(value: object) -> str | None:
    return value if isinstance(value, str) and value in REASONS else None


def _figures(stored: str) -> Mapping[str, Any]:
    try:
        figures = parse_json(stored)
    except (ValueError, TypeError):
        return {}
    return figures if isinstance(figures, dict) else {}


def _match(words: Sequence[str]) -> str:
    """The query for turns that hold the trigrams of these words; empty where none is long enough to have one."""
    # Quoted, so that nothing in them is syntax; bounded, since a query may not grow without end.
    trigrams = dict.fromkeys(word[start : start + 3] for word in words for start in range(len(word) - 2))
    return " ".join('"' + trigram.replace('"', '""') + '"' for trigram in list(trigrams)[:TRIGRAMS])


def _excerpt(word: re.Pattern[str], prompt: str, reply: str) -> str:
    """One line of text around the word."""
    text, hit = next(((text, hit) for text in (prompt, reply) if (hit := word.search(text))), (prompt, None))
    start = max(0, hit.start() - BEFORE_HIT) if hit else 0
    excerpt = one_line(text[start : start + EXCERPT])
    return f"{'…' if start else ''}{excerpt}{'…' if start + EXCERPT < len(text) else ''}"
