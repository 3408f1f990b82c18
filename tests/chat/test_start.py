"""How a chat starts: its conversation, its model, whether it is saved, and the messages about these."""

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command import what_is_kept
from each import each
from golden import matching, wording
from machines import BILLION, cpu, gpu, machine, unfetched
from scripted_conversation import Engine, talk

from localspec.chat import start
from localspec.chat.start import DEMO, StartedChat, start_chat
from localspec.config import load
from localspec.errors import LocalspecError, NotHere, UsageMistake
from localspec.machine.machine import Machine
from localspec.models import registry
from localspec.paths import Paths
from localspec.store.database import StoreTrouble
from localspec.store.history import History
from localspec.store.store import Store


class Opening:
    """`start_chat` in one home; `told` has the messages since the last call, and nothing is closed before the end."""

    def __init__(self, home: Path, stack: ExitStack) -> None:
        self.home, self.database = home, Paths(home).database
        self.told: list[str] = []
        self._stack = stack

    def __call__(self, resume: Any = None, **flags: Any) -> StartedChat:
        self.told.clear()
        return start_chat(load(flags=flags), resume, self._stack, self.told.append)

    def keep(self, *prompts: str, model: str = "demo", system: str | None = None) -> int:
        """Save a conversation of these prompts, and return its number."""
        number = None
        with Store.open(self.database, pytest.fail) as store:
            for prompt in prompts:
                number, turn = store.history.say(number, prompt, model=model, system=system)
                store.history.write(turn, "a reply", "stop")
        assert number is not None
        return number


@pytest.fixture
def begin(fresh_home: Path) -> Iterator[Opening]:
    with ExitStack() as stack:
        yield Opening(fresh_home, stack)


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """Return a second model, which has no name."""
    return Path(shutil.copytree(registry.resolve("demo").path, tmp_path / "other"))


def said(home: Path) -> str:
    return what_is_kept(home).removeprefix("localspec: ").removesuffix("\n")


def test_saving_is_announced_until_something_is_saved(begin):
    for _ in range(2):
        begin(model="demo")
        assert begin.told == [said(begin.home)]
    number = begin.keep("hi")
    begin(model="demo")
    assert begin.told == []
    with Store.open(begin.database, pytest.fail) as store:
        store.history.remove([number])
    begin(model="demo")
    assert begin.told == []  # no notice: the user deleted it
    begin.database.unlink()
    begin(model="demo")
    assert begin.told == [said(begin.home)]


def test_saving_is_not_announced_if_nothing_is_saved(begin):
    assert begin(model="demo", log=False).store is None
    assert begin.told == [] and not begin.home.exists()
    begin.database.mkdir(parents=True)
    opening = begin(model="demo")
    assert opening.store is not None and opening.store.path is None
    assert len(begin.told) == 1 and wording("cannot_be_used") in begin.told[0]


def test_saving_is_announced_again_after_a_broken_file_was_replaced(begin):
    begin.keep("hi")
    begin.database.write_bytes(b"no database " * 500)
    begin(model="demo")
    assert len(begin.told) == 2 and "set aside" in begin.told[0] and begin.told[1] == said(begin.home)


def test_a_store_that_cannot_be_asked_costs_no_reply(begin, monkeypatch):
    def fail(_: History) -> bool:
        raise StoreTrouble("The disk is on fire.")

    monkeypatch.setattr(History, "ever_saved", property(fail))
    assert begin(model="demo").store is not None and begin.told == []


def test_with_no_log_the_store_serves_for_what_was_measured(begin):
    begin.keep("hi")
    opening = begin(model="demo", log=False)
    assert opening.store is not None and begin.told == []
    talk(opening.conversation, Engine("yes"), "never kept")
    assert opening.conversation.id is None and len(opening.store.history.conversations()) == 1


@pytest.mark.parametrize("resume", [None, "last"])
def test_the_store_is_closed_at_the_end(fresh_home, resume):
    with ExitStack() as stack:
        begin = Opening(fresh_home, stack)
        begin.keep("one")
        opening = begin(resume, model="demo")
    assert opening.store is not None
    with pytest.raises(sqlite3.ProgrammingError):
        opening.store.history.latest()


@pytest.mark.slow
def test_the_model_is_chosen_for_the_device_that_was_named(begin, other, tmp_path, monkeypatch):
    seen = []

    def recommendations(where: Machine, *_: Any, **__: Any) -> list[Any]:
        seen.append([device.name for device in where.devices])
        return []

    monkeypatch.setattr("localspec.machine.machine.this_machine", lambda *_: machine(gpu(24), cpu(8)))
    monkeypatch.setattr("localspec.choosing.survey.recommendations", recommendations)
    first, second = (
        replace(unfetched(BILLION), path=other),
        replace(unfetched(BILLION, name="second"), path=tmp_path / "second"),
    )
    (tmp_path / "second").symlink_to(other)
    two = {"first": first, "second": second}
    monkeypatch.setattr(start.registry, "known", lambda *_: two)
    for device in ("auto", "cpu", "cuda", "mps"):
        begin(device=device)
        Paths(begin.home).choice.unlink()
    assert seen == [["cuda:0", "cpu"], ["cpu"], ["cuda:0"], ["cuda:0", "cpu"]]


def test_a_new_conversation(begin, other, monkeypatch):
    opening = begin(model="demo", system="Be kind.")
    assert (opening.card.name, opening.conversation.model, opening.conversation.system) == ("demo", "demo", "Be kind.")
    assert opening.conversation.turns == [] and opening.conversation.id is None
    assert begin().card.name == "demo" and DEMO in begin.told
    monkeypatch.chdir(other.parent)
    assert begin(model="./other").conversation.model == str(other)
    talk(opening.conversation, Engine("yes"), "hi")
    with Store.open(begin.database, pytest.fail) as store:
        assert [info.title for info in store.history.conversations()] == ["hi"]


@each("resume", [None, "last", 1])
def test_a_mistake_makes_nothing(begin, tmp_path, resume):
    (tmp_path / "empty").mkdir()
    wrong: list[tuple[str, type[LocalspecError]]] = [("dmo", NotHere), (str(tmp_path / "empty"), NotHere)]
    for model, error in wrong if resume is None else [("demo", UsageMistake)]:
        with pytest.raises(error):
            begin(resume, model=model)
    assert begin.told == [] and not begin.home.exists()


def test_a_damaged_model_is_reported_before_it_is_loaded(begin, other):
    (other / "config.json").write_text("{")
    with pytest.raises(LocalspecError, match=r"config\.json"):
        begin(model=str(other))
    assert not begin.home.exists()


def prompts(opening: StartedChat) -> list[str]:
    return [turn.prompt for turn in opening.conversation.turns]


def test_the_last_one_and_a_given_one(begin):
    first, second = begin.keep("one", "two"), begin.keep("three")
    assert prompts(begin("last")) == ["three"]
    opening = begin(first)
    assert prompts(opening) == ["one", "two"] and opening.conversation.id == first
    assert begin.told == []
    talk(opening.conversation, Engine("yes"), "four")
    assert prompts(begin("last")) == ["one", "two", "four"]
    assert prompts(begin(second)) == ["three"]


@each("resume", ["last", 1, 2, 0, -1, 2**70])
def test_what_is_not_there(begin, resume):
    number = begin.keep("one")
    with Store.open(begin.database, pytest.fail) as store:
        store.history.remove([number])
    with pytest.raises(
        UsageMistake, match=wording("to_continue") if resume == "last" else f"no conversation {resume} here"
    ):
        begin(resume)


@each(
    "kept, given, found",
    [
        ("Be kind.", {}, "Be kind."),
        (None, {}, None),
        ("Be kind.", {"system": "Be brief."}, "Be brief."),
        ("Be kind.", {"system": ""}, ""),
    ],
)
def test_its_system_prompt_gives_way_to_the_flag_only(begin, monkeypatch, kept, given, found):
    begin.keep("one", system=kept)
    monkeypatch.setenv("LOCALSPEC_SYSTEM", "Be rude.")
    assert begin("last", **given).conversation.system == found
    assert begin("last", log=False, **given).conversation.system == found


@pytest.mark.slow
def test_its_model_gives_way_to_the_flag_only(begin, other, monkeypatch):
    begin.keep("one", model=str(other))
    monkeypatch.setenv("LOCALSPEC_MODEL", "demo")
    opening = begin("last")
    assert opening.card.path == other and opening.conversation.model == str(other)
    opening = begin("last", model="demo")
    assert (opening.card.name, opening.conversation.model) == ("demo", "demo")
    assert begin.told == []


def _vanish(other: Path) -> None:
    shutil.rmtree(other)


def _empty(other: Path) -> None:
    shutil.rmtree(other)
    other.mkdir()


@pytest.mark.slow
@pytest.mark.parametrize("go", [_vanish, _empty])
def test_its_model_is_gone(begin, other, monkeypatch, go: Callable[[Path], None]):
    begin.keep("one", model=str(other))
    go(other)
    gone = wording("model_conversation_longer_here", other=other)
    opening = begin("last")
    assert (opening.card.name, opening.conversation.model, prompts(opening)) == ("demo", "demo", ["one"])
    assert begin.told == [gone, DEMO]
    monkeypatch.setenv("LOCALSPEC_MODEL", "demo")
    begin("last")
    assert begin.told == [gone]
    begin("last", model="demo")
    assert begin.told == []


@pytest.mark.slow
def test_its_model_was_a_server_s(begin):
    begin.keep("one", model="Qwen/Qwen3-32B")
    assert begin("last").card.name == "demo"
    where = wording("here_removed_server_s_which")
    assert begin.told == [wording("model_conversation_qwen_qwen3_32b", where=where), DEMO]


@pytest.mark.slow
def test_its_name_means_another_model_by_now(begin, other):
    begin.keep("one", model="mine")
    with pytest.raises(UsageMistake, match=matching("no_conversation_7")):
        begin(7)
    (begin.home / "config").mkdir(parents=True)
    (begin.home / "config" / "models.toml").write_text(f'[mine]\npath = "{other}"\n')
    opening = begin("last")
    assert (opening.card.name, opening.card.path, opening.conversation.model) == ("mine", other, "mine")


@pytest.mark.slow
def test_a_damaged_model_of_its_own_is_an_error(begin, other):
    """The user must repair the model; loading another one would only hide the damage."""
    begin.keep("one", model=str(other))
    (other / "config.json").write_text("{")
    with pytest.raises(LocalspecError, match=r"config\.json"):
        begin("last")


def test_what_cannot_be_written_is_read_and_continued_on_disk_once_it_can(begin, monkeypatch):
    begin.keep("one")
    with monkeypatch.context() as full:
        full.setattr("localspec.store.database.open_writable", no_room)
        opening = begin("last", model="demo")
        assert prompts(opening) == ["one"] and len(begin.told) == 1 and wording("can_only_be_read") in begin.told.pop()
        talk(opening.conversation, Engine("yes"), "two")
        assert begin.told == [] and opening.conversation.unsaved == 1
        assert wording("can_only_read_database_disk_full") in opening.conversation.trouble
        with Store.open(begin.database, lambda _: None) as store:
            assert store.history.conversations()[0].turns == 1
    talk(opening.conversation, Engine("yes"), "three")
    assert begin.told == [wording("all_said_kept_now")] and opening.conversation.unsaved == 0
    with Store.open(begin.database, pytest.fail) as store:
        found = store.history.read(1)
        assert found is not None and [turn.prompt for turn in found.turns] == ["one", "two", "three"]


def test_where_no_file_could_be_made_all_that_was_said_is_kept_once_one_can(begin, monkeypatch):
    with monkeypatch.context() as full:
        full.setattr("localspec.store.database.open_writable", no_room)
        full.setattr("localspec.store.database.move_to_file", no_room)
        opening = begin(model="demo")
        assert len(begin.told) == 1 and wording("cannot_be_used") in begin.told.pop()
        talk(opening.conversation, Engine("yes"), "one")
        assert opening.conversation.unsaved == 1 and not begin.database.exists()
    opening.conversation.keep_rest()
    talk(opening.conversation, Engine("yes"), "two")
    assert opening.conversation.unsaved == 0 and opening.conversation.trouble == ""
    assert begin.told == [wording("can_used_now_what_learned_said", database=begin.database)]
    with Store.open(begin.database, pytest.fail) as store:
        found = store.history.read(1)
        assert found is not None and [turn.prompt for turn in found.turns] == ["one", "two"]


def no_room(*_):
    raise sqlite3.OperationalError("database or disk is full")
