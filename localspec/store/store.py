"""The data saved between sessions, in one file: phrases, measurements, conversations, unsent prompts."""

import json
import math
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from localspec.environment import home
from localspec.outside_files import parse_json
from localspec.paths import Paths
from localspec.store import cleaning, conversations, drafts, history, phrases
from localspec.store.database import Database, StoreTrouble
from localspec.store.opening import Schema
from localspec.store.phrases import PoolNames
from localspec.store.salvage import carry_over

MEASUREMENTS = 200  # of this machine that stay
_LARGEST = 1e30  # no figure of a machine is as large


def make_measurements(connection: sqlite3.Connection) -> None:
    connection.execute(
        """CREATE TABLE measurement (
            name TEXT NOT NULL, subject TEXT NOT NULL, value TEXT NOT NULL, taken REAL NOT NULL,
            PRIMARY KEY (name, subject))"""
    )


MEASUREMENT_PROBES = ("SELECT name, subject, value, taken FROM measurement LIMIT 1",)
# By rowid, which replacing renews: a clock that was set back must not drop the newest one.
BOUND_MEASUREMENTS = f"""DELETE FROM measurement WHERE rowid IN
    (SELECT rowid FROM measurement ORDER BY rowid DESC LIMIT -1 OFFSET {MEASUREMENTS})"""


def make_tables(connection: sqlite3.Connection) -> None:
    """Make all tables of the first release."""
    phrases.make_pools(connection)
    make_measurements(connection)
    conversations.make_conversations(connection)
    drafts.make_drafts(connection)
    cleaning.make_deletions(connection)


FIRST = 12  # the version of the first release
MIGRATIONS: list[Callable[[sqlite3.Connection], None]] = [make_tables]  # only ever append
PROBES = (*phrases.PROBES, *MEASUREMENT_PROBES, *conversations.PROBES, *drafts.PROBES, *cleaning.PROBES)


class StoredMeasurements:
    """Measurements of this machine, as JSON values by name and subject. Lost measurements can be repeated."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def recall(self, name: str, subject: str) -> Any | None:
        """Return the value that `remember` saved; None if it is missing or unreadable, because it can be measured
        again.

        `name` is what was measured, and `subject` everything that the value depends on.
        """
        query = "SELECT value FROM measurement WHERE name = ? AND subject = ?"
        try:
            row = self._database.read(lambda connection: connection.execute(query, (name, subject)).fetchone())
            value = None if row is None else parse_json(row[0])
            return value if _is_measured(value) else None
        except (StoreTrouble, ValueError, TypeError):
            return None

    def remember(self, name: str, subject: str, value: Any) -> None:
        """Save a measurement, a JSON value. It replaces an older one with the same name and subject.

        At most 200 measurements stay; the oldest are dropped first. Raises StoreTrouble if it cannot be saved.
        """
        row = (name, subject, json.dumps(value), time.time())

        def write(connection: sqlite3.Connection) -> None:
            connection.execute(
                "INSERT OR REPLACE INTO measurement (name, subject, value, taken) VALUES (?, ?, ?, ?)", row
            )
            connection.execute(BOUND_MEASUREMENTS)

        self._database.save(write)


def _is_measured(value: object) -> bool:
    """Return whether all numbers in a JSON value are finite and not implausibly large."""
    if isinstance(value, dict):
        return all(map(_is_measured, value.values()))
    if isinstance(value, list):
        return all(map(_is_measured, value))
    return not isinstance(value, int | float) or (math.isfinite(value) and abs(value) < _LARGEST)


class Store:
    """The open store. Any thread may use it; only one call runs at a time.

    `history` has the conversations, `drafts` the unsent prompts, `phrases` the pools of phrases, and `measurements` the
    measurements of this machine.
    """

    def __init__(
        self,
        database: Database,
        notice: Callable[[str], None],
        limit: int,
        known: dict[int, PoolNames],
    ) -> None:
        self.history = history.History(database)
        self.drafts = drafts.Drafts(database)
        self.phrases = phrases.Phrases(database, notice, limit, known)
        self.measurements = StoredMeasurements(database)
        self._database = database

    @classmethod
    def open(cls, path: Path, notice: Callable[[str], None], limit: int = 100_000) -> Self:
        """Open or make the store at `path`; `limit` is the largest number of phrases in a pool.

        It never fails. A broken file, or a file of a newer version, is set aside. A read-only file is only read. If no
        file can be used, the store is in memory. Each of these cases is reported to `notice` in one sentence.
        """
        known: dict[int, PoolNames] = {}

        def refill(connection: sqlite3.Connection) -> None:
            """Insert the pools that this session uses into the new file, with the same ids as in the broken file."""
            connection.executemany(
                "INSERT OR IGNORE INTO pool (id, model, tokenizer, path, created, used) VALUES (?, ?, ?, ?, 0, 0)",
                ((pool, *names) for pool, names in known.items()),
            )

        database = Database.open(path, notice, Schema(MIGRATIONS, PROBES, refill, carry_over, FIRST))
        database.finish_deletion()
        return cls(database, notice, limit, known)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. The store cannot be used afterwards."""
        self.history.presence.close()
        self._database.close()

    def raise_damage(self) -> None:
        """Raise StoreTrouble from now on in each call that finds damage in the file, after saving the readable part."""

        def stop(sentence: str) -> None:
            raise StoreTrouble(sentence)

        self._database.report_damage = stop

    @property
    def path(self) -> Path | None:
        """The file, or None if the store is only in memory."""
        return self._database.path

    @property
    def read_only(self) -> bool:
        """Whether the store can be read but not written."""
        return self._database.read_only

    @property
    def unfinished(self) -> str:
        """A notice that deleted text stays in a large file until the next start overwrites it; otherwise empty."""
        return self._database.unfinished


@contextmanager
def user_store(notice: Callable[[str], None], create: bool) -> Iterator[Store | None]:
    """Open the user's store.

    Yield None if the store does not exist and `create` is False, because reading must not make a file.
    """
    database = Paths(home()).database
    if not create and not os.path.exists(database):  # this also covers names that no file can have
        yield None
        return
    with Store.open(database, notice) as store:
        yield store
