"""The model that answers where none is named: the order of the rules, independently of the machine's load."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from command import called, sentence
from golden import wording
from machines import cpu, machine

from localspec.chat.start import choose, chosen_model
from localspec.config import load
from localspec.events import Reporter
from localspec.models import registry
from localspec.models.present import present_model, save_choice, saved_choice
from localspec.paths import Paths
from localspec.store.store import Store

Enter = Callable[..., None]


@pytest.fixture
def enter(fresh_home: Path, tmp_path: Path) -> Enter:
    """enter(name=quality, …): models of these names are here, and no others but the demo. `poor` is the smallest."""

    def enter(**quality: int) -> None:
        lines = []
        for name, points in quality.items():
            if not (tmp_path / name).exists():
                (tmp_path / name).symlink_to(registry.resolve("demo-draft" if name == "poor" else "demo").path)
            lines.append(f'[{name}]\npath = "{tmp_path / name}"\nquality = {points}\n')
        (fresh_home / "config").mkdir(parents=True, exist_ok=True)
        (fresh_home / "config" / "models.toml").write_text("".join(lines))

    return enter


class Answers:
    """The model that answers: its name; `told` has the messages about the choice."""

    def __init__(self, store: Store | None = None) -> None:
        self.told: list[str] = []
        self._store = store

    def __call__(self, **flags: object) -> str:
        self.told.clear()
        return chosen_model(load(flags=flags), self._store, Reporter(self.told.append)).name


@pytest.fixture
def answers(fresh_home: Path) -> Answers:
    return Answers()


@pytest.fixture
def paths(fresh_home: Path) -> Paths:
    return Paths(fresh_home)


RULES = ["flag", "environment", "file", "chosen", "only", "demo"]


@pytest.mark.parametrize("first", range(len(RULES)))
def test_the_rules_hold_in_this_order(enter, answers, paths, monkeypatch, first):
    """Each rule is tried together with all later ones."""
    holds = RULES[first:]
    models = dict.fromkeys(("flag", "environment", "file", "chosen", "only"), 10)
    enter(**(models if set(holds) - {"only", "demo"} else {"only": 10} if "only" in holds else {}))
    if "chosen" in holds:
        save_choice("chosen", "use", paths)
    if "file" in holds:
        (paths.config_file).write_text('model = "file"\n')
    if "environment" in holds:
        monkeypatch.setenv("LOCALSPEC_MODEL", "environment")
    flags = {"model": "flag"} if "flag" in holds else {}
    before = saved_choice(paths)
    assert answers(**flags) == RULES[first]
    assert saved_choice(paths) == before
    if not flags:
        assert present_model(load(), paths).model == RULES[first]


def test_the_later_of_chat_and_use_holds(enter, answers, paths):
    enter(one=10, two=10)
    cards = registry.cards()
    for name, by in (("one", "chat"), ("two", "use"), ("one", "chat")):
        choose(cards[name], by, pytest.fail)
        assert answers() == name and answers.told == []
        assert present_model(load(), paths).origin == {
            "chat": wording("chosen_in_a_chat"), "use": wording("chosen_with_localspec_use")
        }[by]  # fmt: skip


@pytest.mark.slow
def test_run_with_a_model_changes_nothing(enter, fresh_home, paths):
    enter(one=10, two=10)
    save_choice("one", "use", paths)
    assert called(fresh_home, "run", "-m", "two", "hi", "-n", "1").returncode == 0
    assert called(fresh_home, "run", "two", "hi", "-n", "1").returncode == 0
    assert saved_choice(paths) == ("one", "use")


def test_the_choice_among_several_is_saved_and_announced_once(enter, answers, paths):
    enter(poor=10, good=50)
    assert present_model(load(), paths) == (None, wording("first_prompt_takes_one_2_models"))
    assert answers() == "good"
    assert answers.told == [wording("model_named_good_answers_from_now")]
    assert saved_choice(paths) == ("good", "machine")
    enter(poor=10, good=50, better=90)
    assert answers() == "good" and answers.told == []


def test_a_dry_run_saves_no_choice_and_no_notice(enter, paths):
    def chosen() -> str:
        return chosen_model(load(), None, Reporter(told.append), saves=False).name

    told: list[str] = []
    enter(poor=10, good=50)
    assert chosen() == "good" and saved_choice(paths) is None and told == []
    enter(one=10)
    assert chosen() == "one" and len(told) == 1 and not paths.last_notice.exists()


def test_a_chosen_model_that_was_removed_gives_way_with_one_notice(enter, answers, paths):
    enter(one=10, two=10)
    save_choice("one", "chat", paths)
    enter(two=10)
    assert answers() == "two"
    gone = wording("model_chosen_last_one_longer_here")
    assert answers.told[0] == gone
    enter(one=10, two=10)
    assert answers() == "one"


def test_the_only_model_and_the_demo_are_announced_once_a_day(enter, answers, paths):
    enter(one=10)
    assert answers() == "one" and answers.told == [wording("model_named_one_answers_only_one")]
    assert answers() == "one" and answers.told == []
    yesterday = time.time() - 25 * 60 * 60
    os.utime(paths.last_notice, (yesterday, yesterday))
    assert answers() == "one" and len(answers.told) == 1
    enter()
    assert answers() == "demo" and wording("embedded_demo_model_answers") in answers.told[0]
    assert answers() == "demo" and answers.told == []


def test_a_damaged_model_answers_only_where_it_is_named(enter, answers, tmp_path):
    enter(good=10)
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "config.json").write_text("{")
    enter(damaged=90, good=10)
    assert answers() == "good" and answers.told == [wording("model_named_good_answers_only_one")]


@pytest.mark.slow
@pytest.mark.parametrize("free", [24, 1, 0])
def test_what_is_free_at_the_moment_changes_nothing(enter, paths, answers, monkeypatch, free):
    enter(poor=10, good=50)
    monkeypatch.setattr("localspec.machine.machine.this_machine", lambda *_: machine(cpu(24, free)))
    assert answers() == "good"


def test_use(enter, fresh_home, paths):
    enter(first=10, second=10)
    assert called(fresh_home, "use").stdout.startswith(wording("no_model_is_chosen"))
    found = called(fresh_home, "use", "SEC")
    assert (found.returncode, found.stdout) == (0, wording("second_answers_from_now_where"))
    assert called(fresh_home, "use").stdout == wording("second_chosen_with_localspec_use")
    assert paths.choice.stat().st_mode & 0o777 == 0o600
    assert called(fresh_home, "use", "third").returncode == 3
    shown = called(fresh_home, "config").stdout.splitlines()[0]
    assert shown.split(maxsplit=2) == ["model", "second", wording("chosen_with_localspec_use")]
    present = {one["name"]: one["chosen"] for one in json.loads(called(fresh_home, "list", "--json").stdout)}
    assert present == {"first": False, "second": True, "demo": False, "demo-draft": False}
    found = called(fresh_home, "use", "first", LOCALSPEC_MODEL="second")
    assert found.stderr == wording("localspec_localspec_model_second")


def test_an_unreadable_choice_is_ignored(enter, answers, paths):
    enter(one=10)
    paths.choice.parent.mkdir(parents=True, exist_ok=True)
    for content in (b"", b"[]", b'{"model": 1, "by": "use"}', b'{"model": "one", "by": "x"}', b"\xff"):
        paths.choice.write_bytes(content)
        assert saved_choice(paths) is None and answers() == "one"


def test_a_choice_that_cannot_be_written_is_reported(enter, paths):
    enter(one=10)
    paths.data_dir.parent.mkdir(parents=True, exist_ok=True)
    paths.data_dir.write_text("no directory")
    told: list[str] = []
    choose(registry.cards()["one"], "chat", told.append)
    assert len(told) == 1 and wording("one_chosen_session_only") in told[0]


def test_a_choice_that_is_gone_is_not_the_present_model(enter, paths):
    enter(one=10, two=10)
    save_choice("two", "use", paths)
    assert present_model(load(), paths).model == "two"
    enter(one=10)
    assert present_model(load(), paths) == ("one", "the only model here")


def test_who_chose_last_is_saved_even_if_the_model_stays(enter, paths):
    enter(one=10, two=10)
    origins = set()
    for by in ("machine", "use", "chat"):
        save_choice("two", by, paths)
        assert saved_choice(paths) == ("two", by)
        origins.add(present_model(load(), paths).origin)
    assert len(origins) == 3


@pytest.mark.slow
def test_bench_and_distill_take_the_model_that_answers(enter, fresh_home, tmp_path, paths):
    enter(one=10, two=10)
    save_choice("two", "use", paths)
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "Hi"}\n')
    prompts = ("--prompts", str(tmp_path / "prompts.jsonl"), "-n", "2")
    made = called(fresh_home, "distill", *prompts, "-o", str(tmp_path / "own.jsonl"))
    assert made.returncode == 0 and "replies of two." in made.stdout
    benched = called(fresh_home, "bench", *prompts, "--drafter", "phrases", "--nodes", "2", "--json")
    assert benched.returncode == 0 and json.loads(benched.stdout)["model"] == "two"


@pytest.mark.slow
def test_train_takes_it_too_and_names_it(enter, fresh_home, tmp_path, paths):
    enter(one=10, two=10)
    save_choice("two", "use", paths)
    (tmp_path / "text.jsonl").write_text('{"text": "What is said, and more of it."}\n' * 20)
    command = ("train", "medusa", "--data", str(tmp_path / "text.jsonl"), "-O", "nothing=1")
    named = wording("drafter_is_trained_for", name="two")
    started = called(fresh_home, *command)
    assert started.returncode == 2 and named in started.stderr
    assert wording("drafter_is_trained_for", name="one") not in called(fresh_home, *command, "-m", "one").stderr


@pytest.mark.parametrize("by", ["file", "environment", "flag"])
def test_it_says_where_a_model_that_is_not_here_was_named(fresh_home, by):
    """A user who typed no name could not know what to correct."""
    file = Paths(fresh_home).config_file
    file.parent.mkdir(parents=True, exist_ok=True)
    if by == "file":
        file.write_text('model = "gone"')
    named = {"LOCALSPEC_MODEL": "gone"} if by == "environment" else {}
    result = called(fresh_home, "run", "hi", *(["-m", "gone"] if by == "flag" else []), **named)
    assert result.returncode == 3
    told = {
        "file": wording("setting_there_is_no_model", file=file),
        "environment": "LOCALSPEC_MODEL='gone': ",
        "flag": wording("there_is_no_model_gone"),
    }
    assert sentence(result).removeprefix("localspec: ").startswith(told[by])
