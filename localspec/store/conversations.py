"""Saved conversations: their tables, the turns, titles and other values that are read from their rows."""

import math
import re
import sqlite3
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Literal, NamedTuple

from localspec.outside_files import parse_json
from localspec.text import one_line

REASONS = ("stop", "length", "interrupted", "repetition")  # why a reply ended
Source = Literal["chat", "run", "pipe"]  # "pipe": by `run` with piped input or output
SOURCES: tuple[Source, ...] = ("chat", "run", "pipe")


NOT_INDEXED = "reason IS NULL OR reply = ''"  # turns that the index of words leaves out


def make_conversations(connection: sqlite3.Connection) -> None:
    """Make the tables of conversations and turns, with their indices, the search index and the triggers.

    `branch_of` is the conversation from which a branch began, `newest` the id of the newest turn, and `source` one of
    `conversations.SOURCES`.
    """
    # AUTOINCREMENT: the id of a deleted row is never used again.
    connection.execute(
        """CREATE TABLE conversation (
            id INTEGER PRIMARY KEY AUTOINCREMENT, model TEXT NOT NULL, system TEXT,
            created REAL NOT NULL, used REAL NOT NULL, title TEXT, branch_of INTEGER,
            newest INTEGER NOT NULL DEFAULT 0, source TEXT)"""
    )
    connection.execute(
        """CREATE TABLE turn (
            id INTEGER PRIMARY KEY AUTOINCREMENT, conversation INTEGER NOT NULL, prompt TEXT NOT NULL,
            reply TEXT NOT NULL, reason TEXT, figures TEXT NOT NULL, asked REAL NOT NULL,
            reasoning TEXT NOT NULL DEFAULT '')"""
    )
    connection.execute("CREATE INDEX turn_by_conversation ON turn (conversation)")
    # A growing reply is saved every second, and an unanswered prompt may be deleted: neither is worth indexing, and
    # they are few, so they are searched without the index.
    connection.execute(f"CREATE INDEX turn_not_indexed ON turn (id) WHERE {NOT_INDEXED}")
    connection.execute(
        "CREATE VIEW turn_indexed AS SELECT id, prompt, reply FROM turn WHERE reason IS NOT NULL AND reply <> ''"
    )
    # detail=none stores which turns have a trigram, but not its places, in a fifth of the size. The text is searched
    # afterwards anyway.
    connection.execute(
        """CREATE VIRTUAL TABLE trigram USING fts5 (prompt, reply, content='turn_indexed', content_rowid='id',
            tokenize='trigram', detail=none, columnsize=0)"""
    )
    insert = "INSERT INTO trigram (rowid, prompt, reply) VALUES (new.id, new.prompt, new.reply)"
    delete = "INSERT INTO trigram (trigram, rowid, prompt, reply) VALUES ('delete', old.id, old.prompt, old.reply)"
    for name, when, row, statement in (
        ("in", "AFTER INSERT", "new", insert),
        ("changes", "BEFORE UPDATE", "old", delete),
        ("changed", "AFTER UPDATE", "new", insert),
        ("out", "BEFORE DELETE", "old", delete),
    ):
        connection.execute(
            f"""CREATE TRIGGER turn_{name} {when} ON turn WHEN {row}.reason IS NOT NULL AND {row}.reply <> ''
            BEGIN {statement}; END"""
        )
    connection.execute("CREATE INDEX conversation_by_newest ON conversation (newest)")
    connection.execute(
        """CREATE TRIGGER turn_said AFTER INSERT ON turn BEGIN
            UPDATE conversation SET newest = new.id WHERE id = new.conversation AND newest < new.id; END"""
    )


# One statement for each independent table.
PROBES = (
    "SELECT id, model, created, used, title, system, branch_of, newest, source FROM conversation LIMIT 1",
    "SELECT seq FROM sqlite_sequence LIMIT 1",
    "SELECT id, conversation, prompt, reply, reason, figures, asked, reasoning FROM turn ORDER BY id DESC LIMIT 1",
    "SELECT rowid FROM trigram WHERE trigram MATCH '\"...\"' LIMIT 1",
)


@dataclass(frozen=True)
class Turn:
    """A prompt and its reply; `asked` is in seconds since 1970.

    `reason` is one of REASONS. It is None while the reply is being written, or if its process was killed. Only the last
    turn of a conversation can be unanswered: without reply and reasoning.
    """

    id: int
    prompt: str
    reply: str
    reason: str | None
    figures: Mapping[str, Any] = field(default_factory=dict)
    asked: float = 0.0
    reasoning: str = ""  # the thoughts before the reply

    @property
    def unanswered(self) -> bool:
        """Whether the turn has neither a reply nor a thought."""
        return not (self.reply or self.reasoning)

    @property
    def typed_from(self) -> int:
        """The position in the prompt where the typed part begins, after the text of files."""
        position = self.figures.get("typed_from")
        return position if isinstance(position, int) and 0 < position <= len(self.prompt) else 0

    @property
    def typed(self) -> str:
        """The part of the prompt that the user typed, without the text of files."""
        return self.prompt[self.typed_from :]

    @property
    def files(self) -> tuple[str, ...]:
        """The names of the files whose text precedes the text that the user typed in the prompt."""
        names = self.figures.get("files") if self.typed_from else None
        return tuple(one_line(name) for name in names if isinstance(name, str)) if isinstance(names, list) else ()


class ConversationInfo(NamedTuple):
    """A conversation without its turns; times are in seconds since 1970.

    If `named`, the user gave the `title`. Otherwise localspec made a short title from the first prompt. `branch_of` is
    the id of the conversation from which this one branched. `source` says where its prompts come from. It is None if
    unknown, or if `chat` has continued a conversation of `run`.
    """

    id: int
    title: str
    model: str
    created: float
    used: float
    turns: int
    branch_of: int | None = None
    named: bool = False
    source: Source | None = None

    @property
    def by_run(self) -> bool:
        """Return whether `run -c` may continue the conversation."""
        return self.source != "chat"

    @property
    def by_chat(self) -> bool:
        """Return whether `chat -c` may continue the conversation."""
        return self.source in (None, "chat")

    @property
    def for_a_chat(self) -> bool:
        """Return whether a chat lists the conversation. Conversations with a pipe as input or output are left out."""
        return self.source != "pipe"

    @property
    def model_name(self) -> str:
        """The last part of the model's path, for lists, which have no room for the whole path."""
        return self.model.rstrip("/").rpartition("/")[2] or self.model


class Saved(NamedTuple):
    """A whole conversation, with its turns."""

    info: ConversationInfo
    system: str | None
    turns: tuple[Turn, ...]


class Found(NamedTuple):
    """A search result: a conversation, its newest turn with all the words, and one line of text around a word."""

    info: ConversationInfo
    turn: int
    excerpt: str


INFO = """SELECT id,
    (SELECT substr(prompt, 1, 1000) FROM turn WHERE conversation = owner.id ORDER BY id LIMIT 1),
    title, model, created, used, (SELECT count(*) FROM turn WHERE conversation = owner.id), branch_of, source
    FROM conversation AS owner WHERE id = ?"""
IN_ORDER = "SELECT id, prompt, reply, reason, figures, asked FROM turn WHERE conversation = ? ORDER BY id"


def info_of(connection: sqlite3.Connection, conversation: int) -> ConversationInfo | None:
    """Return a conversation without its turns; None if it does not exist or is empty."""
    row = connection.execute(INFO, (conversation,)).fetchone()
    return info_from(row) if row is not None and row[6] else None


def info_from(row: tuple[Any, ...]) -> ConversationInfo:
    """Return a conversation without its turns, from a `row` of the query INFO."""
    number, prompt, user_title, model, created, used, turns, origin, source = row
    title = title_of(text(prompt)) if user_title is None else cut(one_line(text(user_title)))
    branch_of = origin if isinstance(origin, int) else None
    source_name = next((name for name in SOURCES if name == source), None)
    return ConversationInfo(
        number, title, text(model), moment(created), moment(used), turns, branch_of, user_title is not None, source_name
    )


def parting_of(connection: sqlite3.Connection, *pair: int) -> tuple[Turn | None, Turn | None] | None:
    """Return the first turns in which two conversations differ. None stands for the end of a conversation.

    Return both last turns if the conversations are equal, and None if one of the conversations does not exist.
    """
    if connection.execute("SELECT count(*) FROM conversation WHERE id IN (?, ?)", pair).fetchone()[0] < len({*pair}):
        return None
    with ExitStack() as opened:
        first, second = (opened.enter_context(closing(connection.execute(IN_ORDER, (number,)))) for number in pair)
        turn = other = None
        for turn, other in zip_longest(map(turn_from, first), map(turn_from, second)):
            if turn is None or other is None or (turn.prompt, turn.reply) != (other.prompt, other.reply):
                break
    return turn, other


def turn_from(row: tuple[Any, ...]) -> Turn:
    """Return a turn from its columns: id, prompt, reply, reason, figures, asked, and reasoning if present."""
    number, prompt, reply, reason, figures, asked, *reasoning = row
    return Turn(
        number, text(prompt), text(reply), _reason(reason), figures_from(figures), moment(asked), *map(text, reasoning)
    )


def _reason(value: object) -> str | None:
    return value if isinstance(value, str) and value in REASONS else None


def figures_from(stored: str) -> Mapping[str, Any]:
    """Return the figures saved with a turn; an empty mapping if they are not a JSON object."""
    try:
        figures = parse_json(stored)
    except (ValueError, TypeError):
        return {}
    return figures if isinstance(figures, dict) else {}


# -- titles ------------------------------------------------------------------------------------------------------------

LONGEST = 60
SHORTEST = 3  # letters of a title, at least: "please" by itself is a title, too

# If only these remain, the whole prompt is the better title.
_EMPTY = frozenset(
    """
    a again all an and any are be can do everybody everyone for friend friends guys here i in is it lot me much my
    of on or please so some that the them then there these this those to today up very was we what with you your
    """.split()  # noqa: SIM905 (a list of words is read as text)
)
# Beginnings of prompts that do not matter; each may follow another.
_FILLER = re.compile(
    r"""(hi|hello|hey)(\ (there|again|all|everyone|everybody|folks|guys|you))?\b[\s,.!?:]*
    | (please|ok|okay|so|now|well|thanks|thank\ you)\b[\s,.!?:]*
    | (can|could|would|will)\ you\b[\s,]*
    | i(\ would|'d|\ )?\ ?(like|want|need)\ (you\ )?to\ (know\ )?
    | (help|show|tell|give|teach|explain\ to)\ me\b\ *(with|about|how\ to|to|on)?\ +
    | (i\ have\ a\ question\b[\s:,]*(about\ )?)
    | (what(\ is|\ are|'s)|who(\ is|'s)|explain|describe|define)\ +((?=a\ |an\ |the\ )|)
    | (the|an|a)\ (?=\S+\ \S)""",
    re.IGNORECASE | re.VERBOSE,
)


def title_of(prompt: str) -> str:
    """Return a title: the first words of a prompt, without greetings and filler, on one line that is safe to print."""
    whole = title = one_line(prompt)
    is_question = False
    while match := _FILLER.match(title):
        is_question = is_question or match[0].lower().startswith(("what", "who"))
        title = title[match.end() :]
        if len(title) < SHORTEST:
            return cut(whole)
    if _EMPTY.issuperset(re.findall(r"[\w']+", title.lower())):
        return cut(whole)
    if is_question:  # the rest of “What is …?” is not a question
        title = title.rstrip("?! .")
    title = title[:1].upper() + title[1:] if title != whole else whole
    return cut(title.removesuffix(".") if title[-2:] != ".." else title)


def cut(line: str) -> str:
    """Return at most 60 characters of a line.

    A line that was cut ends in an ellipsis, after a whole word if possible.
    """
    if len(line) <= LONGEST:
        return line
    beginning = line[: LONGEST - 1]
    word = beginning.rpartition(" ")[0]
    return f"{word if len(word) > LONGEST // 2 else beginning}…".replace(" …", "…")


# -- values of a row: an invalid one, whichever program wrote it, is replaced by a default and raises no error ---------

_LATEST = 253_000_000_000.0  # seconds since 1970: the year 9987, after which calendars end


def text(value: object) -> str:
    """Return the text in a column. Bytes are decoded, NULL is empty."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    return "" if value is None else str(value)


def moment(value: object) -> float:
    """Return a time in seconds since 1970; 0 for an invalid one."""
    valid = isinstance(value, int | float) and math.isfinite(value) and 0 <= value <= _LATEST
    return float(value) if valid and isinstance(value, int | float) else 0.0


def count(value: object) -> int:
    """Return a count; 0 for an invalid one."""
    return value if isinstance(value, int) and value >= 0 else 0
