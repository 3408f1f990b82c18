"""A directory belongs to one training at a time, and a directory that cannot be written is refused at the start."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from command import environment
from each import each
from golden import matching, wording

from localspec.errors import LocalspecError, UsageMistake
from localspec.training.directory import LOCK, Lock, refuse_other, usable


def test_one_at_a_time_and_nothing_stays(tmp_path):
    with Lock(tmp_path) as one:
        one.take()
        one.take()
        with Lock(tmp_path) as other:
            for _ in range(2):
                with pytest.raises(UsageMistake, match=matching("another_training_is_running")):
                    other.take()
    assert not list(tmp_path.iterdir())
    with Lock(tmp_path) as other:
        other.take()


def test_where_there_is_no_directory_yet_nothing_is_made(tmp_path):
    with Lock(tmp_path / "later") as lock:
        lock.take()
        assert not list(tmp_path.iterdir())
        (tmp_path / "later").mkdir()
        lock.take()
        with pytest.raises(UsageMistake), Lock(tmp_path / "later") as other:
            other.take()


def test_a_lock_that_cannot_be_written_is_reported(tmp_path):
    (tmp_path / LOCK).mkdir()
    with Lock(tmp_path) as lock, pytest.raises(LocalspecError, match=matching("cannot_be_locked")):
        lock.take()


@pytest.mark.slow
def test_a_process_that_is_killed_lets_go(tmp_path):
    code = (
        "import sys; from pathlib import Path; from localspec.training.directory import Lock; "
        "lock = Lock(Path(sys.argv[1])); lock.take(); print('taken', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], env=environment(tmp_path),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as running:  # fmt: skip
        assert running.stdout.readline() == "taken\n"
        with Lock(tmp_path) as lock:
            with pytest.raises(UsageMistake, match=matching("another_training_is_running")):
                lock.take()
            running.kill()
            running.wait()
            lock.take()
    assert not list(tmp_path.iterdir())


@each(
    "place, needed",
    [("losses.jsonl", "a file"), ("losses.svg", "a file"), ("checkpoint", "a directory"), ("drafter", "a directory")],
)
def test_what_stands_in_the_way_is_named(tmp_path, place, needed):
    there = tmp_path / place
    there.mkdir() if needed == "a file" else there.write_text("mine")
    with pytest.raises(UsageMistake, match=f"{place} is .*, but {needed} is needed there; give another -o"):
        usable(tmp_path)


def test_places_that_cannot_be(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("mine")
    for place in ("file", "file/x", "file/x/y", "x" * 300):
        with pytest.raises(UsageMistake, match=matching("give_another_o")):
            usable(tmp_path / place)
    for place in (".", "new", "new/below"):
        usable(tmp_path / place)
    monkeypatch.setattr(os, "access", lambda path, _: path != tmp_path)  # because root may write everywhere
    for place in (".", "new", "new/below"):
        with pytest.raises(UsageMistake, match=matching("cannot_written_give_another_o")):
            usable(tmp_path / place)


@each(
    "was, now, message",
    [
        ({"hours": None}, {"hours": 2.0}, "started without --hours, but this command was given with --hours 2.0."),
        ({"data": "prompts"}, {"data": "history"}, wording("begun_without_data_one_data")),
        ({"options": {}}, {"options": {"rank": 8}}, "started without -O, but this command was given with -O rank=8."),
        (
            {"at_once": 64},
            {"at_once": None},
            "started with --at-once 64, but this command was given without --at-once.",
        ),
        ({"data": "0a1b"}, {"data": "2c3d"}, wording("which_learns_from_other_text_than")),
    ],
)
def test_differences_are_reported_as_they_are_typed(
    was: dict[str, object], now: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageMistake, match=matching("give_same_command_go_another_o")) as refused:
        refuse_other(Path("there"), was, now)
    assert message in str(refused.value)


def test_the_same_training_continues() -> None:
    refuse_other(Path("there"), {"hours": 2.0, "seed": 0}, {"hours": 2.0, "seed": 0})
