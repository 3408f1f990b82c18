"""In the C locale no drawn character becomes a question mark; a model's text stays unchanged."""

import sys

import pytest
from golden import wording

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")]

REPLY = "# Title\n\n- one\n  - two\n\n> quoted\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```python\nprint(1)\n```\nüber"


def test_marks_have_ascii_forms(tmp_path):
    from tui.terminal import scripted_chat

    with scripted_chat(tmp_path, f"[[{REPLY!r}]]", "-m", "demo", size=(120, 36), LC_ALL="C") as terminal:
        terminal.shows("> ")
        terminal.send("Hello?\r")
        terminal.shows("print(1)", "über")
        terminal.send("\x1bOP")
        terminal.shows(wording("leave_what_said_stays_kept"))
        terminal.send("\x1b")
        terminal.until(lambda: wording("leave_what_was_said") not in terminal.text)
        for key, shown in (("\x12", "just now"), ("\x10", "Search for commands")):
            terminal.send(key)
            terminal.shows(shown)
            terminal.send("\x1b")
            terminal.until(lambda shown=shown: shown not in terminal.text)
        terminal.send("/nonsense\r")
        terminal.shows("x There is no command")
        terminal.send("\x11")
        assert terminal.ends() == 0
        drawn = terminal.sent.replace("ü", "")
        assert drawn.isascii(), sorted({char for char in drawn if not char.isascii()})
