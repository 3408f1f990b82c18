"""Edit the prompt in the user's editor."""

import os
import signal
import stat
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from each import each
from golden import matching, wording
from tui.scripted_engine import until

from localspec import environment
from localspec.errors import LocalspecError, UsageMistake
from localspec_tui import editor
from localspec_tui.editor import edited

EDITOR = """
import os, signal, sys, time
from pathlib import Path
file, how = Path(sys.argv[-1]), sys.argv[1]
Path(sys.argv[2]).write_text(f"{file}\\n{file.stat().st_mode:o}\\n{file.parent.stat().st_mode:o}")
if how == "write":
    file.write_text(file.read_text() + " and more\\n", "utf-8")
if how == "fail":
    file.write_text("half")
    sys.exit(3)
if how == "die":
    os.kill(os.getpid(), signal.SIGTERM)
if how == "remove":
    file.unlink()
if how == "binary":
    file.write_bytes(b"caf\\xe9")
if how == "hang":
    file.write_text("saved")
    time.sleep(60)
"""

posix = pytest.mark.skipif(sys.platform == "win32", reason="ends by signals")


@pytest.fixture
def command(tmp_path):
    """command(how): an editor that does that."""
    script = tmp_path / "my editor.py"
    script.write_text(EDITOR)
    return lambda how: f"'{Path(sys.executable).as_posix()}' '{script.as_posix()}' {how} '{tmp_path / 'seen'}'"


def test_what_it_wrote_comes_back_and_nothing_is_left(command, tmp_path):
    assert edited("text", command("write"), lambda: False) == "text and more"
    file, mode, folder = (tmp_path / "seen").read_text().split("\n")
    assert not Path(file).parent.exists()
    if sys.platform != "win32":
        assert (stat.S_IMODE(int(mode, 8)), stat.S_IMODE(int(folder, 8))) == (0o600, 0o700)


@pytest.mark.parametrize(
    ("how", "sentence"),
    [("fail", wording("ended_with_exit_code_3")), pytest.param("die", wording("was_ended_by_signal_15"), marks=posix),
     ("remove", "cannot be read")],
)  # fmt: skip
def test_an_editor_that_fails_is_reported_and_nothing_is_left(command, tmp_path, how, sentence):
    with pytest.raises(LocalspecError, match=f"{sentence}.*the prompt is unchanged"):
        edited("text", command(how), lambda: False)
    assert not Path((tmp_path / "seen").read_text().split("\n")[0]).parent.exists()


def test_bytes_that_are_no_text(command):
    assert edited("text", command("binary"), lambda: False) == "caf\ufffd"


@each("named", [None, "", " "])
def test_no_editor_named(named):
    with pytest.raises(UsageMistake, match=matching("set_visual_or_editor")):
        edited("text", named, lambda: False)


@each("named", ["no-such-editor-here", "'unfinished"])
def test_one_that_is_not_there(named):
    with pytest.raises(UsageMistake, match=matching("cannot_be_started")):
        edited("text", named, lambda: False)


@posix
def test_it_is_ended_when_the_chat_is_and_what_it_saved_is_taken(command, tmp_path):
    def leaving():
        return (tmp_path / "seen").exists() and (tmp_path / "seen").read_text().count("\n") == 2

    assert edited("text", command("hang"), leaving) in ("saved", "text")


def test_which_one():
    assert environment.editor({"VISUAL": "vi", "EDITOR": "ed"}) == "vi"
    assert environment.editor({"VISUAL": "", "EDITOR": "ed"}) == "ed"
    assert environment.editor({}) is None


@pytest.fixture
def lent(monkeypatch):
    """Stand in for handing the terminal over, since tests have none."""

    def lend(talk):
        @contextmanager
        def suspend():
            yield

        monkeypatch.setattr(talk.app, "suspend", suspend)

    return lend


@pytest.mark.parametrize(("how", "typed"), [("write", "hello and more"), ("fail", "hello")])
async def test_ctrl_g(chat, lent, monkeypatch, command, how, typed):
    monkeypatch.setenv("VISUAL", command(how))
    talk = chat(["Hi."])
    lent(talk)
    async with talk.playing() as pilot:
        await pilot.press(*"hello", "ctrl+g")
        await until(pilot, lambda: talk.typed == typed)
        if how == "fail":
            await until(pilot, lambda: "exit code 3" in talk.screen_text())
        await pilot.press("!", "enter")
        await until(pilot, lambda: talk.prompts() == [typed + "!"] and talk.idle())


@posix
async def test_ctrl_c_before_the_editor_has_the_terminal_ends_nothing(chat, monkeypatch, command):
    monkeypatch.setenv("VISUAL", command("write"))
    talk = chat()

    @contextmanager
    def suspend():
        os.kill(os.getpid(), signal.SIGINT)
        yield
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(talk.app, "suspend", suspend)
    async with talk.playing() as pilot:
        await pilot.press(*"hello", "ctrl+g")
        await until(pilot, lambda: talk.typed == "hello and more")


async def test_without_an_editor_it_is_reported(chat, monkeypatch):
    for name in ("VISUAL", "EDITOR"):
        monkeypatch.delenv(name, raising=False)
    async with chat().opened() as (talk, pilot):
        await pilot.press(*"hello", "ctrl+g")
        await until(pilot, lambda: wording("no_editor_is_named") in talk.screen_text())
        assert talk.typed == "hello"


async def test_a_terminal_that_cannot_be_lent(chat, monkeypatch):
    monkeypatch.setenv("VISUAL", "anything")
    monkeypatch.setattr(editor, "edited", lambda *_: pytest.fail("it was lent"))
    async with chat().opened() as (talk, pilot):
        await pilot.press(*"hello", "ctrl+g")
        await until(pilot, lambda: "cannot run" in talk.screen_text())
        assert talk.typed == "hello"
