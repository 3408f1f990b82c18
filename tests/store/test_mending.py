"""Damage in what is derived costs nothing: it is built anew, at opening or at work, and told in one sentence."""

import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from damaged_history import (
    AUTOMATIC,
    COUNT,
    DAMAGE,
    INDEXES,
    all_is_there,
    changed,
    history_in,
    last_volume,
    overwritten,
    written,
)
from database_files import integrity, only_readable, open_directory
from deleted_text import MARKER, index_is_whole, traces
from golden import matching, wording
from slow_cases import some

from localspec.store import store as store_module
from localspec.store.database import StoreTrouble
from localspec.store.mending import mend
from localspec.store.opening import is_broken
from localspec.store.store import Store

REBUILT = wording("search_index_built_anew_from")


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return history_in(tmp_path, monkeypatch)


def searched(store: Store) -> None:
    assert len(store.history.search("prompt3")) == 1


@pytest.mark.slow
@pytest.mark.parametrize("damage", some(DAMAGE.values(), fast=2), ids=DAMAGE)
def test_a_damaged_search_index_is_built_anew_at_opening(
    path: Path, notices: list[str], damage: Callable[[Path], None]
) -> None:
    damage(path)
    with Store.open(path, notices.append) as store:
        all_is_there(store, path)
        assert len(notices) == 1 and notices[0].startswith(f"{path} was damaged (") and notices[0].endswith(REBUILT)
        assert index_is_whole(store)
    with Store.open(path, notices.append) as store:
        all_is_there(store, path)
    assert len(notices) == 1 and integrity(path) == "ok"  # no page is left that belongs to nothing


@pytest.mark.parametrize("work", [searched, written])
@pytest.mark.parametrize("damage", some(DAMAGE.values(), fast=2), ids=DAMAGE)
def test_a_damaged_search_index_is_built_anew_at_work(
    path: Path,
    notices: list[str],
    damage: Callable[[Path], None],
    work: Callable[[Store], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    damage(path)
    monkeypatch.setattr(store_module, "PROBES", ())  # as if the damage were where opening does not look
    with Store.open(path, notices.append) as store:
        work(store)
        assert len(notices) <= 1 and all(notice.endswith(REBUILT) for notice in notices)
        all_is_there(store, path)
        # Not every damage is in the way of everything; what is not found costs nothing.
    with Store.open(path, notices.append) as store:
        all_is_there(store, path)


def test_an_index_that_seems_to_be_empty_is_built_anew_when_something_is_said(path: Path, notices: list[str]) -> None:
    changed("UPDATE trigram_data SET block = zeroblob(length(block)) WHERE id = 10", path)
    with Store.open(path, notices.append) as store:
        written(store)
        all_is_there(store, path)
        assert len(notices) == 1 and notices[0].endswith(REBUILT)


def test_a_volume_that_opening_does_not_look_at(path: Path, notices: list[str]) -> None:
    volume = last_volume(path)
    assert volume
    overwritten(f"trigram{volume}_data", path)
    with Store.open(path, notices.append) as store:
        assert notices == []
        all_is_there(store, path)
        assert len(notices) == 1 and notices[0].endswith(REBUILT)
    with Store.open(path, notices.append):
        pass
    assert len(notices) == 1 and integrity(path) == "ok"


@pytest.mark.slow
@pytest.mark.parametrize("found_at_work", [False, True])
@pytest.mark.parametrize("damage", some(DAMAGE.values(), fast=2), ids=DAMAGE)
def test_what_is_deleted_is_gone_from_a_damaged_index_too(
    path: Path,
    notices: list[str],
    damage: Callable[[Path], None],
    found_at_work: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Store.open(path, notices.append) as store:
        number, turn = store.history.say(None, f"{MARKER} prompt", model="demo", system=None)
        store.history.write(turn, f"{MARKER} reply", "stop")
    damage(path)
    with monkeypatch.context() as patched:
        if found_at_work:
            patched.setattr(store_module, "PROBES", ())
        with Store.open(path, notices.append) as store:
            assert store.history.remove([number, 1]) == 2
            all_is_there(store, path, COUNT - 1)
            if damage is not DAMAGE["index dropped"] or not found_at_work:  # a deletion goes without this one
                assert len(notices) == 1 and notices[0].endswith(REBUILT)
            assert traces(path) == set()
    assert integrity(path) == "ok"


@pytest.mark.parametrize("name", some(INDEXES + AUTOMATIC, fast=2))
def test_a_damaged_index_is_built_anew_from_its_table(path: Path, notices: list[str], name: str) -> None:
    overwritten(name, path)
    with Store.open(path, notices.append) as store:
        all_is_there(store, path)
        if name != "sqlite_autoindex_draft_1":  # opening does not look for a draft
            assert len(notices) == 1 and wording("index_built_anew_from_table_2") in notices[0]
        written(store)
        assert store.measurements.recall("costs", "demo") == [1]
        store.drafts.keep("typed")
    with Store.open(path, notices.append):
        pass
    assert len(notices) == 1 and integrity(path) == "ok"


@pytest.mark.slow
@pytest.mark.parametrize("table", ["measurement", "volume"])
def test_what_is_measured_or_counted_again_costs_no_conversation(path: Path, notices: list[str], table: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        before = connection.execute("SELECT * FROM volume").fetchall()
    overwritten(table, path)
    with Store.open(path, notices.append) as store:
        all_is_there(store, path)
        store.measurements.remember("costs", "other", [2])
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert [row[0] for row in connection.execute("SELECT * FROM volume")] == [number for number, _ in before]
    assert len(notices) == 1 and notices[0].endswith(wording("and_no_conversation_is_lost"))
    assert (wording("is_measured_again") in notices[0]) == (table == "measurement")


@pytest.mark.slow
def test_other_processes_go_on_beside_it(path: Path, notices: list[str]) -> None:
    with Store.open(path, pytest.fail) as other:
        searched(other)
        overwritten("trigram_idx", path)
        with Store.open(path, notices.append) as store:
            written(store)
            written(other)
            searched(other)
            all_is_there(other, path)
    assert len(notices) == 1 and integrity(path) == "ok"


@pytest.mark.slow
def test_without_room_nothing_is_set_aside_and_it_is_mended_later(
    path: Path, notices: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    volume = last_volume(path)
    overwritten(f"trigram{volume}_data", path)
    with Store.open(path, notices.append) as store:
        pages = store._database._connection.execute("PRAGMA page_count").fetchone()[0]
        store._database._connection.execute(f"PRAGMA max_page_count = {pages}").fetchone()
        with pytest.raises(StoreTrouble, match=matching("see_whether_disk_full")):
            store.history.search("prompt3")
        assert store.path == path and len(store.history.conversations()) == COUNT and notices == []
    with Store.open(path, notices.append) as store:
        all_is_there(store, path)
    assert len(notices) == 1 and notices[0].endswith(REBUILT)


@pytest.mark.slow
def test_where_the_turns_are_damaged_too_the_file_is_set_aside_as_it_is(path: Path, notices: list[str]) -> None:
    overwritten("turn", path)
    overwritten("trigram_data", path)
    content = path.read_bytes()
    with Store.open(path, notices.append):
        assert len(notices) == 1 and wording("set_aside_localspec_db_broken_1") in notices[0]
    assert path.with_name("localspec.db.broken-1").read_bytes() == content


def test_where_a_table_has_lost_rows_that_its_index_names_nothing_is_built_anew(path: Path) -> None:
    """To build the index anew would hide the turns for good, and the next deletion would overwrite them."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        size = connection.execute("PRAGMA page_size").fetchone()[0]
        query = "SELECT rootpage FROM sqlite_master WHERE name = 'turn'"
        page = bytearray(path.read_bytes()[(at := (connection.execute(query).fetchone()[0] - 1) * size) :][:size])
    assert page[0] == 5, "the root of several pages"
    page[3:5] = (int.from_bytes(page[3:5]) - 1).to_bytes(2)  # one of them is out of reach
    with path.open("r+b") as file:
        file.seek(at)
        file.write(page)
    before = path.read_bytes()
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        with pytest.raises(sqlite3.DatabaseError, match=matching("rows_turn_out_reach")) as raised:
            mend(connection)
        assert is_broken(raised.value), "so the file is set aside"
    assert path.read_bytes() == before


@pytest.mark.parametrize("found", ["at opening", "at work", wording("where_can_only_read")])
def test_that_nothing_is_lost_is_said_once_the_file_serves_again(
    notices: list[str], found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_directory() as directory:
        path = history_in(directory, monkeypatch)
        overwritten("turn_by_conversation", path)
        monkeypatch.setattr(
            store_module.mending, "mend", lambda connection: "it was mended, and no conversation is lost"
        )
        if found == "at work":
            monkeypatch.setattr(store_module, "PROBES", ())
        with contextlib.ExitStack() as stack:
            if found == "where it can only be read":
                stack.enter_context(only_readable(path, directory_too=True))
            with Store.open(path, notices.append) as store:
                store.history.read(1)
    assert len(notices) == 1 and "lost" not in notices[0]
    assert (wording("was_set_aside") in notices[0]) == (found != wording("where_can_only_read"))


def test_a_schema_that_is_no_text_is_corrected(path: Path, notices: list[str]) -> None:
    """SQLite quotes it in its errors, which Python then fails to read."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        wrong = "UPDATE sqlite_master SET sql = CAST(x'4352454154452054e1ff' AS TEXT) WHERE name = 'draft'"
        connection.execute(wrong)
        connection.commit()
    with Store.open(path, notices.append) as store:
        all_is_there(store, path)
    assert len(notices) == 1 and wording("what_says_tables_corrected") in notices[0]
