"""`localspec train` without text: the plan, answers of the model itself, the training, the bench, after any end."""

import json
import os
import re
import shutil
import signal
import stat
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from checkpoints import write_drafter
from clocks import Clock
from command import called
from each import each
from golden import matching, wording
from real.whole_matrix import WHOLE_MATRIX
from reply_statistics import said
from slow_cases import seldom
from torture.cage import Signal

from localspec.bench import comparison
from localspec.choosing import cost as host_time
from localspec.cli import train as train_command
from localspec.cli.main import main
from localspec.decoding.limits import Limits
from localspec.decoding.sampling import Sampling
from localspec.errors import NotHere
from localspec.events import Done
from localspec.models import drafter_cards
from localspec.models.drafter_cards import find_drafter, read_drafter
from localspec.models.registry import TargetCard
from localspec.paths import Paths
from localspec.store.store import Store
from localspec.training import answering, checkpoint, course, course_plan, distill, job, verdict
from localspec.training.directory import Lock
from localspec.training.examples import shipped_questions
from localspec.training.job import Job
from localspec.training.readings import Readings
from localspec.training.train import Training
from localspec.training.trainable import Proposed, trainable_class

MODEL = "phi3-grouped-window-partial-rotary"
FLAGS = ["--steps", "2", "--batch", "256", "--length", "128", "-O", "heads=2"]
SECRET = "Otter-4711"

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("timed_briefly")]


@pytest.fixture(scope="module")
def model(tiny) -> Path:
    return tiny(MODEL).path


@pytest.fixture
def small(monkeypatch):
    """Make courses small: few short answers, and a bench of two prompts."""
    for module, name, value in (
        (course_plan, "REPLY", 12), (course_plan, "LEAST", 6), (course, "CHUNK", 4), (answering.Native, "at_once", 1),
        (verdict, "LEAST", 2), (verdict, "MOST", 2), (verdict, "TOKENS", 6), (verdict, "SECONDS", 0.0),
        (course.hardware, "slowdown", lambda: 1.0), (course.estimate, "product_seconds", lambda *_: 1e-9),  # which takes half a second to measure
        (host_time, "PHRASES", 0.0),  # so that phrases pay on a tiny model, too
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)


@pytest.fixture
def speeds(monkeypatch) -> dict[str, float]:
    """Replace a bench by a fixed table of seconds by row, so that a busy machine does not decide the result."""
    taken = {"none": 1.0, "phrases": 0.9, "own": 0.5, "own+phrases": 0.6}

    def rows(engines: list[Any], prompts: list[str], *_: object, **__: object) -> list[list[Any]]:
        names = ["none", "phrases", "own", "own+phrases"] if len(engines) == 4 else ["none", "own", "own+phrases"]
        return [[said(seconds=taken[name]) for _ in prompts] for name in names]

    monkeypatch.setattr(verdict, "run_rows", rows)
    return taken


@pytest.fixture
def train(tmp_path, monkeypatch, capfd, model, small, speeds) -> Callable[..., tuple[int, str, str]]:
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sys, "stdin", None)

    def call(*arguments: object, flags: list[str] = FLAGS) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main(["train", "medusa", "-m", str(model), *flags, *map(str, arguments)])
        return code, *capfd.readouterr()

    return call


@pytest.fixture
def place(tmp_path, model) -> Path:
    return tmp_path / "home" / "data" / "drafters" / f"{model.name}-medusa"


def answers(place: Path) -> Path:
    """Return the answers to the shipped prompts, from which drafters of all kinds learn, or a course's own answers."""
    if (own := place / "answers.jsonl").exists():
        return own
    (file,) = (place.parents[1] / "answers").glob("*/answers.jsonl")
    return file


def lines(place: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in answers(place).read_text("utf-8").splitlines()]


def card(place: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((place / "drafter" / "drafter.json").read_text())
    return found


def private(place: Path) -> bool:
    return all(stat.S_IMODE(path.stat().st_mode) & 0o077 == 0 for path in (place, *place.rglob("*")))


def test_all_of_it_in_one_command(train, place, model, tmp_path):
    code, text, errors = train("--json")
    assert code == 0, errors
    report = json.loads(text)
    assert (
        wording("plan_6_0_hours_most_answers") in errors and wording("gib_of_memory") in errors and str(place) in errors
    )
    assert report["kind"] == "medusa" and report["steps"] == 2 and report["directory"] == str(place)
    assert report["kept"] is True and report["answers"] == str(answers(place))
    assert report["plan"].keys() == {
        "conversations", "prompts", "tokens", "answer_hours", "train_hours", "bench_hours", "limit_hours",
        "memory_bytes", "disk_bytes",
    }  # fmt: skip
    bench = report["bench"]
    assert (bench["drafter"], bench["speedup"], bench["without"], bench["prompts"]) == ("medusa", 2.0, "phrases", 2)
    assert bench["against"] == pytest.approx(0.9 / 0.5) and len(bench["rows"]) == 4
    answered = lines(place)
    assert len(answered) >= 6 and answered[0]["messages"][0]["role"] == "user"
    asked = [question.messages for question in shipped_questions()]
    assert all(tuple(line["messages"][:1]) in asked for line in answered)
    assert sorted(path.name for path in place.iterdir()) == ["drafter", "losses.jsonl", "losses.svg"]
    assert private(place)
    assert card(place)["kept"] is True and card(place)["data"] == ["prompts"]
    assert card(place)["command"].startswith(
        f"localspec train medusa -m {model.name} -O heads=2 --steps 2 --length 128"
    )
    target = TargetCard("tiny", model, None, "")
    assert find_drafter("medusa", target, Paths(tmp_path / "home")).path == place / "drafter"
    code, text, errors = train()
    assert (code, text) == (2, "") and wording("holds_finished_training") in errors and "--force" in errors
    for given, named in ((["-O", "nosuch=1"], "'nosuch'"), (["--device", "cuda"], "cuda")):
        code, text, errors = train(*given)
        assert (code, text) == (2, "") and named in errors and wording("holds_finished_training") not in errors
    code, text, errors = train("--force")
    assert code == 0 and wording("kept_2_prompts_seen_medusa") in text


def test_a_running_training_is_reported_before_anything_is_planned(train, place, monkeypatch):
    monkeypatch.setattr(course, "answering_choice", lambda *_: pytest.fail("planned"))
    place.mkdir(parents=True)
    with Lock(place) as lock:
        lock.take()
        code, text, errors = train()
    assert (code, text) == (2, "") and wording("another_training_is_running") in errors


def test_what_does_not_pay_is_taken_only_where_its_directory_is_named(train, place, model, tmp_path, speeds):
    speeds.update({"own": 0.88, "own+phrases": 1.2})  # faster than plain decoding, and hardly faster than phrases
    code, text, errors = train()
    assert code == 0, errors
    assert wording("kept_2_prompts_seen_medusa_2") in text
    assert wording("against_phrases_which_auto") in text and text.rstrip().endswith(f"--drafter {place}")
    assert "use it:" not in text
    target = TargetCard("tiny", model, None, "")
    with pytest.raises(NotHere, match=matching("found_does_pay_name_directory")):
        find_drafter("medusa", target, Paths(tmp_path / "home"))
    assert read_drafter(place).kind == "medusa" and find_drafter(str(place), target).kind == "medusa"
    code, text, errors = train()
    assert (code, text) == (2, "") and wording("whose_drafter_not_kept") in errors and "more --hours" in errors


def test_compared_with_only_plain_decoding_the_better_form_counts(train, place, speeds, monkeypatch):
    speeds.update({"own": 0.99, "own+phrases": 0.8})
    honest = verdict.choose

    def choose(one: Any, settings: Any, **more: Any) -> Any:
        auto = settings.drafter == "auto"
        return honest(one, verdict.replace(settings, drafter="none") if auto else settings, **more)

    monkeypatch.setattr(verdict, "choose", choose)
    code, text, errors = train()
    assert code == 0, errors
    verdict_told, used = text.rstrip().splitlines()[-2:]
    assert verdict_told.endswith(wording("medusa_phrases_against_plain"))
    assert used.startswith("use it: ") and used.endswith(f"--drafter {place}")


class Killed(BaseException):
    """An exception in place of a kill, which no code of ours catches."""


def test_killed_while_it_answers_it_goes_on_with_what_is_there(train, place, monkeypatch):
    honest = distill.append
    count = 0

    def killed(file: Path, new: list[Any]) -> None:
        nonlocal count
        count += 1
        if count == 4:
            with file.open("ab") as stream:
                stream.write(b'{"asked": "12')
            raise Killed
        honest(file, new)

    monkeypatch.setattr(distill, "append", killed)
    with pytest.raises(Killed):
        train()
    before = answers(place).read_bytes()
    assert before.count(b"\n") == 3 and private(place) and json.loads((place / "plan.json").read_text())["spent"] > 0
    count = -999
    code, text, errors = train("--json")
    assert code == 0, errors
    assert answers(place).read_bytes().startswith(before[: before.rindex(b"\n") + 1])
    assert len({line["id"] for line in lines(place)}) == len(lines(place)) and json.loads(text)["steps"] == 2
    assert not (place / "plan.json").exists()


def test_ctrl_c_while_it_answers_or_trains_or_benches(train, place, monkeypatch):
    honest = distill.append
    interrupts = 1

    def interrupted(file: Path, new: list[Any]) -> None:
        nonlocal interrupts
        honest(file, new)
        if interrupts:
            interrupts -= 1
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(distill, "append", interrupted)
    code, text, errors = train()
    assert (code, text) == (130, "") and wording("what_done_kept_same_command_goes") in errors
    assert len(lines(place)) == 1 and not (place / "checkpoint").exists()

    running = Job.run

    def stopped(self: Job, stop: Callable[[], bool]) -> Any:
        signal.raise_signal(signal.SIGINT)
        return running(self, stop)

    monkeypatch.setattr(Job, "run", stopped)
    code, text, errors = train()
    assert (code, text) == (130, "") and wording("stopped_after_step_1") in errors
    assert wording("going_plan_6_0_hours_left") in errors and wording("plan_6_0_hours_most_answers") not in errors
    answered = lines(place)
    assert (place / "checkpoint" / "state.json").exists() and not (place / "drafter").exists()

    monkeypatch.setattr(Job, "run", running)
    benched = verdict.run_rows
    monkeypatch.setattr(verdict, "run_rows", lambda *_, **__: signal.raise_signal(signal.SIGINT))
    code, text, errors = train()
    assert (code, text) == (130, "") and wording("going_on_after_step_1") in errors
    assert wording("what_done_kept_same_command_goes") in errors
    assert card(place)["kept"] is False and "bench" not in card(place)

    monkeypatch.setattr(verdict, "run_rows", benched)
    monkeypatch.setattr(Job, "run", None)  # nothing is trained again
    code, text, errors = train("--json")
    assert code == 0, errors
    assert json.loads(text)["kept"] is True and json.loads(text)["steps"] == 2 and lines(place) == answered


def test_ctrl_c_waits_for_no_answer(train, monkeypatch):
    def answer(*_: object) -> None:
        signal.raise_signal(signal.SIGINT)
        pytest.fail("the answers went on")

    monkeypatch.setattr(answering.Native, "answer", answer)
    code, text, errors = train()
    assert (code, text) == (130, "") and wording("what_done_kept_same_command_goes") in errors


def test_a_stop_is_one_sentence_and_all_its_time_counts(train, place, monkeypatch):
    clock, running = Clock(), Job.run
    for module in (course, train_command):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=clock.perf_counter))

    def stopped(self: Job, stop: Callable[[], bool]) -> Any:
        for seen in running(self, stop):
            clock.now += 2  # less than between two records of the time
            if seen.step == 1:
                signal.raise_signal(signal.SIGINT)
            yield seen

    monkeypatch.setattr(Job, "run", stopped)
    code, text, errors = train(flags=["--steps", "9", *FLAGS[2:]])
    assert (code, text) == (130, "") and wording("stopped_after_step_2") in errors and "Interrupted" not in errors
    assert json.loads((place / "plan.json").read_text())["spent"] == clock.now - 100.0 == 4.0

    def interrupted_twice(*_: object) -> None:
        for _again in range(2):
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Job, "run", interrupted_twice)
    code, text, errors = train(flags=["--steps", "9", *FLAGS[2:]])
    assert (code, text) == (130, "") and wording("what_done_kept_same_command_goes") in errors
    assert "Interrupted" not in errors


def test_training_gets_the_time_that_is_left_when_it_is_ready(train, monkeypatch):
    clock, honest, left = Clock(), Training.__init__, list[float]()
    for module in (course, train_command):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=clock.perf_counter))

    def fitted(self: Training, *arguments: Any) -> None:
        honest(self, *arguments)
        clock.now += 300  # least squares

    def ready(self: Job, _: object) -> None:
        assert isinstance(self.clock, course.Course) and self.training.plan.hours is not None
        left.extend([3600 * self.training.plan.hours, self.clock.left - self.clock._budget.tail])
        raise Killed

    monkeypatch.setattr(Training, "__init__", fitted)
    monkeypatch.setattr(Job, "run", ready)
    with pytest.raises(Killed):
        train("--hours", "0.5")
    assert left[0] == pytest.approx(left[1], abs=1)


def test_the_plan_has_the_most_tokens_and_the_first_answers_say_how_many_there_will_be(train, monkeypatch, capfd):
    clock, honest = Clock(), distill.append
    answered: list[Any] = []
    for module in (course, train_command):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=clock.perf_counter))

    def slowly(file: Path, new: list[Any]) -> None:
        honest(file, new)
        answered.extend(new)
        clock.now += 60

    monkeypatch.setattr(distill, "append", slowly)
    monkeypatch.setattr(course.Course, "train", lambda _: (_ for _ in ()).throw(Killed))
    with pytest.raises(Killed):
        train("--hours", "0.5", flags=FLAGS[2:])
    errors = capfd.readouterr().err
    planned = int(re.search(r"with at most ([\d,]+) tokens", errors)[1].replace(",", ""))
    about = re.findall(r"present speed there will be about ([\d,]+) tokens", errors)
    expected = [int(found.replace(",", "")) for found in about]
    batches = (clock.now - 100) / 60
    assert planned > 10 * expected[0], "the machine is that slow"
    assert expected[-1] == pytest.approx(expected[0], rel=0.6) and 5 < batches < 20 and len(answered) == batches


def test_the_plan_counts_on_the_load_of_the_machine(train, monkeypatch):
    plans = []
    for slowdown in (1.0, 5.0):
        monkeypatch.setattr(course.hardware, "slowdown", lambda slowdown=slowdown: slowdown)
        code, text, errors = train("--dry-run", "--json", "--hours", "0.5", flags=FLAGS[2:])
        assert code == 0, errors
        plans.append(json.loads(text))
        said = train("--dry-run", "--hours", "0.5", flags=FLAGS[2:])[1]
        assert (wording("times_as_long_as_on_an_idle_machine") in said) is (slowdown > 1)
    idle, busy = plans
    assert busy["tokens"] < idle["tokens"] and busy["bench_hours"] >= idle["bench_hours"]
    code, text, errors = train("--hours", "1e-6")
    assert code == 2 and wording("here_while_other_programs_are_running") in errors


def test_measuring_and_bench_are_short_if_time_is_up(train, monkeypatch, speeds):
    asked: list[list[bool]] = []
    benched, measured, seconds = verdict.run_rows, job.measured_text, list[float]()

    def measuring(*arguments: Any) -> dict[str, Any]:
        seconds.append(arguments[-1])
        return measured(*arguments[:-1], 0.0)

    monkeypatch.setattr(job, "measured_text", measuring)

    def rows(*arguments: Any, until: Callable[[int], bool], **more: Any) -> list[list[Any]]:
        asked.append([until(turns) for turns in (1, verdict.FEWEST)])
        return benched(*arguments, **more)

    monkeypatch.setattr(verdict, "run_rows", rows)
    assert train("--hours", "0.5")[0] == 0
    monkeypatch.setattr(course.Course, "left", 0.0)
    assert train("--hours", "0.5", "--force")[0] == 0
    assert asked == [[False, False], [False, True]] and seconds == [0.05 * 1800], "nothing is measured without time"


def test_replies_of_the_bench_are_shorter_on_a_machine_that_has_become_slow(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(verdict, "time", SimpleNamespace(monotonic=clock.perf_counter))

    class Slow:
        def chat(self, *_: object) -> Any:
            clock.now += 8  # for 16 tokens
            yield Done("length", said(range(16)))

    found = [verdict._reply_tokens(Slow(), "a", Sampling(), seconds) for seconds in (900.0, 192.0, 1.0)]
    assert found == [verdict.TOKENS, 40, verdict.WARM_UP]


def test_a_time_limit_that_left_training_a_few_steps_is_named_too_short(train, monkeypatch):
    monkeypatch.setattr(course.Course, "training", lambda _: 1e-9)
    monkeypatch.setattr(course_plan.TimeBudget, "wanted", 10.0)  # tokens of text
    monkeypatch.setattr(course_plan.TimeBudget, "_measuring", 0.0)
    code, text, errors = train("--hours", "0.5", flags=FLAGS[2:])
    assert code == 0 and ": 1 step, " in text and "the first, second, … drafted token was right in " in text
    assert "too short for the training, which made only 1 step;" in errors
    code, _, errors = train("--force", "--hours", "0.5", flags=["--steps", "1", *FLAGS[2:]])
    assert code == 0 and "too short" not in errors


def test_progress_says_how_many_answers_there_is_time_for():
    assert course.Answered(8, 1906, 0.5, 3812).more == 8 and course.Answered(16, 3812, 1.0, 3812).more == 0


def test_the_fewest_hours_count_the_reading(train, monkeypatch):
    speed = 0.01 * answering.TEXTS / 2
    monkeypatch.setattr(course_plan.TimeBudget, "speed", speed)
    found = list[float]()
    for reads in (True, False):
        monkeypatch.setattr(trainable_class("medusa"), "uses_readings", reads)
        fewest = re.search(r"take ([\d.]+) hours here", train("--hours", "1e-6", "--dry-run")[2])
        assert fewest
        found.append(float(fewest[1]))
    tokens = course_plan.LEAST * course_plan.REPLY
    assert found[0] - found[1] == pytest.approx(tokens / speed / course_plan.MOST_ANSWERING / 3600, abs=0.15)


def test_reading_continues_from_what_was_read_before_a_stop(train, monkeypatch):
    read, counts, append = list[str](), list[int](), Readings._append

    def appended(self: Readings, name: str, records: Any) -> None:
        read.append(name)
        append(self, name, records)

    monkeypatch.setattr(Readings, "_append", appended)
    monkeypatch.setattr(course.Course, "reading_is_over", lambda _: True)
    monkeypatch.setattr(course_plan, "LEAST", 24)
    monkeypatch.setattr(Training, "__init__", lambda *_: (_ for _ in ()).throw(Killed))
    for _ in range(2):
        with pytest.raises(Killed):
            train()
        counts.append(len(read))
    assert 8 <= counts[0] < 20 and counts[1] <= counts[0] + 1


def test_a_command_begins_with_its_process(monkeypatch):
    monkeypatch.setattr(train_command.environment, "one_command", True)
    for age, counted in ((3.0, 3.0), (-5.0, 0.0), (1e6, 0.0)):  # in the latter two cases the clock was set
        process = SimpleNamespace(create_time=lambda age=age: time.time() - age)
        monkeypatch.setattr(train_command.psutil, "Process", lambda process=process: process)
        assert time.monotonic() - train_command._beginning() == pytest.approx(counted, abs=0.5)
    monkeypatch.setattr(train_command.environment, "one_command", False)
    assert time.monotonic() - train_command._beginning() < 0.5


@pytest.mark.parametrize("kind", seldom(["eagle3", "s3d"], ["s3d"]))
def test_the_other_kinds_have_the_same_course_and_continue_it(small, speeds, model, tmp_path, monkeypatch, capfd, kind):
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sys, "stdin", None)
    words = ["train", kind, "-m", str(model), "--steps", "1", "--batch", "256", "--length", "128", "--json"]
    running = Job.run
    monkeypatch.setattr(Job, "run", lambda *_: (_ for _ in ()).throw(Killed))
    with pytest.raises(Killed):
        main(words)
    place = tmp_path / "home" / "data" / "drafters" / f"{model.name}-{kind}"
    answered = answers(place).read_bytes()
    assert answered and not (place / "drafter").exists()
    monkeypatch.setattr(Job, "run", running)
    capfd.readouterr()
    assert main(words) == 0
    out, errors = capfd.readouterr()
    report = json.loads(out)
    assert (report["kind"], report["steps"], report["kept"]) == (kind, 1, True), errors
    assert report["bench"]["drafter"] == kind
    assert answers(place).read_bytes() == answered and not (place / "plan.json").exists()
    assert find_drafter(kind, TargetCard("tiny", model, None, ""), Paths(tmp_path / "home")).path == place / "drafter"


def test_a_plan_is_printed_and_nothing_is_done(train, place, tmp_path):
    code, text, errors = train("--dry-run")
    assert not (tmp_path / "home").exists() and train("--dry-run", "--data", "history")[0] == 2
    assert code == 0, errors
    assert wording("plan_6_0_hours_most_answers") in text and str(place) in text and not place.exists()
    code, text, errors = train("--dry-run", "--json")
    assert code == 0 and json.loads(text)["limit_hours"] == 6.0 and not place.exists(), errors
    file = tmp_path / "text.txt"
    file.write_text("the cat sat\n\n" * 40)
    code, text, errors = train("--dry-run", "--data", file)
    assert code == 0 and text.startswith("medusa for ") and not place.exists(), errors


def test_before_a_plan_it_is_reported_that_such_a_drafter_comes_with_localspec(train, model, tmp_path, monkeypatch):
    monkeypatch.setattr(drafter_cards, "SHIPPED", tmp_path / "trained")
    _, text, errors = train("--dry-run")
    assert wording("comes_with_localspec_auto_may") not in errors
    write_drafter(tmp_path / "trained" / "mine", model, "semi")
    assert wording("comes_with_localspec_auto_may") not in train("--dry-run")[2]
    write_drafter(tmp_path / "trained" / "other", model)
    assert wording("comes_with_localspec_auto_may") in train("--dry-run")[2] and train("--dry-run")[1] == text


def test_what_should_not_pay_is_asked_about_before_anything_is_answered(
    small, speeds, model, tmp_path, monkeypatch, capfd
):
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    measured: list[float] = []

    def proposed(self: Job, target: object = None, seconds: float = 0.0) -> Proposed:
        measured.append(seconds)
        return Proposed(
            {"kept": "0", "depth": 2}, "No number of layers is expected to make replies faster here.", pays=False
        )

    monkeypatch.setattr(Job, "proposed", proposed)
    answers_, asked = [False], []
    monkeypatch.setattr(train_command.console, "at_a_terminal", lambda: True)
    monkeypatch.setattr(train_command.typer, "confirm", lambda text, default: asked.append(text) or answers_.pop())
    words = ["train", "s3d", "-m", str(model), "--steps", "1", "--batch", "256", "--length", "128", "--json"]
    assert main(words) == 130 and asked and not (tmp_path / "home" / "data" / "answers").exists()
    assert "expected to make replies faster here" in capfd.readouterr().err and measured == [120.0]
    assert main(words) == 0, "asked for again, it goes on, and measures nothing twice"
    assert measured == [120.0] and len(asked) == 1
    place = tmp_path / "home" / "data" / "drafters" / f"{model.name}-s3d"
    assert card(place)["options"]["kept"] == "0" and card(place)["options"]["depth"] == 2


@pytest.mark.parametrize("where", ["while the checkpoint goes", "before the plan goes"])
def test_killed_at_the_seams_nothing_is_lost_and_nothing_is_done_twice(train, place, monkeypatch, where):
    honest = course.Path.unlink if where == "before the plan goes" else checkpoint.shutil.rmtree

    def killed(path: Path, *more: Any, **options: Any) -> None:
        gone = "plan.json" if where == "before the plan goes" else "checkpoint"
        if Path(path).name == gone and (place / "drafter" / "drafter.json").exists():
            raise Killed
        honest(path, *more, **options)

    with monkeypatch.context() as patch:
        if where == "before the plan goes":
            patch.setattr(course.Path, "unlink", killed)
        else:
            patch.setattr(checkpoint.shutil, "rmtree", killed)
        with pytest.raises(Killed):
            train()
    written = card(place)
    assert (place / "plan.json").exists() and ("bench" in written) == (where == "before the plan goes")
    monkeypatch.setattr(Job, "run", None)
    code, text, errors = train("--json")
    assert code == 0, errors
    assert json.loads(text)["kept"] is True and card(place)["trained"] == written["trained"]
    assert sorted(path.name for path in place.iterdir()) == ["drafter", "losses.jsonl", "losses.svg"]


@pytest.mark.parametrize(
    "flags",
    [["--steps", "5", *FLAGS[2:]], pytest.param(["--hours", "1", *FLAGS], marks=WHOLE_MATRIX)],
    ids=["steps", "hours"],
)
def test_a_stopped_training_continues_with_its_text_though_other_kinds_have_added_some(
    train, place, model, monkeypatch, capfd, tmp_path, flags
):
    code, _, errors = train(flags=flags)
    assert code == 0, errors
    whole = (place / "losses.jsonl").read_text()
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "again"))
    place = tmp_path / "again" / place.relative_to(tmp_path / "home")
    running = Job.run

    def stopped(self: Job, stop: Callable[[], bool]) -> Any:
        for seen in running(self, stop):
            signal.raise_signal(signal.SIGINT)
            yield seen

    with monkeypatch.context() as patch:
        patch.setattr(Job, "run", stopped)
        assert train(flags=flags)[0] == 130
    before = answers(place).read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(course_plan, "LEAST", 22)
        assert main(["train", "semi", "-m", str(model), "--steps", "1", "--batch", "256", "--length", "128"]) == 0
    added = answers(place).read_bytes()
    assert added.startswith(before) and added.count(b"\n") >= before.count(b"\n") + 6
    with answers(place).open("ab") as file:
        file.write('{"asked": "12", "é'.encode()[:-1])  # a third training was killed here
    code, _, errors = train("--json", flags=flags)
    assert code == 0, errors
    assert (place / "losses.jsonl").read_text() == whole, "the same text in the same order"


def test_answers_that_a_stopped_training_lacks_are_named(train, place, monkeypatch, tmp_path):
    with monkeypatch.context() as patch:
        patch.setattr(Job, "run", lambda self, _: [self.training.save(), (_ for _ in ()).throw(Killed)])
        with pytest.raises(Killed):
            train()
    file = answers(place)
    content, undamaged = file.read_bytes(), shutil.copytree(file.parent, tmp_path / "undamaged")
    for damage in ("readings", "cut", "changed", "deleted"):
        shutil.rmtree(file.parent, ignore_errors=True)
        if damage != "deleted":
            shutil.copytree(undamaged, file.parent)
        if damage == "readings":
            (file.parent / "readings" / "readings.bin").unlink()
        elif damage != "deleted":
            file.write_bytes(content[:-9] if damage == "cut" else content.replace(b'"content": "', b'"content": "x', 1))
        code, text, errors = train()
        named = "lacks_texts_stopped_training_has" if damage == "readings" else "longer_has_answers_stopped_training"
        assert (code, text) == (1, "") and wording(named) in errors and str(file.parent) in errors, damage
    code, text, errors = train("--force")
    assert code == 0, errors


def test_another_command_does_not_continue_it(train, place, monkeypatch, tmp_path):
    monkeypatch.setattr(Job, "run", lambda *_: (_ for _ in ()).throw(Killed))
    with pytest.raises(Killed):
        train()
    before = answers(place).read_bytes()
    code, text, errors = train("--hours", 2)
    assert (code, text) == (2, "") and "started without --hours, but this command was given with --hours 2.0." in errors
    assert "--force" in errors
    file = tmp_path / "text.txt"
    file.write_text("the cat sat\n\n" * 40)
    code, text, errors = train("--data", file)
    assert (code, text) == (2, "") and wording("holds_training_without_data_file") in errors
    assert answers(place).read_bytes() == before
    # A slow moment now does not stop a course that has begun.
    monkeypatch.setattr(course_plan.TimeBudget, "speed", 1e-9)
    with pytest.raises(Killed):
        train()
    for content in ("[]", "{", '{"id": "a", "asked": {}, "token_seconds": 1, "plan": {}}'):
        (place / "plan.json").write_text(content)
        code, _, errors = train()
        assert code == 1 and "--force" in errors


def test_what_is_refused_leaves_what_is_there(train, place):
    place.mkdir(parents=True)
    (place / "answers.jsonl").write_text("mine")
    code, text, errors = train()
    assert (code, text) == (2, "") and wording("answers_jsonl_is_there_already") in errors
    code, text, errors = train("--force", "--hours", "1e-6")
    assert (code, text) == (2, "") and "too short" in errors and (place / "answers.jsonl").read_text() == "mine"


@pytest.fixture
def talk(tmp_path, model) -> Callable[[], None]:
    """Save conversations with this model, and with another one."""

    def fill() -> None:
        with Store.open(Paths(tmp_path / "home").database, pytest.fail) as store:
            for name in (str(model), "other"):
                for number in range(12):
                    turns = [f"{SECRET} {name[-5:]} {number}?", "and the dog?"]
                    conversation = None
                    for turn in turns:
                        conversation, at = store.history.say(conversation, turn, model=name, system="short")
                        store.history.write(at, f"sat by {name[-5:]}", "stop")

    return fill


def test_ones_own_conversations_stay_private_and_go_when_it_is_done(train, place, model, talk, monkeypatch):
    talk()
    benched: list[str] = []
    rows = verdict.run_rows
    monkeypatch.setattr(
        verdict, "run_rows", lambda one, prompts, *_, **__: benched.extend(prompts) or rows(one, prompts)
    )
    kept: list[list[dict[str, Any]]] = []
    running = Job.run

    def look(self: Job, stop: Any) -> Any:
        assert private(place)
        kept.append(lines(place))
        return running(self, stop)

    monkeypatch.setattr(Job, "run", look)
    code, text, errors = train("--data", "history", "--json")
    assert code == 0, errors
    (answered,) = kept
    own = [line for line in answered if line["asked"] == "history"]
    assert wording("conversations_answers", own=len(own)) in errors
    assert 6 <= len(own) < 12, "some are held out"
    for line in own:
        roles = [message["role"] for message in line["messages"]]
        assert roles == ["system", "user", "assistant", "user", "assistant"]
        assert {m["content"] for m in line["messages"] if m["role"] == "assistant"} == {f"sat by {str(model)[-5:]}"}
    others = [line for line in answered if line["asked"] != "history"]
    assert all("sat by" not in line["messages"][2]["content"] for line in others if "other" in str(line["messages"][1]))
    assert SECRET in benched[0] and not any(benched[0] in str(line["messages"]) for line in answered)
    report = json.loads(text)
    assert report["answers"] is None and not (place / "answers.jsonl").exists() and private(place)
    assert card(place)["data"] == ["history"] and "--data history" in card(place)["command"]
    assert not any(SECRET.encode() in path.read_bytes() for path in place.rglob("*") if path.is_file())
    code, _, errors = train("--data", "history", "--keep-answers", "--force")
    assert code == 0 and any(SECRET in str(line) for line in lines(place))


def test_without_conversations_there_is_no_history(train):
    code, text, errors = train("--data", "history")
    assert (code, text) == (2, "") and wording("saved_conversations_learn_from") in errors


@each(
    "flags, words",
    [
        (["--keep-answers"], wording("keep_answers_effect_without_data")),
        (["--data", "history", "more.txt"], "--data history cannot be combined"),
        (["more.txt"], wording("more_txt_given_without_data")),
        (["--hours", "1e-6"], wording("hours_1e_06_too_short_6_answers")),
        (["--hours", "0"], wording("hours_0_0_possible")),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_there(train, place, flags, words):
    code, text, errors = train(*flags)
    assert (code, text) == (2, "") and words in errors and errors.count("\n") == 1
    assert not place.exists()


def test_hours_that_are_too_short_name_the_fewest_that_are_not(train):
    code, _, errors = train("--hours", "1e-6", "--dry-run")
    found = re.search(r"take ([\d.]+) hours here", errors)
    assert code == 2 and found, errors
    assert train("--hours", found[1], "--dry-run")[0] == 0
    code, _, errors = train("--hours", 0.9 * float(found[1]), "--dry-run")
    assert code == 2 and "too short" in errors


def test_several_processes_need_text(train, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    code, text, errors = train()
    assert (code, text) == (2, "") and wording("several_processes_need_text_learn") in errors


def test_the_bench_has_as_many_prompts_as_its_time_allows(monkeypatch):
    monkeypatch.setattr(comparison, "_reply", lambda engine, *_: engine)
    rows, names = [Sampling()] * 2, ["plain", "own"]
    for least, count in ((2, 2), (0, 1), (9, 4)):
        found = comparison.run_rows(
            [partial(str, name) for name in names], ["a", "b", "c", "d"], rows, Limits(), 1, lambda _: None,
            until=lambda turns, least=least: turns >= max(least, 1),
        )  # fmt: skip
        assert found == [[name] * count for name in names], "rows have the same prompts"


@WHOLE_MATRIX
@pytest.mark.usefixtures("one_reply_of_each_kind")
def test_killed_again_and_again_on_the_demo_it_comes_to_its_end(tmp_path, training_cage):
    """The whole course except the report on replies at its end: answers, a few steps, a bench, with a process that is
    killed all the time."""
    words = [
        "train",
        "s3d",
        "--hours",
        "0.02",
        "--steps",
        "4",
        "--batch",
        "512",
        "-O",
        "kept=0,4,7",
        "--save-every",
        "0.1",
        "--json",
    ]
    place = tmp_path / "data" / "drafters" / "demo-s3d"
    stages: set[str] = set()
    for seen in ("answers.jsonl", "losses.jsonl", "drafter/drafter.json"):
        pattern = f"drafters/demo-s3d/{seen}" if seen != "answers.jsonl" else "answers/*/answers.jsonl"
        sent = Signal(
            signal.SIGKILL,
            when=lambda pattern=pattern: any(one.stat().st_size for one in (tmp_path / "data").glob(pattern)),
        )
        if training_cage.run(tmp_path, *words, sent=sent).code == -signal.SIGKILL:
            stages.add(seen)
    assert stages == {"answers.jsonl", "losses.jsonl", "drafter/drafter.json"}
    result = called(tmp_path, *words)
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert 1 <= report["steps"] <= 4 and report["bench"]["prompts"] >= 6 and isinstance(report["kept"], bool)
    assert all(row["identical"] for row in report["bench"]["rows"]), "it changes speed, never text"
    assert sorted(path.name for path in place.iterdir()) == ["drafter", "losses.jsonl", "losses.svg"]
    assert private(place) and os.path.getsize(answers(place)) > 1000
    again = called(tmp_path, *words)
    assert again.returncode == 2 and wording("holds_finished_training") in again.stderr
