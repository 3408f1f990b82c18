"""The tables of conversations, as they were first made and with what came later; what shows that they are sound."""

import sqlite3
from functools import cache

from localspec.store.comparing import Comparison, comparison

NOT_INDEXED = "reason IS NULL OR reply = ''"  # turns that the index of words leaves out


def make_conversations(connection: sqlite3.Connection) -> None:
    # AUTOINCREMENT: the id of what was deleted never means something else.
    connection.execute(
        """CREATE TABLE conversation (
            id INTEGER PRIMARY KEY AUTOINCREMENT, model TEXT NOT NULL, system TEXT,
            created REAL NOT NULL, used REAL NOT NULL)"""
    )
    _make_turns(connection, "")


def _make_turns(connection: sqlite3.Connection, volume: str) -> None:
    """The turns of one volume, which is told from others by the end of its tables' names, and the index of words."""
    connection.execute(
        f"""CREATE TABLE turn{volume} (
            id INTEGER PRIMARY KEY AUTOINCREMENT, conversation INTEGER NOT NULL, prompt TEXT NOT NULL,
            reply TEXT NOT NULL, reason TEXT, figures TEXT NOT NULL, asked REAL NOT NULL)"""
    )
    make_index(connection, volume)


def make_index(connection: sqlite3.Connection, volume: str) -> None:
    """What is derived from the turns of a volume: the index of words, and how turns are found by their conversation."""
    turn, trigram = f"turn{volume}", f"trigram{volume}"
    connection.execute(f"CREATE INDEX {turn}_by_conversation ON {turn} (conversation)")
    # A growing reply is saved every second, and an unanswered prompt is taken back: neither is worth indexing, and
    # so few are searched without.
    connection.execute(f"CREATE INDEX {turn}_not_indexed ON {turn} (id) WHERE {NOT_INDEXED}")
    connection.execute(
        f"CREATE VIEW {turn}_indexed AS SELECT id, prompt, reply FROM {turn} WHERE reason IS NOT NULL AND reply <> ''"
    )
    # detail=none: which turns hold a trigram and not where, a fifth of the size; the text itself is looked at anyway.
    connection.execute(
        f"""CREATE VIRTUAL TABLE {trigram} USING fts5 (prompt, reply, content='{turn}_indexed', content_rowid='id',
            tokenize='trigram', detail=none, columnsize=0)"""
    )
    insert = f"INSERT INTO {trigram} (rowid, prompt, reply) VALUES (new.id, new.prompt, new.reply)"
    delete = f"INSERT INTO {trigram} ({trigram}, rowid, prompt, reply) VALUES ('delete', old.id, old.prompt, old.reply)"
    for name, when, row, statement in (
        ("in", "AFTER INSERT", "new", insert),
        ("changes", "BEFORE UPDATE", "old", delete),
        ("changed", "AFTER UPDATE", "new", insert),
        ("out", "BEFORE DELETE", "old", delete),
    ):
        connection.execute(
            f"""CREATE TRIGGER {turn}_{name} {when} ON {turn} WHEN {row}.reason IS NOT NULL AND {row}.reply <> ''
            BEGIN {statement}; END"""
        )


def parts_of_index(volume: str) -> list[str]:
    """The names of all that `make_index` makes, and of the tables that SQLite keeps the index of words in."""
    turn, trigram = f"turn{volume}", f"trigram{volume}"
    ends = ("by_conversation", "not_indexed", "indexed", "in", "changes", "changed", "out")
    return [trigram, *(f"{trigram}_{end}" for end in ("data", "idx", "config")), *(f"{turn}_{end}" for end in ends)]


@cache
def comparisons_of(volume: str) -> tuple[Comparison, Comparison]:
    """What finds nothing where the indexes of a volume's turns tell of the same as the turns."""
    turn = f"turn{volume}"
    return (
        comparison(turn, f"{turn}_by_conversation", ("conversation",), ("id",)),
        comparison(turn, f"{turn}_not_indexed", ("id",), ("id",), NOT_INDEXED),
    )


def make_branches(connection: sqlite3.Connection) -> None:
    connection.execute("ALTER TABLE conversation ADD COLUMN title TEXT")
    connection.execute("ALTER TABLE conversation ADD COLUMN branch_of INTEGER")


def make_reasoning(connection: sqlite3.Connection) -> None:
    connection.execute("ALTER TABLE turn ADD COLUMN reasoning TEXT NOT NULL DEFAULT ''")


def make_source(connection: sqlite3.Connection) -> None:
    """Where a conversation was begun, one of `conversations.SOURCES`; NULL where an earlier version kept it."""
    connection.execute("ALTER TABLE conversation ADD COLUMN source TEXT")


def make_volumes(connection: sqlite3.Connection) -> None:
    """From here on there may be more than one volume of turns; what was kept so far is the first, whatever its size."""
    connection.execute("CREATE TABLE volume (number INTEGER PRIMARY KEY, bytes INTEGER NOT NULL)")
    connection.execute("CREATE TABLE unclean (mark INTEGER PRIMARY KEY AUTOINCREMENT, volume INTEGER NOT NULL)")
    connection.execute("ALTER TABLE conversation ADD COLUMN volume INTEGER NOT NULL DEFAULT 0")
    connection.execute("ALTER TABLE conversation ADD COLUMN newest INTEGER NOT NULL DEFAULT 0")  # the id of its turn
    _complete_volume(connection, 0)
    connection.execute("INSERT INTO about SELECT id, title, system FROM conversation")
    # From here on titles and system prompts are nowhere else. All pages at once, so that no copy of them stays behind.
    connection.execute(
        """CREATE TEMP TABLE kept AS SELECT id, model, created, used, branch_of,
            (SELECT coalesce(max(id), 0) FROM turn WHERE conversation = conversation.id) FROM conversation"""
    )
    connection.execute("DELETE FROM main.conversation")
    columns = "id, model, created, used, branch_of, newest"
    connection.execute(f"INSERT INTO main.conversation ({columns}) SELECT * FROM kept")
    connection.execute("DROP TABLE kept")
    connection.execute("CREATE INDEX conversation_by_newest ON conversation (newest)")
    # How many bytes of text there are, nobody counted: no more than in the file.
    bytes_at_most = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
    connection.execute(f"INSERT INTO volume VALUES (0, iif(EXISTS (SELECT 1 FROM turn), ({bytes_at_most}), 0))")


def _complete_volume(connection: sqlite3.Connection, number: int, volume: str = "") -> None:
    """What conversations in it are about, and what keeps track of its size and of what was said last."""
    connection.execute(f"CREATE TABLE about{volume} (conversation INTEGER PRIMARY KEY, title TEXT, system TEXT)")
    parts = [f"length(CAST(new.{column} AS BLOB))" for column in ("prompt", "reply", "figures", "reasoning")]
    grow = "UPDATE volume SET bytes = bytes + {} WHERE number = {}"
    connection.execute(
        f"""CREATE TRIGGER turn{volume}_said AFTER INSERT ON turn{volume} BEGIN
            UPDATE conversation SET newest = new.id WHERE id = new.conversation AND newest < new.id;
            {grow.format(" + ".join(parts), number)}; END"""
    )
    connection.execute(
        f"""CREATE TRIGGER turn{volume}_ended AFTER UPDATE ON turn{volume}
            WHEN old.reason IS NULL AND new.reason IS NOT NULL BEGIN
            {grow.format(" + ".join(parts[1:]), number)}; END"""
    )
    system = "coalesce(length(CAST(new.system AS BLOB)), 0)"
    connection.execute(
        f"CREATE TRIGGER about{volume}_said AFTER INSERT ON about{volume} BEGIN {grow.format(system, number)}; END"
    )


def make_volume(connection: sqlite3.Connection, number: int) -> None:
    """One more volume, as the first has become."""
    volume = f"_{number}"
    _make_turns(connection, volume)
    connection.execute(f"ALTER TABLE turn{volume} ADD COLUMN reasoning TEXT NOT NULL DEFAULT ''")
    _complete_volume(connection, number, volume)
    connection.execute("INSERT OR REPLACE INTO volume VALUES (?, 0)", (number,))


# One statement for each part: together they touch every table and index from its root to a leaf.
PROBES = (
    "SELECT id, model, created, used, branch_of, volume, newest, source FROM conversation LIMIT 1",
    "SELECT conversation, title, system FROM about LIMIT 1",
    "SELECT id FROM conversation INDEXED BY conversation_by_newest WHERE newest = 1 LIMIT 1",
    "SELECT number, bytes FROM volume LIMIT 1",
    "SELECT mark, volume FROM unclean LIMIT 1",
    "SELECT seq FROM sqlite_sequence LIMIT 1",
    "SELECT id, conversation, prompt, reply, reason, figures, asked, reasoning FROM turn ORDER BY id DESC LIMIT 1",
    "SELECT conversation FROM turn INDEXED BY turn_by_conversation WHERE conversation = 1 LIMIT 1",
    "SELECT id FROM turn INDEXED BY turn_not_indexed WHERE reason IS NULL OR reply = '' LIMIT 1",
    "SELECT block FROM trigram_data ORDER BY id DESC LIMIT 1",
    "SELECT v FROM trigram_config",
    "SELECT rowid FROM trigram WHERE trigram MATCH '\"...\"' LIMIT 1",
    comparison("conversation", "conversation_by_newest", ("newest",), ("id",)),
    *comparisons_of(""),
)
