"""Damage in what is derived costs nothing: it is built anew, at opening or at work, and told in one sentence."""

import contextlib
import random
import shutil
import sqlite3
from collections.abc import Callable
from functools import partial
from itertools import combinations
from pathlib import Path

import pytest
from database_files import damage_root, integrity, only_readable, open_directory
from deleted_text import MARKER, index_is_whole, traces

from localspec.store import opening, volumes
from localspec.store import store as store_module
from localspec.store.comparing import Comparison
from localspec.store.database import StoreTrouble
from localspec.store.store import Store

REBUILT = "its search index was built anew from the conversations, and no conversation is lost."
COUNT = 12


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A history in two volumes at least, with phrases and a measurement."""
    monkeypatch.setattr(volumes, "LIMIT", 20_000)
    path = tmp_path / "data" / "localspec.db"
    chance = random.Random(3)
    with Store.open(path, pytest.fail) as store:
        for number in range(COUNT):
            words = " ".join(f"w{chance.randrange(10**6)}" for _ in range(400))
            _, turn = store.history.say(None, f"prompt{number}", model="demo", system=None)
            store.history.write(turn, words, "stop")
        pool = store.phrases.pool("demo", "hash", None)
        store.phrases.learn(pool, [(7, b"", b"\1\0\0\0")])
        store.measurements.remember("costs", "demo", [1])
    return path


@pytest.fixture
def notices() -> list[str]:
    return []


def changed(statement: str, path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(statement)
        connection.commit()


def overwritten(name: str, path: Path) -> None:
    damage_root(path, name)


def last_volume(path: Path) -> str:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return volumes.suffix(volumes.every(connection)[-1])


DAMAGE = {
    **{f"{name} dropped": partial(changed, f"DROP TABLE {name}") for name in ("trigram", "trigram_data")},
    **{f"{name} dropped": partial(changed, f"DROP TABLE {name}") for name in ("trigram_idx", "trigram_config")},
    "data emptied": partial(changed, "DELETE FROM trigram_data"),
    "config emptied": partial(changed, "DELETE FROM trigram_config"),
    "structure replaced": partial(changed, "UPDATE trigram_data SET block = x'ffffffffffff' WHERE id = 10"),
    "words replaced": partial(changed, "UPDATE trigram_data SET block = x'00ff00ff' WHERE id > 10"),
    **{f"{name} overwritten": partial(overwritten, name) for name in ("trigram_data", "trigram_idx", "trigram_config")},
    "index dropped": partial(changed, "DROP INDEX turn_not_indexed"),
}
INDEXES = ("turn_by_conversation", "turn_not_indexed", "conversation_by_newest", "phrase_by_use")
AUTOMATIC = ("sqlite_autoindex_pool_1", "sqlite_autoindex_measurement_1", "sqlite_autoindex_draft_1")


def all_is_there(store: Store, path: Path, count: int = COUNT) -> None:
    assert store.path == path and not [*path.parent.glob("*.broken-*")]
    assert len(store.history.conversations()) == count
    for number in range(COUNT - count, COUNT):
        (hit,) = [hit for hit in store.history.search(f"prompt{number}") if hit.info.title == f"prompt{number}"]
        saved = store.history.read(hit.info.id)
        assert saved is not None and len(saved.turns[0].reply.split()) == 400
    assert len(store.phrases.look_up(1, [7])) == 1


def searched(store: Store) -> None:
    assert len(store.history.search("prompt3")) == 1


def written(store: Store) -> None:
    _, turn = store.history.say(5, "prompt more", model="demo", system=None)
    assert store.history.write(turn, "reply more", "stop")
    assert [hit.turn for hit in store.history.search("reply more")] == [turn]


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
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
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
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


@pytest.mark.parametrize("found_at_work", [False, True])
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
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


@pytest.mark.parametrize("name", INDEXES + AUTOMATIC)
def test_a_damaged_index_is_built_anew_from_its_table(path: Path, notices: list[str], name: str) -> None:
    overwritten(name, path)
    with Store.open(path, notices.append) as store:
        all_is_there(store, path)
        if name != "sqlite_autoindex_draft_1":  # opening does not look for a draft
            assert len(notices) == 1 and "an index was built anew from its table, and no conversation is" in notices[0]
        written(store)
        assert store.measurements.recall("costs", "demo") == [1]
        store.drafts.keep("typed")
    with Store.open(path, notices.append):
        pass
    assert len(notices) == 1 and integrity(path) == "ok"


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
    assert len(notices) == 1 and notices[0].endswith(", and no conversation is lost.")
    assert ("is measured again" in notices[0]) == (table == "measurement")


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


def test_without_room_nothing_is_set_aside_and_it_is_mended_later(
    path: Path, notices: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    volume = last_volume(path)
    overwritten(f"trigram{volume}_data", path)
    with Store.open(path, notices.append) as store:
        pages = store._database._connection.execute("PRAGMA page_count").fetchone()[0]
        store._database._connection.execute(f"PRAGMA max_page_count = {pages}").fetchone()
        with pytest.raises(StoreTrouble, match="see whether the disk is full"):
            store.history.search("prompt3")
        assert store.path == path and len(store.history.conversations()) == COUNT and notices == []
    with Store.open(path, notices.append) as store:
        all_is_there(store, path)
    assert len(notices) == 1 and notices[0].endswith(REBUILT)


def test_where_the_turns_are_damaged_too_the_file_is_set_aside_as_it_is(path: Path, notices: list[str]) -> None:
    overwritten("turn", path)
    overwritten("trigram_data", path)
    content = path.read_bytes()
    with Store.open(path, notices.append):
        assert len(notices) == 1 and "was set aside as localspec.db.broken-1" in notices[0]
    assert path.with_name("localspec.db.broken-1").read_bytes() == content


# -- exchanged indexes --


TREES = (*INDEXES, *AUTOMATIC, "turn_1_by_conversation", "turn_1_not_indexed")
FOUND_AT_WORK = [  # by what conversations are read by; what lists are read by is compared at opening alone
    pair
    for pair in combinations([tree for tree in TREES if tree != "conversation_by_newest"], 2)
    if {"turn_by_conversation", "turn_1_by_conversation"} & {*pair}
]


def exchanged(one: str, other: str, path: Path) -> bool:
    """Each lies in the place of the other from now on; whether that makes a difference: two empty ones are alike."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        roots = dict(connection.execute("SELECT name, rootpage FROM sqlite_master").fetchall())
        size = connection.execute("PRAGMA page_size").fetchone()[0]
    content = bytearray(path.read_bytes())
    places = [slice((roots[name] - 1) * size, roots[name] * size) for name in (one, other)]
    pages = [bytes(content[place]) for place in places]
    for place, page in zip(places, reversed(pages), strict=True):
        content[place] = page
    path.write_bytes(content)
    return any(any(page[3:5]) for page in pages)  # how many cells there are


@pytest.fixture
def with_draft(path: Path) -> Path:
    with Store.open(path, pytest.fail) as store:
        store.drafts.keep("typed")
    return path


@pytest.mark.parametrize(
    ("one", "other", "found_at_work"),
    [(*pair, False) for pair in combinations(TREES, 2)] + [(*pair, True) for pair in FOUND_AT_WORK],
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
    assert notices == [notice for notice in notices if notice.endswith("from its table, and no conversation is lost.")]
    assert len(notices) == matters
    with Store.open(path, notices.append):
        pass
    assert len(notices) == matters and integrity(path) == "ok"


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
                with pytest.raises(StoreTrouble, match="can only be read"):
                    store.history.say(None, "more", model="demo", system=None)
            told = [notice for notice in notices if "so a copy of it in memory is what is read now: there" in notice]
            assert len(told) == 1 and told[0].endswith("lost; the file is mended once it can be written.")
            assert len(notices) == 2 and any("can only be read (" in notice for notice in notices)
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
        assert len(notices) == 1 and "cannot be used" in notices[0]
        assert nothing_was_written(path.parent, before)
