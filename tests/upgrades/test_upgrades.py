"""Files of earlier versions of localspec are opened by this one; those of a newer one are refused and unchanged.

The stores were brought to the version of the first release.
"""

import hashlib
import json
import shutil
import sqlite3
import struct
from contextlib import closing
from pathlib import Path

import pytest
from command import called
from golden import wording

from localspec.config import load
from localspec.models.drafter_cards import FORMAT, read_drafter
from localspec.models.registry import known
from localspec.paths import Paths
from localspec.store.store import FIRST, MIGRATIONS, Store
from localspec.weights.packed_file import FORMAT as PACKED_FORMAT
from localspec.weights.packed_file import UnreadableFormat, read

HERE = Path(__file__).parent
STATES = sorted(place.name for place in HERE.iterdir() if (place / "data").is_dir())


@pytest.fixture(params=STATES)
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return Path(shutil.copytree(HERE / request.param, tmp_path / "home"))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def packed(home: Path) -> list[Path]:
    return sorted(Paths(home).packed.glob("*.packed"))


def test_they_are_small():
    assert STATES and sum(len(content) for state in STATES for content in contents(HERE / state).values()) < 300_000


def test_conversations_are_those_that_were_kept(home: Path) -> None:
    told = called(home, "history", "export")
    assert (told.returncode, told.stderr) == (0, "")
    assert told.stdout == (home / "history.md").read_text(encoding="utf-8")
    now, then = (
        json.loads(text)
        for text in (called(home, "history", "export", "--json").stdout, (home / "history.json").read_text())
    )
    for here, kept in zip(now, then, strict=True):  # a newer version may have more fields
        turns = zip(here["turns"], kept["turns"], strict=True)
        assert {**here, "turns": ...} == {**here, **kept, "turns": ...} and all(
            new == {**new, **old} for new, old in turns
        )
    assert [hit["id"] for hit in json.loads(called(home, "history", "search", "ünïcode", "--json").stdout)] == [1]


def test_what_is_deleted_is_in_no_file(home: Path) -> None:
    said = "and again: ünïcode".encode()
    files = Paths(home).database.parent
    assert any(said in content for content in contents(files).values())
    assert called(home, "history", "rm", "1", "--yes").returncode == 0
    assert not any(said in content for content in contents(files).values())
    assert [one["id"] for one in json.loads(called(home, "history", "list", "--json").stdout)] == [2]


def test_phrases_and_the_schema_are_as_in_a_new_store(home: Path, tmp_path: Path) -> None:
    def schema(database: Path) -> set[tuple[str, str, tuple[str, ...]]]:
        with closing(sqlite3.connect(database)) as connection:
            assert connection.execute("PRAGMA user_version").fetchone() == (FIRST + len(MIGRATIONS) - 1,)
            tables = connection.execute("SELECT type, name FROM sqlite_master").fetchall()
            return {
                (kind, name, tuple(row[1] for row in connection.execute(f"PRAGMA table_info('{name}')")))
                for kind, name in tables
            }

    with Store.open(Paths(home).database, pytest.fail) as store:
        (pool,) = store.phrases.pools()
        assert pool.phrases == len(list(store.phrases.export(pool.pool))) > 0
    with Store.open(tmp_path / "new.db", pytest.fail):
        pass
    assert schema(Paths(home).database) == schema(tmp_path / "new.db")


def test_a_conversation_goes_on_with_the_drafter_of_then(home: Path) -> None:
    before = contents(Paths(home).packed)
    named = ["-m", str(home / "model"), "--drafter", str(home / "drafter")]
    result = called(home, "run", "-c", "more", *named, "-n", "4", "--temp", "0")
    assert result.returncode == 0, result.stderr
    assert read_drafter(home / "drafter").kind == "medusa"
    with Store.open(Paths(home).database, pytest.fail) as store:
        assert store.history.read(2).turns[-1].prompt == "more"
    assert {name: contents(Paths(home).packed)[name] for name in before if name.endswith(".packed")} == {
        name: content for name, content in before.items() if name.endswith(".packed")
    }


def test_packed_files_are_whole(home: Path) -> None:
    assert packed(home)
    for file in packed(home):
        assert read(file).verify() == []


def test_settings_and_models_mean_what_they_meant(home: Path) -> None:
    settings = load(Paths(home), {})
    assert (settings.model, settings.temperature, settings.stop) == ("demo", 0.5, ("END",))
    assert settings.keymap == {"chat.new": "f6"}
    assert "mine" in known(Paths(home))


def refused(home: Path, place: Path, code: int, said: str, *command: str) -> None:
    """Check that the command ends with an error, and leaves its files unchanged."""
    before = contents(place)
    result = called(home, *command)
    assert result.returncode == code and said in result.stderr and result.stderr.count("\n") == 1, result
    assert contents(place) == before


def test_a_newer_store_is_set_aside_as_it_is(home: Path) -> None:
    database = Paths(home).database
    with closing(sqlite3.connect(database)) as connection:
        connection.execute(f"PRAGMA user_version = {FIRST + len(MIGRATIONS)}")
        connection.commit()
    before = database.read_bytes()
    result = called(home, "history", "list")
    assert result.returncode == 0 and wording("written_by_a_newer_localspec") in result.stderr, result
    aside = database.with_name(f"{database.name}.newer-1")
    assert aside.read_bytes() == before
    assert result.stderr.endswith(f"update localspec and rename {aside.name} to {database.name}.\n")


def test_a_newer_drafter(home: Path) -> None:
    card = home / "drafter" / "drafter" / "drafter.json"
    card.write_text(json.dumps({**json.loads(card.read_text()), "format": FORMAT + 1}))
    named = ["-m", str(home / "model"), "--drafter", str(home / "drafter")]
    refused(home, home / "drafter", 1, wording("use_version_wrote"), "run", "hi", *named, "--no-log")


def test_a_newer_packed_file(home: Path) -> None:
    for file in packed(home):
        content = file.read_bytes()
        length = struct.unpack_from("<Q", content, 8)[0]
        header = json.loads(content[48 : 48 + length])
        header["format"] = PACKED_FORMAT + 1
        said = json.dumps(header, separators=(",", ":")).encode().ljust(length)
        assert len(said) == length
        start = content[:8] + struct.pack("<Q", len(said)) + hashlib.sha256(said).digest()
        file.write_bytes(newer := start + said + content[48 + length :])
        with pytest.raises(UnreadableFormat, match="version"):
            read(file)
        result = called(home, "list")
        assert result.returncode == 0 and file.read_bytes() == newer


def test_newer_settings(home: Path) -> None:
    with Paths(home).config_file.open("r+") as file:
        content = file.read()
        file.seek(0)
        file.write('from_the_future = "yes"\n' + content)
    refused(home, home / "config", 2, "Unknown setting 'from_the_future'", "config")
