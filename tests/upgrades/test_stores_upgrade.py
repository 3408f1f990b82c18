"""A store of each earlier version, as 8397635a made it: three volumes of turns from version 8 on.

Each has six conversations of three turns: "prompt 1 0" is answered with "reply 1 0 …". The last reply is half written.
"""

import os
import resource
import signal
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path

import pytest
from database_files import damage_root, in_a_child, integrity
from deleted_text import index_is_whole, leave_copies, traces
from golden import wording

from localspec.store import cleaning, opening
from localspec.store.store import MIGRATIONS, Store

ARCHIVE = Path(__file__).parent / "stores-8397635a.tar.xz"
VERSIONS = range(1, 12)


def old_store(folder: Path, version: int) -> Path:
    path = folder / "localspec.db"
    folder.mkdir(exist_ok=True)
    with tarfile.open(ARCHIVE) as archive:
        archive.extract(f"version-{version}.db", folder, filter="data")
    (folder / f"version-{version}.db").rename(path)
    return path


def all_is_there(store: Store, version: int) -> None:
    history = store.history
    numbers = range(1, 7) if version >= 3 else ()
    infos = sorted(history.conversations())
    titles = [("title 4" if number == 4 and version >= 4 else f"prompt {number} 0") for number in numbers]
    assert [(info.id, info.title, info.turns) for info in infos] == [
        (number, title, 3) for number, title in zip(numbers, titles, strict=True)
    ]
    for number in numbers:
        saved = history.read(number)
        assert saved is not None and saved.system == f"system {number}"
        assert [turn.prompt for turn in saved.turns] == [f"prompt {number} {turn}" for turn in range(3)]
        for n, turn in enumerate(saved.turns):
            half = (number, n) == (6, 2)
            assert turn.reply == "half" if half else turn.reply.startswith(f"reply {number} {n} w")
            assert turn.reason == (None if half else "stop")
            assert len(turn.reply.split()) == (1 if half else 63)
    if numbers:
        newest = {words: [found.turn for found in history.search(words)] for words in ("prompt", "reply", "half")}
        assert newest == {"prompt": [*range(18, 12, -1)], "reply": [*range(17, 11, -1)], "half": [18]}
        assert history.latest() == 6
        assert index_is_whole(store)
    assert store._database.read(lambda connection: connection.execute("SELECT text FROM draft").fetchall()) == (
        [("typed and not sent",)] if version >= 5 else []
    )
    assert [(found.key, found.served, found.conversation) for found in store.phrases.export(1)] == [(7, 0, None)]
    assert store.measurements.recall("costs", "demo") == ([1] if version >= 2 else None)


def schema(path: Path) -> set[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)
        names = connection.execute("SELECT type, name FROM sqlite_master").fetchall()
        return {
            (kind, name, *sorted(row[1] for row in connection.execute(f"PRAGMA table_info('{name}')")))
            for kind, name in names
        }


@pytest.mark.parametrize("version", VERSIONS)
def test_nothing_is_lost_and_everything_goes_on(tmp_path: Path, version: int) -> None:
    path = old_store(tmp_path / "old", version)
    with Store.open(path, pytest.fail) as store:
        all_is_there(store, version)
        number, turn = store.history.say(4, "more", model="demo", system=None)
        assert number == (4 if version >= 3 else 1)
        assert turn == (20 if version >= 3 else 1), "an id never means something else"
        assert store.history.write(turn, "yes", "stop", reasoning="so it is")
        assert [found.turn for found in store.history.search("yes")] == [turn]
        assert store.history.latest() == number
        assert store.history.remove([number]) == 1
    with Store.open(tmp_path / "new.db", pytest.fail):
        pass
    assert schema(path) == schema(tmp_path / "new.db") and integrity(path) == "ok"


@pytest.mark.parametrize(("version", "rewritten"), [(8, True), (9, True), (10, True), (11, True), (11, False)])
def test_volumes_leave_no_byte_of_deleted_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int, rewritten: bool
) -> None:
    if not rewritten:
        monkeypatch.setattr(cleaning, "vacuum", lambda connection, path: None)
    path = old_store(tmp_path / "old", version)
    tables = [name for end in ("", "_1", "_2") for name in (f"turn{end}", f"about{end}", f"trigram{end}_data")]
    assert leave_copies(path, ["conversation", *tables]) > 5 and integrity(path) == "ok"
    with Store.open(path, pytest.fail) as store:
        assert (traces(path) == set()) is rewritten, "this test sees copies"
        all_is_there(store, version)


def killed_at(count: int, path: Path) -> bool:
    """Open the store in a process that is killed before this statement; return whether it was killed."""

    def live(pipe: int) -> None:
        connect, statements = opening._connect, 0

        def begins(sql: str) -> None:
            nonlocal statements
            statements += 1
            if statements == count:
                os.kill(os.getpid(), signal.SIGKILL)

        def traced(place: str, uri: bool = False) -> sqlite3.Connection:
            connection = connect(place, uri)
            connection.set_trace_callback(begins)
            return connection

        opening._connect = traced
        Store.open(path, pytest.fail)
        os.write(pipe, b"done")
        os.kill(os.getpid(), signal.SIGKILL)

    child, pipe = in_a_child(live)
    os.waitpid(child, 0)
    with open(pipe, "rb") as answer:
        return answer.read() != b"done"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("version", [3, 11])
def test_a_killed_migration_loses_nothing(tmp_path: Path, version: int) -> None:
    count, versions = 1, set()
    while True:
        path = old_store(tmp_path / f"{count}", version)
        killed = killed_at(count, path)
        with closing(sqlite3.connect(path)) as connection:
            versions.add(connection.execute("PRAGMA user_version").fetchone()[0])
        with Store.open(path, pytest.fail) as store:
            all_is_there(store, version)
            assert store._database.read(cleaning.last_mark) == 0
        assert integrity(path) == "ok"
        if not killed:
            break
        count += 7
    assert versions >= {version, len(MIGRATIONS)} and count > 50


@pytest.mark.parametrize("version", [3, 11])
def test_without_room_the_old_store_stays_as_it_is(tmp_path: Path, version: int) -> None:
    path = old_store(tmp_path / "old", version)
    content = path.read_bytes()
    notices: list[str] = []
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
    try:
        with Store.open(path, notices.append) as store:
            assert store.path is None
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert len(notices) == 1 and wording("cannot_be_used") in notices[0]
    assert [file.name for file in path.parent.glob("*broken*")] == []
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone()[0] < len(MIGRATIONS)
    assert version < 11 or path.read_bytes() == content
    with Store.open(path, pytest.fail) as store:
        all_is_there(store, version)


@pytest.mark.parametrize("name", ["turn_1", "trigram_data", "volume"])
def test_a_damaged_store_is_set_aside_as_it_is(tmp_path: Path, name: str) -> None:
    path = old_store(tmp_path / "old", 11)
    damage_root(path, name)
    content = path.read_bytes()
    notices: list[str] = []
    with Store.open(path, notices.append) as store:
        assert store.path == path
        turns = sum(info.turns for info in store.history.conversations())
        assert 0 < turns < 18 if name == "turn_1" else turns == 18
    aside = path.with_name("localspec.db.broken-1")
    assert len(notices) == 1 and notices[0].endswith(wording("to_get_text_back", file=aside))
    assert aside.read_bytes() == content


def test_a_large_store_says_that_it_is_rewritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = old_store(tmp_path / "old", 11)
    monkeypatch.setattr(cleaning, "SMALL", 0)
    monkeypatch.setattr(opening, "SMALL", 0)
    notices: list[str] = []
    with Store.open(path, notices.append) as store:
        all_is_there(store, 11)
    assert len(notices) == 2
    assert wording("is_rewritten_once") in notices[0] and wording("is_overwritten_now") in notices[1]
