"""The store saves every finished reply and its figures, keeps its limits, and deletes on request."""

import contextlib
import os
import shutil
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from database_files import answers, damage_leaves, integrity, killed_lives, only_readable, open_directory
from each import each
from golden import matching

from localspec.store import opening
from localspec.store import phrases as phrases_module
from localspec.store import store as store_module
from localspec.store.database import StoreTrouble
from localspec.store.phrases import (
    BOUND_KEY,
    BOUND_POOL,
    MOST_AT_ONCE,
    Phrase,
    pack_key,
    pack_tokens,
    unpack_key,
    unpack_tokens,
)
from localspec.store.store import Store

MARKER = b"PRIVATE-MARKER-PHRASE-0123456789"


def phrase(n: int, key: int | None = None) -> tuple[int, bytes, bytes]:
    return (n if key is None else key, pack_tokens([n, n + 1]), pack_tokens([n, 7, 8]))


def afters(store: Store, pool: int, key: int) -> list[int]:
    """Return the first token after the key, most recently used first: which of `phrase(n, key)` are there."""
    return [unpack_tokens(found.after)[0] for found in store.phrases.look_up(pool, [key])]


def made_pool(store: Store, model: str = "demo") -> int:
    pool = store.phrases.pool(model, "hash")
    assert pool is not None
    return pool


# -- what goes in comes out --


def test_packing_round_trips() -> None:
    assert unpack_key(pack_key(31_999, 2**32 - 1)) == (31_999, 2**32 - 1)
    assert -(2**63) <= pack_key(2**31 - 1, 2**32 - 1) < 2**63
    assert unpack_tokens(pack_tokens([1, 70_000, 0])) == (1, 70_000, 0)
    assert pack_tokens([1]) == b"\x01\x00\x00\x00"


def test_phrases_are_found_by_key_most_recent_first(store: Store) -> None:
    pool = made_pool(store)
    store.phrases.learn(pool, [phrase(1, key=5), phrase(2, key=5), phrase(3, key=6), phrase(4, key=7)])
    store.phrases.learn(pool, [phrase(1, key=5)])
    found = store.phrases.look_up(pool, [5, 6, 99])
    assert found == [Phrase(*phrase(1, 5), uses=2), Phrase(*phrase(3, 6), uses=1), Phrase(*phrase(2, 5), uses=1)]
    assert store.phrases.look_up(pool, []) == []


def test_another_continuation_of_the_same_context_is_saved_in_addition(store: Store) -> None:
    pool = made_pool(store)
    store.phrases.learn(pool, [(1, b"1234", b"aaaa")])
    store.phrases.learn(pool, [(1, b"1234", b"bbbb")])
    assert [found.after for found in store.phrases.look_up(pool, [1])] == [b"bbbb", b"aaaa"]


def test_pools_are_apart(store: Store, path: Path) -> None:
    first, second = store.phrases.pool("demo", "one", "/models/demo"), store.phrases.pool("demo", "two")
    assert first is not None and second is not None and first != second
    assert store.phrases.pool("demo", "one") == first
    store.phrases.learn(first, [phrase(1)])
    assert store.phrases.look_up(second, [1]) == []
    by_id = {info.pool: info for info in store.phrases.pools()}
    assert by_id[first][:6] == (first, "demo", "one", "/models/demo", 1, 8 + 8 + 12)
    assert abs(by_id[first].last_used - time.time()) < 60
    assert by_id[second].phrases == 0 and by_id[second].path is None


def test_a_pool_belongs_to_its_weights_by_any_name_and_is_found_by_what_an_earlier_version_named_them(
    store: Store, tmp_path: Path
) -> None:
    (tmp_path / "here").mkdir()
    old = store.phrases.pool("demo", "hash-revision", tmp_path / "here")
    assert store.phrases.pool("other", "hash-weights", "/other", make=False, earlier="hash-revision") is None
    assert store.phrases.pool("demo", "hash-weights", tmp_path / "here", make=False, earlier="hash-revision") == old
    assert [one.tokenizer for one in store.phrases.pools()] == ["hash-revision"], "nothing is written to read it"
    assert store.phrases.pool("demo", "hash-weights", tmp_path / "here", earlier="hash-revision") == old
    assert [one.tokenizer for one in store.phrases.pools()] == ["hash-weights"]
    assert store.phrases.pool("other", "hash-weights", "/other", earlier="hash-another") == old
    assert store.phrases.pools()[0][1:4] == ("demo", "hash-weights", "/other")
    assert store.phrases.pool("third", "hash-weights", "/third", earlier="hash-another") == old
    assert store.phrases.pools()[0][1:4] == ("third", "hash-weights", "/third"), "that of /other is gone"
    assert store.phrases.pool("demo", "hash2-weights", "/other", earlier="hash-revision") != old, "another tokenizer"
    mine = store.phrases.pool("mine", "hash-revision", "/mine")
    assert store.phrases.pool("mine", "hash-weights", "/mine", earlier="hash-revision") == mine, "its own comes first"


def test_the_path_of_a_pool_follows_the_model(store: Store) -> None:
    store.phrases.pool("demo", "one", "/old")
    store.phrases.pool("demo", "one", Path("/new"))
    store.phrases.pool("demo", "one")
    assert store.phrases.pools()[0].path == str(Path("/new"))


def test_export_gives_every_phrase_once_over_many_pages(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phrases_module, "EXPORT_PAGE", 7)
    pool = made_pool(store)
    store.phrases.learn(pool, [phrase(n) for n in range(50)])
    assert [found.key for found in store.phrases.export(pool)] == list(reversed(range(50)))


def test_the_most_useful_come_first_and_those_of_refused_drafts_last(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(phrases_module, "SORTED_PAGE", 2)
    pool = made_pool(store)
    store.phrases.learn(pool, [phrase(n) for n in range(5)])
    store.phrases.learn(pool, [phrase(2)], [phrase(1), phrase(2)], [phrase(8), phrase(9)])
    store.phrases.learn(pool, [], [phrase(8)])
    assert [found.key for found in store.phrases.most_useful(pool)] == [2, 1, 8, 4, 3, 0, 9]


def test_an_unknown_pool_is_a_mistake_and_leaves_nothing(store: Store) -> None:
    with pytest.raises(ValueError, match=matching("no_pool_77")):
        store.phrases.learn(77, [phrase(1)])
    assert store.phrases.look_up(77, [1]) == []


# -- bounds --


def test_a_key_keeps_its_sixteen_most_recently_used(store: Store) -> None:
    pool = made_pool(store)
    store.phrases.learn(pool, [phrase(n, key=5) for n in range(16)] + [phrase(100, key=6)])
    store.phrases.learn(pool, [], used=[phrase(0, key=5)])
    store.phrases.learn(pool, [phrase(n, key=5) for n in range(16, 20)])
    assert afters(store, pool, 5) == [19, 18, 17, 16, 0, *range(15, 4, -1)]
    assert afters(store, pool, 6) == [100]
    store.phrases.learn(pool, [phrase(n, key=5) for n in range(200, 240)])
    assert afters(store, pool, 5) == list(range(239, 223, -1))
    assert store.phrases.pools()[0].phrases == 17


def test_a_pool_keeps_its_most_recently_used(path: Path, notices: list[str]) -> None:
    with Store.open(path, notices.append, limit=100) as store:
        pool, other = made_pool(store), made_pool(store, "other")
        store.phrases.learn(other, [phrase(n) for n in range(90)])
        store.phrases.learn(pool, [phrase(n) for n in range(100)])
        assert store.phrases.pools()[0].phrases == 100
        store.phrases.learn(pool, [phrase(3)], used=[phrase(0), phrase(12_345)])
        store.phrases.learn(pool, [phrase(n) for n in range(1000, 1010)])
        gone = {1, 2, *range(4, 12)}
        kept = {found.key for found in store.phrases.export(pool)}
        assert kept == (set(range(100)) - gone) | set(range(1000, 1010))
        store.phrases.learn(pool, [phrase(2000)])
        assert {found.key for found in store.phrases.export(pool)} == (kept - {12}) | {2000}
        # A reply larger than the whole pool leaves its own last phrases.
        store.phrases.learn(pool, [phrase(n) for n in range(5000, 5300)])
        assert {found.key for found in store.phrases.export(pool)} == set(range(5200, 5300))
        assert {info.model: info.phrases for info in store.phrases.pools()} == {"demo": 100, "other": 90}


@pytest.mark.slow
def test_a_pool_far_beyond_its_limit_comes_back_to_it_reply_by_reply(path: Path, notices: list[str]) -> None:
    """Deleting a million at once would delay the first reply by half a minute."""
    with Store.open(path, notices.append, limit=10**6) as store:
        store.phrases.learn(made_pool(store), [phrase(n) for n in range(2 * MOST_AT_ONCE + 100)])
    with Store.open(path, notices.append, limit=100) as store:
        pool = made_pool(store)
        left = []
        for n in range(4):
            store.phrases.learn(pool, [phrase(10**6 + n)])
            left.append(store.phrases.count(pool))
        assert left == [MOST_AT_ONCE + 100, 100, 100, 100]
        newest = {2 * MOST_AT_ONCE + 99, *range(10**6, 10**6 + 4)}
        assert newest < {found.key for found in store.phrases.export(pool)} and store.phrases.any_phrase()
        store.phrases.delete(pool)
        assert not store.phrases.any_phrase()


def test_using_a_phrase_keeps_it_but_counts_only_what_was_seen(store: Store) -> None:
    pool = made_pool(store)
    store.phrases.learn(pool, [phrase(1, key=5), phrase(2, key=5)])
    store.phrases.learn(pool, [], used=[phrase(1, key=5)])
    assert [(unpack_tokens(found.after)[0], found.uses) for found in store.phrases.look_up(pool, [5])] == [
        (1, 1),
        (2, 1),
    ]


def test_the_hot_queries_are_index_lookups(store: Store) -> None:
    pool = made_pool(store)
    asked: list[str] = []
    store._database._connection.set_trace_callback(asked.append)
    store.phrases.look_up(pool, [1, 2, 3, 4])
    store._database._connection.set_trace_callback(None)
    assert len(asked) == 1

    def plan(statement: str, values: tuple[int, ...]) -> str:
        return "; ".join(
            row[3] for row in store._database._connection.execute(f"EXPLAIN QUERY PLAN {statement}", values)
        )

    lookup = plan(asked[0], ())
    assert "SEARCH phrase USING PRIMARY KEY (pool=? AND key=?)" in lookup and "SCAN" not in lookup
    by_key = plan(BOUND_KEY, (pool, 1))
    assert by_key.count("USING PRIMARY KEY (pool=? AND key=?)") == 2 and "SCAN" not in by_key
    by_pool = plan(BOUND_POOL, (pool, 1))
    assert by_pool.count("phrase_by_use (pool=?") == 2 and "SCAN" not in by_pool and "TEMP B-TREE" not in by_pool


# -- measurements --


def test_measurements_are_found_by_name_and_subject_and_the_newest_counts(path: Path, notices: list[str]) -> None:
    value = {"rows": [1, 2.5], "what": "ü\n", "none": None, "yes": True}
    with Store.open(path, notices.append) as store:
        assert store.measurements.recall("costs", "demo") is None
        store.measurements.remember("costs", "demo", [1])
        store.measurements.remember("costs", "other", [2])
        store.measurements.remember("exactness", "demo", [3])
        store.measurements.remember("costs", "demo", value)
        assert store.measurements.recall("costs", "demo") == value
    with Store.open(path, notices.append) as store:
        assert store.measurements.recall("costs", "demo") == value
        assert store.measurements.recall("costs", "other") == [2] and store.measurements.recall(
            "exactness", "demo"
        ) == [3]
        assert store.measurements.recall("costs", "Demo") is None
        store.phrases.delete()
        assert store.measurements.recall("costs", "demo") == value, "a measurement is no phrase"
        rows = store._database._connection.execute("SELECT taken FROM measurement").fetchall()
        assert len(rows) == 3 and all(abs(taken - time.time()) < 60 for (taken,) in rows)
    assert notices == []


def test_this_many_measurements_stay_whatever_the_clock_says(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "BOUND_MEASUREMENTS", store_module.BOUND_MEASUREMENTS.replace("200", "5"))
    seconds = iter(range(1000, 0, -1))
    monkeypatch.setattr(store_module.time, "time", lambda: next(seconds))  # a clock that runs backwards
    for number in range(5):
        store.measurements.remember("costs", str(number), number)
    store.measurements.remember("costs", "0", "again")
    store.measurements.remember("costs", "5", 5)
    assert [store.measurements.recall("costs", str(number)) for number in range(6)] == ["again", None, 2, 3, 4, 5]
    assert store_module.MEASUREMENTS == 200


@each("damaged", ["", "{", "[1,", "\x00", b"\xff\xfe\xfd", "[" * 100_000, None])
def test_a_damaged_measurement_is_ignored(store: Store, damaged: object) -> None:
    store.measurements.remember("costs", "demo", [1])
    new = "CAST(x'fffe' AS TEXT)" if damaged is None else "?"
    store._database._connection.execute(f"UPDATE measurement SET value = {new}", (damaged,)[: new == "?"])
    assert store.measurements.recall("costs", "demo") is None
    store.measurements.remember("costs", "demo", [2])
    assert store.measurements.recall("costs", "demo") == [2]


def test_measurements_in_trouble(path: Path, notices: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "BUSY_SECONDS", 0.05)
    with Store.open(path, notices.append) as store:
        store.measurements.remember("costs", "demo", [1])
        store._database._connection.set_authorizer(lambda *question: sqlite3.SQLITE_DENY)
        assert store.measurements.recall("costs", "demo") is None
        store._database._connection.set_authorizer(None)
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreTrouble, match=matching("in_use_by_another_process")):
                store.measurements.remember("costs", "demo", [2])
            assert store.measurements.recall("costs", "demo") == [1]
    assert notices == [], "what can be measured again is not worth a word"


# -- where phrases come from, and how they go --


def test_what_a_conversation_said_last_goes_with_it(store: Store) -> None:
    pool, other = made_pool(store), made_pool(store, "other")
    store.phrases.learn(pool, [phrase(1), phrase(2)], conversation=5)
    store.phrases.learn(pool, [phrase(2), phrase(3)], conversation=6)
    store.phrases.learn(other, [phrase(4)], conversation=5)
    assert (store.phrases.count(pool), store.phrases.count(pool, 5), store.phrases.count(pool, 6)) == (3, 1, 2)
    assert store.phrases.delete(pool, conversation=5) == 1
    assert store.phrases.delete(conversation=5) == 1
    assert store.phrases.count(pool) == 2 and store.phrases.count(other) == 0
    assert store.phrases.delete(pool, phrases=[phrase(3), phrase(9)]) == 1
    assert [found.key for found in store.phrases.export(pool)] == [2]


# -- privacy --


def bytes_on_disk(path: Path) -> bytes:
    return b"".join(file.read_bytes() for file in path.parent.iterdir())


@pytest.mark.parametrize("everything", [True, False])
def test_cleared_phrases_are_gone_from_the_files(path: Path, notices: list[str], everything: bool) -> None:
    with Store.open(path, notices.append) as store, Store.open(path, notices.append) as another:
        pool, other = made_pool(store), made_pool(store, "other")
        store.phrases.learn(other, [(1, b"", b"another phrase that stays")])
        for reply in range(10):
            store.phrases.learn(pool, [(reply * 100 + n, b"", MARKER + bytes([n])) for n in range(20)])
            store.phrases.learn(pool, [], used=[(reply * 100, b"", MARKER + bytes([0]))])
        assert len(another.phrases.look_up(pool, [0])) == 1
        assert MARKER in bytes_on_disk(path)
        assert store.phrases.delete(None if everything else pool) == (201 if everything else 200)
        assert MARKER not in bytes_on_disk(path)
        assert (b"another phrase that stays" in bytes_on_disk(path)) is not everything
        assert {info.model: info.phrases for info in store.phrases.pools()} == {
            "demo": 0,
            "other": 0 if everything else 1,
        }
        # A session that is running keeps its pool.
        another.phrases.learn(pool, [phrase(1)])
        assert afters(store, pool, 1) == [1]
    assert MARKER not in bytes_on_disk(path) and integrity(path) == "ok"


def test_clearing_gives_the_space_back(path: Path, notices: list[str]) -> None:
    filled(path, replies=10)
    size = path.stat().st_size
    with Store.open(path, notices.append) as store:
        store.phrases.delete()
        assert path.stat().st_size < size / 4


def test_without_room_to_shrink_the_file_the_bytes_are_gone_all_the_same(store: Store, path: Path) -> None:
    pool = made_pool(store)
    store.phrases.learn(pool, [(n, b"", MARKER) for n in range(200)])
    # VACUUM attaches a second database; this is how it can be made to fail.
    attach = getattr(sqlite3, "SQLITE_ATTACH", 24)
    denied: list[int] = []

    def judge(action: int, *details: object) -> int:
        denied.extend([action] if action == attach else [])
        return sqlite3.SQLITE_DENY if action == attach else sqlite3.SQLITE_OK

    store._database._connection.set_authorizer(judge)
    assert store.phrases.delete() == 200
    assert denied and MARKER not in bytes_on_disk(path)


def test_phrases_that_had_to_go_are_overwritten(path: Path, notices: list[str]) -> None:
    with Store.open(path, notices.append, limit=100) as store:
        pool = made_pool(store)
        store.phrases.learn(pool, [(n, b"", MARKER) for n in range(100)])
        store.phrases.learn(pool, [phrase(n) for n in range(100, 195)])
        assert bytes_on_disk(path).count(MARKER) > 2 * 5
    assert bytes_on_disk(path).count(MARKER) == 2 * 5  # in the table and in its index


def test_clear_says_so_when_another_process_keeps_the_bytes(
    path: Path, notices: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "BUSY_SECONDS", 0.05)
    with Store.open(path, notices.append) as store:
        pool = made_pool(store)
        store.phrases.learn(pool, [(1, b"", MARKER)])
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM phrase").fetchall()
            with pytest.raises(StoreTrouble, match=matching("n1_phrase_removed_but_deleted")):
                store.phrases.delete()
        assert store.phrases.delete() == 0
        assert MARKER not in bytes_on_disk(path)


# -- two processes, two threads, sudden ends --


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.slow
def test_two_processes_lose_nothing(path: Path, notices: list[str]) -> None:
    """Both make, migrate and open the file at the same time."""

    def live(offset: int, pipe: int) -> None:
        store = Store.open(path, notices.append)
        pool = made_pool(store)
        for reply in range(200):
            phrases = [(offset + reply, b"", pack_tokens([n])) for n in range(3)]
            store.phrases.learn(pool, [*phrases, (7, b"", b"shared")])
            assert len(store.phrases.look_up(pool, [offset + reply])) == 3
        os.write(pipe, b"told" if notices else b"quiet")

    assert answers(partial(live, 1000), partial(live, 2000)) == [b"quiet"] * 2
    with Store.open(path, notices.append) as store:
        pool = made_pool(store)
        keys = [found.key for found in store.phrases.export(pool)]
        assert sorted(set(keys)) == [7, *range(1000, 1200), *range(2000, 2200)] and len(keys) == 1201
        assert store.phrases.pools()[0].phrases == 1201
        assert store.phrases.look_up(pool, [7])[0].uses == 400
    assert integrity(path) == "ok" and notices == []


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.slow
def test_a_killed_process_loses_at_most_the_reply_in_flight(path: Path, notices: list[str]) -> None:
    def live(life: int, pipe: int) -> None:
        store = Store.open(path, notices.append)
        pool = made_pool(store)
        for reply in range(life * 100_000, (life + 1) * 100_000):
            store.phrases.learn(pool, [(reply, bytes([n]), bytes(200)) for n in range(4)])
            os.write(pipe, f"{reply}\n".encode())

    for life, finished in enumerate(killed_lives(15, live)):
        if life % 5 == 4:
            assert integrity(path) == "ok"
        with Store.open(path, notices.append) as store:
            rows = store._database._connection.execute("SELECT key, count(*) FROM phrase GROUP BY key").fetchall()
        kept = dict(rows)
        assert finished <= kept.keys()
        assert set(kept.values()) <= {4}, "half a reply was kept"
        assert len(kept.keys() - finished) <= life + 1
    assert len(finished) > 15 and notices == [] and integrity(path) == "ok"


def test_threads_may_share_a_store(store: Store) -> None:
    pool = made_pool(store)
    errors: list[BaseException] = []
    start = threading.Barrier(3)

    def work(offset: int) -> None:
        try:
            start.wait()
            for reply in range(0, 500, 10):
                store.phrases.learn(pool, [phrase(offset + reply + n) for n in range(10)])
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
    assert errors == [] and store.phrases.pools()[0].phrases == 1500


# -- broken files, and files that can only be read --


def filled(path: Path, replies: int = 1) -> None:
    with Store.open(path, lambda sentence: None) as store:
        store.measurements.remember("costs", "demo", [1, 2])
        pool = made_pool(store)
        for reply in range(replies):
            store.phrases.learn(pool, [(n, bytes([reply]) * 24, bytes([n % 251]) * 32) for n in range(200)])


@pytest.mark.slow
@each("how", ["look_up", "learn", "export", "forget"])
def test_damage_found_at_work_sets_the_file_aside_and_the_session_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    path, notices = tmp_path / "localspec.db", list[str]()
    with monkeypatch.context() as patch:
        filled(path, replies=10)
        content = damage_leaves(path)
        patch.setattr(store_module, "PROBES", ())  # as if opening did not read the damaged page
        with Store.open(path, notices.append) as store:
            pool = store.phrases.pool("demo", "hash")
            assert pool is not None and notices == []
            if how == "look_up":
                assert store.phrases.look_up(pool, list(range(200))) == []
            elif how == "learn":
                store.phrases.learn(pool, [phrase(n) for n in range(200)])
                assert afters(store, pool, 1) == [1], "what was learnt serves the rest of the session"
            elif how == "export":
                assert list(store.phrases.export(pool)) == []
            else:
                with pytest.raises(StoreTrouble, match=matching("is_damaged_and_may_still_hold_it")):
                    store.phrases.delete()
            store.measurements.remember("costs", "demo", [3])
            assert store.measurements.recall("costs", "demo") == [3]
            assert len(notices) == 1 and "localspec.db.broken-1" in notices[0] and "malformed" in notices[0]
            assert path.with_name("localspec.db.broken-1").read_bytes() == content
            assert store.path == path
            store.phrases.learn(pool, [phrase(5)])
            assert afters(store, pool, 5) == [5]
            with Store.open(path, notices.append) as fresh:
                assert fresh.path == path and len(notices) == 1


def test_what_can_only_be_read_is_read(notices: list[str]) -> None:
    with open_directory() as directory:
        path = directory / "data" / "localspec.db"
        filled(path)
        # As a killed process leaves it: the last reply is only in the log.
        with Store.open(path, notices.append) as running:
            running.phrases.learn(made_pool(running), [phrase(777)])
            shutil.copytree(path.parent, directory / "copy")
        path = directory / "copy" / "localspec.db"
        with only_readable(path, directory_too=True), Store.open(path, notices.append) as store:
            assert store.read_only and store.path == path and len(notices) == 1
            pool = store.phrases.pool("demo", "hash")
            assert pool is not None and len(store.phrases.look_up(pool, [3])) == 1
            assert afters(store, pool, 777) == [777]
            assert store.phrases.pool("unseen", "hash") is None
            assert store.phrases.pools()[0].phrases == 201
            assert store.measurements.recall("costs", "demo") == [1, 2]
            changes: list[Callable[[], object]] = [
                lambda: store.phrases.learn(pool, [phrase(1)]),
                lambda: store.measurements.remember("costs", "demo", 3),
                store.phrases.delete,
            ]
            why = matching("make_it_and_its_directory_writable")
            for change in changes:
                with pytest.raises(StoreTrouble, match=why):
                    change()
            assert len(store.phrases.look_up(pool, [3])) == 1


# -- trouble while working --


def test_a_failing_reader_reports_once_and_gets_no_phrases(store: Store, notices: list[str]) -> None:
    pool = made_pool(store)
    store.phrases.learn(pool, [phrase(1)])
    store._database._connection.set_authorizer(lambda *question: sqlite3.SQLITE_DENY)
    assert store.phrases.look_up(pool, [1]) == [] and store.phrases.look_up(pool, [1, 2]) == []
    store._database._connection.set_authorizer(None)
    assert len(notices) == 1 and "drafts without" in notices[0]
    assert afters(store, pool, 1) == [1]


def test_no_trigger_runs_for_each_phrase_that_is_cleared(path: Path, notices: list[str]) -> None:
    with Store.open(path, notices.append) as store:
        pool, other = made_pool(store), made_pool(store, "other")
        for one, conversation in ((pool, 1), (pool, 2), (other, 2)):
            number = (one * 10 + conversation) * 10_000
            store.phrases.learn(
                one, [(number + n, b"", bytes([n % 256])) for n in range(500)], conversation=conversation
            )
        asked: list[str] = []
        store._database._connection.set_trace_callback(asked.append)
        counts = []
        for which, conversation in ((pool, 2), (None, 2), (None, None)):
            forgotten = store.phrases.delete(which, conversation=conversation)
            counts.append((forgotten, [info.phrases for info in store.phrases.pools()]))
        store._database._connection.set_trace_callback(None)
        assert [forgotten for forgotten, _ in counts] == [500, 500, 500]
        assert [sum(phrases) for _, phrases in counts] == [1000, 500, 0]
        assert len(asked) < 200, len(asked)
        store.phrases.learn(pool, [phrase(1)])
        assert [info.phrases for info in store.phrases.pools() if info.model == "demo"] == [1], "it is counted on"
