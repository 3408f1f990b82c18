"""`localspec run`: a database that is broken, newer, locked, full or read-only costs a sentence, never the reply."""

import contextlib
import os
import resource
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli.run.run_command import LONG, Result, kept
from command import what_is_kept
from golden import wording
from scripted_models import Script, scripted_model

from localspec.cli import run as run_module
from localspec.models import tokenizer_trial
from localspec.paths import Paths


def notified(result: Result, script: Script, *said: str, then: str = "") -> None:
    """Check for a whole reply, success, and one sentence, followed by `then`."""
    assert (result.code, result.out) == (0, script.text + "\n"), result.err
    assert result.err.startswith("localspec: ") and result.err.endswith(then), result.err
    sentence = result.err.removesuffix(then)
    assert sentence.count("\n") == 1, result.err
    for word in said:
        assert word in sentence


def test_a_broken_database(run, home, hello):
    database = Paths(home).database
    database.write_bytes(b"this is no database " * 500)
    notified(run("-m", hello.path, "hi"), hello, "broken", "set aside", then=what_is_kept(home))
    assert run("-m", hello.path, "hi").err == ""
    assert any("broken" in file.name for file in database.parent.iterdir())


@pytest.mark.slow
def test_a_newer_database(run, home, hello):
    run("-m", hello.path, "hi")
    database = Paths(home).database
    with contextlib.closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA user_version = 99")
    notified(run("-m", hello.path, "hi"), hello, "99", "set aside", then=what_is_kept(home))


@pytest.mark.slow
def test_a_directory_in_the_place_of_the_database(run, first_start, hello):
    """If nothing is saved, no message claims that something is."""
    Paths(first_start).database.mkdir(parents=True)
    notified(run("-m", hello.path, "hi"), hello, "cannot be used")


@pytest.mark.slow
def test_a_locked_database(run, home, hello, monkeypatch):
    run("-m", hello.path, "hi")
    connect, original = sqlite3.connect, run_module._Plain.end
    monkeypatch.setattr(sqlite3, "connect", lambda *place, **options: connect(*place, **{**options, "timeout": 0.1}))
    with contextlib.closing(connect(Paths(home).database, isolation_level=None)) as other:

        def lock_first(*arguments: Any) -> None:
            original(*arguments)
            other.execute("BEGIN IMMEDIATE")

        monkeypatch.setattr(run_module._Plain, "end", lock_first)
        notified(run("-m", hello.path, "hi"), hello, wording("in_use_by_another_process"))


def test_a_database_that_is_locked_when_the_reply_begins(run, home, hello, monkeypatch):
    from localspec import Engine

    connect, load = sqlite3.connect, Engine.open
    monkeypatch.setattr(sqlite3, "connect", lambda *place, **options: connect(*place, **{**options, "timeout": 0.1}))
    with contextlib.closing(connect(Paths(home).database, isolation_level=None)) as other:

        def lock_first(*arguments: Any, **options: Any) -> Any:
            other.execute("BEGIN IMMEDIATE")
            return load(*arguments, **options)

        monkeypatch.setattr(Engine, "open", lock_first)
        result = run("-m", hello.path, "hi", "--pool", "off", "--no-spec")
    notified(result, hello, wording("what_said_now_kept"), wording("in_use_by_another_process"))
    assert kept(home) == []


@pytest.mark.slow
def test_a_broken_database_holds_nothing_to_continue(run, home, hello):
    run("-m", hello.path, "hi")
    Paths(home).database.write_bytes(b"this is no database " * 500)
    result = run("-m", hello.path, "-c", "hi")
    aside, mistake = result.err.splitlines()
    assert (result.code, result.out) == (2, "") and "set aside" in aside
    assert wording("no_conversation_to_continue") in mistake


@pytest.mark.slow
def test_a_full_disk_while_saving(run, home, long, monkeypatch):
    run("-m", long.path, "hi", "-n", "2")
    before, original = resource.getrlimit(resource.RLIMIT_FSIZE), run_module._Plain.end

    def fill(*arguments: Any) -> None:
        original(*arguments)
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, before[1]))  # room for the captured output, not for phrases

    monkeypatch.setattr(run_module._Plain, "end", fill)
    try:
        result = run("-m", long.path, "hi")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    notified(result, long, "disk is full")


@pytest.fixture
def open_home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a home that every user may enter; pytest's own directory for root is closed to others."""
    directory = Path(tempfile.mkdtemp())
    directory.chmod(0o755)
    monkeypatch.setenv("LOCALSPEC_HOME", str(directory))
    yield directory
    for inner in directory.rglob("*"):
        inner.chmod(0o755)
    shutil.rmtree(directory)


@pytest.mark.slow
def test_a_database_that_can_only_be_read(run, open_home, lived_in, messages, monkeypatch):
    script = scripted_model(open_home / "model", LONG[:60])
    lived_in(open_home, script.path)
    (script.path / "model.safetensors").chmod(0o644)
    assert run("-m", script.path, "hi").err == ""
    before = kept(open_home)
    data = Paths(open_home).data_dir
    for file in data.iterdir():
        file.chmod(0o444)
    data.chmod(0o555)
    open_home.chmod(0o555)
    cache = Paths(open_home).cache_dir
    if root := os.geteuid() == 0:  # permissions do not bind root
        for file in (cache, *cache.rglob("*")):
            os.chown(file, 65534, -1)
        os.seteuid(65534)
    try:
        notified(run("-m", script.path, "hi"), script, wording("can_only_be_read"))
        reply = run("-m", script.path, "hi", "--json")
        notified(run("-c", "more"), script, wording("can_only_be_read"))
    finally:
        if root:
            os.seteuid(0)
        open_home.chmod(0o755)
        for inner in data.iterdir():
            inner.chmod(0o644)
        data.chmod(0o755)
    assert kept(open_home) == before
    assert messages[-1] == [("user", "hi"), ("assistant", script.text), ("user", "more")]
    assert reply.code == 0 and reply.json["speculation"]["sources"].get("phrases", 0) > 0, "what it knows is used"


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="modes as on POSIX")
def test_everything_that_is_kept_is_private_whatever_the_umask(run, first_start, hello, noise, monkeypatch):
    monkeypatch.setattr(tokenizer_trial, "_tried", {})  # of another test in this process
    before = os.umask(0)
    try:
        assert run("-m", hello.path, "hi").code == 0
        assert run("-m", noise, "hi", "-n", "3").code == 0
        assert run("-m", "nosuch", "hi").code == 3
    finally:
        os.umask(before)
    kept = {path: path.stat().st_mode & 0o777 for path in first_start.rglob("*")}
    assert {path.name for path in kept} >= {"localspec.db", "packed", "tokenizers"}
    assert [(path, mode) for path, mode in kept.items() if mode != (0o700 if path.is_dir() else 0o600)] == []
