"""`localspec chat`: which of its two forms starts, and with which arguments."""

import io
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from each import each
from golden import wording

from localspec.cli import plain
from localspec.cli.main import main


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Begun(NamedTuple):
    """The form that started: its name, the settings, the request, the text before the first prompt, the prompt."""

    form: str
    settings: Any
    resume: Any
    files: str
    prompt: str | None


hints: list[str] = []


@pytest.fixture
def begun(fresh_home: Path, monkeypatch: pytest.MonkeyPatch) -> list[Begun]:
    """Replace both forms of the chat: each stops at its first line, with its own exit code."""
    seen: list[Begun] = []

    def line_by_line(asked: Any, prompt: str | None) -> int:
        seen.append(Begun("plain", asked.settings, asked.resume, asked.files, prompt))
        return 7

    def full_screen(settings: Any, prompt: str | None, files: str, resume: Any, hint: str) -> int:
        hints.append(hint)
        seen.append(Begun("full screen", settings, resume, files, prompt))
        return 9

    hints.clear()
    monkeypatch.setattr(plain, "converse", line_by_line)
    monkeypatch.setattr("localspec_tui.chat", full_screen)
    monkeypatch.setenv("TERM", "xterm")
    return seen


def chat(*arguments: str, **others: Any) -> tuple[int, str]:
    """Run `localspec chat ARGUMENTS` at a terminal, except for the `others`; return exit code and standard error."""
    errors = Terminal()
    with pytest.MonkeyPatch.context() as patch:
        for name, stream in {"stdin": Terminal(), "stdout": Terminal(), "stderr": errors, **others}.items():
            patch.setattr(sys, name, stream)
        return main(["chat", *arguments]), errors.getvalue()


def test_at_a_terminal_it_fills_the_screen(begun):
    assert chat() == (9, "")
    [(form, settings, resume, files, prompt)] = begun
    assert (form, resume, files, prompt) == ("full screen", None, "", None) and settings.log


@each("how", ["flag", "terminal", "both"])
def test_line_by_line(begun, monkeypatch, how):
    begun.clear()
    if how != "flag":
        monkeypatch.setenv("TERM", "dumb")
    assert chat(*(["--plain"] if how != "terminal" else [])) == (7, "")
    assert [begin.form for begin in begun] == ["plain"]


@each("missing", ["stdin", "stdout", "stderr"])
@each("other", [None, io.StringIO()])
def test_without_a_terminal(begun, missing, other):
    begun.clear()
    code, said = chat(**{missing: other})
    assert code == 2 and begun == []
    if missing != "stderr":
        assert said.startswith(wording("localspec_localspec_chat_needs")) and said.count("\n") == 1
        assert "localspec run" in said and "--plain" in said
    assert chat("--plain", **{missing: other}) == (7, "")


@each("form", [[], ["--plain"]])
def test_what_it_is_given(begun, tmp_path, form):
    begun.clear()
    (tmp_path / "notes").write_text("notes\n")
    chat(*form, "-f", str(tmp_path / "notes"), "-f", str(tmp_path / "notes"), "-c", "-m", "there", "-n", "9", "hi")
    chat(*form, "--conversation", "12", "--no-log", "-s", "a\udcff", "b\udce9\ud800")
    chat(*form, "")
    first, second, third = begun
    assert (first.files, first.resume, first.prompt) == ("notes\n\nnotes", "last", "hi")
    assert (first.settings.model, first.settings.max_tokens, first.settings.log) == ("there", 9, True)
    assert (second.files, second.resume, second.prompt) == ("", 12, "b\ufffd\ufffd")
    assert (second.settings.system, second.settings.log) == ("a\ufffd", False)
    assert (third.resume, third.prompt) == (None, "")


@each("form", [[], ["--plain"]])
def test_a_word_is_a_model_only_by_its_full_name(begun, form):
    """A beginning of one is a prompt, with a hint."""
    begun.clear()
    hints.clear()
    chat(*form, "Demo")
    said = chat(*form, "demo-d")[1]
    chat(*form, "-m", "other", "demo")
    whole, begins, named = begun
    assert (whole.settings.model, whole.prompt) == ("demo", None)
    assert (begins.settings.model, begins.prompt) == (None, "demo-d")
    assert (named.settings.model, named.prompt) == ("other", "demo")
    hint = "'demo-d' is the first prompt; to choose the model, use `localspec chat -m demo-draft`."
    assert said == (f"localspec: {hint}\n" if form else "") and (form or hints == ["", hint, ""])


@each(
    "arguments, said",
    [
        (["-c", "--conversation", "3"], wording("continue_conversation_3_exclude")),
        (["--conversation", "last"], wording("last_number_conversation")),
        (["--conversation", "9" * 5000], wording("n9_number_conversation")),
        (["-f", "gone.txt"], wording("gone_txt_cannot_be_read")),
        (["hi", "there"], "there"),
        (["--temp", "hot"], "--temperature 'hot'"),
        (["--no-spec", "--drafter", "phrases"], wording("no_spec_and_drafter_phrases")),
        (["--json"], "--json"),
        (["--stats"], "--stats"),
    ],
)
@each("form", [[], ["--plain"]])
def test_mistakes(begun, fresh_home, form, arguments, said):
    code, told = chat(*form, *arguments)
    assert code == 2 and begun == []
    assert told.startswith("localspec: ") and told.count("\n") == 1 and said in told and len(told) < 400
    assert not fresh_home.exists()
