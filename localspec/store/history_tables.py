"""The tables of conversations."""

import contextlib
import sqlite3
from collections.abc import Iterator

NOT_INDEXED = "reason IS NULL OR reply = ''"  # turns that the index of words leaves out


def make_conversations(connection: sqlite3.Connection) -> None:
    """Make the tables of conversations and turns, and everything that is derived from turns.

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
    # detail=none stores which turns have a trigram but not where, in a fifth of the size; the text itself is searched
    # anyway.
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


def delete_all_turns(connection: sqlite3.Connection) -> None:
    """Delete every turn and the whole search index, each table at once."""
    with without_triggers(connection, "turn"):
        connection.execute("DELETE FROM turn")
    connection.execute("INSERT INTO trigram (trigram) VALUES ('delete-all')")


@contextlib.contextmanager
def without_triggers(connection: sqlite3.Connection, table: str) -> Iterator[None]:
    """Remove a table's triggers within this context, in a transaction. SQLite then empties the table page by page."""
    query = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name = ?"
    triggers = connection.execute(query, (table,)).fetchall()
    for name, _ in triggers:
        connection.execute(f"DROP TRIGGER {name}")
    yield
    for _, statement in triggers:
        connection.execute(statement)


# One statement for each independent table.
PROBES = (
    "SELECT id, model, created, used, title, system, branch_of, newest, source FROM conversation LIMIT 1",
    "SELECT seq FROM sqlite_sequence LIMIT 1",
    "SELECT id, conversation, prompt, reply, reason, figures, asked, reasoning FROM turn ORDER BY id DESC LIMIT 1",
    "SELECT rowid FROM trigram WHERE trigram MATCH '\"...\"' LIMIT 1",
    "SELECT number FROM deletion LIMIT 1",
)
