"""Volumes: what is deleted is in no byte of the files, however pages were used before, and whenever it was stopped."""

import os
import random
import shutil
import signal
import sqlite3
import struct
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from database_files import in_a_child, integrity
from deleted_text import MARKER, index_is_whole, talk, traces
from golden import matching, wording

from localspec import quantities
from localspec.store import database as database_module
from localspec.store import opening, removal, volumes
from localspec.store.database import StoreTrouble
from localspec.store.history import History
from localspec.store.store import Store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "localspec.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with Store.open(path, pytest.fail) as opened:
        yield opened


@pytest.fixture
def small_volumes(monkeypatch: pytest.MonkeyPatch) -> None:
    sized(monkeypatch, 20_000)


def sized(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    monkeypatch.setattr(volumes, "LIMIT", limit)
    monkeypatch.setattr(volumes, "ONE_BY_ONE", 2 * limit)
    monkeypatch.setattr(volumes, "MOVED_AT_ONCE", limit // 4)
    monkeypatch.setattr(removal, "PAUSE", 0.001)


def raw(store: Store, query: str, *values: object) -> list[tuple[object, ...]]:
    return store._database._connection.execute(query, values).fetchall()


def numbers(store: Store) -> list[int]:
    return volumes.every(store._database._connection)


def says(history: History, chance: random.Random, conversation: int | None = None, turns: int = 3) -> int:
    """Something that is no MARKER, said in turns of a few kilobytes; returns the conversation."""
    for _ in range(turns):
        words = [f"w{chance.randrange(10**6)}" for _ in range(chance.choice([5, 50, 500]))]
        conversation, turn = history.say(conversation, " ".join(words[:5]), model="demo", system="Be brief.")
        for end in (2, 3):
            history.write(turn, " ".join(words[: len(words) * end // 4]))
        history.write(turn, " ".join(words), chance.choice(["stop", "length"]), {"seed": 1}, "a thought")
    assert conversation is not None
    return conversation


# -- no byte is left --


def pages(content: bytes, root: int, size: int) -> Iterator[int]:
    """Where the pages of a tree begin."""
    start = (root - 1) * size
    yield start
    header = start + (100 if root == 1 else 0)
    if content[header] in (2, 5):
        cells = struct.unpack_from(">H", content, header + 3)[0]
        pointers = struct.unpack_from(f">{cells}H", content, header + 12)
        for place in (header + 8, *(start + pointer for pointer in pointers)):
            yield from pages(content, struct.unpack_from(">I", content, place)[0], size)


def leave_copies(path: Path, tables: list[str]) -> int:
    """Writes MARKER where SQLite may leave copies of rows that it moved, between the cells of a page and their list;
    returns on how many pages."""
    with closing(sqlite3.connect(path)) as connection:
        size = connection.execute("PRAGMA page_size").fetchone()[0]
        query = "SELECT rootpage FROM sqlite_master WHERE name = ?"
        roots = [connection.execute(query, (table,)).fetchone()[0] for table in tables]
    content = bytearray(path.read_bytes())
    copies = 0
    for start in (start for root in roots for start in pages(bytes(content), root, size)):
        cells, end = struct.unpack_from(">HH", content, start + 3)
        gap = start + (12 if content[start] in (2, 5) else 8) + 2 * cells
        room = start + end - gap
        text = MARKER.encode()[:room] if room < len(MARKER.encode()) else MARKER.encode()
        if room > 0:
            content[gap : gap + len(text)] = text
            copies += room >= len(MARKER.encode())
    path.write_bytes(content)
    return copies


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("anew", [True, False])
def test_copies_that_sqlite_left_go_too(path: Path, monkeypatch: pytest.MonkeyPatch, number: int, anew: bool) -> None:
    monkeypatch.setattr(database_module, "is_mostly_free", lambda connection: False)  # VACUUM would take them as well
    if not anew:
        monkeypatch.setattr(volumes, "write_anew", lambda connection, table: None)
    chance = random.Random(1)
    with Store.open(path, pytest.fail) as store:
        if number:
            says(store.history, chance)
            raw(store, "UPDATE volume SET bytes = ?", volumes.LIMIT)
        kept = [says(store.history, chance) for _ in range(10)]
        gone = talk(store.history, chance)
        store.history.rename(gone, MARKER)
        assert numbers(store) == [0, 1][: number + 1]
    end = volumes.suffix(number)
    tables = ["conversation", f"about{end}", f"turn{end}", f"trigram{end}_data", f"trigram{end}_idx"]
    assert leave_copies(path, tables) > 20 and integrity(path) == "ok"
    with Store.open(path, pytest.fail) as store:
        before = [store.history.read(number) for number in kept]
        assert store.history.remove([gone]) == 1
        assert (traces(path) == set()) is anew, "this test sees copies"
        assert [store.history.read(number) for number in kept] == before and index_is_whole(store)
    assert integrity(path) == "ok"


@pytest.mark.slow
@pytest.mark.usefixtures("small_volumes")
@pytest.mark.parametrize("seed", range(6))
def test_what_was_removed_is_in_no_file_whatever_else_was_said(
    path: Path, store: Store, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(database_module, "is_mostly_free", lambda connection: False)
    chance, history = random.Random(seed), store.history
    kept: list[int] = []
    most = 0
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
        before, most = [history.read(number) for number in kept], max(most, len(numbers(store)))
        assert history.remove(gone) == len(set(gone)) and traces(path) == set()
        assert [history.read(number) for number in kept] == before and index_is_whole(store)
        if chance.random() < 0.5:
            history.remove([kept.pop(chance.randrange(len(kept)))] if kept else [])
    assert most > 3 and integrity(path) == "ok"


# -- stopped at any moment --


def stopped(path: Path, conversation: int, statement: int) -> bool:
    """Deletes it in a process that is killed when it begins this statement of SQL, the how manieth; False where there
    are fewer."""

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
    with open(pipe, "rb") as told:
        return told.read() != b"done"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("divided", [False, True])
@pytest.mark.parametrize("first", [1, *(pytest.param(first, marks=pytest.mark.long) for first in range(2, 6))])
def test_what_a_killed_deletion_left_is_overwritten_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, divided: bool, first: int
) -> None:
    """Killed before the `first` of its statements, and before each fifth after that."""
    chance = random.Random(3)
    with Store.open(tmp_path / "made" / "localspec.db", pytest.fail) as store:
        kept, other = says(store.history, chance), says(store.history, chance)
        gone = talk(store.history, chance, turns=2)
        saved = store.history.read(kept), store.history.read(gone)
    if divided:
        sized(monkeypatch, 4000)
    statement, states = first, set()
    while True:
        path = tmp_path / "now" / "localspec.db"
        shutil.copytree(tmp_path / "made", path.parent)
        killed = stopped(path, gone, statement)
        with Store.open(path, pytest.fail) as store:
            history = store.history
            there = history.read(gone)
            assert there in (None, saved[1]) and history.read(kept) == saved[0]
            if there is None and divided:
                assert history.remove([other]) == 1  # the next deletion finishes it
            if there is None:
                assert traces(path) == set(), statement
                assert raw(store, "SELECT * FROM unclean") == []
            assert index_is_whole(store)
        assert integrity(path) == "ok"
        shutil.rmtree(path.parent)
        states.add((there is None, killed))
        if not killed:
            break
        statement += 5
    assert states == {(False, True), (True, True), (True, False)} and statement > 40


def test_trouble_after_deleting_is_told_and_made_good_at_the_next_start(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(connection: sqlite3.Connection, number: int) -> bool:
        raise sqlite3.OperationalError("database or disk is full")

    with Store.open(path, pytest.fail) as store:
        kept = says(store.history, random.Random(4))
        gone = talk(store.history, random.Random(4))
        with monkeypatch.context() as trouble:
            trouble.setattr(volumes, "clean", full)
            with pytest.raises(
                StoreTrouble,
                match=f"{matching('n1_conversation_removed_but')} .* {matching('until_the_next_start_or_deletion')} .*{matching('disk_is_full')}",
            ):
                store.history.remove([gone])
        assert [info.id for info in store.history.conversations()] == [kept]
        assert raw(store, "SELECT volume FROM unclean") == [(0,)]
        with Store.open(path, pytest.fail) as another:
            assert traces(path) == set() and raw(another, "SELECT volume FROM unclean") == []


@pytest.mark.slow
@pytest.mark.parametrize("when", ["opened", "deleted", "cleaned"])
def test_without_room_nothing_is_lost_and_it_says_how_much_a_deletion_takes(
    path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    def full(*_: object) -> bool:
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise error

    with Store.open(path, pytest.fail) as store:
        kept = says(store.history, random.Random(4))
        gone = talk(store.history, random.Random(4))
        before = store.history.read(kept)
    needed = quantities.size(2 * path.stat().st_size)
    with monkeypatch.context() as trouble:
        place, name = {
            "opened": (database_module, "open_writable"),
            "deleted": (removal, "_delete"),
            "cleaned": (volumes, "clean"),
        }[when]
        trouble.setattr(place, name, full)
        with Store.open(path, lambda sentence: None) as store, pytest.raises(StoreTrouble) as caught:
            store.history.remove([gone])
    begin = f"Nothing was removed, since the disk of {path} is full: "
    if when == "cleaned":
        begin = wording("n1_conversation_removed_but_their", path=path)
    assert str(caught.value).startswith(begin)
    assert str(caught.value).endswith(wording("deletion_needs_up_moment_make", needed=needed))
    with Store.open(path, pytest.fail) as store:
        assert store.history.remove([gone]) == (when != "cleaned")
        assert store.history.read(kept) == before and traces(path) == set()


def test_trouble_in_the_midst_tells_how_many_are_gone(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    sized(monkeypatch, 10)
    gone = [says(store.history, random.Random(seed)) for seed in range(5)]
    save = store._database.save
    calls: list[object] = []

    def full(work):
        calls.append(work)
        if len(calls) == 3:
            raise StoreTrouble("No room.")
        return save(work)

    monkeypatch.setattr(store._database, "save", full)
    with pytest.raises(StoreTrouble, match=f"^{matching('n2_conversations_removed_and_then_no')}$"):
        store.history.remove(gone)
    assert len(store.history.conversations()) == 3 and len(raw(store, "SELECT * FROM unclean")) == 2
    assert store.history.remove(gone) == 3 and raw(store, "SELECT * FROM unclean") == []


@pytest.mark.slow
def test_a_start_waits_for_nobody_to_finish_a_deletion(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "BUSY_SECONDS", 0.05)
    with Store.open(path, pytest.fail) as store:
        says(store.history, random.Random(4))
        gone = talk(store.history, random.Random(4))
        with closing(sqlite3.connect(path, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM turn").fetchall()
            with pytest.raises(StoreTrouble, match=matching("until_every_other_localspec")):
                store.history.remove([gone])
            monkeypatch.setattr(opening, "BUSY_SECONDS", 3600)
            with Store.open(path, pytest.fail) as another:
                assert raw(another, "SELECT count(*) FROM unclean") == [(1,)]
                assert removal.takes_long(another._database, [gone]) is False
        with Store.open(path, pytest.fail) as another:
            assert traces(path) == set() and raw(another, "SELECT count(*) FROM unclean") == [(0,)]


# -- many volumes --


@pytest.mark.slow
def test_many_volumes_say_the_same_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(5)
    with Store.open(tmp_path / "one.db", pytest.fail) as one, Store.open(tmp_path / "many.db", pytest.fail) as many:
        for step in range(60):
            told = []
            chosen = chance.randrange(10**9)
            for store, limit in ((one, 2**30), (many, 5000)):
                sized(monkeypatch, limit)
                times = iter(map(float, range(step * 1000, 10**9)))
                monkeypatch.setattr("localspec.store.history.time.time", times.__next__)
                told.append([changed(store.history, random.Random(chosen)), *everything(store.history)])
            assert told[0] == told[1]
        assert numbers(one) == [0] and len(numbers(many)) > 5 and index_is_whole(many)


def changed(history: History, chance: random.Random) -> object:
    known = [info.id for info in history.conversations()]
    conversation = chance.choice([*known, None])
    saved = None if conversation is None else history.read(conversation)
    match chance.randrange(8):
        case 5 if saved:
            return history.branch(saved.info.id, saved.turns, model="demo", system=None)
        case 6 if saved:
            return history.remove([saved.info.id])
        case 7 if saved:
            return history.rename(saved.info.id, "named")
        case 0 | 7:
            return history.say(conversation, "half", model="m", system=None)
        case _:
            return says(history, chance, conversation)


def everything(history: History) -> Iterator[object]:
    infos = history.conversations()
    yield infos
    yield [history.read(info.id) for info in infos]
    assert [history.info(info.id) for info in infos] == infos
    assert [history.conversations(limit) for limit in (0, 1, 3)] == [infos[:limit] for limit in (0, 1, 3)]
    yield [history.search(words, limit) for words in ("half", "thought", "w1", "w12", "w3 w4") for limit in (0, 1, 50)]
    yield [history.prompts(limit) for limit in (0, 2, 100)]
    yield history.latest(), history.unused_since(30_000)


@pytest.mark.slow
@pytest.mark.usefixtures("small_volumes")
def test_a_volume_of_which_nothing_is_left_goes_and_another_is_filled_again(path: Path, store: Store) -> None:
    chance = random.Random(6)
    said = [says(store.history, chance, turns=8) for _ in range(12)]
    places = {number: raw(store, "SELECT volume FROM conversation WHERE id = ?", number)[0][0] for number in said}
    assert len(set(places.values())) > 3
    last = max(places.values())
    store.history.remove([number for number in said if places[number] in (0, last)])
    assert numbers(store) == list(range(last)) and raw(store, "SELECT bytes FROM volume WHERE number = 0") == [(0,)]
    assert raw(store, "SELECT name FROM sqlite_master WHERE name LIKE ?", f"%_{last}%") == []
    again = says(store.history, chance)
    assert raw(store, "SELECT volume FROM conversation WHERE id = ?", again) == [(0,)] and again > max(said)
    assert len(store.history.conversations()) == 1 + sum(places[number] not in (0, last) for number in said)
    sizes = dict(raw(store, "SELECT number, bytes FROM volume"))
    for number in numbers(store):
        size = volumes._size(store._database._connection, volumes.suffix(number))
        [(count,)] = raw(store, f"SELECT count(*) FROM turn{volumes.suffix(number)}")
        assert size <= sizes[number] <= size + 2 * count


@pytest.mark.slow
def test_what_lay_in_one_piece_is_divided_by_the_first_deletion(
    path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance, history = random.Random(7), store.history
    said = [says(history, chance) for _ in range(30)]
    long = says(history, chance, turns=60)
    gone = talk(history, chance)
    infos, saved = history.conversations(), [history.read(number) for number in said]
    found = [hit.turn for hit in history.search("w12", 10**6)]
    assert numbers(store) == [0] and not history.takes_long_to_remove([gone])
    sized(monkeypatch, 8000)
    assert history.takes_long_to_remove([gone]) and history.takes_long_to_remove([said[0]])
    assert not history.takes_long_to_remove([999])
    assert not history.takes_long_to_remove([info.id for info in infos]), "of everything nothing is left to divide"
    assert history.remove([gone]) == 1 and traces(path) == set()
    assert len(numbers(store)) > 5 and not history.takes_long_to_remove([said[0]])
    assert history.conversations() == [info for info in infos if info.id != gone]
    assert [history.read(number) for number in said] == saved
    assert [hit.turn for hit in history.search("w12", 10**6)] == found and index_is_whole(store)
    # What is longer than a volume has one of its own, so that nothing else is written anew with it.
    [(place,)] = raw(store, "SELECT volume FROM conversation WHERE id = ?", long)
    assert raw(store, "SELECT id FROM conversation WHERE volume = ?", place) == [(long,)]
    number, turn = history.say(None, "after that", model="demo", system=None)
    assert number > gone and turn > max(found) and integrity(path) == "ok"


@pytest.mark.slow
def test_two_may_divide_and_delete_at_once(path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    chance, history = random.Random(8), store.history
    said = [says(history, chance) for _ in range(40)]
    gone = [talk(history, chance, turns=2) for _ in range(4)]
    saved = [history.read(number) for number in said]
    sized(monkeypatch, 8000)
    errors: list[BaseException] = []

    def work(mine: list[int]) -> None:
        try:
            with Store.open(path, pytest.fail) as another:
                for number in mine:
                    assert another.history.remove([number]) == 1
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(gone[part::2],)) for part in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == [] and traces(path) == set()
    assert [history.read(number) for number in said] == saved and index_is_whole(store)
    assert integrity(path) == "ok"


@pytest.mark.slow
def test_a_reply_goes_on_in_a_volume_that_is_being_divided(
    path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance, history = random.Random(9), store.history
    for _ in range(10):
        says(history, chance)
    number, turn = history.say(None, "prompt", model="demo", system=None)
    gone = says(history, chance)
    sized(monkeypatch, 4000)
    steps = 0
    clean = volumes.clean

    def interleaved(connection: sqlite3.Connection, place: int) -> bool:
        nonlocal steps
        steps += 1
        return clean(connection, place)

    monkeypatch.setattr(volumes, "clean", interleaved)
    with Store.open(path, pytest.fail) as another:
        save = store._database.save

        def save_and_go_on(work):
            result = save(work)
            if steps:
                assert another.history.write(turn, "reply " * steps)
                assert another.history.search(f"prompt {'reply ' * steps}")[0].turn == turn
            return result

        monkeypatch.setattr(store._database, "save", save_and_go_on)
        assert history.remove([gone]) == 1 and steps > 3
        assert another.history.write(turn, "reply", "stop")
    assert [hit.info.id for hit in history.search("reply")] == [number] and index_is_whole(store)


def test_many_conversations_of_an_earlier_layout_are_moved_at_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few statements for some megabytes of them, and not some for each conversation."""
    count = 3000

    def fill(connection: sqlite3.Connection) -> int:
        insert = "INSERT INTO conversation (id, model, used, created, volume) VALUES (?, 'm', 1, 1, 0)"
        connection.executemany(insert, ((one,) for one in range(1, count + 1)))
        connection.executemany("INSERT INTO about VALUES (?, NULL, 's')", ((one,) for one in range(1, count + 1)))
        columns = "(id, conversation, prompt, reply, reason, figures, asked)"
        insert = f"INSERT INTO turn {columns} VALUES (?, ?, 'prompt of ' || ?, 'reply', 'stop', '{{}}', 1)"
        connection.executemany(insert, ((one, one, one) for one in range(1, count + 1)))
        return 0

    store._database.save(fill)
    sized(monkeypatch, 8000)
    asked: list[str] = []
    store._database._connection.set_trace_callback(asked.append)
    assert store.history.remove([count // 2]) == 1
    store._database._connection.set_trace_callback(None)
    # What a statement's triggers do is traced as that statement once more.
    ours = {statement for statement in asked if "conversation" in statement}
    assert len(ours) < count / 2, len(ours)
    assert len(store.history.conversations()) == count - 1 and not store.history.takes_long_to_remove([1])
    assert store.history.read(7).turns[0].prompt == "prompt of 7"  # type: ignore[union-attr]
    sizes = volumes.sizes(store._database._connection)
    assert all(size <= 8000 for _, size in sizes), sizes
    assert index_is_whole(store)
