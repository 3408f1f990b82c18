"""No byte of the files has deleted text, however pages were used before, and whenever the deletion was interrupted."""

import os
import random
import shutil
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
from database_files import in_a_child, integrity
from deleted_text import MARKER, index_is_whole, leave_copies, talk, traces
from golden import matching, wording

from localspec.quantities import size
from localspec.store import cleaning, opening
from localspec.store.database import StoreTrouble
from localspec.store.history import History
from localspec.store.store import Store

TABLES = ["conversation", "turn", "trigram_data", "trigram_idx"]


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with Store.open(path, pytest.fail) as opened:
        yield opened


def raw(store: Store, query: str, *values: object) -> list[tuple[object, ...]]:
    return store._database._connection.execute(query, values).fetchall()


def marks(store: Store) -> int:
    return len(raw(store, "SELECT number FROM deletion"))


def says(history: History, chance: random.Random, conversation: int | None = None, turns: int = 3) -> int:
    """Say something other than MARKER in turns of a few kilobytes; return the conversation."""
    for _ in range(turns):
        words = [f"w{chance.randrange(10**6)}" for _ in range(chance.choice([5, 50, 500]))]
        conversation, turn = history.say(conversation, " ".join(words[:5]), model="demo", system="Be brief.")
        for end in (2, 3):
            history.write(turn, " ".join(words[: len(words) * end // 4]))
        history.write(turn, " ".join(words), chance.choice(["stop", "length"]), {"seed": 1}, "a thought")
    assert conversation is not None
    return conversation


@pytest.mark.slow
@pytest.mark.parametrize("rewritten", [True, False])
def test_copies_that_sqlite_left_go_too(path: Path, monkeypatch: pytest.MonkeyPatch, rewritten: bool) -> None:
    if not rewritten:
        monkeypatch.setattr(cleaning, "vacuum", lambda connection, path: None)
    chance = random.Random(1)
    with Store.open(path, pytest.fail) as store:
        kept = [says(store.history, chance) for _ in range(10)]
        gone = talk(store.history, chance)
        store.history.rename(gone, MARKER)
    assert leave_copies(path, TABLES) > 20 and integrity(path) == "ok"
    with Store.open(path, pytest.fail) as store:
        before = [store.history.read(number) for number in kept]
        assert store.history.remove([gone]) == 1
        assert (traces(path) == set()) is rewritten, "this test sees copies"
        assert [store.history.read(number) for number in kept] == before and index_is_whole(store)
    assert integrity(path) == "ok"


@pytest.mark.parametrize("merged", [True, False])
def test_words_of_deleted_turns_leave_the_index(path: Path, monkeypatch: pytest.MonkeyPatch, merged: bool) -> None:
    if not merged:  # SQLite's own overwriting and VACUUM, without merging the index
        monkeypatch.setattr(cleaning, "write_anew", cleaning.vacuum)
    with Store.open(path, pytest.fail) as store:
        says(store.history, random.Random(1))
        gone = talk(store.history, random.Random(2), turns=2)
        assert store.history.remove([gone]) == 1
        assert (traces(path) == set()) is merged, "this test sees words in the index"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_what_was_removed_is_in_no_file_whatever_else_was_said(path: Path, store: Store, seed: int) -> None:
    chance, history = random.Random(seed), store.history
    kept: list[int] = []
    for _ in range(8):
        gone: list[int] = []
        for _ in range(12):
            match chance.randrange(6):
                case 0 | 1:
                    kept.append(says(history, chance, chance.choice([None, *kept])))
                case 2 | 3:
                    gone.append(talk(history, chance, chance.choice([None, *gone]), chance.randint(1, 4)))
                case 4 if gone:
                    saved = history.read(gone[0])
                    assert saved is not None
                    gone.append(history.branch(gone[0], saved.turns, model="demo", system=MARKER)[0])
                case _ if gone:
                    history.rename(gone[0], MARKER)
        before = [history.read(number) for number in kept]
        assert history.remove(gone) == len(set(gone)) and traces(path) == set()
        assert [history.read(number) for number in kept] == before and index_is_whole(store)
        if chance.random() < 0.5:
            history.remove([kept.pop(chance.randrange(len(kept)))] if kept else [])
    assert integrity(path) == "ok"


def test_a_long_deleted_conversation_leaves_no_pages(path: Path, store: Store) -> None:
    """A reply of two megabytes takes hundreds of overflow pages."""
    says(store.history, random.Random(1))
    gone, turn = store.history.say(None, MARKER, model="demo", system=MARKER)
    for length in (1, 100_000, 20_000):
        store.history.write(turn, f"{MARKER} " * length)
    store.history.write(turn, f"{MARKER} " * 60_000, "stop")
    assert path.stat().st_size + Path(f"{path}-wal").stat().st_size > 2 * 2**20
    assert store.history.remove([gone]) == 1 and traces(path) == set()


def test_a_large_file_is_overwritten_at_the_next_start(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleaning, "SMALL", 0)
    notices: list[str] = []
    with Store.open(path, pytest.fail) as store:
        kept = says(store.history, random.Random(4))
        gone = talk(store.history, random.Random(4))
        assert store.unfinished == ""
        assert store.history.remove([gone]) == 1
        assert store.unfinished.endswith(wording("is_overwritten_at_the_next_start"))
        with Store.open(path, notices.append) as another:  # views of every process are without it at once
            assert [info.id for info in another.history.conversations()] == [kept]
            assert another.history.search(MARKER[:3]) == [] and marks(store) == 0
        assert notices == [matched for matched in notices if wording("is_overwritten_now") in matched] != []
        assert traces(path) == set() and store.unfinished == ""


def test_a_large_file_waits_for_room(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleaning, "SMALL", 0)
    with Store.open(path, pytest.fail) as store:
        says(store.history, random.Random(4))
        assert store.history.remove([talk(store.history, random.Random(4))]) == 1
        needed = 2 * cleaning.content_size(store._database._connection)
        notices: list[str] = []
        for free in (needed - 1, needed):
            monkeypatch.setattr("shutil.disk_usage", lambda place, free=free: SimpleNamespace(free=free))
            with Store.open(path, notices.append):
                assert (traces(path) == set()) == (free == needed)
    assert wording("make_room_for", needed=size(needed)) in notices[0] and len(notices) == 2


@pytest.mark.parametrize("everything", [True, False])
def test_clearing_all_phrases_rewrites_no_large_file(
    path: Path, monkeypatch: pytest.MonkeyPatch, everything: bool
) -> None:
    monkeypatch.setattr(cleaning, "SMALL", 0)
    with Store.open(path, pytest.fail) as store:
        pools = [store.phrases.pool(name, "hash") for name in ("demo", "other")]
        for pool in pools:
            assert pool is not None
            store.phrases.learn(pool, [(n, b"", MARKER.encode()) for n in range(2000)])
    assert leave_copies(path, ["phrase", "phrase_by_use"]) > 20
    with Store.open(path, pytest.fail) as store:
        assert store.phrases.delete(None if everything else pools[0]) == (4000 if everything else 2000)
        assert bool(marks(store)) is not everything
        assert (traces(path) == set()) is everything
        assert [pool.phrases for pool in store.phrases.pools()] == [0 if everything else 2000, 0]


def stopped(path: Path, conversation: int, statement: int) -> bool:
    """Delete a conversation in a process that is killed when it begins this statement; return whether it was killed."""

    def live(pipe: int) -> None:
        store, count = Store.open(path, pytest.fail), 0

        def begins(sql: str) -> None:
            nonlocal count
            count += 1
            if count == statement:
                os.kill(os.getpid(), signal.SIGKILL)

        store._database._connection.set_trace_callback(begins)
        store.history.remove([conversation])
        os.write(pipe, b"done")
        os.kill(os.getpid(), signal.SIGKILL)  # nor is the file closed, which would empty the log

    child, pipe = in_a_child(live)
    os.waitpid(child, 0)
    with open(pipe, "rb") as answer:
        return answer.read() != b"done"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("large", [False, True])
def test_what_a_killed_deletion_left_is_overwritten_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    """Killed before every fifth of its statements."""
    chance = random.Random(3)
    with Store.open(tmp_path / "made" / "localspec.db", pytest.fail) as store:
        kept = says(store.history, chance)
        gone = talk(store.history, chance, turns=2)
        saved = store.history.read(kept), store.history.read(gone)
    statement, states = 1, set()
    while True:
        path = tmp_path / "now" / "localspec.db"
        shutil.copytree(tmp_path / "made", path.parent)
        killed = stopped(path, gone, statement)
        with monkeypatch.context() as sized:
            sized.setattr(cleaning, "SMALL", 0 if large else cleaning.SMALL)
            store = Store.open(path, lambda sentence: None)
        with store:
            there = store.history.read(gone)
            assert there in (None, saved[1]) and store.history.read(kept) == saved[0]
            if there is None:
                assert traces(path) == set(), statement
                assert marks(store) == 0
            assert index_is_whole(store)
        assert integrity(path) == "ok"
        shutil.rmtree(path.parent)
        states.add((there is None, killed))
        if not killed:
            break
        statement += 5
    assert states == {(False, True), (True, True), (True, False)} and statement > 12


@pytest.mark.parametrize("large", [False, True])
def test_without_room_nothing_is_lost_and_the_next_start_overwrites(
    path: Path, monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    with Store.open(path, pytest.fail) as store:
        kept = says(store.history, random.Random(4))
        gone = talk(store.history, random.Random(4))
        before = store.history.read(kept)
        vacuum = cleaning.vacuum

        def full(connection: sqlite3.Connection, path: Path | None) -> None:
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error

        monkeypatch.setattr(cleaning, "vacuum", full)
        with pytest.raises(StoreTrouble, match=matching("n1_conversation_removed_but_deleted")) as caught:
            store.history.remove([gone])
        assert "disk is full" in str(caught.value) and marks(store)
        assert [info.id for info in store.history.conversations()] == [kept]
        notices: list[str] = []
        with monkeypatch.context() as sized:
            sized.setattr(cleaning, "SMALL", 0 if large else cleaning.SMALL)
            with Store.open(path, notices.append) as another:  # still no room
                assert another.history.read(kept) == before and marks(another)
        assert any(wording("until_the_next_start_large") in notice for notice in notices) is large
        monkeypatch.setattr(cleaning, "vacuum", vacuum)
        with Store.open(path, pytest.fail) as another:
            assert another.history.read(kept) == before and marks(another) == 0
            assert traces(path) == set()


def test_without_room_for_the_deletion_itself_nothing_is_removed(store: Store) -> None:
    gone = talk(store.history, random.Random(4))
    before = store.history.read(gone)

    def full(connection: sqlite3.Connection) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cleaning, "mark", full)
        with pytest.raises(StoreTrouble, match="disk is full"):
            store.history.remove([gone])
    assert store.history.read(gone) == before and marks(store) == 0


def test_a_start_waits_for_nobody_to_overwrite_a_small_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "BUSY_SECONDS", 0.05)
    with Store.open(path, pytest.fail) as store:
        says(store.history, random.Random(4))
        gone = talk(store.history, random.Random(4))
        with closing(sqlite3.connect(path, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM turn").fetchall()
            with pytest.raises(StoreTrouble, match=matching("end_every_other_localspec_session")):
                store.history.remove([gone])
            monkeypatch.setattr(opening, "BUSY_SECONDS", 3600)
            with Store.open(path, pytest.fail) as another:
                assert marks(another)
        with Store.open(path, pytest.fail) as another:
            assert traces(path) == set() and marks(another) == 0


def test_a_conversation_that_is_taken_back_is_overwritten_at_the_next_start(path: Path) -> None:
    with Store.open(path, pytest.fail) as store:
        store.history.take_back(talk(store.history, random.Random(4), turns=1))
        assert store.history.conversations() == [] and marks(store) == 1
    with Store.open(path, pytest.fail) as store:
        assert traces(path) == set() and marks(store) == 0


def test_a_start_waits_for_a_process_that_rewrites_the_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "BUSY_SECONDS", 0.05)
    with Store.open(path, pytest.fail) as store:
        kept = says(store.history, random.Random(4))

    def rewrite(pipe: int) -> None:
        with opening.one_at_a_time(path):
            os.write(pipe, b"locked")
            signal.pause()

    child, pipe = in_a_child(rewrite)
    assert os.read(pipe, 6) == b"locked"
    notices: list[str] = []

    def notice(sentence: str) -> None:
        notices.append(sentence)
        os.kill(child, signal.SIGKILL)

    with Store.open(path, notice) as store:
        assert [info.id for info in store.history.conversations()] == [kept] and not store.read_only
    os.waitpid(child, 0)
    os.close(pipe)
    assert len(notices) == 1 and wording("another_localspec_process_is_rewriting", path=path) in notices[0]
