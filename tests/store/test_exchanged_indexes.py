"""An index in the place of another is built anew; and where nothing can be written, what is damaged is mended in memory."""

import contextlib
import shutil
import sqlite3
from collections.abc import Callable
from functools import partial
from itertools import combinations
from pathlib import Path

import pytest
from damaged_history import (
    AUTOMATIC,
    DAMAGE,
    INDEXES,
    all_is_there,
    exchanged,
    history_in,
    last_volume,
    overwritten,
    written,
)
from database_files import integrity, only_readable, open_directory
from deleted_text import MARKER, traces
from golden import matching, wording
from slow_cases import some

from localspec.store import opening, volumes
from localspec.store import store as store_module
from localspec.store.comparing import Comparison
from localspec.store.database import StoreTrouble
from localspec.store.store import Store


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return history_in(tmp_path, monkeypatch)


TREES = (*INDEXES, *AUTOMATIC, "turn_1_by_conversation", "turn_1_not_indexed")
FOUND_AT_WORK = [  # by what conversations are read by; what lists are read by is compared at opening alone
    pair
    for pair in combinations([tree for tree in TREES if tree != "conversation_by_newest"], 2)
    if {"turn_by_conversation", "turn_1_by_conversation"} & {*pair}
]


@pytest.fixture
def with_draft(path: Path) -> Path:
    with Store.open(path, pytest.fail) as store:
        store.drafts.keep("typed")
    return path


@pytest.mark.parametrize(
    ("one", "other", "found_at_work"),
    some([*((*pair, False) for pair in combinations(TREES, 2)), *((*pair, True) for pair in FOUND_AT_WORK)], fast=4),
)
def test_indexes_that_were_exchanged_are_built_anew(
    with_draft: Path,
    notices: list[str],
    one: str,
    other: str,
    found_at_work: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = with_draft
    matters = exchanged(one, other, path)
    if found_at_work:
        monkeypatch.setattr(store_module, "PROBES", ())
    with Store.open(path, notices.append) as store:
        all_is_there(store, path)
        assert store.measurements.recall("costs", "demo") == [1]
        assert store.phrases.pool("demo", "hash", None) == 1
        written(store)
    assert notices == [notice for notice in notices if notice.endswith(wording("from_table_conversation_lost"))]
    assert len(notices) == matters
    with Store.open(path, notices.append):
        pass
    assert len(notices) == matters and integrity(path) == "ok"


def test_a_search_compares_what_it_finds_turns_by(
    path: Path, notices: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(path, notices.append) as store:
        _, turn = store.history.say(None, "unanswered", model="demo", system=None)
    assert exchanged("turn_not_indexed", f"turn{last_volume(path)}_not_indexed", path)
    monkeypatch.setattr(store_module, "PROBES", ())
    with Store.open(path, notices.append) as store:
        assert [found.turn for found in store.history.search("unanswered")] == [turn]
    with Store.open(path, notices.append):
        pass
    assert len(notices) == 1 and integrity(path) == "ok"


def emptied(path: Path, volume: str) -> None:
    """Puts an empty index in the place of the one by which a search finds turns that are in no index of words."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(f"CREATE INDEX empty ON turn{volume} (id) WHERE id < 0")
        (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'empty'").fetchone()
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("DELETE FROM sqlite_master WHERE name = 'empty'")
        place = "UPDATE sqlite_master SET rootpage = ? WHERE name = ?"
        connection.execute(place, (page, f"turn{volume}_not_indexed"))
        connection.commit()


@pytest.mark.slow
@pytest.mark.parametrize("first", [True, False])
def test_a_search_finds_what_an_empty_index_hides(
    path: Path, notices: list[str], first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    volume = "" if first else last_volume(path)
    with Store.open(path, notices.append) as store:
        turn = 2 if first else store.history.say(None, "prompt more", model="demo", system=None)[1]
        store.history.write(store.history.say(None, "after it", model="demo", system=None)[1], "reply", "stop")
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(f"UPDATE turn{volume} SET reply = '', prompt = 'unanswered' WHERE id = ?", (turn,))
        assert connection.execute(f"SELECT count(*) FROM turn{volume} WHERE id > ?", (turn,)).fetchone()[0]
        connection.commit()
    emptied(path, volume)
    with Store.open(path, notices.append) as store:
        assert notices == [], "neither the first nor the last row of the table is hidden"
        with monkeypatch.context() as patched:
            patched.setattr(volumes, "MOST_COUNTED", 0)
            assert store.history.search("unanswered") == [], "so much is not counted, and one need not"
        assert [found.turn for found in store.history.search("unanswered")] == [turn]
    assert len(notices) == 1 and wording("index_built_anew_from_table") in notices[0]
    with Store.open(path, notices.append):
        pass
    assert len(notices) == 1 and integrity(path) == "ok"


def test_turns_are_counted_once_by_a_process(path: Path) -> None:
    asked: list[str] = []
    with Store.open(path, pytest.fail) as store:
        store._database._connection.set_trace_callback(asked.append)
        for _ in range(2):
            store.history.search("prompt3")
    counting = [statement for statement in asked if "count(*)" in statement and "not_indexed" in statement]
    assert len(counting) == 2 and len({*counting}) == 2  # one for each volume


def test_every_index_is_compared_with_its_table_at_opening(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        query = "SELECT name FROM sqlite_master WHERE type = 'index' AND name NOT GLOB 'turn_[0-9]*'"
        names = {name for (name,) in connection.execute(query)}
    compared = {
        name for name in names for probe in store_module.PROBES if isinstance(probe, Comparison) and name in probe
    }
    assert names == compared


@pytest.mark.parametrize("name", INDEXES + AUTOMATIC)
def test_a_comparison_reads_a_few_pages_by_the_key_alone(path: Path, name: str) -> None:
    [probe] = [probe for probe in store_module.PROBES if isinstance(probe, Comparison) and f"BY {name} " in probe]
    with contextlib.closing(sqlite3.connect(path)) as connection:
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {probe}").fetchall()]
    assert plan and not any("TEMP B-TREE" in step or "SCAN found" in step for step in plan)
    assert sum(step.startswith("SEARCH found USING") for step in plan) == 4
    assert sum(name in step for step in plan) == 4  # two rows are looked up in it, two ends of it are read


@pytest.mark.slow
def test_what_is_deleted_is_gone_where_an_index_hides_it(
    path: Path, notices: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(path, notices.append) as store:
        number, turn = store.history.say(None, f"{MARKER} prompt", model="demo", system=None)
        store.history.write(turn, f"{MARKER} reply", "stop")
    volume = last_volume(path)
    assert exchanged(f"turn{volume}_by_conversation", f"turn{volume}_not_indexed", path)
    monkeypatch.setattr(store_module, "PROBES", ())
    with Store.open(path, notices.append) as store:
        assert store.history.remove([number]) == 1
        all_is_there(store, path)
        assert traces(path) == set()
    assert integrity(path) == "ok"


# -- where nothing can be written --


def nothing_was_written(folder: Path, before: dict[str, bytes]) -> bool:
    return {file.name: file.read_bytes() for file in folder.iterdir()} == before


@pytest.mark.slow
@pytest.mark.parametrize("directory_too", [True, False])
@pytest.mark.parametrize(
    "damage",
    [
        *DAMAGE.values(),
        *(partial(overwritten, name) for name in (*INDEXES, "measurement", "volume")),
        partial(exchanged, "sqlite_autoindex_pool_1", "turn_by_conversation"),
        partial(overwritten, "trigram_1_data"),
        partial(exchanged, "turn_1_by_conversation", "turn_1_not_indexed"),
    ],
    ids=[*DAMAGE, *INDEXES, "measurement", "volume", "exchanged", "found when searched", "found when listed"],
)
def test_what_is_damaged_and_can_only_be_read_is_mended_in_memory(
    path: Path, notices: list[str], damage: Callable[[Path], None], directory_too: bool
) -> None:
    damage(path)
    with open_directory() as directory:
        path = Path(shutil.copytree(path.parent, directory / "data")) / path.name
        with only_readable(path, directory_too):
            before = {file.name: file.read_bytes() for file in path.parent.iterdir()}
            with Store.open(path, notices.append) as store:
                assert store.read_only
                all_is_there(store, path)
                with pytest.raises(StoreTrouble, match=matching("can_only_be_read")):
                    store.history.say(None, "more", model="demo", system=None)
            told = [notice for notice in notices if wording("copy_memory_what_read_now_there") in notice]
            assert len(told) == 1 and told[0].endswith(wording("lost_file_mended_once_can_written"))
            assert len(notices) == 2 and any(wording("can_only_be_read_2") in notice for notice in notices)
            assert nothing_was_written(path.parent, before) or not directory_too
            assert path.read_bytes() == before[path.name]


def test_what_is_too_large_for_memory_is_told_and_left_alone(
    path: Path, notices: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "MOST_COPIED", 1000)
    overwritten("turn_by_conversation", path)
    with open_directory() as directory:
        path = Path(shutil.copytree(path.parent, directory / "data")) / path.name
        before = {file.name: file.read_bytes() for file in path.parent.iterdir()}
        with only_readable(path, directory_too=True), Store.open(path, notices.append) as store:
            assert store.path is None and store.history.conversations() == []
        assert len(notices) == 1 and wording("cannot_be_used") in notices[0]
        assert nothing_was_written(path.parent, before)
