"""Where a copied text goes, and which notice is shown."""

import os
import stat
import subprocess
from types import SimpleNamespace

import pyperclip
import pytest
from each import each
from golden import wording
from tui.scripted_engine import until

from localspec_tui import clipboard


@pytest.fixture(autouse=True)
def outside_tmux(monkeypatch):
    monkeypatch.delenv("TMUX", raising=False)


@pytest.fixture
def no_desktop(monkeypatch):
    def fail(text):
        raise pyperclip.PyperclipException("no clipboard")

    monkeypatch.setattr(pyperclip, "copy", fail)


@pytest.fixture
def tmux(monkeypatch):
    """Record the input of tmux, which exits with `rc`."""
    known = SimpleNamespace(given=[], rc=0)

    def run(command, *, input, **_):  # noqa: A002  # the name of subprocess.run's argument
        known.given.append((command, input))
        return SimpleNamespace(returncode=known.rc)

    monkeypatch.setenv("TMUX", "there")
    monkeypatch.setattr(subprocess, "run", run)
    return known


def test_the_desktop_takes_it(tmp_path):
    assert clipboard.copied("é\n", tmp_path / "file") == "Copied to the clipboard."
    assert not (tmp_path / "file").exists()


def test_tmux_takes_it_and_hands_it_on(no_desktop, tmux, tmp_path):
    assert clipboard.copied("é", tmp_path / "file") == "Copied to tmux's buffer."
    assert tmux.given == [(["tmux", "load-buffer", "-w", "-"], "é".encode())]
    assert not (tmp_path / "file").exists()


def test_both_take_it(tmux):
    assert clipboard.copied("x", None) == "Copied to the clipboard and tmux's buffer."


@each("trouble", [FileNotFoundError(), subprocess.TimeoutExpired("tmux", 2)])
def test_a_tmux_that_fails_is_not_believed(no_desktop, monkeypatch, trouble):
    monkeypatch.setenv("TMUX", "there")

    def run(*_, **__):
        raise trouble

    monkeypatch.setattr(subprocess, "run", run)
    assert clipboard.copied("x", None).startswith(wording("sent_to_the_terminal"))


def test_a_tmux_that_refuses_is_not_believed(no_desktop, tmux):
    tmux.rc = 1
    assert clipboard.copied("x", None) == wording("sent_terminal_s_clipboard_whether")


def test_otherwise_a_file_that_only_its_owner_can_read(no_desktop, tmp_path):
    file = tmp_path / "new" / "copied.txt"
    told = wording("sent_terminal_s_clipboard_if", file=file)
    assert clipboard.copied("longer", file) == told
    clipboard.copied("é", file)
    assert file.read_text("utf-8") == "é"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.skipif(os.name != "posix", reason="modes are those of POSIX")
def test_a_file_that_others_could_read_is_made_private_before_it_is_filled(no_desktop, tmp_path, monkeypatch):
    file = tmp_path / "copied.txt"
    file.write_text("of earlier")
    file.chmod(0o666)
    seen, change = [], os.fchmod

    def fchmod(descriptor, mode):
        change(descriptor, mode)
        seen.append((stat.S_IMODE(file.stat().st_mode), file.read_text()))

    monkeypatch.setattr(os, "fchmod", fchmod)
    clipboard.copied("é", file)
    assert (stat.S_IMODE(file.stat().st_mode), file.read_text("utf-8")) == (0o600, "é")
    assert seen == [(0o600, "")]


def test_a_file_that_cannot_be_written_is_not_named(no_desktop, tmp_path):
    (tmp_path / "file").touch()
    assert str(tmp_path) not in clipboard.copied("x", tmp_path / "file" / "below")


async def test_where_nothing_is_selected_nothing_takes_the_place_of_what_was_copied(chat, clipboard):
    async with chat().opened() as (_talk, pilot):
        await pilot.press("ctrl+r", "ctrl+x", *"found", "shift+home", "ctrl+x")
        await until(pilot, lambda: clipboard)
        assert clipboard == ["found"]
