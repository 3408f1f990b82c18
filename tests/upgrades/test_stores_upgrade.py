"""A store from before the first release is set aside as it is, and a new one begins."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from localspec.store.store import FIRST, Store


@pytest.mark.parametrize("version", [1, FIRST - 1])
def test_a_store_from_before_the_first_release_is_set_aside_as_it_is(tmp_path: Path, version: int) -> None:
    path, notices = tmp_path / "localspec.db", list[str]()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE conversation (id INTEGER PRIMARY KEY, model TEXT)")
        connection.execute(f"PRAGMA user_version = {version}")
        connection.commit()
    content = path.read_bytes()
    with Store.open(path, notices.append) as store:
        assert store.path == path and not store.history.conversations()
        store.history.say(None, "hello", model="demo", system=None)
    aside = path.with_name("localspec.db.old-1")
    assert aside.read_bytes() == content
    (sentence,) = notices
    assert f"was written before the first release (version {version}, this one knows {FIRST})" in sentence
    assert f"set aside as {aside.name}" in sentence and f"`sqlite3 {aside} .dump`" in sentence
    with Store.open(path, pytest.fail) as store:
        assert [one.turns for one in store.history.conversations()] == [1]
