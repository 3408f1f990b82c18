"""Ctrl+C at any instant ends the program with 130 and without a traceback, also while libraries are imported."""

import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from clocks import PATIENCE, until
from command import environment

from localspec import __main__ as program
from localspec.cli import interrupt as module
from localspec.cli import main
from localspec.cli.interrupt import Interrupt, interrupt, postponed

posix = pytest.mark.skipif(os.name != "posix", reason="signals as on POSIX")

REPLY = ["run", "hi", "-m", "demo", "--no-log"]

# Ctrl+C when a module is looked for, as often as asked, inside of the import of whoever needs it.
DURING = """
import signal, sys, time
from localspec.__main__ import run
module, times, *sys.argv[1:] = sys.argv[1:]
class Presses:
    done = False
    def find_spec(self, name, *_):
        if name == module and not self.done:
            Presses.done = True
            for _ in range(int(times)):
                signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Presses())
sys.exit(run())
"""
# The same, before the program itself has begun.
AT_START = """
import runpy, signal, sys
module, *sys.argv[1:] = sys.argv[1:]
def watch(event, arguments):
    if event == "import" and arguments[0] == module:
        signal.raise_signal(signal.SIGINT)
sys.addaudithook(watch)
runpy.run_module("localspec", run_name="__main__", alter_sys=True)
"""


def ended(home, code, *arguments):
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=environment(home),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


@pytest.mark.slow
@posix
@pytest.mark.parametrize(
    ("imported", "command"),
    [
        ("numpy", REPLY),
        pytest.param("numpy.linalg", REPLY, marks=pytest.mark.slow),
        pytest.param("tokenizers", REPLY, marks=pytest.mark.slow),
        pytest.param("localspec.cli.run", REPLY, marks=pytest.mark.slow),
        pytest.param("localspec.cli.path", ["path"], marks=pytest.mark.slow),
        pytest.param("localspec.models.registry", ["list"], marks=pytest.mark.slow),
    ],
)
def test_while_a_library_is_imported(tmp_path, imported, command):
    result = ended(tmp_path, DURING, imported, "1", *command)
    assert (result.returncode, result.stderr) == (130, "localspec: Interrupted.\n")


@pytest.mark.slow
@posix
def test_twice_while_a_library_is_imported(tmp_path):
    result = ended(tmp_path, DURING, "localspec.cli.path", "2", "path")
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "localspec: Interrupted.\n")


@posix
@pytest.mark.parametrize("imported", ["typing", "typer", "localspec.config"])
def test_before_the_program_has_begun(tmp_path, imported):
    """A shell calls the end by this signal 130, too."""
    result = ended(tmp_path, AT_START, imported, "path")
    assert result.returncode in (-signal.SIGINT, 130) and "Traceback" not in result.stderr


@posix
@pytest.mark.slow
def test_after_the_program_has_ended(tmp_path):
    code = "import atexit, signal, sys\natexit.register(signal.raise_signal, signal.SIGINT)\nfrom localspec.__main__ import run\nsys.argv[1:] = ['path']\nsys.exit(run())"
    result = ended(tmp_path, code)
    assert (result.returncode, result.stderr) == (130, "") and result.stdout.count("\n") >= 7


@pytest.mark.parametrize("moment", ["_say", "_flushed"])
def test_while_the_end_is_told(monkeypatch, capfd, moment):
    """Also the one that was put off during an import may come then: it is told of twice."""

    def pressed(*_):
        raise KeyboardInterrupt

    class Left(Exception):
        pass

    def leave():
        raise Left

    monkeypatch.setattr(main, moment, pressed)
    monkeypatch.setattr(program, "end_at_once", leave)
    monkeypatch.setattr(sys, "argv", ["localspec", "nosuch"])
    if moment == "_say":
        assert main.main(["nosuch"]) == 130
    else:
        with pytest.raises(Left):
            program.run()


def frame(name, back=None):
    return SimpleNamespace(f_code=SimpleNamespace(co_filename=name, co_name="", co_qualname=""), f_back=back)


IMPORTING = frame("library.py", frame("<frozen importlib._bootstrap>", frame("main.py")))


@pytest.fixture
def sent(monkeypatch):
    """What would be sent to this process later."""
    later = []
    monkeypatch.setattr(module._thread, "start_new_thread", lambda work, _: later.append(work))
    monkeypatch.setattr(module, "_waiting", threading.Event())
    return later


def test_what_is_raised_and_when(sent):
    with pytest.raises(KeyboardInterrupt):
        interrupt(2, frame("main.py"))
    interrupt(2, IMPORTING)
    assert len(sent) == 1 and postponed()


def test_a_reply_counts_what_was_put_off_once(sent):
    asked = Interrupt()
    asked.wait_for_step = True
    asked._ask(2, IMPORTING)
    assert not asked.asked
    asked._ask(2, frame("main.py"))  # the same one again, when the import is over
    assert asked.asked
    with pytest.raises(KeyboardInterrupt):
        asked._ask(2, frame("main.py"))


@posix
def test_what_ends_a_program_stops_it_once_as_ctrl_c_does(monkeypatch):
    """A logout sends both: the step under way ends all the same, and the process learns in the end."""
    raised = []
    before = [signal.signal(number, signal.SIG_DFL) for number in (signal.SIGTERM, signal.SIGHUP)]
    try:
        with monkeypatch.context() as patch:
            with Interrupt(ends_too=True) as inside:
                inside.wait_for_step = True
                signal.raise_signal(signal.SIGHUP)
                signal.raise_signal(signal.SIGTERM)
                assert inside.asked
                patch.setattr(signal, "raise_signal", raised.append)
            assert raised == [signal.SIGHUP]
        assert signal.getsignal(signal.SIGTERM) is signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
        sent = signal.raise_signal
        with monkeypatch.context() as patch, Interrupt(ends_too=True):
            patch.setattr(signal, "raise_signal", raised.append)
            with pytest.raises(KeyboardInterrupt):  # where there is no step to wait for
                sent(signal.SIGTERM)
        assert raised == [signal.SIGHUP, signal.SIGTERM]
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # nohup and the like
        with Interrupt(ends_too=True):
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before[0])
        signal.signal(signal.SIGHUP, before[1])


class Finalised:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)


def finalised_by_weakref():
    class Other:
        pass

    weakref.finalize(Other(), signal.raise_signal, signal.SIGINT)  # at once, for nothing holds it


def wait_after(finalise):
    finalise()
    time.sleep(PATIENCE)


@posix
@pytest.mark.parametrize("finalise", [Finalised, finalised_by_weakref])
@pytest.mark.parametrize("asked", [False, True], ids=["alone", "in a reply"])
def test_in_a_finaliser_whose_errors_python_forgets(finalise, asked, capfd):
    before = signal.signal(signal.SIGINT, interrupt)
    try:
        with Interrupt() if asked else nullcontext(), pytest.raises(KeyboardInterrupt):
            wait_after(finalise)
    finally:
        signal.signal(signal.SIGINT, before)
    assert capfd.readouterr().err == ""


@posix
def test_it_comes_again(monkeypatch):
    heard = []
    before = signal.signal(signal.SIGINT, lambda *_: heard.append(postponed()))
    try:
        module._postpone()
        until(lambda: heard)
    finally:
        signal.signal(signal.SIGINT, before)
    assert heard == [False]


@pytest.mark.parametrize("handler", [interrupt, signal.default_int_handler])
def test_the_handler_before_is_the_handler_after(handler):
    before = signal.signal(signal.SIGINT, handler)
    try:
        with Interrupt() as inside:
            assert signal.getsignal(signal.SIGINT) == inside._ask
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)
