"""Rows as another program may have written them: a bad value costs that value, or that row, and never a command."""

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import called
from each import each

from localspec.choosing.measure import COSTS, MeasurementCache, Quantity
from localspec.decoding.exactness import Exactness
from localspec.paths import Paths
from localspec.store.store import Store

BAD = [1e300, -1.0, 2**62, "text", b"\xff\x00", "", "9" * 400, b"\x01\x02\x03"]
TIMES = [("conversation", "used"), ("conversation", "created"), ("turn", "asked")]
TEXTS = [
    ("conversation", "model"),
    ("conversation", "system"),
    ("turn", "prompt"),
    ("turn", "reply"),
    ("turn", "reason"),
    ("turn", "figures"),
]
COMMANDS = [["history", "list"], ["history", "list", "--json"], ["history", "show", "1"], ["history", "search", "question"], ["history", "export", "1"],
            ["pool", "list"], ["pool", "list", "--json"], ["pool", "show"], ["pool", "export"]]  # fmt: skip


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return a database in which everything is in order."""
    path = tmp_path_factory.mktemp("sound") / "localspec.db"
    with Store.open(path, pytest.fail) as store:
        for _ in range(2):
            _, turn = store.history.say(None, "question", model="demo", system="Be brief.")
            store.history.write(turn, "answer", "stop", {"seed": 1})
        pool = store.phrases.pool("demo", "hash")
        assert pool is not None
        store.phrases.learn(pool, [(7, b"", b"1234"), (7, b"", b"5678")])
        store.measurements.remember("speed", "here", 1.5)
    return path.read_bytes()


def home_of(sound: bytes, home: Path) -> Path:
    """Put the sound database into a home and return it."""
    database = Paths(home).database
    database.parent.mkdir(parents=True, exist_ok=True)
    database.write_bytes(sound)
    database.chmod(0o600)
    return home


@pytest.fixture
def home(sound: bytes, tmp_path: Path) -> Path:
    return home_of(sound, tmp_path)


def written(home: Path, statement: str, *values: object) -> None:
    with sqlite3.connect(Paths(home).database) as connection:
        # This test is not about what a trigger says about such a value.
        query = "SELECT name, sql FROM sqlite_master WHERE name IN ('turn_changes', 'turn_changed')"
        triggers = connection.execute(query).fetchall() if statement.startswith("UPDATE turn") else []
        for trigger, _ in triggers:
            connection.execute(f"DROP TRIGGER {trigger}")
        connection.execute(statement, values)
        for _, text in triggers:
            connection.execute(text)
    connection.close()


@pytest.fixture
def opened(home: Path) -> Iterator[Store]:
    with Store.open(Paths(home).database, pytest.fail) as store:
        yield store


@pytest.mark.slow
@each("bad", BAD)
@each("table, column", TIMES + TEXTS)
def test_conversations(sound, tmp_path, table, column, bad):
    home = home_of(sound, tmp_path)
    written(home, f"UPDATE {table} SET {column} = ? WHERE id = 1", bad)
    with Store.open(Paths(home).database, pytest.fail) as store:
        history = store.history
        infos = history.conversations()
        assert {info.id for info in infos} == {1, 2} and history.latest() == 2
        for info in infos:
            assert isinstance(info.title, str) and isinstance(info.model, str)
            assert 0 <= info.used < 1e12 and 0 <= info.created < 1e12
        saved = history.read(1)
        assert saved is not None and isinstance(saved.turns[0].prompt + saved.turns[0].reply, str)
        assert saved.turns[0].reason in (None, "stop") and isinstance(saved.turns[0].figures, dict)
        assert "question" in history.prompts(9)
        assert 2 in {found.info.id for found in history.search("question")}


@pytest.mark.slow
@each("bad", BAD)
@each("column", ["used", "created", "tick", "phrases", "model", "path"])
def test_pools(sound, tmp_path, column, bad):
    home = home_of(sound, tmp_path)
    written(home, f"UPDATE pool SET {column} = ?", bad)
    with Store.open(Paths(home).database, pytest.fail) as store:
        [pool] = store.phrases.pools()
        assert 0 <= pool.last_used < 1e12 and pool.phrases >= 0
        store.phrases.learn(pool.pool, [(9, b"", b"abcd")])
        assert [phrase.after for phrase in store.phrases.look_up(pool.pool, [9])] == [b"abcd"]


@each("bad", ["text", 5, 1.5])
@each("column", ["before", "after"])
def test_a_bad_phrase_costs_that_phrase(sound, tmp_path, column, bad):
    home = home_of(sound, tmp_path)
    written(home, f"UPDATE phrase SET {column} = ? WHERE after = ?", bad, b"1234")
    with Store.open(Paths(home).database, pytest.fail) as store:
        assert [phrase.after for phrase in store.phrases.look_up(1, [7])] == [b"5678"]
        assert [phrase.after for phrase in store.phrases.export(1)] == [b"5678"]


@each("value", ["1e308", "9" * 400, "NaN", "Infinity", '{"a": [1, 1e99]}', "[" * 100_000, b"\xff"])
def test_an_impossible_measurement_is_ignored(home, opened, value):
    written(home, "UPDATE measurement SET value = ?", value)
    assert opened.measurements.recall("speed", "here") is None
    assert MeasurementCache(opened).recall(COSTS, "here") is None


@each("value", [1, "text", [], [1], {}, {"rows": "x"}, [[], [], []], None, True, {"bitwise": True}])
@each("quantity", [COSTS, Quantity("exactness", Exactness.from_json, Exactness.as_json)])
def test_a_measurement_of_another_form_is_ignored(opened, quantity, value):
    opened.measurements.remember(quantity.name, "here", value)
    assert MeasurementCache(opened).recall(quantity, "here") is None


def test_text_that_is_no_utf_8(home):
    written(home, "UPDATE turn SET prompt = CAST(x'ff41' AS TEXT) WHERE id = 1")
    with Store.open(Paths(home).database, pytest.fail) as store:
        assert store.history.conversations()[1].title == "\N{REPLACEMENT CHARACTER}A"


@pytest.mark.slow
def test_commands_continue(home):
    written(home, "UPDATE conversation SET used = 1e300, model = x'ff00'")
    with sqlite3.connect(Paths(home).database) as connection:
        connection.execute("UPDATE turn SET prompt = x'ff71', figures = ?, asked = 'x' WHERE id = 1", ("9" * 400,))
        connection.execute("UPDATE pool SET used = 'never', phrases = 'many', path = x'00ff'")
        connection.execute("UPDATE phrase SET after = x'010203' WHERE after = ?", (b"1234",))
    connection.close()
    for command in COMMANDS:
        result = called(home, *command)
        assert (result.returncode, result.stderr) == (0, ""), (command, result.stderr)
        if "--json" in command:
            json.loads(result.stdout)
    assert called(home, "history", "rm", "1", "--yes").returncode == 0
    assert called(home, "pool", "clear", "--yes").returncode == 0
