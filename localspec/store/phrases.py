"""Saves phrases: token sequences of replies, which are drafted again later. Each model and tokenizer has one pool."""

import os
import sqlite3
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from localspec.quantities import counted
from localspec.store import cleaning
from localspec.store.conversations import count, moment, text
from localspec.store.database import Database, StoreTrouble

PER_KEY = 16
MOST_AT_ONCE = 2000  # phrases beyond the limit that one reply deletes: a million would take half a minute
EXPORT_PAGE = 1000
SORTED_PAGE = 20_000  # phrases per page, each of which sorts the whole pool


class Phrase(NamedTuple):
    """A phrase: the tokens `after` a context. The context is `before`, up to six tokens, then the two tokens in `key`.

    The phrase was used `uses` times, last in `conversation` (None for an unsaved conversation). If `uses` is 0, it
    comes from a draft that was refused in `conversation`. As a draft it was accepted in `served` replies. `look_up`
    sets neither `conversation` nor `served`.
    """

    key: int
    before: bytes
    after: bytes
    uses: int
    served: int = 0
    conversation: int | None = None


class PoolInfo(NamedTuple):
    """One pool of phrases. `bytes` is the size of its tokens, 4 bytes each; `last_used` is in seconds since 1970."""

    pool: int
    model: str
    tokenizer: str
    path: str | None
    phrases: int
    bytes: int
    last_used: float


PoolNames = tuple[str, str, str | None]  # model, hash of its tokenizer, directory


def pack_key(first: int, second: int) -> int:
    """Return the key of a context that ends in these two tokens."""
    return (first << 32) | second


def unpack_key(key: int) -> tuple[int, int]:
    """Return the two tokens that `pack_key` packed."""
    return (key >> 32) & 0xFFFFFFFF, key & 0xFFFFFFFF


def pack_tokens(tokens: Sequence[int]) -> bytes:
    """Pack token ids as little-endian unsigned 32-bit integers."""
    return struct.pack(f"<{len(tokens)}I", *tokens)


def unpack_tokens(packed: bytes) -> tuple[int, ...]:
    """Return the token ids that `pack_tokens` packed. An incomplete last id is dropped."""
    return struct.unpack_from(f"<{len(packed) // 4}I", packed)


def make_pools(connection: sqlite3.Connection) -> None:
    """Make the tables of pools and phrases.

    In `phrase`, `served` counts the replies that accepted the phrase, and `conversation` is the last one that used it.
    """
    connection.execute(
        """CREATE TABLE pool (
            id INTEGER PRIMARY KEY, model TEXT NOT NULL, tokenizer TEXT NOT NULL, path TEXT,
            created REAL NOT NULL, used REAL NOT NULL,
            tick INTEGER NOT NULL DEFAULT 0, phrases INTEGER NOT NULL DEFAULT 0, UNIQUE (model, tokenizer))"""
    )
    connection.execute(
        """CREATE TABLE phrase (
            pool INTEGER NOT NULL, key INTEGER NOT NULL, before BLOB NOT NULL, after BLOB NOT NULL,
            uses INTEGER NOT NULL, used INTEGER NOT NULL, served INTEGER NOT NULL DEFAULT 0, conversation INTEGER,
            PRIMARY KEY (pool, key, before, after)) WITHOUT ROWID"""
    )
    connection.execute("CREATE INDEX phrase_by_use ON phrase (pool, used)")
    # Triggers maintain the count, so that the limit of the whole pool needs no scan.
    connection.execute(
        """CREATE TRIGGER phrase_in AFTER INSERT ON phrase
        BEGIN UPDATE pool SET phrases = phrases + 1 WHERE id = new.pool; END"""
    )
    connection.execute(
        """CREATE TRIGGER phrase_out AFTER DELETE ON phrase
        BEGIN UPDATE pool SET phrases = phrases - 1 WHERE id = old.pool; END"""
    )


# One statement for each table and index.
PROBES = (
    "SELECT id, model, tokenizer, path, created, used, tick, phrases FROM pool ORDER BY id LIMIT 1",
    "SELECT key, before, after, uses, used, served, conversation FROM phrase LIMIT 1",
    "SELECT used FROM phrase INDEXED BY phrase_by_use WHERE pool = 1 ORDER BY used DESC LIMIT 1",
)

REMEMBER = """INSERT INTO phrase (pool, key, before, after, uses, used, conversation) VALUES (?, ?, ?, ?, 1, ?, ?)
    ON CONFLICT (pool, key, before, after) DO UPDATE SET uses = uses + 1, used = excluded.used,
    conversation = coalesce(excluded.conversation, conversation)"""
GUESS = """INSERT INTO phrase (pool, key, before, after, uses, used, conversation) VALUES (?, ?, ?, ?, 0, ?, ?)
    ON CONFLICT (pool, key, before, after) DO UPDATE SET used = excluded.used,
    conversation = iif(uses > 0, conversation, coalesce(excluded.conversation, conversation))"""
TOUCH = "UPDATE phrase SET used = ?, served = served + 1 WHERE pool = ? AND key = ? AND before = ? AND after = ?"
# `+used`: the few rows of a key are sorted; otherwise the index by use might be scanned completely.
BOUND_KEY = f"""DELETE FROM phrase WHERE pool = ?1 AND key = ?2 AND +used <
    (SELECT used FROM phrase WHERE pool = ?1 AND key = ?2 ORDER BY +used DESC LIMIT 1 OFFSET {PER_KEY - 1})"""
BOUND_POOL = """DELETE FROM phrase WHERE pool = ?1 AND used <=
    (SELECT used FROM phrase WHERE pool = ?1 ORDER BY used LIMIT 1 OFFSET ?2)"""


class Phrases:
    """The pools of phrases in a store's database; `limit` is the largest number of phrases in a pool."""

    def __init__(
        self, database: Database, notice: Callable[[str], None], limit: int, known: dict[int, PoolNames]
    ) -> None:
        self.limit = limit
        self._database = database
        self._notice = notice
        self._known = known  # the pools in use, in case the file is replaced meanwhile
        self._lookups: dict[int, str] = {}
        self._reported = False

    def pool(
        self,
        model: str,
        tokenizer: str,
        path: str | os.PathLike[str] | None = None,
        make: bool = True,
        earlier: str | None = None,
    ) -> int | None:
        """Return the id of the pool for this model and the hash of its tokenizer. Make the pool if it is missing.

        Return None if the pool is missing and cannot be made: `make` is False, or the file is read-only. `path` is the
        model's directory, which is saved so that phrases can be displayed as text. A pool with the same directory is
        found even under another model name. If `earlier` is given, the hash `tokenizer` covers the weights, too, and a
        pool with this hash is found under any name. `earlier` is the hash that an earlier version of localspec made of
        the same tokenizer and weights. Raises StoreTrouble.
        """
        directory = None if path is None else os.fspath(path)
        parameters = {
            "model": model, "tokenizer": tokenizer, "earlier": earlier, "directory": directory,
            "any_model": earlier is not None,
        }  # fmt: skip

        def find(connection: sqlite3.Connection) -> tuple[int, str | None, str] | None:
            query = """SELECT id, path, tokenizer FROM pool WHERE tokenizer = :tokenizer AND :any_model
                OR tokenizer IN (:tokenizer, :earlier) AND (model = :model OR path = :directory)
                ORDER BY model = :model DESC, tokenizer = :tokenizer DESC, used DESC"""
            row: tuple[int, str | None, str] | None = connection.execute(query, parameters).fetchone()
            return row

        def write(connection: sqlite3.Connection) -> tuple[int, str | None, str] | None:
            now = time.time()
            if (row := find(connection)) is not None:
                connection.execute(
                    "UPDATE pool SET path = coalesce(?, path), tokenizer = ? WHERE id = ?",
                    (directory, tokenizer, row[0]),
                )
                # `row[1]` is where the model was when the pool was saved.
                if earlier is not None and row[1] and not os.path.exists(row[1]):
                    connection.execute("UPDATE pool SET model = ? WHERE id = ?", (model, row[0]))
            else:
                connection.execute(
                    "INSERT INTO pool (model, tokenizer, path, created, used) VALUES (?, ?, ?, ?, ?)",
                    (model, tokenizer, directory, now, now),
                )
            return find(connection)

        row = self._database.read(find)
        unchanged = row is not None and directory in (None, row[1]) and row[2] == tokenizer
        if make and not self._database.read_only and not unchanged:
            row = self._database.save(write)
        if row is None:
            return None
        pool = row[0]
        self._known[pool] = (model, tokenizer, directory)
        return pool

    def look_up(self, pool: int, keys: Sequence[int]) -> list[Phrase]:
        """Return the phrases with these keys (at most 16 per key), most recently used first.

        Errors of the file are reported to `notice` once, and not raised, because a reply can do without phrases.
        """
        count = len(keys)
        query = self._lookups.get(count)
        if query is None:
            places = ", ".join("?" * count)
            query = (
                f"SELECT key, before, after, uses FROM phrase WHERE pool = ? AND key IN ({places}) ORDER BY +used DESC"
            )
            self._lookups[count] = query
        try:
            rows = self._database.read(lambda connection: connection.execute(query, (pool, *keys)).fetchall())
        except StoreTrouble as trouble:
            if not self._reported:
                self._reported = True
                self._notice(
                    f"The phrases in {self._database.path} cannot be read now ({trouble.__cause__}),"
                    " so this session drafts without them."
                )
            return []
        return [Phrase(*row) for row in rows if _is_sound(row)]

    def learn(
        self,
        pool: int,
        phrases: Sequence[tuple[int, bytes, bytes]],
        used: Sequence[tuple[int, bytes, bytes]] = (),
        refused: Sequence[tuple[int, bytes, bytes]] = (),
        conversation: int | None = None,
    ) -> None:
        """Save the phrases (key, before, after) of one reply, the oldest first. Known phrases get one more use.

        The phrases in `used` were accepted as drafts. They count as just used, and their `served` grows by 1. The
        phrases in `refused` drafts are saved with 0 uses. `conversation` is the id of the reply's conversation.
        Afterwards at most 16 phrases per key and `limit` in all stay; the least recently used are dropped first. Raises
        StoreTrouble if nothing could be saved; the store stays usable.
        """
        if phrases or used or refused:
            learned = phrases, used, refused
            self._database.save(lambda connection: _learn(connection, pool, *learned, conversation, self.limit))

    def pools(self) -> list[PoolInfo]:
        """Return every pool, the most recently used first. Raises StoreTrouble."""
        query = """SELECT id, model, tokenizer, path, phrases,
            (SELECT coalesce(sum(8 + length(before) + length(after)), 0) FROM phrase WHERE phrase.pool = pool.id), used
            FROM pool ORDER BY used DESC, id DESC"""
        rows = self._database.read(lambda connection: connection.execute(query).fetchall())
        return [
            PoolInfo(
                pool, text(model), text(tokenizer), None if path is None else text(path), count(n), size, moment(used)
            )
            for pool, model, tokenizer, path, n, size, used in rows
        ]

    def any_phrase(self) -> bool:
        """Return whether there is a phrase in any pool. Raises StoreTrouble."""
        query = "SELECT EXISTS (SELECT 1 FROM phrase)"
        return bool(self._database.read(lambda connection: connection.execute(query).fetchone()[0]))

    def export(self, pool: int) -> Iterator[Phrase]:
        """Yield the phrases of a pool, most recently used first. Raises StoreTrouble."""
        return self._in_order(pool, "used", EXPORT_PAGE)

    def most_useful(self, pool: int) -> Iterator[Phrase]:
        """Yield the phrases of a pool, the most often used or accepted first. Raises StoreTrouble.

        Of equally useful phrases, the last used one comes first. Phrases only from refused drafts come last.
        """
        return self._in_order(pool, "uses+served, used", SORTED_PAGE)

    def _in_order(self, pool: int, order: str, page_size: int) -> Iterator[Phrase]:
        """Yield the phrases of a pool by descending values of the columns `order`."""
        columns = order.split(", ")
        query = f"""SELECT key, before, after, uses, served, conversation, {order} FROM phrase
            WHERE pool = ? AND ({order}) < ({", ".join("?" for _ in columns)})
            ORDER BY {", ".join(f"{column} DESC" for column in columns)} LIMIT {page_size}"""

        # Page by page: an open cursor would keep other processes from emptying the write-ahead log.
        def page(connection: sqlite3.Connection) -> list[tuple[Any, ...]]:
            return connection.execute(query, (pool, *last)).fetchall()

        last: tuple[Any, ...] = (2**63 - 1,) * len(columns)
        while rows := self._database.read(page):
            for key, before, after, uses, served, conversation, *_ in rows:
                if _is_sound((key, before, after, uses)):
                    conversation_id = conversation if isinstance(conversation, int) else None
                    yield Phrase(key, before, after, uses, served if isinstance(served, int) else 0, conversation_id)
            last = rows[-1][6:]

    def count(self, pool: int, conversation: int | None = None) -> int:
        """Count the phrases of a pool, or only its phrases that were last used in `conversation`."""
        if conversation is not None and not 0 < conversation < 2**63:  # SQLite takes no larger number
            return 0
        query = "SELECT count(*) FROM phrase WHERE pool = ?1 AND (?2 IS NULL OR conversation = ?2)"
        row = self._database.read(lambda connection: connection.execute(query, (pool, conversation)).fetchone())
        return int(row[0])

    def delete(
        self,
        pool: int | None = None,
        *,
        conversation: int | None = None,
        phrases: Sequence[tuple[int, bytes, bytes]] | None = None,
    ) -> int:
        """Delete phrases of a pool or of all pools, and their bytes in the files. Return how many were removed.

        With `conversation`, delete only phrases that were last used in it; with `phrases`, only these (key, before,
        after). Raises StoreTrouble, whose sentence says what the user must still do.
        """
        conditions = {"pool = ?": pool, "conversation = ?": conversation}
        filters = {condition: value for condition, value in conditions.items() if value is not None}
        where, values = " AND ".join(filters) or "true", (*filters.values(),)

        def remove(connection: sqlite3.Connection) -> int:
            if phrases is None:
                others = f"SELECT 1 FROM phrase WHERE NOT coalesce({where}, false) LIMIT 1"
                if connection.execute(others, values).fetchone() is None:
                    return _delete_all(connection)
            cleaning.mark(connection)
            if phrases is None:
                return _delete_where(connection, where, values)
            statement = f"DELETE FROM phrase WHERE {where} AND key = ? AND before = ? AND after = ?"
            return connection.executemany(statement, ((*values, *phrase) for phrase in phrases)).rowcount

        removed = self._database.save(remove)
        if not self.any_phrase():
            self._database.give_back()
        self._database.overwrite_deleted(f"{counted(removed, 'phrase')} removed")
        return removed


def _delete_all(connection: sqlite3.Connection) -> int:
    """Delete every phrase, and return their number. SQLite overwrites all pages of an emptied table at once."""
    (count,) = connection.execute("SELECT count(*) FROM phrase").fetchone()
    with cleaning.without_triggers(connection, "phrase"):
        connection.execute("DELETE FROM phrase")
    connection.execute("UPDATE pool SET phrases = 0")
    return int(count)


def _delete_where(connection: sqlite3.Connection, where: str, values: tuple[int, ...]) -> int:
    """Delete the phrases that match `where`, without running triggers. Return their number."""
    query = f"SELECT pool, count(*) FROM phrase WHERE {where} GROUP BY pool"
    counts = connection.execute(query, values).fetchall()
    with cleaning.without_triggers(connection, "phrase"):
        connection.execute(f"DELETE FROM phrase WHERE {where}", values)
    forget = "UPDATE pool SET phrases = phrases - ? WHERE id = ?"
    connection.executemany(forget, ((count, pool) for pool, count in counts))
    return sum(count for _, count in counts)


def _learn(
    connection: sqlite3.Connection,
    pool: int,
    phrases: Sequence[tuple[int, bytes, bytes]],
    used: Sequence[tuple[int, bytes, bytes]],
    refused: Sequence[tuple[int, bytes, bytes]],
    conversation: int | None,
    limit: int,
) -> None:
    # Every phrase has a separate tick, so "least recently used" never ties, also between processes.
    changed = connection.execute(
        "UPDATE pool SET tick = tick + ?, used = ? WHERE id = ?",
        (len(phrases) + len(refused) + len(used), time.time(), pool),
    )
    if changed.rowcount != 1:
        raise ValueError(f"the database has no pool with the number {pool}")
    end = connection.execute("SELECT CAST(tick AS INTEGER) FROM pool WHERE id = ?", (pool,)).fetchone()[0]
    tick = end - len(phrases) - len(refused) - len(used)
    for insert, learned in ((REMEMBER, phrases), (GUESS, refused)):
        connection.executemany(insert, ((pool, *phrase, tick + n, conversation) for n, phrase in enumerate(learned, 1)))
        tick += len(learned)
    connection.executemany(TOUCH, ((tick + n, pool, *phrase) for n, phrase in enumerate(used, 1)))
    connection.executemany(BOUND_KEY, ((pool, key) for key in {phrase[0] for phrase in (*phrases, *refused)}))
    count = connection.execute("SELECT CAST(phrases AS INTEGER) FROM pool WHERE id = ?", (pool,)).fetchone()[0]
    if count > limit:
        connection.execute(BOUND_POOL, (pool, min(count - limit, MOST_AT_ONCE + len(phrases) + len(refused)) - 1))


def _is_sound(row: tuple[object, ...]) -> bool:
    """Return whether a row is a valid phrase: packed tokens, and whole numbers."""
    key, before, after, uses = row
    return all(isinstance(number, int) for number in (key, uses)) and all(
        isinstance(packed, bytes) for packed in (before, after)
    )
