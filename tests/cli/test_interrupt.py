"""Ctrl+C at any instant ends the program with 130 and without a traceback, also while libraries are imported."""

import os
import signal
import subprocess
import sys
from queue import Empty, SimpleQueue
from threading import get_ident

import pytest
from clocks import PATIENCE
from command import environment
from each import each

from localspec.cli.interrupt import Interrupt

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
@each(
    "imported, command",
    [
        ("numpy", REPLY),
        ("localspec.cli.run", REPLY),
        ("localspec.cli.path", ["path"]),
        ("localspec.models.registry", ["list"]),
    ],
)
def test_while_a_library_is_imported(tmp_path, imported, command):
    result = ended(tmp_path, DURING, imported, "1", *command)
    assert (result.returncode, result.stderr) == (130, "localspec: Interrupted.\n")


@posix
@each("imported", ["typing", "typer", "localspec.config"])
def test_before_the_program_has_begun(tmp_path, imported):
    result = ended(tmp_path, AT_START, imported, "path")
    assert result.returncode in (-signal.SIGINT, 130) and "Traceback" not in result.stderr


@posix
@pytest.mark.slow
def test_after_the_program_has_ended(tmp_path):
    code = "import atexit, signal, sys\natexit.register(signal.raise_signal, signal.SIGINT)\nfrom localspec.__main__ import run\nsys.argv[1:] = ['path']\nsys.exit(run())"
    result = ended(tmp_path, code)
    assert (result.returncode, result.stderr) == (130, "") and result.stdout.count("\n") >= 7


@posix
def test_what_ends_a_program_stops_it_once_as_ctrl_c_does(monkeypatch):
    """A logout sends both signals: the current step ends anyway, and the parent process learns the signal."""
    raised = []
    before = [signal.signal(number, signal.SIG_DFL) for number in (signal.SIGTERM, signal.SIGHUP)]
    try:
        with monkeypatch.context() as patch:
            with Interrupt(ends_too=True) as inside:
                inside.wait_for_step = True
                signal.raise_signal(signal.SIGHUP)
                signal.raise_signal(signal.SIGTERM)
                assert inside.requested
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


@posix
@each("number", ["SIGTERM", "SIGHUP"])
def test_the_same_signal_again_ends_the_process_at_once(tmp_path, number):
    code = """
import signal, sys
from localspec.cli.interrupt import Interrupt
number = signal.Signals[sys.argv[1]]
with Interrupt(ends_too=True) as inside:
    inside.wait_for_step = True
    signal.raise_signal(number)
    print(inside.requested, flush=True)
    signal.raise_signal(number)
    print("the step goes on")
"""
    result = ended(tmp_path, code, number)
    assert (result.returncode, result.stdout) == (-signal.Signals[number], "True\n"), result.stderr


@posix
def test_a_signal_that_waits_for_a_step_says_so():
    before, said = signal.signal(signal.SIGTERM, signal.SIG_DFL), SimpleQueue[int]()
    try:
        with pytest.MonkeyPatch.context() as patch, Interrupt(ends_too=True, waits=lambda: said.put(0)) as inside:
            inside.wait_for_step = True
            signal.raise_signal(signal.SIGTERM)
            assert said.get(timeout=PATIENCE) == 0
            patch.setattr(signal, "raise_signal", lambda _: None)
            inside.__exit__()
            inside._ended = None
    finally:
        signal.signal(signal.SIGTERM, before)


def test_the_handler_before_is_the_handler_after():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with Interrupt() as inside:
            assert signal.getsignal(signal.SIGINT) == inside._ask
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_only_a_first_ctrl_c_that_waits_for_a_step_says_so():
    before, said = signal.signal(signal.SIGINT, signal.default_int_handler), SimpleQueue[int]()
    try:
        with Interrupt(waits=lambda: said.put(get_ident())) as inside:
            inside.wait_for_step = True
            signal.raise_signal(signal.SIGINT)
            assert said.get(timeout=PATIENCE) != get_ident(), "the handler may have stopped the code that prints"
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        with Interrupt(waits=lambda: said.put(0)), pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(Empty):
            said.get(timeout=0.05)
    finally:
        signal.signal(signal.SIGINT, before)
