"""The database loses no old file, opens whatever it finds, keeps all of a change or nothing, and is private."""

import contextlib
import errno
import fcntl
import os
import resource
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
from database_files import (
    answers,
    as_nobody,
    damage_leaves,
    damage_root,
    in_a_child,
    integrity,
    only_readable,
    open_directory,
)
from each import each
from golden import matching, wording

from localspec.store import database as database_module
from localspec.store import opening
from localspec.store.database import Database, StoreTrouble
from localspec.store.opening import Schema

MARKER = b"PRIVATE-MARKER-0123456789"


def make_lines(connection: sqlite3.Connection) -> None:
    connection.execute("CREATE TABLE line (number INTEGER, text BLOB, PRIMARY KEY (number, text)) WITHOUT ROWID")


PROBES = ("SELECT number, text FROM line LIMIT 1",)


def opened(
    path: Path,
    notices: list[str],
    *later: Callable[[sqlite3.Connection], None],
    probes: Sequence[str] = PROBES,
    refill: Callable[[sqlite3.Connection], None] = lambda connection: None,
) -> contextlib.closing[Database]:
    """Return the database with its one table; `later` are migrations after it."""
    return contextlib.closing(Database.open(path, notices.append, Schema([make_lines, *later], probes, refill)))


def write(database: Database, *numbers: int, text: bytes = b"") -> None:
    def insert(connection: sqlite3.Connection) -> None:
        connection.executemany("INSERT INTO line VALUES (?, ?)", ((number, text) for number in numbers))

    database.save(insert)


def numbers(database: Database) -> list[int]:
    rows = database.read(lambda connection: connection.execute("SELECT number FROM line ORDER BY number").fetchall())
    return [row[0] for row in rows]


def filled(path: Path, lines: int = 200) -> None:
    with opened(path, []) as database:
        write(database, *range(lines), text=bytes(64))


@pytest.fixture
def database(path: Path, notices: list[str]) -> Iterator[Database]:
    with opened(path, notices) as database:
        yield database


@pytest.fixture
def directory() -> Iterator[Path]:
    with open_directory() as directory:
        yield directory


# -- opening --


def test_files_are_private_whatever_the_umask(path: Path, notices: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    # Private from the first moment, not made so afterwards.
    monkeypatch.setattr(os, "chmod", lambda *arguments, **options: pytest.fail(f"chmod{arguments}"))
    before = os.umask(0)
    try:
        with opened(path, notices) as database:
            write(database, 1)
            files = sorted(path.parent.iterdir())
            assert {f"localspec.db{suffix}" for suffix in ("", "-wal", "-shm")} < {file.name for file in files}
            assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    finally:
        os.umask(before)


def test_a_file_that_others_could_read_is_taken_from_them(path: Path, notices: list[str]) -> None:
    with opened(path, notices):
        pass
    path.chmod(0o644)
    with opened(path, notices):
        pass
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_an_empty_file_is_begun_and_reported(path: Path, notices: list[str]) -> None:
    path.parent.mkdir()
    path.touch()
    with opened(path, notices) as database:
        write(database, 1)
    with opened(path, notices) as database:
        assert numbers(database) == [1]
    assert notices == [wording("store_has_0_bytes", path=path)]


def test_opening_what_is_there_writes_nothing(database: Database, path: Path, notices: list[str]) -> None:
    write(database, 1)
    files = [path, Path(f"{path}-wal")]
    before = [file.read_bytes() for file in files]
    with opened(path, notices) as another:
        assert numbers(another) == [1]
        assert [file.read_bytes() for file in files] == before


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_migrations_run_once_when_many_processes_start(
    path: Path, notices: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(path, notices) as database:
        write(database, 1)

    def add_once(connection: sqlite3.Connection) -> None:
        connection.execute("CREATE TABLE step (done INTEGER)")  # fails where it has run before
        time.sleep(0.02)
        connection.execute("INSERT INTO step VALUES (1)")

    def add_again(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO step VALUES (2)")

    # Without the lock on opening, the transactions must suffice.
    monkeypatch.setattr(database_module, "one_at_a_time", lambda *_: contextlib.nullcontext())

    def start(pipe: int) -> None:
        with opened(path, notices, add_once, add_again) as database:
            os.write(pipe, b"bad" if notices or numbers(database) != [1] else b"fine")

    assert answers(*[start] * 5) == [b"fine"] * 5
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT done FROM step ORDER BY done").fetchall() == [(1,), (2,)]
        assert connection.execute("PRAGMA user_version").fetchone() == (3,)


def test_a_failed_migration_leaves_the_old_version(path: Path, notices: list[str]) -> None:
    with opened(path, notices):
        pass

    def fail(connection: sqlite3.Connection) -> None:
        connection.execute("CREATE TABLE half (done INTEGER)")
        if not connection.execute("PRAGMA database_list").fetchone()[2]:
            return  # in memory there is room
        raise sqlite3.OperationalError("no more room")

    with opened(path, notices, fail) as database:
        assert database.path is None
    assert len(notices) == 1 and "no more room" in notices[0]
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
        assert connection.execute("SELECT name FROM sqlite_master WHERE name = 'half'").fetchall() == []


def test_opening_twice_in_one_process_keeps_the_locks(database: Database, path: Path, notices: list[str]) -> None:
    # POSIX drops a process's locks on a file when any descriptor of it closes; opening must not cause that.
    write(database, 1)
    with opened(path, notices):
        pass
    code = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], timeout=0, isolation_level=None);"
        "c.execute('PRAGMA locking_mode = EXCLUSIVE'); c.execute('PRAGMA journal_mode = DELETE').fetchone()"
    )
    ended = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False)
    assert "locked" in ended.stderr, "another process could take the file for itself"
    write(database, 2)


# -- broken, foreign and newer files --


def damage_header(path: Path) -> None:
    filled(path)
    path.write_bytes(b"not a database at all" * 500)


def damage_short(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"x" * 50)


def damage_truncated(path: Path) -> None:
    filled(path)
    os.truncate(path, path.stat().st_size // 2)


def damage_root_page(path: Path) -> None:
    filled(path)
    damage_root(path, "line")


def damage_missing_table(path: Path) -> None:
    filled(path)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TABLE line")


def damage_foreign(path: Path) -> None:
    path.parent.mkdir()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE recipes (name TEXT)")


def damage_newer(path: Path) -> None:
    filled(path)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 4")


@each(
    "damage, suffix, words",
    [
        (damage_header, "broken", "is broken (file is not a database)"),
        (damage_short, "broken", "is broken (file is not a database)"),
        (damage_truncated, "broken", "is broken (database disk image is malformed)"),
        (damage_root_page, "broken", "is broken (database disk image is malformed)"),
        (damage_missing_table, "broken", "is broken (no such table: line)"),
        (damage_foreign, "broken", wording("database_something_else")),
        (damage_newer, "newer", wording("newer_localspec_version_4_one")),
    ],
)
def test_a_file_that_cannot_serve_is_set_aside_whole(
    tmp_path: Path, damage: Callable[[Path], None], suffix: str, words: str
) -> None:
    notices: list[str] = []
    path = tmp_path / "data" / "localspec.db"
    damage(path)
    old = path.read_bytes()
    aside = path.with_name(f"localspec.db.{suffix}-1")
    with opened(path, notices) as database:
        assert aside.read_bytes() == old
        assert len(notices) == 1 and words in notices[0] and aside.name in notices[0] and str(path) in notices[0]
        write(database, 1)
        assert not database.read_only and database.path == path
    with opened(path, notices) as database:
        assert numbers(database) == [1]
    assert len(notices) == 1 and aside.read_bytes() == old
    # A second one does not overwrite the first.
    path.write_bytes(b"broken again" * 100)
    with opened(path, notices):
        pass
    assert aside.read_bytes() == old
    assert path.with_name(f"localspec.db.broken-{2 if suffix == 'broken' else 1}").read_bytes().startswith(b"broken")


def make_newer(database: Database) -> None:
    database.read(lambda connection: connection.execute("PRAGMA user_version = 2"))


def test_what_only_the_log_holds_goes_aside_with_the_file(path: Path, notices: list[str]) -> None:
    with opened(path, notices) as running:
        write(running, 1, text=MARKER)
        make_newer(running)
        old, log = path.read_bytes(), Path(f"{path}-wal").read_bytes()
        assert MARKER in log and MARKER not in old
        with opened(path, notices) as database:
            aside = path.with_name("localspec.db.newer-1")
            assert aside.read_bytes() == old and Path(f"{aside}-wal").read_bytes() == log
            assert notices[0].endswith(f"rename {aside.name} to {path.name} and {aside.name}-wal to {path.name}-wal.")
            write(database, 2)
            # The session that still has the old file neither fails nor touches the new one, also when it ends.
            write(running, 3)
            running.close()
            write(database, 4)
            assert numbers(database) == [2, 4]
    assert integrity(path) == "ok" and len(notices) == 1
    with contextlib.closing(sqlite3.connect(aside)) as connection:
        assert connection.execute("SELECT number FROM line ORDER BY number").fetchall() == [(1,), (3,)]


def test_a_log_that_nobody_has_open_goes_aside_unchanged(path: Path, notices: list[str]) -> None:
    with opened(path, notices) as running:
        write(running, 1, text=MARKER)
        make_newer(running)
        killed = shutil.copytree(path.parent, path.parent.with_name("killed")) / path.name
    old, log = killed.read_bytes(), Path(f"{killed}-wal").read_bytes()
    with opened(killed, notices):
        pass
    aside = killed.with_name("localspec.db.newer-1")
    assert aside.read_bytes() == old and Path(f"{aside}-wal").read_bytes() == log


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_processes_that_find_a_broken_file_together_agree_on_one_new_file(
    path: Path, notices: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    damage_short(path)
    rename = os.rename

    def slow_rename(*places: str) -> None:
        time.sleep(0.02)
        rename(*places)

    monkeypatch.setattr(os, "rename", slow_rename)

    def start(number: int, pipe: int) -> None:
        with opened(path, notices) as database:
            write(database, number)
            os.write(pipe, b"notice" * len(notices) or b"quiet")

    found = answers(*(partial(start, number) for number in range(5)))
    assert sorted(found) == [b"notice", *[b"quiet"] * 4]
    assert [file.name for file in path.parent.glob("*.broken-*")] == ["localspec.db.broken-1"]
    with opened(path, notices) as database:
        assert numbers(database) == list(range(5))


@pytest.mark.parametrize("how", ["read", "save"])
def test_damage_found_at_work_sets_the_file_aside_and_the_session_continues(
    path: Path, notices: list[str], how: str
) -> None:
    filled(path, lines=2000)
    content = damage_leaves(path)

    def refill(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO line VALUES (-1, 'what a session needs')")

    # Without probes, as if opening did not read the damaged page.
    with opened(path, notices, probes=(), refill=refill) as database:
        assert notices == []
        if how == "read":
            assert numbers(database) == [-1]
        else:
            write(database, 1)
            assert numbers(database) == [-1, 1]
        assert len(notices) == 1 and "localspec.db.broken-1" in notices[0] and "malformed" in notices[0]
        assert path.with_name("localspec.db.broken-1").read_bytes() == content
        assert database.path == path
        write(database, 5)
        with opened(path, notices) as fresh:
            assert numbers(fresh) == numbers(database) == ([-1, 5] if how == "read" else [-1, 1, 5])
            assert len(notices) == 1


def test_a_good_new_file_is_not_set_aside_by_a_session_with_the_old_one(path: Path, notices: list[str]) -> None:
    filled(path)
    with opened(path, notices) as late:
        os.rename(path, path.with_name("elsewhere.db"))
        with opened(path, notices) as fresh:
            write(fresh, 1)
            error = sqlite3.DatabaseError("database disk image is malformed")
            error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
            late._leave_broken_file(error)
            assert wording("by_another_process") in notices[0]
            assert path.exists() and numbers(fresh) == [1]


# -- what can only be read, or not even that --


@pytest.mark.parametrize(("directory_too", "log_left"), [(True, True), (False, False)])
def test_what_can_only_be_read_is_read(
    directory: Path, notices: list[str], directory_too: bool, log_left: bool
) -> None:
    path = directory / "data" / "localspec.db"
    filled(path)
    if log_left:
        # As a killed process leaves it: the last line is only in the log.
        with opened(path, notices) as running:
            write(running, 777)
            shutil.copytree(path.parent, directory / "copy")
        path = directory / "copy" / "localspec.db"
    content = path.read_bytes()
    with only_readable(path, directory_too), opened(path, notices) as database:
        assert database.read_only and database.path == path
        assert len(notices) == 1 and wording("can_only_be_read") in notices[0] and str(path) in notices[0]
        lines = [*range(200), 777] if log_left else [*range(200)]
        assert numbers(database) == lines
        with pytest.raises(StoreTrouble, match=matching("make_it_and_its_directory_writable")):
            write(database, 1)
        assert numbers(database) == lines
    assert path.read_bytes() == content
    path.chmod(0o600)


@each(
    "error",
    [
        sqlite3.OperationalError(wording("database_or_disk_is_full")),
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)),
    ],
)
def test_room_is_what_a_full_disk_needs(path: Path, error: Exception) -> None:
    filled(path)

    def full(*_: object) -> None:
        raise error

    said = r" was not changed: make room on the file's disk to change it\.$"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("localspec.store.database.open_writable", full)
        with opened(path, []) as database, pytest.raises(StoreTrouble, match=said):
            write(database, 1)
    path.unlink()


def test_what_could_only_be_read_is_written_once_it_can_be(
    directory: Path, notices: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = directory / "data" / "localspec.db"
    filled(path)
    with monkeypatch.context() as full:
        full.setattr("localspec.store.database.open_writable", no_room)
        database = Database.open(path, notices.append, Schema([make_lines], PROBES, lambda connection: None))
    with contextlib.closing(database):
        assert database.read_only
        write(database, 777)
        assert not database.read_only and numbers(database) == [*range(200), 777] and len(notices) == 1
        with opened(path, notices) as other:
            assert numbers(other) == [*range(200), 777] and len(notices) == 1


@pytest.mark.parametrize("begun_by_another", [False, True])
def test_what_is_in_memory_goes_to_a_new_file_once_there_can_be_one(
    directory: Path, notices: list[str], monkeypatch: pytest.MonkeyPatch, begun_by_another: bool
) -> None:
    path = directory / "data" / "localspec.db"
    with monkeypatch.context() as full:
        full.setattr("localspec.store.database.open_writable", no_room)
        full.setattr("localspec.store.database.move_to_file", no_room)
        database = Database.open(path, notices.append, Schema([make_lines], PROBES, lambda connection: None))
        with contextlib.closing(database) as database:
            write(database, 1)
            assert database.path is None and "make room" in database.why_lost
            if begun_by_another:
                full.undo()
                with opened(path, notices) as other:
                    write(other, 9)
            full.undo()
            write(database, 2)
            assert numbers(database) == [1, 2]
            assert (database.path, len(notices)) == ((None, 1) if begun_by_another else (path, 2))
            assert (wording("cannot_be_joined") in database.why_lost) == begun_by_another
    with opened(path, notices) as database:
        assert numbers(database) == ([9] if begun_by_another else [1, 2])
    if os.name == "posix":
        assert path.stat().st_mode & 0o777 == 0o600


def no_room(*_: object) -> None:
    raise sqlite3.OperationalError("database or disk is full")


@pytest.mark.parametrize("damage", [damage_header, damage_newer])
def test_a_bad_file_that_cannot_be_moved_stays_unchanged(
    directory: Path, notices: list[str], damage: Callable[[Path], None]
) -> None:
    path = directory / "data" / "localspec.db"
    damage(path)
    old = path.read_bytes()
    with only_readable(path, directory_too=True), opened(path, notices) as database:
        assert len(notices) == 1 and wording("cannot_be_used") in notices[0]
        write(database, 1)
        assert numbers(database) == [1] and database.path is None and not database.read_only
    assert path.read_bytes() == old


@pytest.mark.parametrize(
    "case", ["parent is a file", wording("parent_may_not_be_made"), wording("a_directory_in_its_place")]
)
def test_where_nothing_can_be_opened_the_session_works_in_memory(
    directory: Path, notices: list[str], case: str
) -> None:
    path = directory / "closed" / "data" / "localspec.db"
    if case == "parent is a file":
        (directory / "closed").write_text("")
    elif case == "parent may not be made":
        (directory / "closed").mkdir(mode=0o555)
    else:
        path.mkdir(parents=True)
        path.chmod(0o755)
    somebody = as_nobody() if case == "parent may not be made" else contextlib.nullcontext()
    with somebody, opened(path, notices) as database:
        assert (
            len(notices) == 1
            and wording("cannot_be_used") in notices[0]
            and wording("forgotten_at_its_end") in notices[0]
        )
        write(database, 1)
        assert numbers(database) == [1] and database.path is None and not database.read_only
        assert database.empty_log() == ""
    assert not path.is_dir() or os.name != "posix" or path.stat().st_mode & 0o777 == 0o755, "it is left as it was"


# -- trouble while saving --


def test_a_save_that_fails_half_way_keeps_nothing(database: Database) -> None:
    def half(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO line VALUES (1, '')")
        raise ValueError("a mistake")

    with pytest.raises(ValueError, match="a mistake"):
        database.save(half)
    write(database, 2)
    assert numbers(database) == [2]


def test_a_full_database_keeps_the_old_and_says_so(database: Database, path: Path) -> None:
    write(database, 1)
    pages = database.read(lambda connection: connection.execute("PRAGMA page_count").fetchone()[0])
    database.read(lambda connection: connection.execute(f"PRAGMA max_page_count = {pages}").fetchone())
    with pytest.raises(StoreTrouble, match=f"{matching('nothing_more_saved_see_whether')} .*full") as caught:
        write(database, *range(2, 2000), text=bytes(64))
    assert caught.value.exit_code == 1 and str(path) in str(caught.value)
    assert numbers(database) == [1]
    database.read(lambda connection: connection.execute("PRAGMA max_page_count = 1000000").fetchone())
    write(database, 2)
    assert numbers(database) == [1, 2]
    assert integrity(path) == "ok"


def test_a_write_that_the_system_refuses_keeps_the_old_and_says_so(database: Database, path: Path) -> None:
    write(database, 1)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (Path(f"{path}-wal").stat().st_size + 6000, before[1]))
    try:
        with pytest.raises(StoreTrouble, match=matching("nothing_more_saved_see_whether")):
            write(database, *range(2, 2000), text=bytes(64))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    write(database, 2)
    assert numbers(database) == [1, 2]
    assert integrity(path) == "ok"


def test_a_long_lock_is_reported_and_reading_continues(
    path: Path, notices: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "BUSY_SECONDS", 0.05)
    with opened(path, notices) as database:
        write(database, 1)
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreTrouble, match=matching("in_use_by_another_process")):
                write(database, 2)
            assert numbers(database) == [1]
            with opened(path, notices) as reader:
                assert numbers(reader) == [1], "a session that starts now can still read"
        write(database, 2)
        assert numbers(database) == [1, 2]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_emptying_the_log_waits_for_a_checkpoint_of_another_process(
    database: Database, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(database, 1, text=MARKER)
    database.save(lambda connection: connection.execute("DELETE FROM line"))

    def checkpoint(pipe: int) -> None:
        with open(f"{path}-shm", "r+b") as shared:
            fcntl.lockf(shared, fcntl.LOCK_EX, 1, 121)  # where SQLite locks a checkpoint
            os.write(pipe, b"locked")
            time.sleep(60)

    child, pipe = in_a_child(checkpoint)
    assert os.read(pipe, 6) == b"locked"
    waited: list[float] = []

    def end_it(seconds: float) -> None:
        waited.append(seconds)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)

    monkeypatch.setattr(database_module.time, "sleep", end_it)
    assert database.empty_log() == "" and len(waited) == 1
    assert MARKER not in path.read_bytes() + Path(f"{path}-wal").read_bytes()
    os.close(pipe)
