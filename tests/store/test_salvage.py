"""Readable parts of a damaged file are copied to a new one, and deleted text stays deleted."""

import contextlib
import os
import shutil
import signal
import sqlite3
import stat
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from database_files import answers, damage_root, in_a_child, integrity
from deleted_text import index_is_whole
from golden import matching, wording

from localspec.store import opening, salvage
from localspec.store.database import StoreTrouble
from localspec.store.store import Store

CONVERSATIONS = 60
REPLY = "a reply of many words " * 60  # so long that a page has few turns


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store with conversations 1 to 60 of two turns each, of which 7 was deleted, and some of all else."""
    path = tmp_path_factory.mktemp("whole") / "localspec.db"
    with Store.open(path, pytest.fail) as store:
        for number in range(1, CONVERSATIONS + 1):
            for n in range(2):
                what = f"prompt {number} {n}" + " DELETED" * (number == 7)
                _, turn = store.history.say(number if n else None, what, model="demo", system="Be brief.")
                store.history.write(turn, REPLY, "stop")
        store.history.rename(3, "the third")
        store.history.remove([7])
        pool = store.phrases.pool("demo", "hash")
        assert pool is not None
        for reply in range(4):
            store.phrases.learn(pool, [(n << 32, bytes([reply]) * 24, bytes([n]) * 32) for n in range(100)])
        for n in range(20):
            store.measurements.remember("costs", f"model {n}", [n])
    return path


def copied(whole: Path, path: Path) -> Path:
    path.parent.mkdir(exist_ok=True)
    shutil.copyfile(whole, path)
    return path


def leaves(path: Path, table: str) -> list[int]:
    """Return the leaf pages of a table that has one level above them."""
    content = path.read_bytes()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        size = connection.execute("PRAGMA page_size").fetchone()[0]
        root = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()[0]
    page = content[(root - 1) * size : root * size]
    assert page[0] in (2, 5), "an interior page"
    cells = (struct.unpack_from(">H", page, 12 + 2 * n)[0] for n in range(int.from_bytes(page[3:5], "big")))
    return [struct.unpack_from(">I", page, place)[0] for place in (*cells, 8)]


def overwrite(path: Path, *pages: int) -> None:
    with path.open("r+b") as file:
        for page in pages:
            file.seek((page - 1) * 4096)
            file.write(b"\xff" * 4096)


def read_all(store: Store) -> set[int]:
    """Read everything, and return the conversations that are there whole."""
    found = {number: store.history.read(number) for number in range(1, CONVERSATIONS + 1)}
    return {number for number, saved in found.items() if saved and len(saved.turns) == 2}


def test_one_page_costs_its_turns_only(path: Path, whole: Path, notices: list[str]) -> None:
    copied(whole, path)
    overwrite(path, leaves(path, "turn")[12])
    content = path.read_bytes()
    with Store.open(path, notices.append) as store:
        assert notices == []
        there = read_all(store)
        lost = {*range(1, CONVERSATIONS + 1)} - {7} - there
        assert 1 <= len(lost) <= 3 and store.path == path
        carried = len(store.history.conversations())
        part = f" ({carried - len(there)} of them incomplete)" if carried > len(there) else ""
        assert notices == [
            wording(
                "is_broken_and_was_set_aside",
                path=path,
                what=f"{carried} of 59 conversations{part}, 400 of 400 phrases and 20 measurements",
            )
        ]
        saved = store.history.read(3)
        assert saved is not None and saved.info.title == "the third" and saved.system == "Be brief."
        assert [turn.reply for turn in saved.turns] == [REPLY] * 2
        assert len(store.history.search("prompt 59")) == 1
        assert store.measurements.recall("costs", "model 19") == [19]
        assert store.history.say(None, "new", model="demo", system=None)[0] == CONVERSATIONS + 1
        assert [pool.phrases for pool in store.phrases.pools()] == [400]
    assert path.with_name("localspec.db.broken-1").read_bytes() == content
    assert integrity(path) == "ok" and stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not path.with_name("localspec.db-new").exists()


@pytest.mark.slow
@pytest.mark.parametrize("table", ["turn", "phrase"])
def test_pages_in_several_places_cost_no_more(path: Path, whole: Path, notices: list[str], table: str) -> None:
    copied(whole, path)
    pages = leaves(path, table)
    overwrite(path, pages[1], pages[-1])
    with Store.open(path, notices.append) as store:
        there = read_all(store)
        list(store.phrases.most_useful(1))
        assert len(notices) == 1 and len(store.history.conversations()) >= len(there)
        assert len(there) >= (59 if table == "phrase" else 50)
        (pool,) = store.phrases.pools()
        left = 400 * (1 - 2 / len(pages)) - 40 if table == "phrase" else 400
        assert left <= pool.phrases <= 400 and (pool.phrases < 400) == (table == "phrase")


@pytest.mark.slow
def test_conversations_whose_own_row_is_lost_keep_their_turns(path: Path, whole: Path, notices: list[str]) -> None:
    copied(whole, path)
    damage_root(path, "conversation")
    with Store.open(path, notices.append) as store:
        assert read_all(store) == {*range(1, CONVERSATIONS + 1)} - {7}
        saved = store.history.read(3)
        assert saved is not None and saved.info.model == "" and saved.info.title == "prompt 3 0"
    assert b"DELETED" not in path.read_bytes()


@pytest.mark.slow
def test_turns_of_a_deleted_conversation_do_not_come_back(path: Path, whole: Path, notices: list[str]) -> None:
    copied(whole, path)
    with contextlib.closing(sqlite3.connect(path)) as connection:  # as an old page that a disk brings back
        insert = (
            "INSERT INTO turn (id, conversation, prompt, reply, figures, asked) VALUES (13, 7, 'DELETED', '', '', 0)"
        )
        connection.execute(insert)
        connection.commit()
    damage_root(path, "measurement")
    with Store.open(path, notices.append) as store:
        assert len(notices) == 1 and store.history.read(7) is None and len(store.history.conversations()) == 59
        assert index_is_whole(store) and store.history.search("DELETED") == []
    assert b"DELETED" not in path.read_bytes()


def damaged(whole: Path, path: Path) -> bytes:
    copied(whole, path)
    damage_root(path, "measurement")
    return path.read_bytes()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_kill_at_any_time_leaves_the_old_file_or_the_whole_new_one(
    path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = [
        (opening, "_migrate"),
        (salvage, "_copy"),
        (salvage, "_account"),
        *((os, name) for name in ("link", "replace")),
    ]
    for module, name in calls:
        for after in (False, True) if name == "replace" else (False,):  # after one is before the next
            content, real = damaged(whole, path), getattr(module, name)

            def killed(*given: object, real: Callable[..., object] = real, after: bool = after) -> object:
                if after:
                    real(*given)
                os.kill(os.getpid(), signal.SIGKILL)
                return None

            def start(_: int, module: object = module, name: str = name, killed: object = killed) -> None:
                setattr(module, name, killed)
                Store.open(path, lambda sentence: None)

            child, pipe = in_a_child(start)
            assert os.waitpid(child, 0)[1] == signal.SIGKILL, (name, after)
            os.close(pipe)
            assert path.exists() and ((name, after) == ("replace", True) or path.read_bytes() == content)
            with Store.open(path, lambda sentence: None) as store:
                assert len(read_all(store)) == 59 and not path.with_name("localspec.db-new").exists()
            for file in path.parent.iterdir():
                file.unlink()


@pytest.mark.slow
def test_a_full_disk_leaves_the_damaged_file_in_its_place(
    path: Path, whole: Path, notices: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    content, real = damaged(whole, path), opening._migrate

    def small(connection: sqlite3.Connection, migrations: object) -> None:
        real(connection, migrations)  # type: ignore[arg-type]
        if connection.execute("PRAGMA database_list").fetchone()[2].endswith("-new"):
            connection.execute("PRAGMA max_page_count = 60").fetchone()

    with monkeypatch.context() as patch:
        patch.setattr(opening, "_migrate", small)
        with Store.open(path, notices.append) as store:
            assert store.path is None and len(notices) == 1 and "disk is full" in notices[0]
    assert path.read_bytes() == content
    assert {file.name for file in path.parent.iterdir()} <= {
        f"localspec.db{end}" for end in ("", "-lock", "-wal", "-shm")
    }
    with Store.open(path, notices.append) as store:
        assert len(read_all(store)) == 59


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_processes_that_find_damage_together_agree_on_one_new_file(path: Path, whole: Path) -> None:
    copied(whole, path)
    overwrite(path, leaves(path, "turn")[12])

    def start(number: int, pipe: int) -> None:
        said: list[str] = []
        with Store.open(path, said.append) as store:
            read_all(store)
            store.history.say(None, f"from {number}", model="demo", system=None)
            os.write(pipe, b"%d" % len(store.history.conversations()))

    assert all(int(found) >= 57 for found in answers(*(partial(start, number) for number in range(3))))
    assert [file.name for file in path.parent.glob("*.broken-?")] == ["localspec.db.broken-1"]
    with Store.open(path, pytest.fail) as store:
        assert {info.title for info in store.history.conversations()} >= {"from 0", "from 1", "from 2"}


def test_a_deletion_says_that_the_damaged_file_is_left(path: Path, whole: Path, notices: list[str]) -> None:
    copied(whole, path)
    overwrite(path, leaves(path, "turn")[12])
    with Store.open(path, notices.append) as store:
        read_all(store)
        with pytest.raises(StoreTrouble, match=matching("is_damaged_and_may_still_hold_it")):
            store.history.remove([3])
        assert store.history.read(3) is None
        path.with_name("localspec.db.broken-1").unlink()
        assert store.history.remove([4]) == 1


@pytest.mark.parametrize("at_start", [False, True])
def test_damage_that_stops_a_deletion_is_no_reason_to_try_it_forever(
    path: Path, whole: Path, notices: list[str], monkeypatch: pytest.MonkeyPatch, at_start: bool
) -> None:
    copied(whole, path)
    overwrite(path, leaves(path, "turn")[12])
    with Store.open(path, notices.append) as store:
        if at_start:
            store.history.take_back(3)
        else:
            with pytest.raises(StoreTrouble, match=matching("is_damaged_and_may_still_hold_it")):
                store.history.remove([3])
            assert len(notices) == 1 and store.history.read(3) is None
    if at_start:
        with Store.open(path, notices.append) as store:
            assert len(notices) == 2 and notices[1] == wording("deleted_text_may_still_be_in", path=path)
            assert store.history.read(3) is None
    with Store.open(path, pytest.fail) as store:
        assert 56 <= len(store.history.conversations()) <= 58 and integrity(path) == "ok"
