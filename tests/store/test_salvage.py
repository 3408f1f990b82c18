"""A history that cannot be mended is set aside as it is, and what can be read of it comes over into the new one."""

import contextlib
import itertools
import sqlite3
from pathlib import Path

import pytest
from damaged_history import COUNT, exchanged, history_in, last_volume, overwritten, written
from database_files import integrity
from golden import wording

from localspec.store import salvage
from localspec.store import store as store_module
from localspec.store.schema import MIGRATIONS
from localspec.store.store import Store


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = history_in(tmp_path, monkeypatch)
    with Store.open(path, pytest.fail) as store:
        store.history.rename(2, "named")
        store.drafts.keep("typed", "http://one:8000/v1")
    return path


def leaves(path: Path, table: str) -> list[int]:
    """The numbers of the pages that hold its rows, in order, without the last one."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        query = "SELECT rootpage FROM sqlite_master WHERE name = ?"
        (root,) = connection.execute(query, (table,)).fetchone()
        size = connection.execute("PRAGMA page_size").fetchone()[0]
    page = path.read_bytes()[(root - 1) * size : root * size]
    assert page[0] == 5, "the root of several pages"
    places = [int.from_bytes(page[at : at + 2]) for at in range(12, 12 + 2 * int.from_bytes(page[3:5]), 2)]
    return [int.from_bytes(page[place : place + 4]) for place in places]


def destroyed(path: Path, *pages: int) -> bytes:
    with path.open("r+b") as file:
        for page in pages:
            file.seek((page - 1) * 4096)
            file.write(b"\xff" * 4096)
    return path.read_bytes()


def readable(store: Store) -> list[int]:
    found = [store.history.read(number) for number in range(1, COUNT + 1)]
    assert all(len(saved.turns[0].reply.split()) == 400 for saved in found if saved)
    return [saved.info.id for saved in found if saved]


@pytest.mark.slow
def test_what_can_be_read_comes_over_under_its_own_ids(path: Path, notices: list[str]) -> None:
    before = destroyed(path, leaves(path, "turn")[0])
    with Store.open(path, notices.append) as store:
        kept = readable(store)
        assert COUNT - 3 <= len(kept) < COUNT and {info.id for info in store.history.conversations()} == {*kept}
        assert [found.info.id for found in store.history.search(f"prompt{COUNT - 1}")] == [COUNT]
        assert 2 not in kept or store.history.info(2).title == "named"  # type: ignore[union-attr]
        assert store.history.say(None, "more", model="demo", system=None) == (COUNT + 1, COUNT + 1)
        assert store.history.strays() == 0
    [told] = notices
    assert wording("set_aside_localspec_db_broken_1_2", kept=len(kept)) in told
    assert path.with_name("localspec.db.broken-1").read_bytes() == before and integrity(path) == "ok"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT text, server FROM draft").fetchall() == [("typed", "http://one:8000/v1")]
        totals = connection.execute("SELECT number, bytes > 0 FROM volume").fetchall()
        assert len(totals) > 1 and all(some for _, some in totals)


@pytest.mark.slow
def test_what_lies_between_damaged_pages_comes_over_too(path: Path, notices: list[str]) -> None:
    pages = leaves(path, "turn")
    assert len(pages) > 3
    destroyed(path, pages[0], pages[2])
    with Store.open(path, notices.append) as store:
        store.history.search("prompt1")
    with Store.open(path, notices.append) as store:
        kept = readable(store)
    lost = {*range(1, COUNT + 1)} - {*kept}
    assert min(lost) + 1 in kept and min(lost) + 1 < max(lost), "one between them is there"


def test_damage_that_is_found_at_work(path: Path, notices: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "PROBES", ())  # as if the damage were where opening does not look
    before = destroyed(path, leaves(path, "turn")[0])
    with Store.open(path, notices.append) as store:
        for number in range(1, COUNT + 1):
            store.history.read(number)
        assert store.path is None
    assert len(notices) == 1 and wording("new_one_used_begun") in notices[0]
    assert notices[0].endswith(wording("what_learned_session_forgotten"))
    assert path.with_name("localspec.db.broken-1").read_bytes() == before
    with Store.open(path, pytest.fail) as store:
        assert len(readable(store)) >= COUNT - 3
        written(store)


@pytest.mark.slow
def test_conversations_of_which_the_list_is_lost(path: Path, notices: list[str]) -> None:
    overwritten("conversation", path)
    with Store.open(path, notices.append) as store:
        assert readable(store) == [*range(1, COUNT + 1)]
        assert store.history.latest() == COUNT
    assert len(notices) == 1 and wording("conversations_could_read", count=COUNT) in notices[0]


@pytest.mark.slow
def test_a_whole_volume_that_is_lost_costs_no_other(path: Path, notices: list[str]) -> None:
    with Store.open(path, pytest.fail) as store:
        there = len(store.history.conversations())
    overwritten(f"turn{last_volume(path)}", path)
    with Store.open(path, notices.append) as store:
        store.history.search("prompt3")
    with Store.open(path, notices.append) as store:
        assert 0 < len(store.history.conversations()) < there and 1 in readable(store)
        written(store)


@pytest.mark.parametrize("other", ["about", "about_1", "volume", "measurement", "pool", "sqlite_sequence", "unclean"])
def test_the_list_of_conversations_in_the_place_of_another_table(path: Path, notices: list[str], other: str) -> None:
    """To build an index of it anew from what lies there would hide all of them."""
    assert exchanged("conversation", other, path)
    before = path.read_bytes()
    with Store.open(path, notices.append) as store:
        assert readable(store) == [*range(1, COUNT + 1)] and store.history.strays() == 0
        assert {info.model for info in store.history.conversations()} <= {"demo", ""}
        written(store)
    assert path.with_name("localspec.db.broken-1").read_bytes() == before
    assert len(notices) == 1 and wording("begun_conversations_could_read", count=COUNT) in notices[0]


def test_a_page_of_turns_in_the_place_of_another_table(path: Path, notices: list[str]) -> None:
    """All pages are whole then, and what an index tells of more than its table seems to be another's."""
    page = leaves(path, f"turn{last_volume(path)}")[0]
    with contextlib.closing(sqlite3.connect(path)) as connection:
        (root,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'volume'").fetchone()
    content = bytearray(path.read_bytes())
    one, other = (slice((number - 1) * 4096, number * 4096) for number in (page, root))
    content[one], content[other] = content[other], content[one]
    path.write_bytes(content)
    with Store.open(path, notices.append) as store:
        readable(store)
    with Store.open(path, notices.append) as store:
        kept = readable(store)
        assert len(kept) == COUNT - 1 == len(store.history.conversations())
    assert len(notices) == 1 and wording("was_set_aside") in notices[0]
    assert wording("conversations_could_read_2", kept=len(kept)) in notices[0]


def test_a_page_that_seems_to_end_a_table_does_not_hide_what_is_before_it() -> None:
    class SeemsToEnd:
        """A table of 30 rows whose last page says that there are three, and no more."""

        def execute(self, query: str, values: tuple[int, int] = (0, 2**63 - 1)) -> list[tuple[int]]:
            rows = [(number,) for number in range(1, 31) if values[0] < number < values[1]]
            return rows[:-4:-1] if "DESC" in query else rows

    rows = salvage._rows(SeemsToEnd(), "draft", ("rowid",), deadline=float("inf"))  # type: ignore[arg-type]
    assert sorted(rows) == [(number,) for number in range(1, 31)]


@pytest.mark.parametrize(("looks", "came"), [(0, False), (1, True)])
def test_it_takes_some_seconds_at_most(
    path: Path, notices: list[str], looks: int, came: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    overwritten("turn", path)
    clock = itertools.count(step=salvage.SECONDS / 40 if came else 2 * salvage.SECONDS)
    monkeypatch.setattr(salvage.time, "monotonic", lambda: next(clock))
    with Store.open(path, notices.append) as store:
        found = len(store.history.conversations())
    assert (0 < found < COUNT) == came and len(notices) == 1
    assert (wording("rest_old_one") in notices[0]) == came
    assert notices[0].endswith(wording("a_new_one_was_begun")) != came


def test_what_an_earlier_version_wrote_stays_where_it_is(path: Path, tmp_path: Path) -> None:
    with Store.open(tmp_path / "new.db", pytest.fail):
        pass
    with (
        contextlib.closing(sqlite3.connect(path)) as source,
        contextlib.closing(sqlite3.connect(tmp_path / "new.db", isolation_level=None)) as target,
    ):
        source.execute(f"PRAGMA user_version = {len(MIGRATIONS) - 1}")
        assert salvage.salvage(source, target) == ""
        source.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
        assert salvage.salvage(source, target) == wording("conversations_could_read", count=COUNT)


def test_a_version_that_cannot_be_costs_no_conversation(path: Path, notices: list[str]) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = -2147483640")  # one bit has tipped over
    with Store.open(path, notices.append) as store:
        assert readable(store) == [*range(1, COUNT + 1)]
    [told] = notices
    assert wording("version_2147483640_set_aside", count=COUNT) in told


def test_tables_of_another_version_than_the_file_says(tmp_path: Path, notices: list[str]) -> None:
    path = tmp_path / "localspec.db"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 1")
    with Store.open(path, notices.append) as store:
        assert store.path == path
    assert [told.partition(" is broken (")[2] for told in notices] == [wording("such_table_phrase_set_aside")]
