"""A chat whose screen is busy: signals end it, and nothing is lost."""

import signal
import sys

import pytest

if sys.platform == "win32":
    pytest.skip("no such signals", allow_module_level=True)

from tui.terminal import Terminal, scripted_chat

from localspec.paths import Paths
from localspec.store.store import Store

# The screen never comes back from drawing the reply.
BUSY = """
from localspec_tui.block_view import BlockView
show = BlockView.show
def show_for_ever(view, blocks):
    if "Well said" not in str(blocks):  # the prompt, which may come a moment earlier
        return show(view, blocks)
    open({!r}, "w").close()
    while True:
        pass
BlockView.show = show_for_ever
"""
AT_ONCE = 1.5  # seconds of the busy process; on a free core less than one


def ends(terminal: Terminal, number: signal.Signals) -> int:
    """Return the exit code; the time that counts is that of the process, for other tests may use the cores."""
    import psutil

    process = psutil.Process(terminal.process.pid)
    before = sum(process.cpu_times()[:2])
    terminal.process.send_signal(number)
    used = before
    while terminal.process.poll() is None:
        try:
            used = sum(process.cpu_times()[:2])
        except psutil.NoSuchProcess:
            break
        assert used - before < AT_ONCE, "the signal waits for the screen"
        terminal._read(0.02)
    return terminal.ends()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.slow)])
def test_a_signal_ends_a_chat_whose_screen_is_busy(tmp_path, number):
    home, busy = tmp_path / "home", tmp_path / "busy"
    with scripted_chat(home, '["Well said."]', "-m", "demo", before=BUSY.format(str(busy))) as terminal:
        terminal.shows("❯ Say something", "ready")
        terminal.send("hello\r")
        terminal.until(busy.exists)
        assert ends(terminal, number) == 128 + number
        terminal.check_that_it_is_whole()
    with Store.open(Paths(home).database, print) as store:
        saved = store.history.read(store.history.latest() or 0)
        assert saved is not None
        assert [(turn.prompt, turn.reply) for turn in saved.turns] == [("hello", "Well said.")]
