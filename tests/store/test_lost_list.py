"""A history whose list of tables lies on lost pages: what its other pages hold comes over all the same."""

import contextlib
import os
import sqlite3
from pathlib import Path

import pytest
from damaged_history import COUNT, history_in, overwritten, written
from database_files import in_a_child
from golden import wording

from localspec.store import lost_list
from localspec.store.store import Store

SIZE = 4096


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = history_in(tmp_path, monkeypatch)
    with Store.open(path, pytest.fail) as store:
        store.history.rename(2, "named")
        store.history.rename(COUNT, "named too")
        store.drafts.keep("typed", "http://one:8000/v1")
    return path


def pages_of_list(path: Path) -> list[int]:
    """The first page of the file, and those that it leads to."""
    page = path.read_bytes()[100:SIZE]
    assert page[0] == 5, "the list has several pages"
    places = [int.from_bytes(page[at : at + 2]) - 100 for at in range(12, 12 + 2 * int.from_bytes(page[3:5]), 2)]
    return [1, *(int.from_bytes(page[at : at + 4]) for at in (*places, 8))]


def lost(path: Path, pages: list[int], content: bytes = b"\xff") -> bytes:
    with path.open("r+b") as file:
        for page in pages:
            file.seek((page - 1) * SIZE)
            file.write(content * SIZE)
    return path.read_bytes()


def all_came(path: Path, notices: list[str]) -> None:
    with Store.open(path, notices.append) as store:
        for number in range(1, COUNT + 1):
            saved = store.history.read(number)
            assert saved is not None and len(saved.turns[0].reply.split()) == 400
            assert saved.info.title == {2: "named", COUNT: "named too"}.get(number, f"prompt{number - 1}")
            assert number in {found.info.id for found in store.history.search(f"prompt{number - 1}")}
        written(store)
        assert store.history.say(None, "more", model="demo", system=None)[0] == COUNT + 1
        assert store.history.strays() == 0
        drafts = store._database.read(
            lambda connection: connection.execute("SELECT text, server FROM draft").fetchall()
        )
        assert drafts == [("typed", "http://one:8000/v1")]
    assert len(notices) == 1 and wording("begun_conversations_could_read", count=COUNT) in notices[0]


@pytest.mark.slow
@pytest.mark.parametrize("content", [b"\xff", b"\0"], ids=["rubbish", "zeros"])
def test_each_page_of_the_list(path: Path, content: bytes) -> None:
    whole = path.read_bytes()
    pages = pages_of_list(path)
    assert len(pages) > 3
    for number, page in enumerate(pages, 1):
        path.write_bytes(whole)
        before = lost(path, [page], content)
        all_came(path, [])
        assert path.with_name(f"localspec.db.broken-{number}").read_bytes() == before


def test_all_of_the_list_at_once(path: Path, notices: list[str]) -> None:
    lost(path, pages_of_list(path))
    all_came(path, notices)


def test_with_the_list_of_conversations_lost_too(path: Path, notices: list[str]) -> None:
    pages = pages_of_list(path)
    overwritten("conversation", path)
    lost(path, pages)
    with Store.open(path, notices.append) as store:
        assert {info.id for info in store.history.conversations()} == {*range(1, COUNT + 1)}
        assert store.history.info(2).title == "named"  # type: ignore[union-attr]
    assert wording("begun_conversations_could_read", count=COUNT) in notices[0]


@pytest.mark.slow
@pytest.mark.long
def test_with_a_page_of_what_is_listed_lost_too(path: Path, notices: list[str]) -> None:
    """Whatever a page is of, it costs no more than without the list."""
    whole, pages = path.read_bytes(), pages_of_list(path)
    kept = {}
    for missing in ([], pages):
        for page in range(2, len(whole) // SIZE + 1):
            path.unlink()
            path.write_bytes(whole)
            lost(path, [page, *missing])
            for _ in range(2):
                with Store.open(path, notices.append) as store:
                    found = {number for number in range(1, COUNT + 1) if store.history.read(number)}
            kept[page, bool(missing)] = found
    without = {page: kept[page, False] - kept[page, True] for page, missing in kept if missing}
    assert {page: numbers for page, numbers in without.items() if numbers} == {}


@pytest.mark.slow
def test_what_is_still_in_the_log_is_read(path: Path, notices: list[str]) -> None:
    def say_and_die(pipe: int) -> None:
        store = Store.open(path, pytest.fail)
        _, turn = store.history.say(None, "in the log", model="demo", system=None)
        store.history.write(turn, "and its reply", "stop")
        os._exit(0)

    child, reader = in_a_child(say_and_die)
    os.waitpid(child, 0)
    os.close(reader)
    assert path.with_name("localspec.db-wal").stat().st_size
    lost(path, pages_of_list(path)[1:])
    with Store.open(path, notices.append) as store:
        assert [found.info.id for found in store.history.search("its reply")] == [COUNT + 1]
    assert wording("begun_conversations_could_read", count=COUNT + 1) in notices[0]


@pytest.mark.parametrize("hindrance", ["large", "of another version", "no turns"])
def test_where_nothing_is_looked_for(
    path: Path, notices: list[str], hindrance: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = pages_of_list(path)[1:]
    if hindrance == "large":
        monkeypatch.setattr(lost_list, "MOST", 1000)
    elif hindrance == "of another version":
        with path.open("r+b") as file:
            file.seek(60)
            file.write((7).to_bytes(4))
    else:
        pages = [*range(2, path.stat().st_size // SIZE + 1)]
    lost(path, pages)
    with Store.open(path, notices.append) as store:
        assert store.history.conversations() == []
    assert len(notices) == 1 and notices[0].endswith(wording("a_new_one_was_begun"))


def test_the_columns_are_those_of_a_new_file(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as new, contextlib.closing(sqlite3.connect(":memory:")) as memory:
        for table, (columns, _) in lost_list.TABLES.items():
            memory.execute(f"CREATE TABLE its_{table} ({columns})")
            names = [
                [row[1] for row in connection.execute(f"PRAGMA table_info({name})").fetchall()]
                for connection, name in ((new, table), (memory, f"its_{table}"))
            ]
            assert names[0] == names[1]
