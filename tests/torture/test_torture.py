"""A short, fixed part of `make torture`, and proof that it notices what it looks for."""

import os
import random
import re
import signal
import sys
from collections.abc import Iterator

import pytest
from each import each

if sys.platform != "linux":
    pytest.skip("only Linux lets a library replace functions of others", allow_module_level=True)

from torture import cage_process
from torture.__main__ import disk, signals
from torture.cage import Cage, Ended, Fault, faults_library, open_cage
from torture.formats import FORMATS, Soil, tried
from torture.kills import Tally, killed_in_one_home
from torture.scenarios import NOT_KEPT, SCENARIOS, TYPED, Stage, finished, open_ground, wrong_end

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cage]:
    with open_cage(faults_library(tmp_path_factory.mktemp("library"))) as cage:
        yield cage


@pytest.fixture(scope="module")
def stage(cage: Cage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with open_ground(tmp_path_factory.mktemp("ground")) as ground:
        yield Stage(cage, ground, tmp_path_factory.mktemp("stage"))


@pytest.fixture(scope="module")
def soil(stage: Stage) -> Soil:
    return Soil(stage)


@pytest.mark.parametrize("name", ["run", "pull", "import"])
def test_a_disk_that_fails_loses_nothing(stage: Stage, name: str) -> None:
    assert list(disk(stage, name, random.Random(f"disk:{name}"))) == []


@pytest.mark.parametrize("name", ["run -c", "pull"])
def test_a_signal_at_any_moment_loses_nothing(stage: Stage, name: str) -> None:
    assert list(signals(stage, name, random.Random(f"signals:{name}"))) == []


@pytest.mark.parametrize("name", FORMATS)
def test_a_damaged_file_is_a_sentence(stage: Stage, soil: Soil, name: str) -> None:
    tried(stage, soil, name, 2, 1)


def test_every_change_is_counted_and_the_one_that_is_requested_fails(stage: Stage) -> None:
    clean = stage.clean("run")
    assert clean.changes > 20 and not clean.failed
    ended = stage.ended("run", Fault(clean.changes // 2, "ENOSPC", True))
    assert ended.failed.split()[1].startswith(str(stage.home)) and ended.code == 0 and re.search(NOT_KEPT, ended.errors)
    assert clean.changes // 2 <= ended.failed_at <= clean.changes  # a full disk refuses the next one that needs room
    assert not stage.ended("run", Fault(10**6)).failed


@each(
    "code, errors, hung, word",
    [
        (0, "", True, "hung"),
        (7, "", False, "exit code 7"),
        (-11, "", False, "exit code -11"),
        (1, "Traceback (most recent call last)", False, "Traceback"),
        (1, "localspec: Unexpected ValueError: x", False, "Unexpected"),
    ],
)
def test_a_bad_end_is_complained_about(stage: Stage, code: int, errors: str, hung: bool, word: str) -> None:
    stage.clean("pool clear")
    stage.copied("pool clear")
    complaints = stage.complaints("pool clear", Ended(code, hung, 1.0, "", errors))
    assert any(word in complaint for complaint in complaints)


def test_what_a_library_did_not_expect_is_no_bad_end(stage: Stage) -> None:
    said = "localspec: The model's chat template cannot be used (Unexpected end of template); fetch the model again."
    assert list(wrong_end(Ended(1, False, 1.0, "", said), None)) == []


def test_replies_that_a_chat_finished_are_looked_for(stage: Stage) -> None:
    stage.clean("chat")
    ended, look = stage.ended("chat"), stage.look(stage.home)
    assert finished(ended) == TYPED and not list(SCENARIOS["chat"].complaints(look, ended))
    look.run("history", "rm", "-y", "3")
    assert len(list(SCENARIOS["chat"].complaints(look, ended))) == len(TYPED)


def test_a_prompt_that_ctrl_c_took_was_not_finished() -> None:
    pace, nothing = (
        "(2,036 tok/s · 1.2 tokens/step · context 3 %)",
        "(stopped)\n(context 3 %)",
    )
    greeted = "demo (int8, cpu). /help lists the commands, Ctrl+D ends."

    def told(*lines: str) -> list[str]:
        return finished(Ended(0, False, 1.0, "", "\n".join((greeted, *lines, ""))))

    assert told(pace, nothing, pace) == [TYPED[0], TYPED[2]]
    assert told(pace, "(stopped)", f"(stopped)\n{pace}") == [TYPED[0], TYPED[2]]
    assert told(pace, "\nCtrl+D ends.", pace) == [TYPED[0]], "either the second or the third"


@pytest.mark.parametrize(("waited", "hung"), [([0.0], True), ([1e9, 1e9, 0.0], True), ([1e9, 1e9], False)])
def test_what_waits_for_a_cpu_does_not_hang(waited: list[float], hung: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        os._exit(os.read(reader, 1)[0])
    looks, real = iter(waited), cage_process.kept_waiting

    def kept_waiting(process: int) -> float:
        assert process == child and real(process) >= 0
        seconds = next(looks, None)
        if seconds is None:  # now it has a CPU
            os.write(writer, b"\3")
        return 1e9 if seconds is None else seconds

    monkeypatch.setattr(cage_process, "MOST", 1e9)
    monkeypatch.setattr(cage_process, "kept_waiting", kept_waiting)
    ended = cage_process.watched(child, {"limit": 0.01})
    assert ended["hung"] == hung and ended["code"] == (-signal.SIGKILL if hung else 3)
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize("name", ["chat", "pull"])
def test_killed_again_and_again_loses_nothing(stage: Stage, name: str) -> None:
    tally = Tally()
    assert killed_in_one_home(stage, name, random.Random(f"kills:{name}"), 3, tally) == []
    assert 0 < tally.kills[name] <= 3 and not (tally.lost or tally.left or tally.wrong)


def test_what_kills_lost_or_left_is_counted(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.clean("chat")
    monkeypatch.setattr("torture.kills.finished", lambda ended: ["What nobody kept?"])
    monkeypatch.setattr(stage, "left", lambda name: {"data/half-written.tmp"})
    tally = Tally()
    found = killed_in_one_home(stage, "chat", random.Random(1), 2, tally)
    assert "'What nobody kept?' is lost 2 times" in found and "data/half-written.tmp is left" in found
    assert (tally.replies, tally.lost, tally.left) == (2, 2, 1)


def test_what_is_lost_or_left_or_not_kept_is_complained_about(stage: Stage) -> None:
    well = stage.clean("run")
    home = stage.copied("run")
    assert any("not kept" in complaint for complaint in stage.complaints("run", well))
    home = stage.copied("run")
    (home / "data" / "half-written.tmp").write_text("x")
    assert any("half-written" in complaint for complaint in stage.complaints("run", well))
    home = stage.copied("run")
    (home / "data" / "localspec.db").unlink()
    assert any("is lost" in complaint for complaint in stage.complaints("run", well))
