"""Measurements of this machine, as JSON values by name and subject. They can be repeated if they are lost."""

import json
import sqlite3
import time
from typing import Any

from localspec.outside_files import parse_json
from localspec.store.database import Database, StoreTrouble
from localspec.store.values import is_measured

MEASUREMENTS = 200


def make_measurements(connection: sqlite3.Connection) -> None:
    connection.execute(
        """CREATE TABLE measurement (
            name TEXT NOT NULL, subject TEXT NOT NULL, value TEXT NOT NULL, taken REAL NOT NULL,
            PRIMARY KEY (name, subject))"""
    )


PROBES = ("SELECT name, subject, value, taken FROM measurement LIMIT 1",)
# By rowid, which replacing renews: a clock that was set back must not drop the newest one.
BOUND_MEASUREMENTS = f"""DELETE FROM measurement WHERE rowid IN
    (SELECT rowid FROM measurement ORDER BY rowid DESC LIMIT -1 OFFSET {MEASUREMENTS})"""


class StoredMeasurements:
    """The measurements in a store's database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def recall(self, name: str, subject: str) -> Any | None:
        """Return the value that `remember` saved; None if there is none or it cannot be read, since it can be measured
        again.

        `name` is what was measured, and `subject` everything that the value depends on.
        """
        query = "SELECT value FROM measurement WHERE name = ? AND subject = ?"
        try:
            row = self._database.read(lambda connection: connection.execute(query, (name, subject)).fetchone())
            value = None if row is None else parse_json(row[0])
            return value if is_measured(value) else None
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
