"""The data saved between sessions, in one file: phrases, measurements, conversations, unsent prompts."""

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from localspec.environment import home
from localspec.paths import Paths
from localspec.store import cleaning, conversations, drafts, history, measurements, phrases
from localspec.store.database import Database, StoreTrouble
from localspec.store.opening import Schema
from localspec.store.phrases import PoolNames
from localspec.store.salvage import carry_over


def make_tables(connection: sqlite3.Connection) -> None:
    """Make all tables of the first release."""
    phrases.make_pools(connection)
    measurements.make_measurements(connection)
    conversations.make_conversations(connection)
    drafts.make_drafts(connection)
    cleaning.make_deletions(connection)


FIRST = 12  # the version of the first release
MIGRATIONS: list[Callable[[sqlite3.Connection], None]] = [make_tables]  # only ever append
PROBES = (*phrases.PROBES, *measurements.PROBES, *conversations.PROBES, *drafts.PROBES, *cleaning.PROBES)


class Store:
    """The open store. It may be used from any thread; calls wait for each other.

    `history` has the conversations, `drafts` the unsent prompts, `phrases` the pools of phrases, and `measurements`
    those of this machine.
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
        self.measurements = measurements.StoredMeasurements(database)
        self._database = database

    @classmethod
    def open(cls, path: Path, notice: Callable[[str], None], limit: int = 100_000) -> Self:
        """Open or make the store at `path`; `limit` is the largest number of phrases in a pool.

        It never fails. A broken file, or one of a newer version, is set aside. A read-only file is read. Otherwise the
        store is in memory. Each of these cases is reported to `notice` in one sentence.
        """
        known: dict[int, PoolNames] = {}

        def refill(connection: sqlite3.Connection) -> None:
            """Restore the pools in use, under the same ids."""
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
        """Make each call that finds damage in the file raise StoreTrouble; the readable part is saved before that."""

        def stop(sentence: str) -> None:
            raise StoreTrouble(sentence)

        self._database.report_damage = stop

    @property
    def path(self) -> Path | None:
        """The file, or None if the store is only in memory."""
        return self._database.path

    @property
    def read_only(self) -> bool:
        """Whether phrases can be used but not saved."""
        return self._database.read_only


@contextmanager
def user_store(notice: Callable[[str], None], create: bool) -> Iterator[Store | None]:
    """Open the user's store.

    Yield None if there is none and `create` is False, because reading must not make a file.
    """
    database = Paths(home()).database
    if not create and not os.path.exists(database):  # nor if no file can have such a name
        yield None
        return
    with Store.open(database, notice) as store:
        yield store
