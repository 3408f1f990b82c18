"""A small history in several volumes, damaged in many ways, and what must be there all the same."""

import contextlib
import random
import sqlite3
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from database_files import damage_root

from localspec.paths import private_directory
from localspec.store import volumes
from localspec.store.store import Store

COUNT = 12
LIMIT = 20_000  # bytes a volume


def history_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A history in two volumes at least, with phrases and a measurement."""
    monkeypatch.setattr(volumes, "LIMIT", LIMIT)
    path = tmp_path / "data" / "localspec.db"
    private_directory(path.parent)
    path.write_bytes(_history())
    path.chmod(0o600)
    return path


@cache
def _history() -> bytes:
    """Its file, written once: to index so many words takes longer than most of what is tried with it."""
    chance = random.Random(3)
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(volumes, "LIMIT", LIMIT)
        path = Path(folder) / "data" / "localspec.db"
        with Store.open(path, pytest.fail) as store:
            for number in range(COUNT):
                words = " ".join(f"w{chance.randrange(10**6)}" for _ in range(400))
                _, turn = store.history.say(None, f"prompt{number}", model="demo", system=None)
                store.history.write(turn, words, "stop")
            pool = store.phrases.pool("demo", "hash", None)
            store.phrases.learn(pool, [(7, b"", b"\1\0\0\0")])
            store.measurements.remember("costs", "demo", [1])
        beside = {file.name for file in path.parent.iterdir()} - {path.name, f"{path.name}-lock"}
        assert not beside, "all of it is in this file"
        return path.read_bytes()


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


def written(store: Store) -> None:
    _, turn = store.history.say(5, "prompt more", model="demo", system=None)
    assert store.history.write(turn, "reply more", "stop")
    assert [hit.turn for hit in store.history.search("reply more")] == [turn]


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
