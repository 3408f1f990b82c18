"""The store keeps every finished reply, loses no old file, and forgets what it is told to forget."""

import contextlib
import os
import random
import resource
import select
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from localspec import store as store_module
from localspec.store import (
    BOUND_KEY,
    BOUND_POOL,
    MIGRATIONS,
    Phrase,
    Store,
    StoreTrouble,
    pack_key,
    pack_tokens,
    unpack_key,
    unpack_tokens,
)

MARKER = b"PRIVATE-MARKER-PHRASE-0123456789"


def phrase(n: int, key: int | None = None) -> tuple[int, bytes, bytes]:
    return (n if key is None else key, pack_tokens([n, n + 1]), pack_tokens([n, 7, 8]))


def afters(store: Store, pool: int, key: int) -> list[int]:
    """The first token after the key, most recently used first: which of `phrase(n, key)` are there."""
    return [unpack_tokens(found.after)[0] for found in store.phrases(pool, [key])]


def made_pool(store: Store, model: str = "demo") -> int:
    pool = store.pool(model, "hash")
    assert pool is not None
    return pool


def integrity(path: Path) -> str:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return str(connection.execute("PRAGMA integrity_check").fetchone()[0])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "localspec.db"


@pytest.fixture
def notices() -> list[str]:
    return []


@pytest.fixture
def store(path: Path, notices: list[str]) -> Iterator[Store]:
    with Store.open(path, notices.append) as opened:
        yield opened


# -- what goes in comes out --


def test_packing_round_trips() -> None:
    assert unpack_key(pack_key(31_999, 2**32 - 1)) == (31_999, 2**32 - 1)
    assert -(2**63) <= pack_key(2**31 - 1, 2**32 - 1) < 2**63
    assert unpack_tokens(pack_tokens([1, 70_000, 0])) == (1, 70_000, 0)
    assert pack_tokens([1]) == b"\x01\x00\x00\x00"


def test_phrases_are_found_by_key_most_recent_first(store: Store) -> None:
    pool = made_pool(store)
    store.learn(pool, [phrase(1, key=5), phrase(2, key=5), phrase(3, key=6), phrase(4, key=7)])
    store.learn(pool, [phrase(1, key=5)])
    found = store.phrases(pool, [5, 6, 99])
    assert found == [Phrase(*phrase(1, 5), uses=2), Phrase(*phrase(3, 6), uses=1), Phrase(*phrase(2, 5), uses=1)]
    assert store.phrases(pool, []) == []


def test_another_continuation_of_the_same_context_stays_beside_the_first(store: Store) -> None:
    pool = made_pool(store)
    store.learn(pool, [(1, b"1234", b"aaaa")])
    store.learn(pool, [(1, b"1234", b"bbbb")])
    assert [found.after for found in store.phrases(pool, [1])] == [b"bbbb", b"aaaa"]


def test_pools_are_apart(store: Store, path: Path) -> None:
    first, second = store.pool("demo", "one", "/models/demo"), store.pool("demo", "two")
    assert first is not None and second is not None and first != second
    assert store.pool("demo", "one") == first
    store.learn(first, [phrase(1)])
    assert store.phrases(second, [1]) == []
    by_id = {info.pool: info for info in store.pools()}
    assert by_id[first][:6] == (first, "demo", "one", "/models/demo", 1, 8 + 8 + 12)
    assert abs(by_id[first].last_used - time.time()) < 60
    assert by_id[second].phrases == 0 and by_id[second].path is None


def test_the_path_of_a_pool_follows_the_model(store: Store) -> None:
    store.pool("demo", "one", "/old")
    store.pool("demo", "one", Path("/new"))
    store.pool("demo", "one")
    assert store.pools()[0].path == str(Path("/new"))


def test_everything_is_there_after_a_restart(path: Path, notices: list[str]) -> None:
    with Store.open(path, notices.append) as before:
        before.learn(made_pool(before), [phrase(n) for n in range(50)])
    with Store.open(path, notices.append) as after:
        assert sorted(found.key for found in after.export(made_pool(after))) == list(range(50))
    assert notices == []


def test_export_gives_every_phrase_once_over_many_pages(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "EXPORT_PAGE", 7)
    pool = made_pool(store)
    store.learn(pool, [phrase(n) for n in range(50)])
    assert [found.key for found in store.export(pool)] == list(reversed(range(50)))


def test_an_unknown_pool_is_a_mistake_and_leaves_nothing(store: Store) -> None:
    with pytest.raises(ValueError, match="no pool 77"):
        store.learn(77, [phrase(1)])
    assert store.phrases(77, [1]) == []


# -- bounds --


def test_a_key_keeps_its_sixteen_most_recently_used(store: Store) -> None:
    pool = made_pool(store)
    store.learn(pool, [phrase(n, key=5) for n in range(16)] + [phrase(100, key=6)])
    store.learn(pool, [], used=[phrase(0, key=5)])
    store.learn(pool, [phrase(n, key=5) for n in range(16, 20)])
    assert afters(store, pool, 5) == [19, 18, 17, 16, 0, *range(15, 4, -1)]
    assert afters(store, pool, 6) == [100]
    store.learn(pool, [phrase(n, key=5) for n in range(200, 240)])
    assert afters(store, pool, 5) == list(range(239, 223, -1))
    assert store.pools()[0].phrases == 17


def test_a_pool_keeps_its_most_recently_used(path: Path, notices: list[str]) -> None:
    with Store.open(path, notices.append, limit=100) as store:
        pool, other = made_pool(store), made_pool(store, "other")
        store.learn(other, [phrase(n) for n in range(90)])
        store.learn(pool, [phrase(n) for n in range(100)])
        assert store.pools()[0].phrases == 100
        store.learn(pool, [phrase(3)], used=[phrase(0), phrase(12_345)])
        store.learn(pool, [phrase(n) for n in range(1000, 1010)])
        gone = {1, 2, *range(4, 12)}
        kept = {found.key for found in store.export(pool)}
        assert kept == (set(range(100)) - gone) | set(range(1000, 1010))
        store.learn(pool, [phrase(2000)])
        assert {found.key for found in store.export(pool)} == (kept - {12}) | {2000}
        # A reply larger than the whole pool leaves its own last phrases.
        store.learn(pool, [phrase(n) for n in range(5000, 5300)])
        assert {found.key for found in store.export(pool)} == set(range(5200, 5300))
        assert {info.model: info.phrases for info in store.pools()} == {"demo": 100, "other": 90}


def test_using_a_phrase_keeps_it_but_counts_only_what_was_seen(store: Store) -> None:
    pool = made_pool(store)
    store.learn(pool, [phrase(1, key=5), phrase(2, key=5)])
    store.learn(pool, [], used=[phrase(1, key=5)])
    assert [(unpack_tokens(found.after)[0], found.uses) for found in store.phrases(pool, [5])] == [(1, 1), (2, 1)]


def test_the_hot_queries_are_index_lookups(store: Store) -> None:
    pool = made_pool(store)
    asked: list[str] = []
    store._connection.set_trace_callback(asked.append)
    store.phrases(pool, [1, 2, 3, 4])
    store._connection.set_trace_callback(None)
    assert len(asked) == 1

    def plan(statement: str, values: tuple[int, ...]) -> str:
        return "; ".join(row[3] for row in store._connection.execute(f"EXPLAIN QUERY PLAN {statement}", values))

    lookup = plan(asked[0], ())
    assert "SEARCH phrase USING PRIMARY KEY (pool=? AND key=?)" in lookup and "SCAN" not in lookup
    by_key = plan(BOUND_KEY, (pool, 1))
    assert by_key.count("USING PRIMARY KEY (pool=? AND key=?)") == 2 and "SCAN" not in by_key
    by_pool = plan(BOUND_POOL, (pool, 1))
    assert by_pool.count("phrase_by_use (pool=?") == 2 and "SCAN" not in by_pool and "TEMP B-TREE" not in by_pool


# -- privacy --


def test_files_are_private_whatever_the_umask(path: Path, notices: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    # Private from the first moment, not made so afterwards.
    monkeypatch.setattr(os, "chmod", lambda *arguments, **options: pytest.fail(f"chmod{arguments}"))
    before = os.umask(0)
    try:
        with Store.open(path, notices.append) as store:
            store.learn(made_pool(store), [phrase(1)])
            files = sorted(path.parent.iterdir())
            assert {f"localspec.db{suffix}" for suffix in ("", "-wal", "-shm")} < {file.name for file in files}
            assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    finally:
        os.umask(before)


def test_a_file_that_others_could_read_is_taken_from_them(path: Path, notices: list[str]) -> None:
    Store.open(path, notices.append).close()
    path.chmod(0o644)
    Store.open(path, notices.append).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def bytes_on_disk(path: Path) -> bytes:
    return b"".join(file.read_bytes() for file in path.parent.iterdir())


@pytest.mark.parametrize("everything", [True, False])
def test_cleared_phrases_are_gone_from_the_files(path: Path, notices: list[str], everything: bool) -> None:
    with Store.open(path, notices.append) as store, Store.open(path, notices.append) as another:
        pool, other = made_pool(store), made_pool(store, "other")
        store.learn(other, [(1, b"", b"another phrase that stays")])
        for reply in range(10):
            store.learn(pool, [(reply * 100 + n, b"", MARKER + bytes([n])) for n in range(20)])
            store.learn(pool, [], used=[(reply * 100, b"", MARKER + bytes([0]))])
        assert len(another.phrases(pool, [0])) == 1
        assert MARKER in bytes_on_disk(path)
        assert store.clear(None if everything else pool) == (201 if everything else 200)
        assert MARKER not in bytes_on_disk(path)
        assert (b"another phrase that stays" in bytes_on_disk(path)) is not everything
        assert {info.model: info.phrases for info in store.pools()} == {"demo": 0, "other": 0 if everything else 1}
        # A session that is running keeps its pool.
        another.learn(pool, [phrase(1)])
        assert afters(store, pool, 1) == [1]
    assert MARKER not in bytes_on_disk(path) and integrity(path) == "ok"


def test_clearing_gives_the_space_back(path: Path, notices: list[str]) -> None:
    filled(path, replies=10)
    size = path.stat().st_size
    with Store.open(path, notices.append) as store:
        store.clear()
        assert path.stat().st_size < size / 5


def test_without_room_to_shrink_the_file_the_bytes_are_gone_all_the_same(store: Store, path: Path) -> None:
    pool = made_pool(store)
    store.learn(pool, [(n, b"", MARKER) for n in range(200)])
    # VACUUM attaches a second database; this is how it can be made to fail.
    attach = getattr(sqlite3, "SQLITE_ATTACH", 24)
    denied: list[int] = []

    def judge(action: int, *details: object) -> int:
        denied.extend([action] if action == attach else [])
        return sqlite3.SQLITE_DENY if action == attach else sqlite3.SQLITE_OK

    store._connection.set_authorizer(judge)
    assert store.clear() == 200
    assert denied and MARKER not in bytes_on_disk(path)


def test_phrases_that_had_to_go_are_overwritten(path: Path, notices: list[str]) -> None:
    with Store.open(path, notices.append, limit=100) as store:
        pool = made_pool(store)
        store.learn(pool, [(n, b"", MARKER) for n in range(100)])
        store.learn(pool, [phrase(n) for n in range(100, 195)])
        assert bytes_on_disk(path).count(MARKER) > 2 * 5
    assert bytes_on_disk(path).count(MARKER) == 2 * 5  # in the table and in its index


def test_clear_says_so_when_another_process_keeps_the_bytes(
    path: Path, notices: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "BUSY_SECONDS", 0.05)
    with Store.open(path, notices.append) as store:
        pool = made_pool(store)
        store.learn(pool, [(1, b"", MARKER)])
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM phrase").fetchall()
            with pytest.raises(StoreTrouble, match="1 phrases were removed, but .* clear once more"):
                store.clear()
        assert store.clear() == 0
        assert MARKER not in bytes_on_disk(path)


# -- two processes, two threads, sudden ends --

WRITER = """
import sys
from pathlib import Path
from localspec.store import Store, pack_tokens
offset = int(sys.argv[2])
store = Store.open(Path(sys.argv[1]), lambda sentence: sys.exit("notice: " + sentence))
pool = store.pool("demo", "hash")
print("ready", flush=True)
sys.stdin.readline()
for reply in range(200):
    store.learn(pool, [(offset + reply, b"", pack_tokens([n])) for n in range(3)] + [(7, b"", b"shared")])
    assert len(store.phrases(pool, [offset + reply])) == 3
"""


def test_two_processes_lose_nothing(path: Path, notices: list[str]) -> None:
    # Both make, migrate and open the file at the same time.
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), str(offset)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[1],
        )
        for offset in (1000, 2000)
    ]
    for writer in writers:
        assert writer.stdout is not None and writer.stdout.readline() == "ready\n", writer.communicate()[1]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    for writer in writers:
        errors = writer.communicate(timeout=60)[1]
        assert writer.returncode == 0, errors
    with Store.open(path, notices.append) as store:
        pool = made_pool(store)
        keys = [found.key for found in store.export(pool)]
        assert sorted(set(keys)) == [7, *range(1000, 1200), *range(2000, 2200)] and len(keys) == 1201
        assert store.pools()[0].phrases == 1201
        assert store.phrases(pool, [7])[0].uses == 400
    assert integrity(path) == "ok" and notices == []


def in_a_child(work: object) -> tuple[int, int]:
    """Forks a process that does `work(pipe)`; returns its id and the end of the pipe to read from."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            work(writer)  # type: ignore[operator]
        finally:
            os._exit(1)
    os.close(writer)
    return child, reader


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_killed_process_loses_at_most_the_reply_in_flight(path: Path, notices: list[str]) -> None:
    chance = random.Random(4)
    finished: set[int] = set()
    for life in range(30):
        offset = life * 100_000

        def live(pipe: int, offset: int = offset) -> None:
            store = Store.open(path, notices.append)
            pool = made_pool(store)
            for reply in range(100_000):
                store.learn(pool, [(offset + reply, bytes([n]), bytes(200)) for n in range(4)])
                os.write(pipe, f"{offset + reply}\n".encode())

        child, pipe = in_a_child(live)
        # Some are killed while they open, most while they write.
        select.select([pipe], [], [], 10 if life % 3 else chance.uniform(0, 0.004))
        time.sleep(chance.uniform(0, 0.02))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with open(pipe, "rb") as told:
            finished.update(int(line) for line in told.read().split(b"\n")[:-1] if line)
        if life % 5 == 4:
            assert integrity(path) == "ok"
        with Store.open(path, notices.append) as store:
            rows = store._connection.execute("SELECT key, count(*) FROM phrase GROUP BY key").fetchall()
        kept = dict(rows)
        assert finished <= kept.keys()
        assert set(kept.values()) <= {4}, "half a reply was kept"
        assert len(kept.keys() - finished) <= life + 1
    assert len(finished) > 30 and notices == [] and integrity(path) == "ok"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_migrations_run_once_when_many_processes_start(
    path: Path, notices: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(path, notices.append) as store:
        store.learn(made_pool(store), [phrase(1)])

    def add_once(connection: sqlite3.Connection) -> None:
        connection.execute("CREATE TABLE step (done INTEGER)")  # fails where it has run before
        time.sleep(0.02)
        connection.execute("INSERT INTO step VALUES (1)")

    def add_again(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO step VALUES (2)")

    monkeypatch.setattr(store_module, "MIGRATIONS", [*MIGRATIONS, add_once, add_again])
    # The lock of opening aside, the transactions alone must do.
    monkeypatch.setattr(store_module, "_one_at_a_time", lambda path: contextlib.nullcontext())
    told: list[str] = []

    def start(pipe: int) -> None:
        with Store.open(path, told.append) as opened:
            os.write(pipe, b"bad" if told or afters(opened, made_pool(opened), 1) != [1] else b"fine")

    children = [in_a_child(start) for _ in range(5)]
    for child, pipe in children:
        with open(pipe, "rb") as answer:
            assert answer.read() == b"fine"
        os.waitpid(child, 0)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT done FROM step ORDER BY done").fetchall() == [(1,), (2,)]
        assert connection.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS) + 2,)


def test_a_failed_migration_leaves_the_old_version(
    path: Path, notices: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Store.open(path, notices.append).close()

    def fail(connection: sqlite3.Connection) -> None:
        connection.execute("CREATE TABLE half (done INTEGER)")
        if not connection.execute("PRAGMA database_list").fetchone()[2]:
            return  # in memory there is room
        raise sqlite3.OperationalError("no more room")

    monkeypatch.setattr(store_module, "MIGRATIONS", [*MIGRATIONS, fail])
    with Store.open(path, notices.append) as store:
        assert store.path is None
    assert len(notices) == 1 and "no more room" in notices[0]
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)
        assert connection.execute("SELECT name FROM sqlite_master WHERE name = 'half'").fetchall() == []


def test_threads_may_share_a_store(store: Store) -> None:
    pool = made_pool(store)
    errors: list[BaseException] = []
    start = threading.Barrier(3)

    def work(offset: int) -> None:
        try:
            start.wait()
            for reply in range(0, 500, 10):
                store.learn(pool, [phrase(offset + reply + n) for n in range(10)])
                assert afters(store, pool, offset + reply) == [offset + reply]
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(offset,)) for offset in (0, 1000, 2000)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert errors == [] and store.pools()[0].phrases == 1500


def test_opening_twice_in_one_process_keeps_the_locks(path: Path, notices: list[str]) -> None:
    # POSIX drops a process's locks on a file when any descriptor of it closes; the store must not cause that.
    with Store.open(path, notices.append) as first:
        pool = made_pool(first)
        first._connection.execute("BEGIN IMMEDIATE")
        first._connection.execute("UPDATE pool SET tick = tick + 1")
        first._connection.execute("COMMIT")
        Store.open(path, notices.append).close()
        code = (
            "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], timeout=0, isolation_level=None);"
            "c.execute('PRAGMA locking_mode = EXCLUSIVE'); c.execute('PRAGMA journal_mode = DELETE').fetchone()"
        )
        ended = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False)
        assert "locked" in ended.stderr, "another process could take the file for itself"
        first.learn(pool, [phrase(1)])


# -- broken, foreign and newer files --


def filled(path: Path, replies: int = 1) -> None:
    with Store.open(path, lambda sentence: None) as store:
        pool = made_pool(store)
        for reply in range(replies):
            store.learn(pool, [(n, bytes([reply]) * 24, bytes([n % 251]) * 32) for n in range(200)])


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
    with contextlib.closing(sqlite3.connect(path)) as connection:
        root = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'phrase'").fetchone()[0]
        size = connection.execute("PRAGMA page_size").fetchone()[0]
    with path.open("r+b") as file:
        file.seek((root - 1) * size)
        file.write(os.urandom(size))


def damage_missing_table(path: Path) -> None:
    filled(path)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TABLE phrase")


def damage_foreign(path: Path) -> None:
    path.parent.mkdir()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE recipes (name TEXT)")


def damage_newer(path: Path) -> None:
    filled(path)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 3}")


@pytest.mark.parametrize(
    ("damage", "suffix", "words"),
    [
        (damage_header, "broken", "is broken (file is not a database)"),
        (damage_short, "broken", "is broken (file is not a database)"),
        (damage_truncated, "broken", "is broken (database disk image is malformed)"),
        (damage_root_page, "broken", "is broken (database disk image is malformed)"),
        (damage_missing_table, "broken", "is broken (no such table: phrase)"),
        (damage_foreign, "broken", "is a database of something else"),
        (damage_newer, "newer", f"newer localspec (version {len(MIGRATIONS) + 3}, this one knows {len(MIGRATIONS)})"),
    ],
)
def test_a_file_that_cannot_serve_is_set_aside_whole(
    path: Path, notices: list[str], damage: object, suffix: str, words: str
) -> None:
    damage(path)  # type: ignore[operator]
    old = path.read_bytes()
    aside = path.with_name(f"localspec.db.{suffix}-1")
    with Store.open(path, notices.append) as store:
        assert aside.read_bytes() == old
        assert len(notices) == 1 and words in notices[0] and aside.name in notices[0] and str(path) in notices[0]
        store.learn(made_pool(store), [phrase(1)])
        assert not store.read_only and store.path == path
    with Store.open(path, notices.append) as store:
        assert afters(store, made_pool(store), 1) == [1]
    assert len(notices) == 1 and aside.read_bytes() == old
    # A second one does not overwrite the first.
    path.write_bytes(b"broken again" * 100)
    Store.open(path, notices.append).close()
    assert aside.read_bytes() == old
    assert path.with_name(f"localspec.db.broken-{2 if suffix == 'broken' else 1}").read_bytes().startswith(b"broken")


def test_what_only_the_log_holds_goes_aside_with_the_file(path: Path, notices: list[str]) -> None:
    with Store.open(path, notices.append) as running:
        running.learn(made_pool(running), [(1, b"", MARKER)])
        running._connection.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
        old, log = path.read_bytes(), Path(f"{path}-wal").read_bytes()
        assert MARKER in log and MARKER not in old
        with Store.open(path, notices.append) as store:
            aside = path.with_name("localspec.db.newer-1")
            assert aside.read_bytes() == old and Path(f"{aside}-wal").read_bytes() == log
            pool = made_pool(store)
            store.learn(pool, [phrase(2)])
            # The session that still has the old file neither fails nor touches the new one, also when it ends.
            running.learn(1, [phrase(3)])
            running.close()
            store.learn(pool, [phrase(4)])
            assert sorted(found.key for found in store.export(pool)) == [2, 4]
    assert integrity(path) == "ok" and len(notices) == 1
    with contextlib.closing(sqlite3.connect(aside)) as connection:
        assert connection.execute("SELECT key FROM phrase ORDER BY key").fetchall() == [(1,), (3,)]


def test_a_log_that_nobody_has_open_goes_aside_unchanged(path: Path, notices: list[str]) -> None:
    with Store.open(path, notices.append) as running:
        running.learn(made_pool(running), [(1, b"", MARKER)])
        running._connection.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
        killed = shutil.copytree(path.parent, path.parent.with_name("killed")) / path.name
    old, log = killed.read_bytes(), Path(f"{killed}-wal").read_bytes()
    Store.open(killed, notices.append).close()
    aside = killed.with_name("localspec.db.newer-1")
    assert aside.read_bytes() == old and Path(f"{aside}-wal").read_bytes() == log


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
        with Store.open(path, notices.append) as opened:
            opened.learn(made_pool(opened), [phrase(number)])
            os.write(pipe, b"notice" * len(notices) or b"quiet")

    children = [in_a_child(partial(start, number)) for number in range(5)]
    answers = []
    for child, pipe in children:
        with open(pipe, "rb") as answer:
            answers.append(answer.read())
        os.waitpid(child, 0)
    assert sorted(answers) == [b"notice", *[b"quiet"] * 4]
    assert [file.name for file in path.parent.glob("*.broken-*")] == ["localspec.db.broken-1"]
    with Store.open(path, notices.append) as store:
        assert sorted(found.key for found in store.export(made_pool(store))) == list(range(5))


def test_an_empty_file_is_simply_begun(path: Path, notices: list[str]) -> None:
    path.parent.mkdir()
    path.touch()
    with Store.open(path, notices.append) as store:
        store.learn(made_pool(store), [phrase(1)])
    assert notices == []


def damage_leaves(path: Path) -> bytes:
    """Damages every leaf that holds phrases; returns the bytes of the file."""
    filled(path, replies=10)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        size = connection.execute("PRAGMA page_size").fetchone()[0]
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
    content = bytearray(path.read_bytes())
    damaged = 0
    for start in range(0, pages * size, size):
        # Type 10: a leaf of an index or of a WITHOUT ROWID table; those of the phrases hold many cells.
        if content[start] == 10 and int.from_bytes(content[start + 3 : start + 5], "big") > 5:
            content[start + 8 : start + size] = b"\xff" * (size - 8)
            damaged += 1
    assert damaged > 20
    path.write_bytes(content)
    return bytes(content)


@pytest.mark.parametrize("how", ["phrases", "learn", "export", "clear"])
def test_damage_found_at_work_sets_the_file_aside_and_the_session_goes_on(
    path: Path, notices: list[str], how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = damage_leaves(path)
    monkeypatch.setattr(store_module, "PROBES", ())  # as if the damage were where opening does not look
    with Store.open(path, notices.append) as store:
        pool = store.pool("demo", "hash")
        assert pool is not None and notices == []
        if how == "phrases":
            assert store.phrases(pool, list(range(200))) == []
        elif how == "learn":
            store.learn(pool, [phrase(n) for n in range(200)])
            assert afters(store, pool, 1) == [1], "what was learnt serves the rest of the session"
        elif how == "export":
            assert list(store.export(pool)) == []
        else:
            with pytest.raises(StoreTrouble, match="Nothing was removed, because .* is broken: delete"):
                store.clear()
        assert len(notices) == 1 and "localspec.db.broken-1" in notices[0] and "malformed" in notices[0]
        assert path.with_name("localspec.db.broken-1").read_bytes() == content
        assert not path.exists() and store.path is None
        store.learn(pool, [phrase(5)])
        assert afters(store, pool, 5) == [5]
        with Store.open(path, notices.append) as fresh:
            assert fresh.path == path and len(notices) == 1


def test_a_good_new_file_is_not_set_aside_by_a_session_with_the_old_one(path: Path, notices: list[str]) -> None:
    filled(path)
    with Store.open(path, notices.append) as late:
        late._connection.execute("SELECT 1")
        os.rename(path, path.with_name("elsewhere.db"))
        with Store.open(path, notices.append) as fresh:
            fresh.learn(made_pool(fresh), [phrase(1)])
            error = sqlite3.DatabaseError("database disk image is malformed")
            error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
            late._leave_broken_file(error)
            assert "by another process" in notices[0]
            assert path.exists() and afters(fresh, made_pool(fresh), 1) == [1]


# -- what can only be read, or not even that --


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that every user may enter: the one pytest makes for root is closed to others."""
    directory = Path(tempfile.mkdtemp())
    directory.chmod(0o755)
    yield directory
    for inner in directory.rglob("*"):
        if inner.is_dir():
            inner.chmod(0o755)
    shutil.rmtree(directory)


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    """Permissions do not bind root: as root, act as the user `nobody` for a while."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


@contextlib.contextmanager
def only_readable(path: Path, directory_too: bool) -> Iterator[None]:
    """The file, or it and its directory, as one finds them on a read-only medium."""
    for part in path.parent.iterdir():
        part.chmod(0o444)
    path.parent.chmod(0o555 if directory_too else 0o777)
    with as_nobody():
        yield
    path.parent.chmod(0o755)


@pytest.mark.parametrize("directory_too", [True, False])
@pytest.mark.parametrize("log_left", [True, False])
def test_what_can_only_be_read_is_read(
    open_directory: Path, notices: list[str], directory_too: bool, log_left: bool
) -> None:
    path = open_directory / "data" / "localspec.db"
    filled(path)
    if log_left:
        # As a killed process leaves it: the last reply stands in the log only.
        with Store.open(path, notices.append) as running:
            running.learn(made_pool(running), [phrase(777)])
            shutil.copytree(path.parent, open_directory / "copy")
        path = open_directory / "copy" / "localspec.db"
    content = path.read_bytes()
    with only_readable(path, directory_too), Store.open(path, notices.append) as store:
        assert store.read_only and store.path == path
        assert len(notices) == 1 and "can only be read" in notices[0] and str(path) in notices[0]
        pool = store.pool("demo", "hash")
        assert pool is not None and len(store.phrases(pool, [3])) == 1
        if log_left:
            assert afters(store, pool, 777) == [777]
        assert store.pool("unseen", "hash") is None
        assert store.pools()[0].phrases == (201 if log_left else 200)
        for change in (lambda: store.learn(pool, [phrase(1)]), store.clear):
            with pytest.raises(StoreTrouble, match="can only be read: make it and its directory writable"):
                change()
        assert len(store.phrases(pool, [3])) == 1
    assert path.read_bytes() == content
    path.chmod(0o600)


@pytest.mark.parametrize("damage", [damage_header, damage_newer])
def test_a_bad_file_that_cannot_be_moved_is_left_alone(
    open_directory: Path, notices: list[str], damage: object
) -> None:
    path = open_directory / "data" / "localspec.db"
    damage(path)  # type: ignore[operator]
    old = path.read_bytes()
    with only_readable(path, directory_too=True), Store.open(path, notices.append) as store:
        assert len(notices) == 1 and "cannot be used" in notices[0]
        pool = made_pool(store)
        store.learn(pool, [phrase(1)])
        assert afters(store, pool, 1) == [1] and store.path is None and not store.read_only
    assert path.read_bytes() == old


@pytest.mark.parametrize("case", ["parent is a file", "parent may not be made", "a directory in its place"])
def test_where_nothing_can_be_opened_the_session_works_in_memory(
    open_directory: Path, notices: list[str], case: str
) -> None:
    path = open_directory / "closed" / "data" / "localspec.db"
    if case == "parent is a file":
        (open_directory / "closed").write_text("")
    elif case == "parent may not be made":
        (open_directory / "closed").mkdir(mode=0o555)
    else:
        path.mkdir(parents=True)
    somebody = as_nobody() if case == "parent may not be made" else contextlib.nullcontext()
    with somebody, Store.open(path, notices.append) as store:
        assert len(notices) == 1 and "cannot be used" in notices[0] and "forgotten at its end" in notices[0]
        pool = made_pool(store)
        store.learn(pool, [phrase(1)])
        assert afters(store, pool, 1) == [1] and store.path is None and not store.read_only
        assert store.clear() == 1


# -- trouble while saving --


def test_a_full_database_keeps_the_old_and_says_so(store: Store, path: Path) -> None:
    pool = made_pool(store)
    store.learn(pool, [phrase(1)])
    pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
    store._connection.execute(f"PRAGMA max_page_count = {pages}").fetchone()
    with pytest.raises(StoreTrouble, match="nothing was saved: see whether the disk is full .*full") as caught:
        store.learn(pool, [(n, bytes(24), bytes(32)) for n in range(2000)])
    assert caught.value.exit_code == 1 and str(path) in str(caught.value)
    assert [found.key for found in store.export(pool)] == [1]
    store._connection.execute("PRAGMA max_page_count = 1000000").fetchone()
    store.learn(pool, [phrase(2)])
    assert [found.key for found in store.export(pool)] == [2, 1]
    assert store._connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"


def test_a_write_that_the_system_refuses_keeps_the_old_and_says_so(store: Store, path: Path) -> None:
    pool = made_pool(store)
    store.learn(pool, [phrase(1)])
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (Path(f"{path}-wal").stat().st_size + 6000, before[1]))
    try:
        with pytest.raises(StoreTrouble, match="nothing was saved: see whether the disk is full"):
            store.learn(pool, [(n, bytes(24), bytes(32)) for n in range(2000)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    store.learn(pool, [phrase(2)])
    assert [found.key for found in store.export(pool)] == [2, 1]
    assert store._connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"


def test_a_long_lock_is_said_and_reading_goes_on(
    path: Path, notices: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "BUSY_SECONDS", 0.05)
    with Store.open(path, notices.append) as store:
        pool = made_pool(store)
        store.learn(pool, [phrase(1)])
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreTrouble, match="in use by another process"):
                store.learn(pool, [phrase(2)])
            assert afters(store, pool, 1) == [1]
            with Store.open(path, notices.append) as reader:
                assert afters(reader, pool, 1) == [1], "a session that starts now can still read"
        store.learn(pool, [phrase(2)])
        assert afters(store, pool, 2) == [2]


def test_a_reader_in_trouble_is_told_once_and_gets_no_phrases(store: Store, notices: list[str]) -> None:
    pool = made_pool(store)
    store.learn(pool, [phrase(1)])
    store._connection.set_authorizer(lambda *question: sqlite3.SQLITE_DENY)
    assert store.phrases(pool, [1]) == [] and store.phrases(pool, [1, 2]) == []
    store._connection.set_authorizer(None)
    assert len(notices) == 1 and "drafts without" in notices[0]
    assert afters(store, pool, 1) == [1]


def test_importing_the_store_imports_nothing_heavy() -> None:
    heavy = {"torch", "transformers", "tokenizers", "typer"}
    code = f"import sys, localspec.store; print(sorted({heavy!r} & set(sys.modules)))"
    root = Path(__file__).parents[1]
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root).stdout == "[]\n"
