"""Completion of half-typed commands and paths."""

import pytest
from each import each
from golden import wording

from localspec.chat.commands import COMMANDS, Completion, Suggestion, choices, is_whole, look_up, needed
from localspec.chat.sampling import KEYS
from localspec.store.conversations import ConversationInfo


class History:
    def conversations(self, limit, among):
        titles = {12: "Sorting in Python", 3: "A fox"}
        infos = [ConversationInfo(number, title, "demo", 0.0, 0.0, 1) for number, title in titles.items()]
        infos.append(ConversationInfo(4, "A diff", "demo", 0.0, 0.0, 1, source="pipe"))
        return [info for info in infos if among(info)][:limit]

    def partings(self, pairs):
        raise AssertionError("none is a branch")


def lines(before, **known):
    return [choice.line for choice in choices(before, known)]


def test_commands_with_their_arguments_and_what_they_do():
    assert len(choices("/", {})) == len(COMMANDS)
    assert choices("/tit", {}) == [
        Completion("/title ", "/title [TEXT]", COMMANDS[[c.name for c in COMMANDS].index("title")].does)
    ]
    assert lines("/ne") == ["/new"] and lines("/nwe") == []


@each("before", ["", "new", "//", "//ne", " /ne", "/ne\n", "a /ne"])
def test_what_is_no_command_is_not_completed(before):
    assert lines(before) == [] and needed(before) is None


def test_conversations_by_number_and_by_words_of_their_titles():
    known = {"resume": look_up("resume", History())}
    assert needed("/resume") is None and needed("/resume ") == "resume"
    assert lines("/resume ", **known) == ["/resume 12", "/resume 3"]
    assert lines("/resume 1", **known) == ["/resume 12"]
    assert lines("/resume FOX", **known) == ["/resume 3"]
    assert look_up("resume", None) == []


def test_models_that_are_here_and_those_that_can_be_fetched(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    found = look_up("model", None)
    assert "demo" in [entry.text for entry in found]
    assert lines("/model de", model=found)[0] == "/model demo"
    away = {entry.text: entry.about for entry in found}["qwen3-0.6b"]
    assert away.startswith(wording("here_yet_0_6_b"))


def test_sampling():
    assert lines("/set ") == [f"/set {key} " for key in KEYS]
    assert lines("/set TOP") == ["/set top-p ", "/set top-k "]
    assert lines("/set seed d") == ["/set seed default"]


@each(
    "before, whole",
    [("/new", True), ("/ne", False), ("/", False), ("/nwe", True), ("/set", True), ("/set te", True), ("hello", True)],
)
def test_enter_means_what_is_whole(before, whole):
    assert is_whole(before) is whole


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "my notes.txt").write_text("")
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / ".hidden").write_text("")
    (tmp_path / "red\x1b[31m").write_text("")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "deep.md").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@each("before, become", [
        ("see @", ["see @docs/", 'see @"my notes.txt" ', "see @notes.txt "]),
        ("see @no", ["see @notes.txt "]),
        ('see @"my', ['see @"my notes.txt" ']),
        ("@.h", ["@.hidden "]),
        ("a\nb @docs/d", ["a\nb @docs/deep.md "]),
        ("@~/docs/", ["@~/docs/deep.md "]),
        ("(@no", ["(@notes.txt "]),
        ("me@no", []),
        (r"\@no", []),
        ("@none/", []),
        ("see @notes.txt ", []),
    ])  # fmt: skip
def test_paths(folder, before, become):
    need = needed(before)
    assert lines(before, **({} if need is None else {need: look_up(need, None)})) == become


def test_what_is_shown_is_safe():
    hostile = Suggestion("evil\x1b]0;x\x07", "a\nb\x9b")
    [choice] = choices("/model ", {"model": [hostile]})
    assert choice.shown == "evil␛]0;x␇" and choice.does == "a b\ufffd"


def test_behind_two_slashes_stands_a_prompt():
    known = {"@": [Suggestion("notes.md", "")]}
    assert [choice.shown for choice in choices("//new @no", known)] == ["notes.md"]
