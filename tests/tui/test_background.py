"""Whether the terminal is light: the chat asks without waiting, and never shows the answer, which comes between keys."""

import random
import sys
import time
from types import SimpleNamespace

import pytest
from each import each
from golden import wording

from localspec.text import PASTE_BEGIN, PASTE_END, PasteFilter
from localspec_tui import background
from localspec_tui.background import Answer

WHITE = "\x1b]11;rgb:ffff/ffff/ffff\x1b\\"
LIGHT_GROUND, DARK_GROUND = b"48;2;224;224;224", b"48;2;18;18;18"  # of the two themes


def listening():
    answer, told = Answer(), []
    answer.tell = told.append
    return answer, told


@each(
    "colour, light",
    [
        ("rgb:ffff/ffff/ffff\x1b\\", True),
        ("rgb:ff/ff/ff\x07", True),
        ("rgb:f/f/f\x07", True),
        ("RGBA:FDFD/F6F6/E3E3/FFFF\x07", True),
        ("rgb:0000/0000/0000\x1b\\", False),
        ("rgb:1e1e/1e1e/2e2e\x07", False),
        ("rgb:0000/0000/ffff\x07", False),
        ("rgb:00/ff/00\x07", True),
    ],
)
def test_what_it_says(colour, light):
    answer, told = listening()
    assert answer.without(f"before\x1b]11;{colour}after") == "beforeafter" and told == [light]
    assert answer.without(WHITE) == WHITE  # one answer was asked for


def test_pieces_of_any_length():
    sent = f"a\x1b[A\x1bb{WHITE}c\x1b[B"
    chance = random.Random(3)
    for _ in range(300):
        cuts = sorted(chance.sample(range(len(sent)), chance.randint(0, 20)))
        answer, told = listening()
        pieces = zip([0, *cuts], [*cuts, len(sent)], strict=True)
        escape = "\x1b" if sent.index(WHITE) + 1 in cuts else ""  # at the end of a piece it is a key
        assert "".join(answer.without(sent[start:end]) for start, end in pieces) == sent.replace(WHITE, escape)
        assert told == [True]


@each("typed", ["\x1b", "\x1b[A", "\x1b]x", "\x1b]12;rgb:0/0/0\x07", "]11;rgb:", "\x1b]11;hello", "a"])
def test_keys_are_given_on_at_once(typed):
    answer, told = listening()
    given = [answer.without(char) for char in typed]
    assert "".join(given) == typed and told == []
    assert given[0] == typed[0]


def test_what_is_pasted_is_no_answer():
    answer, told = listening()
    pasted = PasteFilter().read(f"{PASTE_BEGIN}{WHITE}{PASTE_END}")
    assert answer.without(pasted) == pasted and told == []


def test_an_answer_that_comes_too_late_is_not_waited_for(monkeypatch):
    answer, told = listening()
    monkeypatch.setattr(background.time, "monotonic", lambda: time.perf_counter() + 1e9)
    assert answer.without("\x1b]") == "\x1b]" and answer.without("x") == "x" and told == []
    assert not answer.awaited


@each(
    "variables", [{"TERM": "dumb"}, {"TERM": "linux"}, {"TERM": ""}, {"TERM": "screen.xterm-256color", "STY": "1.pts"}]
)
def test_a_terminal_that_might_draw_the_question_is_not_asked(monkeypatch, variables):
    terminal = SimpleNamespace(fileno=lambda: 0)
    monkeypatch.setattr(background, "sys", SimpleNamespace(platform="linux", __stdin__=terminal, __stderr__=terminal))
    monkeypatch.setattr(background.os, "isatty", lambda _: True)
    monkeypatch.delenv("STY", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    assert background.askable()
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert not background.askable()


@each("theme", ["nord", "auto"])
def test_nothing_is_asked_where_there_is_no_terminal_or_the_theme_is_known(monkeypatch, theme):
    if theme == "auto":
        monkeypatch.setattr(background.os, "isatty", lambda _: False)
    monkeypatch.setattr(background.os, "write", pytest.fail)
    with background.queried(theme) as answer:
        assert not answer.awaited


def is_light(terminal):
    """Return whether the theme is light: the cursor of the dark theme has the other one's colour."""
    return terminal.raw.count(LIGHT_GROUND) > 5


pty = pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")


@pty
@pytest.mark.slow
@pytest.mark.parametrize("ground", ["light", "dark", "late"])
def test_a_terminal_is_asked_and_what_is_typed_ahead_stays(tmp_path, ground):
    from tui.terminal import scripted_chat

    with scripted_chat(tmp_path, "[['Hello.']]", "-m", "demo") as terminal:
        terminal.until(lambda: background.QUESTION in terminal.raw)
        terminal.send("typed ")
        if ground in ("light", "dark"):
            terminal.send(WHITE if ground == "light" else WHITE.replace("f", "0"))
        terminal.send("ahead")
        terminal.until(lambda: "typed ahead" in terminal.text)
        if ground == "late":
            terminal.send(WHITE[:9])
            terminal.send(WHITE[9:] + ", late")
            terminal.until(lambda: "typed ahead, late" in terminal.text and is_light(terminal))
        terminal.send("\x1b")  # Escape, which an answer that comes in pieces must not swallow
        terminal.send("!")
        terminal.until(lambda: "!" in terminal.text)
        assert "11;" not in terminal.text and "rgb" not in terminal.text
        terminal.until(lambda: is_light(terminal) == (ground in ("light", "late")))
        terminal.until(lambda: ground == "light" or DARK_GROUND in terminal.raw)
        terminal.send("\x11")
        assert terminal.ends() == 0
        terminal.check_that_it_is_whole()
        terminal.check_that_nobody_else_commands()


@pty
@pytest.mark.slow
def test_the_answer_to_a_chat_that_failed_at_once_is_not_left_to_the_shell(tmp_path):
    from tui.terminal import scripted_chat

    with scripted_chat(tmp_path, "[]", "-m", "demo", LOCALSPEC_KEYMAP='{"chat.nwe": "f9"}') as terminal:
        terminal.until(lambda: background.QUESTION in terminal.raw)
        terminal.send(WHITE)
        assert terminal.ends() == 2
        assert (
            wording("nothing_is_called_chat_nwe") in terminal.afterwards
            or wording("nothing_is_called") in terminal.text
        )
        assert "11;rgb" not in terminal.sent
        terminal.check_that_it_is_whole()
