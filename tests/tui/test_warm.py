"""The full screen while the same user runs `localspec serve`, which ends half-way."""

import os
import signal
import sys

import pytest
from golden import wording

if sys.platform == "win32":
    pytest.skip("no pseudo-terminals", allow_module_level=True)

from clocks import PATIENCE
from serving.conftest import start
from tui.terminal import chat
from tui.test_end_to_end import CTRL_Q, ESCAPE, leaves_cleanly, looks_into_the_second_reply, said

pytestmark = pytest.mark.slow

# A file shows that a model was loaded in this process.
TELLTALE = """
from pathlib import Path
from localspec.engine import engine
def opened(*asked, real=engine.Engine.open, **how):
    Path({place!r}).touch()
    return real(*asked, **how)
engine.Engine.open = opened
"""


def test_a_chat_that_uses_a_server_is_like_any_other_and_outlives_it(tmp_path):
    drafting, loaded = ("--drafter", "phrases", "--draft-max", "8"), tmp_path / "loaded"
    server = start(tmp_path, *drafting)
    before = TELLTALE.format(place=str(loaded))
    with chat(tmp_path, "-m", "demo", "--temp", "0", "-n", "40", *drafting, before=before, size=(110, 36)) as terminal:

        def replied(turns: int) -> bool:
            found = said(tmp_path)
            return len(found) == turns and found[-1].reason is not None

        for number in (1, 2):  # the second reply is drafted from the first
            terminal.shows("❯ Say something", "^q Quit")
            terminal.send("What is speculative decoding?\r")
            terminal.until(lambda number=number: replied(number))
        terminal.send("\x1bOS")  # F4
        terminal.shows("tokens proposed by", "this chat", "GiB")
        looks_into_the_second_reply(terminal)
        assert not loaded.exists()

        terminal.send("/race Tell me about the sea.\r")  # between two engines of this process
        terminal.shows("Race: Tell me about the sea.", wording("both_texts_are_the_same_2"))
        terminal.send(ESCAPE)
        terminal.shows("Say something")
        assert loaded.exists() and not replied(3)

        os.kill(server.process.pid, signal.SIGKILL)
        server.process.wait(PATIENCE)
        terminal.send("Tell me a story.\r")
        terminal.shows(wording("localspec_serve_gone_from_here"))
        terminal.until(lambda: replied(3))
        terminal.send(CTRL_Q)
        leaves_cleanly(terminal)
    assert all(turn.reply for turn in said(tmp_path))
