"""A shell or another process stops the chat and lets it continue."""

import os
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

if sys.platform == "win32":
    pytest.skip("no stopping", allow_module_level=True)

from command import environment
from tui.terminal import LEAVE, Terminal, scripted_chat

pytestmark = pytest.mark.slow

CTRL_Q = "\x11"

# Asks itself to stop while it writes a reply to the terminal, which holds the lock of what is to be written.
WITHIN_A_WRITE = """
import os, queue, signal
def put(self, item, real=queue.Queue._put):
    if "Well said." in str(item) and not asked:
        asked.append(os.kill(os.getpid(), signal.SIGTSTP))
    real(self, item)
asked = []
queue.Queue._put = put
"""


def stopped(terminal: Terminal, number: signal.Signals | None) -> None:
    if number is not None:
        os.kill(terminal.process.pid, number)
    terminal.until(lambda: os.waitpid(terminal.process.pid, os.WUNTRACED | os.WNOHANG)[0], seconds=60)


@contextmanager
def begun(tmp_path: Path, **about: str) -> Iterator[Terminal]:
    """Yield a chat that is ready, and leave it at the end."""
    with scripted_chat(tmp_path / "home", '["Well said."]', "-m", "demo", **about) as terminal:
        terminal.shows("❯ Say something", "ready", "^q Quit", seconds=60)
        yield terminal
        terminal.send(CTRL_Q)
        assert terminal.ends() == 0
        terminal.check_that_it_is_whole()


def goes_on(terminal: Terminal) -> None:
    terminal.screen.reset()  # as the shell leaves it
    os.kill(terminal.process.pid, signal.SIGCONT)
    terminal.shows("localspec · ", "hello", "Well said.", "❯ Say something", "^q Quit", seconds=60)


@pytest.mark.parametrize("number", [signal.SIGTSTP, signal.SIGSTOP], ids=["asked to", "unasked"])
def test_after_a_stop_the_whole_screen_is_drawn_again(tmp_path, number):
    with begun(tmp_path) as terminal:
        terminal.send("hello\r")
        terminal.shows("Well said.", "❯ Say something")
        stopped(terminal, number)
        assert terminal.sent.count(LEAVE) == (number == signal.SIGTSTP)
        goes_on(terminal)


def test_a_stop_in_the_middle_of_a_write_waits_for_its_end(tmp_path):
    with begun(tmp_path, before=WITHIN_A_WRITE) as terminal:
        terminal.send("hello\r")
        stopped(terminal, None)
        goes_on(terminal)


@pytest.mark.parametrize("signals", [[signal.SIGTSTP], [signal.SIGCONT]])
def test_what_comes_while_it_begins_is_served_once_it_has_begun(tmp_path, signals):
    """It is handled right after the driver's function, during which nothing can be suspended yet."""
    moment = "start_application_mode"
    before = f"""
import os, signal
from textual.drivers.linux_driver import LinuxDriver
def call(self, *given, real=LinuxDriver.{moment}, **named):
    real(self, *given, **named)
    LinuxDriver.{moment} = real
    for number in {[int(number) for number in signals]}:
        os.kill(os.getpid(), number)
LinuxDriver.{moment} = call
"""
    with scripted_chat(tmp_path / "home", '["Well said."]', "-m", "demo", before=before) as terminal:
        if signals == [signal.SIGTSTP]:
            stopped(terminal, None)
            os.kill(terminal.process.pid, signal.SIGCONT)
        terminal.shows("❯ Say something", "ready", "^q Quit", seconds=60)
        terminal.send("hello\r")
        terminal.shows("Well said.", "❯ Say something")


def test_who_continues_before_it_has_stopped_does_not_stop_and_several_stops_are_one(tmp_path):
    with begun(tmp_path) as terminal:
        for _ in range(3):
            os.kill(terminal.process.pid, signal.SIGTSTP)
            os.kill(terminal.process.pid, signal.SIGCONT)
        terminal.send("hello\r")
        terminal.shows("Well said.", "❯ Say something")
        for _ in range(3):
            os.kill(terminal.process.pid, signal.SIGTSTP)
        stopped(terminal, None)
        goes_on(terminal)


def test_what_is_typed_and_pasted_outlives_a_signal_that_took_no_terminal(tmp_path):
    with begun(tmp_path) as terminal:
        terminal.send("typed \x1b[200~pasted\r")
        terminal.shows("❯ typed")
        stopped(terminal, signal.SIGSTOP)
        os.kill(terminal.process.pid, signal.SIGCONT)
        terminal.send("and more\rof it\x1b[201~, end")
        terminal.shows("of it, end")
        assert "Well said." not in terminal.text, "no part of a paste is a prompt"
        terminal.send("\x03")


def test_a_shell_stops_it_in_the_background_too(tmp_path):
    noted = f"import os; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))"
    with scripted_chat(tmp_path / "home", '["Well said."]', "-m", "demo", before=noted) as terminal:
        command = shlex.join(terminal.process.args)
    (tmp_path / "go").write_text(f"exec {command}")
    variables = environment(tmp_path / "home", TERM="xterm-256color", LANG="C.UTF-8", PS1="shell> ")
    with Terminal(["bash", "--noprofile", "--norc", "-i"], variables) as terminal:
        terminal.shows("shell>")
        terminal.send(f"sh {tmp_path / 'go'}\n")
        terminal.shows("❯ Say something", "ready", "^q Quit")
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGTSTP)
        terminal.shows("Stopped")
        terminal.screen.reset()
        terminal.send('bg; while [ "$(jobs -r)" ]; do sleep 0.1; done; jobs; echo tried\n')
        terminal.shows("Stopped", "\ntried")
        terminal.screen.reset()
        terminal.send("fg\n")
        terminal.shows("❯ Say something", "^q Quit")
        terminal.send("hello\r")
        terminal.shows("Well said.", "❯ Say something")
        terminal.send(CTRL_Q)
        terminal.shows("is saved", "shell>")
        terminal.send("exit\n")
        assert terminal.ends() == 0
        terminal.check_that_it_is_whole()


def test_a_stop_while_an_editor_has_the_terminal_is_at_once(tmp_path):
    (tmp_path / "editor").write_text('echo "the editor has it"; read answer; echo "$answer" > "$1"')
    with begun(tmp_path, EDITOR=f"sh {tmp_path / 'editor'}", VISUAL="") as terminal:
        terminal.send("\x07")
        terminal.shows("the editor has it")
        stopped(terminal, signal.SIGTSTP)
        os.kill(terminal.process.pid, signal.SIGCONT)
        terminal.send("edited\n")
        terminal.shows("❯ edited", "^q Quit")
        assert terminal.sent.count(LEAVE) == 1
        terminal.send("\x03")
