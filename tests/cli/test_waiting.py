"""A command that waits says what it waits for, in one line if standard error is not a terminal."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from clocks import PATIENCE
from command import environment
from filelock import FileLock
from golden import wording
from scripted_models import scripted_model

from localspec.cli import console
from localspec.cli.console import Progress
from localspec.events import Reporter
from localspec.paths import Paths
from localspec.weights import opening, packed_files
from localspec.weights.checkpoint import revision
from localspec.weights.packed_file import Origin
from localspec.weights.packed_files import partial_of

SOON = (
    "import sys; from localspec.cli import console; from localspec.cli.main import main\n"
    "console.WAIT_SECONDS = 0.2; sys.exit(main())"
)


@pytest.fixture
def command(tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """command(ARGUMENT, …): localspec with pipes, which names waits after 0.2 seconds."""

    def begin(*arguments: str, stdin: Any = subprocess.DEVNULL) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", SOON, *arguments], env=environment(tmp_path), cwd=tmp_path, text=True,
            stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    return begin


def test_a_wait_is_named_once_and_not_when_it_is_over(monkeypatch, capsys):
    monkeypatch.setattr(console, "WAIT_SECONDS", 0.05)
    shown = Progress()
    shown.show("reading a")
    shown.show("reading b")
    time.sleep(0.3)
    shown.show("reading b")
    time.sleep(0.2)
    assert capsys.readouterr() == ("", "localspec: reading b …\n")
    shown.show("writing 1 of 9")
    shown.show("writing 2 of 9")
    time.sleep(0.2)
    shown.show("writing 3 of 9")
    time.sleep(0.2)
    assert capsys.readouterr() == ("", "localspec: writing 2 of 9 …\n")
    shown.clear()
    shown.show("reading d")
    shown.clear()
    time.sleep(0.2)
    silent = Progress(names_waits=False)
    silent.show("reading e")
    time.sleep(0.2)
    assert capsys.readouterr() == ("", "")


@pytest.mark.slow
def test_text_that_does_not_come_to_an_end_is_waited_for_in_words(command: Any) -> None:
    reading, writing = os.pipe()
    process = command("run", "Hi", stdin=reading)
    os.close(reading)
    assert wording("reading_input_to_its_end") in process.stderr.readline()
    os.close(writing)
    out, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0 and out and "Traceback" not in errors


@pytest.mark.slow
def test_waiting_for_another_process_that_packs_is_reported(tmp_path: Path, command: Any) -> None:
    model = scripted_model(tmp_path / "model", [b"a"]).path
    made = command("run", "-m", str(model), "Hi")
    assert made.communicate(timeout=PATIENCE)[0] == "a\n"
    [file] = tmp_path.rglob("*.packed")
    lock = FileLock(file.with_suffix(".lock"))
    file.unlink()
    with lock:
        process = command("run", "-m", str(model), "Hi")
        line = ""
        while wording("waiting_for_another_process") not in line:
            line = process.stderr.readline()
            assert line
    out, _ = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (0, "a\n")


def test_a_process_that_writes_nothing_is_waited_for_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_files, "LOOK", 0.05)
    monkeypatch.setattr(packed_files, "STALLED", 0.4)
    path, paths = scripted_model(tmp_path / "model", [b"a"]).path, Paths(tmp_path)
    file = opening.make(path, "int8", Origin("model", revision(path)), 1, Reporter(), paths)
    file.rename(partial_of(file))
    partial_of(file).write_bytes(b"4321\n" + bytes(100))
    shown: list[str] = []
    said: list[str] = []
    with FileLock(file.with_suffix(".lock")):
        found = opening.load(path, "int8", "model", 1, Reporter(said.append, shown.append), paths)
    assert found.header.packing == "int8" and not file.exists(), "it was packed in memory"
    assert wording("waiting_for_process_which_writes", file=file.name) in shown
    assert len(said) == 1 and said[0].startswith(wording("process_has_written_nothing", file=file.name))


def test_a_process_that_writes_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_files, "LOOK", 0.05)
    monkeypatch.setattr(packed_files, "STALLED", 0.4)
    lock, waited = FileLock(tmp_path / "a.lock", thread_local=False), threading.Event()

    def write() -> None:
        for number in range(15):
            partial_of(tmp_path / "a.packed").write_bytes(b"4321\n" + bytes(number))
            waited.wait(0.1)
        lock.release()

    lock.acquire()
    writer = threading.Thread(target=write)
    writer.start()
    with packed_files.locked(tmp_path / "a.packed", Reporter(), "writes a.packed"):
        assert not lock.is_locked
    writer.join()


@pytest.mark.slow
def test_a_reply_that_is_seen_at_its_end_is_announced(tmp_path: Path, command: Any) -> None:
    model = scripted_model(tmp_path / "model", [b"a", b"b"], again=0).path
    process = command("run", "-m", str(model), "--json", "-n", "100000", "Hi")
    assert any(wording("being_written") in line for line in process.stderr), "it ended without a line"
    process.kill()
    process.communicate()
