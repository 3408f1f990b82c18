"""What the file says of its tables, indexes and triggers: a bit that tipped over there is put right, and costs no row."""

import contextlib
import random
import shutil
import sqlite3
import zlib
from pathlib import Path

import pytest
from damaged_history import COUNT, all_is_there, changed, history_in, last_volume, written
from database_files import integrity, only_readable, open_directory
from golden import wording
from slow_cases import some

from localspec.store import schema
from localspec.store.opening import open_in_memory
from localspec.store.store import MIGRATIONS, Store

CORRECTED = wording("what_says_tables_corrected")


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return history_in(tmp_path, monkeypatch)


def said(path: Path) -> dict[str, tuple[object, ...]]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT name, type, tbl_name, sql FROM sqlite_master").fetchall()
    return {row[0]: row for row in rows}


def put(path: Path, name: str, column: str, value: object) -> None:
    """What another program wrote there, or a disk."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        assert connection.execute(f"UPDATE sqlite_master SET {column} = ? WHERE name = ?", (value, name)).rowcount == 1
        connection.commit()


def replaced(path: Path, name: str, old: str, new: str) -> None:
    text = str(said(path)[name][3])
    assert old in text and len(old) == len(new)
    put(path, name, "sql", text.replace(old, new, 1))


def root(path: Path, name: str) -> int:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (name,)).fetchone()[0])


def test_the_sum_is_of_what_this_version_writes() -> None:
    with contextlib.closing(open_in_memory(MIGRATIONS)) as connection:
        rows = [row for (row,) in connection.execute(schema._SAID.format(last=0)) if row is not None]
    assert len(rows) > 25 and zlib.crc32(b"\n".join(sorted(rows))) == schema.WRITTEN


def test_a_whole_file_is_compared_by_its_sum_alone(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*given: object) -> None:
        pytest.fail("a whole file was compared part by part")

    assert last_volume(path)
    monkeypatch.setattr(schema, "_faults", never)
    with Store.open(path, pytest.fail) as store:
        all_is_there(store, path)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    some(
        [
            ("turn_in", "new.reason", "new.rezson"),
            ("turn_out", "'delete'", "'dflete'"),
            ("turn_1_said", "newest < new.id", "newest > new.id"),
            ("turn_1_changes", "TRIGGER", "TRIHGER"),
            ("about_said", "WHERE number", "WHERE nimber"),
            ("turn_1_indexed", "SELECT id", "SELECT ie"),
            ("phrase_out", "old.pool", "old.pkol"),
            ("conversation", "newest", "nfwest"),
            ("turn", "conversation INTEGER", "convdrsation INTEGER"),
            ("turn_1", "CREATE TABLE", "CREATE TABLF"),
            ("conversation_by_newest", "(newest)", "(volume)"),
            ("turn_not_indexed", "reason IS", "model IS "),
            ("trigram", "fts5", "fts4"),
            ("trigram_data", "block", "blocj"),
            ("draft", "CREATE", "CR\xc5ATE"),
        ],
        fast=3,
    ),
)
def test_a_flipped_bit_costs_nothing(path: Path, notices: list[str], name: str, old: str, new: str) -> None:
    before = said(path)
    replaced(path, name, old, new)
    with Store.open(path, notices.append) as store:
        all_is_there(store, path)
        written(store)
        assert store.history.latest() == 5 and store.history.strays() == 0
        store.drafts.keep("typed")
        assert store.history.remove([info.id for info in store.history.conversations()]) == COUNT
    assert len(notices) == 1 and CORRECTED in notices[0] and notices[0].endswith(wording("no_conversation_is_lost"))
    after = said(path)
    assert after == {name: row for name, row in before.items() if name in after} and integrity(path) == "ok"
    with Store.open(path, pytest.fail) as store:
        assert store.history.conversations() == []


@pytest.mark.slow
def test_a_part_of_the_history_that_opening_does_not_look_at(path: Path, notices: list[str]) -> None:
    with Store.open(path, pytest.fail) as store:
        while last_volume(path) != "_2":
            _, turn = store.history.say(None, "prompt more", model="demo", system=None)
            store.history.write(turn, "reply more " * 500, "stop")
        conversations = [info.id for info in store.history.conversations()]
    replaced(path, "turn_1_out", "old.prompt", "old.prolpt")
    with Store.open(path, notices.append) as store:
        assert notices == []
        assert store.history.remove([COUNT]) == 1
        assert len(notices) == 1 and CORRECTED in notices[0]
        assert store.history.remove(conversations) == len(conversations) - 1
    assert len(notices) == 1 and integrity(path) == "ok"


@pytest.mark.parametrize("seed", some(range(24), fast=3))
def test_any_bit_of_any_part_may_tip_over(path: Path, notices: list[str], seed: int) -> None:
    chance = random.Random(seed)
    name, *columns = chance.choice(sorted(said(path).values(), key=str))
    column = chance.choice([n for n, value in enumerate(["", *columns]) if value])
    text = bytearray(str((name, *columns)[column]).encode())
    text[chance.randrange(len(text))] ^= 1 << chance.randrange(8)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        field = ("name", "type", "tbl_name", "sql")[column]
        wrong = f"UPDATE sqlite_master SET {field} = CAST(? AS TEXT) WHERE name = ?"
        connection.execute(wrong, (bytes(text), name))
        connection.commit()
    with Store.open(path, notices.append) as store:
        all_is_there(store, path)
        written(store)
        assert store.history.remove([info.id for info in store.history.conversations()]) == COUNT
    assert len(notices) <= 1 and integrity(path) == "ok"


def test_what_the_newest_turn_is_was_not_kept_meanwhile(path: Path, notices: list[str]) -> None:
    replaced(path, f"turn{last_volume(path)}_said", "newest < new.id", "newest > new.id")
    changed("UPDATE conversation SET newest = 0", path)
    with Store.open(path, notices.append) as store:
        assert [info.id for info in store.history.conversations(2)] == [COUNT, COUNT - 1]
    assert len(notices) == 1 and CORRECTED in notices[0]


@pytest.mark.slow
def test_what_a_silent_trigger_did_not_index_is_found_again(path: Path, notices: list[str]) -> None:
    trigger = f"turn{last_volume(path)}_changed"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        (text,) = connection.execute("SELECT sql FROM sqlite_master WHERE name = ?", (trigger,)).fetchone()
        silent = text.replace("new.reply <> ''", "new.reply << ''")
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("UPDATE sqlite_master SET sql = ? WHERE name = ?", (silent, trigger))
        connection.commit()
        connection.execute("PRAGMA writable_schema = RESET")
        connection.execute(f"UPDATE turn{last_volume(path)} SET reply = 'unheard-of' WHERE conversation = {COUNT}")
        connection.commit()
    with Store.open(path, notices.append) as store:
        assert [found.info.id for found in store.history.search("unheard-of")] == [COUNT]
    assert len(notices) == 1 and CORRECTED in notices[0] and wording("search_index_was_built_anew") in notices[0]


@pytest.mark.parametrize(
    "place", some(["turn_by_conversation", "turn", "phrase", "trigram_idx", "nowhere", "none"], fast=2)
)
@pytest.mark.parametrize("name", some(["turn_not_indexed", "turn_1_by_conversation", "conversation_by_newest", "phrase_by_use",
                                       "sqlite_autoindex_pool_1"], fast=2))  # fmt: skip
def test_an_index_that_has_the_place_of_another_is_built_anew(
    path: Path, notices: list[str], name: str, place: str
) -> None:
    page = {"nowhere": 10**6, "none": None}
    put(path, name, "rootpage", page[place] if place in page else root(path, place))
    with Store.open(path, notices.append) as store:
        all_is_there(store, path)
        written(store)
        assert store.history.remove([2]) == 1
    assert len(notices) == 1 and wording("index_built_anew_from_table_3") in notices[0]
    assert integrity(path) == "ok"
    with Store.open(path, pytest.fail) as store:
        assert len(store.history.conversations()) == COUNT - 1


def test_what_another_program_added_stays(path: Path) -> None:
    changed("ALTER TABLE conversation ADD COLUMN theirs TEXT", path)
    changed("CREATE TABLE theirs (text TEXT)", path)
    before = said(path)
    with Store.open(path, pytest.fail) as store:
        all_is_there(store, path)
        written(store)
    assert said(path) == before


@pytest.mark.slow
def test_other_processes_see_what_was_corrected(path: Path, notices: list[str]) -> None:
    with Store.open(path, pytest.fail) as other:
        replaced(path, "turn_in", "new.reason", "new.rezson")
        with Store.open(path, notices.append) as store:
            written(store)
            written(other)
            all_is_there(other, path)
    assert len(notices) == 1 and integrity(path) == "ok"


def test_what_can_only_be_read_is_corrected_in_memory(path: Path, notices: list[str]) -> None:
    replaced(path, "turn_in", "TRIGGER", "TRIHGER")
    with open_directory() as directory:
        path = Path(shutil.copytree(path.parent, directory / "data")) / path.name
        before = path.read_bytes()
        with only_readable(path, directory_too=True), Store.open(path, notices.append) as store:
            assert store.read_only
            all_is_there(store, path)
        assert any(CORRECTED in notice and wording("copy_memory") in notice for notice in notices)
        assert path.read_bytes() == before


def test_what_sqlite_quotes_of_a_statement_is_told_in_one_line(path: Path, notices: list[str]) -> None:
    text = str(said(path)["turn_in"][3])
    put(path, "turn_in", "sql", text.replace("WHEN", "'HEN", 1))
    with contextlib.closing(sqlite3.connect(path)) as connection, pytest.raises(sqlite3.DatabaseError, match="\n"):
        connection.execute("SELECT 1 FROM turn")
    with Store.open(path, notices.append) as store:
        all_is_there(store, path)
    assert len(notices) == 1 and "\n" not in notices[0] and len(notices[0]) < 800
