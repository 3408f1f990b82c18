"""Which code may write to the terminal, and its state after the chat."""

import gc
import multiprocessing.util  # noqa: F401 - its first import registers a function at exit, which a test would count
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from time import monotonic, sleep

import pytest
from clocks import PATIENCE
from each import each
from golden import wording

import localspec_tui
from localspec.config import Settings
from localspec.errors import UsageMistake
from localspec_tui import engine_thread, interpreter, loading, terminal


@contextmanager
def pipe_for_a_terminal() -> Iterator[int]:
    """Descriptors 1 and 2 are a pipe; this end of it can be read."""
    kept = os.dup(1), os.dup(2)
    theirs, ours = os.pipe()
    os.set_blocking(theirs, False)
    for number in (1, 2):
        os.dup2(ours, number)
    os.close(ours)
    try:
        yield theirs
    finally:
        for number, old in zip((1, 2), kept, strict=True):
            os.dup2(old, number)
            os.close(old)
        with suppress(OSError):
            os.close(theirs)


def everything(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 1 << 16)
    except BlockingIOError:
        return b""


# -- who may write -----------------------------------------------------------------------------------------------------


def test_textual_draws_on_the_terminal_and_libraries_write_to_the_log(tmp_path):
    log, real = tmp_path / "logs" / "native.log", (sys.__stdout__, sys.__stderr__)
    with pipe_for_a_terminal() as drawn:
        with terminal.guarded(log, pytest.fail):
            for stream in (sys.__stdout__, sys.__stderr__):
                stream.write("drawn ❯ ")
                stream.flush()
            os.write(1, b"to one\n")
            os.write(2, b"to two\n")
        while_drawing = everything(drawn).decode()
        with suppress(ZeroDivisionError), terminal.guarded(log, pytest.fail):
            raise ZeroDivisionError
        os.write(2, b"afterwards")
        afterwards = everything(drawn)
    assert while_drawing == "drawn ❯ drawn ❯ "
    assert log.read_text() == "to one\nto two\n"
    assert afterwards == b"afterwards"
    assert (sys.__stdout__, sys.__stderr__) == real


def test_no_descriptor_is_left_open(tmp_path):
    def used() -> int:
        lowest = os.dup(0)
        os.close(lowest)
        return lowest

    with terminal.guarded(tmp_path / "native.log", pytest.fail):
        pass
    before = used()
    for _ in range(3):
        with terminal.guarded(tmp_path / "native.log", pytest.fail):
            pass
    assert used() == before


def test_a_closed_terminal_is_noticed_and_stops_no_thread(tmp_path):
    told = []
    with pipe_for_a_terminal() as drawn, terminal.guarded(tmp_path / "native.log", lambda: told.append(1)):
        os.close(drawn)
        sys.__stderr__.write("x" * 100_000)
        sys.__stderr__.flush()
        sys.__stdout__.write("y")
    assert told


def test_the_log_is_private_and_appended_to_and_emptied_if_it_is_long(tmp_path):
    log = tmp_path / "state" / "native.log"

    def write(words: bytes) -> int:
        with terminal.guarded(log, pytest.fail):
            os.write(2, words)
        assert log.stat().st_mode & 0o777 == 0o600
        return log.stat().st_size

    assert (write(b"one\n"), write(b"two\n")) == (4, 8)
    assert log.parent.stat().st_mode & 0o777 == 0o700
    log.chmod(0o644)
    assert write(b"three\n") == 14 and log.read_text() == "one\ntwo\nthree\n"
    for size, left in ((terminal.LOG_BYTES, terminal.LOG_BYTES + 4), (terminal.LOG_BYTES + 1, 4)):
        log.write_bytes(b"x" * size)
        assert write(b"new\n") == left


def test_a_log_that_cannot_be_written_stops_no_chat(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "native.log").symlink_to(victim)
    with pipe_for_a_terminal() as drawn:
        for log in (tmp_path / "native.log", victim / "native.log"):
            with terminal.guarded(log, pytest.fail):
                os.write(2, b"nowhere")
        seen = everything(drawn)
    assert victim.read_text() == "mine"
    assert seen == b""


# -- signals and keys --------------------------------------------------------------------------------------------------


@each("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGQUIT, 131)])
def test_a_signal_leaves_the_chat_with_its_code(number, code):
    left, before = [], signal.getsignal(number)
    with terminal.signals(left.append, lambda code: None):
        os.kill(os.getpid(), number)
        until = monotonic() + PATIENCE
        while not left and monotonic() < until:  # another thread may get the signal first
            sleep(0.01)
    assert left == [code]
    assert signal.getsignal(number) == before


def test_a_signal_that_is_ignored_stays_ignored():
    left, before = [], signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with terminal.signals(left.append, lambda code: None):
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
    assert left == []


@pytest.mark.skipif(not hasattr(signal, "SIGTSTP"), reason="no stopping")
@each("name", ["SIGTSTP", "SIGCONT"])
def test_stops_are_the_applications_no_longer_than_it_runs(name):
    number = getattr(signal, name)
    before = signal.getsignal(number)
    with terminal.signals(lambda code: None, lambda code: None):
        signal.signal(number, lambda *_: None)
    assert signal.getsignal(number) == before


def test_what_must_happen_before_the_first_paint(monkeypatch):
    from multiprocessing import resource_tracker

    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    monkeypatch.delenv("HF_HUB_DISABLE_PROGRESS_BARS", raising=False)
    terminal.prepare()
    assert os.environ["TOKENIZERS_PARALLELISM"] == "true"  # the user's own setting counts
    assert os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] == "1"
    assert resource_tracker._resource_tracker._fd is not None
    monkeypatch.delenv("HF_HUB_DISABLE_PROGRESS_BARS")


# -- how chat() ends ---------------------------------------------------------------------------------------------------


@pytest.fixture
def ending(monkeypatch, tmp_path):
    """ending(run, ended): return the result of chat() with this application, and an engine that ends or does not."""
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))
    at_exit, closed = [], []

    def make(run, ended: bool = True):
        monkeypatch.setattr(interpreter, "run", run)
        monkeypatch.setattr(
            engine_thread.EngineThread, "close", lambda thread, seconds: closed.append(seconds) or ended
        )
        monkeypatch.setattr("atexit.register", lambda *call: at_exit.append(call))
        try:
            return localspec_tui.chat(Settings(), None, "", None), at_exit
        finally:
            os.write(2, b"whole\n")
            assert closed == [localspec_tui.CLOSE_SECONDS]

    make.at_exit, make.closed = at_exit, closed
    return make


def test_a_chat_that_is_left_ends_with_its_code(ending):
    assert ending(lambda app: app.exit(return_code=143)) == (143, [])
    ending.closed.clear()
    assert ending(lambda app: None) == (0, []) and gc.isenabled(), "it never painted"


def test_no_garbage_is_collected_until_the_first_paint(ending):
    def run(app):
        assert not gc.isenabled()
        with ExitStack() as at_the_end:
            app._chat.engine._opening(at_the_end, lambda _: None)
        assert gc.isenabled()

    ending(run)


def test_what_a_model_brought_is_not_looked_through_again(ending, monkeypatch):
    done = []
    monkeypatch.setattr(loading, "load", lambda *_, **__: done.append("loaded") or "an engine")
    monkeypatch.setattr(gc, "freeze", lambda: done.append("frozen"))

    def run(app):
        assert app._chat.engine.model._loading(Settings(), None) == "an engine"
        assert done == ["loaded", "frozen"]

    ending(run)


def test_an_engine_that_still_works_is_left_behind_at_the_very_end(ending):
    assert ending(lambda app: app.exit(return_code=143), ended=False) == (143, [(terminal.end_without_waiting, 143)])


@pytest.mark.parametrize("failure", [UsageMistake("No such flag."), ZeroDivisionError()])
def test_what_failed_is_raised_when_the_terminal_is_whole(ending, failure, capfd):
    def run(app):
        os.write(2, b"native")
        app.failure = failure

    with pytest.raises(type(failure)) as raised:
        ending(run)
    assert raised.value is failure
    assert capfd.readouterr().err == "whole\n"


def test_notices_of_a_chat_that_could_not_begin_are_printed(ending, capfd):
    def run(app):
        app._chat.engine.outlet.notice("localspec.db is broken\x1b[2J and was set aside.")
        app.failure = UsageMistake(wording("there_conversation_continue_here"))

    with pytest.raises(UsageMistake):
        ending(run)
    assert capfd.readouterr().err == "localspec: localspec.db is broken␛[2J and was set aside.\nwhole\n"


def test_a_failure_with_an_engine_that_still_works_ends_with_1(ending):
    def run(app):
        app.failure = ZeroDivisionError()

    with pytest.raises(ZeroDivisionError):
        ending(run, ended=False)
    assert ending.at_exit == [(terminal.end_without_waiting, 1)]


def test_the_engine_is_closed_also_where_textual_itself_fails(ending):
    def run(app):
        raise RuntimeError("no driver")

    with pytest.raises(RuntimeError, match="no driver"):
        ending(run)


@pytest.mark.slow
def test_nothing_is_waited_for_at_the_very_end():
    child = os.fork()
    if child == 0:
        threading.Thread(target=threading.Event().wait).start()  # would be waited for
        terminal.end_without_waiting(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


# -- failures inside ---------------------------------------------------------------------------------------------------


def test_a_failure_shows_no_values(chat, capfd):
    talk = chat()
    secret = "my secret prompt"

    async def story(pilot):
        def fail() -> None:
            local = secret  # noqa: F841  # Textual would print it
            raise ZeroDivisionError

        talk.app.call_later(fail)
        await pilot.pause()

    with pytest.raises(ZeroDivisionError):
        talk.play(story)
    assert talk.app.failure is not None
    assert talk.app.error_console.quiet
    assert secret not in "".join(capfd.readouterr())
    assert secret not in "".join(traceback.format_exception(talk.app.failure))


def test_the_first_failure_counts(chat):
    talk = chat()

    def fail(error):
        raise error

    async def story(pilot):
        first = ZeroDivisionError()
        for error in (first, OverflowError()):
            talk.app.call_later(fail, error)
        await pilot.pause()
        assert talk.app.failure is first

    with pytest.raises(ZeroDivisionError):
        talk.play(story)


@pytest.mark.parametrize(("there", "code"), [(True, 1), (False, terminal.HANGUP)])
def test_keys_that_cannot_be_read(chat, monkeypatch, there, code):
    monkeypatch.setattr(terminal, "is_there", lambda: there)
    talk = chat()

    async def story(pilot):
        talk.app.call_later(talk.app.panic, "a traceback with values")
        await pilot.pause()

    with pytest.raises(RuntimeError, match="keys") if there else nullcontext():
        talk.play(story)
    assert (1 if talk.app.failure else talk.app.code) == code
    assert (talk.app.failure is not None) is there


async def test_a_signal_before_the_chat_runs_is_not_lost(chat):
    talk = chat()
    talk.app.leave(143)
    async with talk.playing(ready=False):
        pass
    assert talk.app.return_code == 143


def test_a_signal_after_the_chat_has_ended_is_no_trouble(chat):
    talk = chat()

    async def story(pilot):
        await pilot.press("ctrl+q")

    talk.play(story)
    assert talk.app.event_loop.is_closed()  # a closed loop refuses calls, and says so
    talk.app.leave(143)
    assert talk.app.return_code == 0


def test_is_there(monkeypatch):
    monkeypatch.setattr(sys, "__stdin__", None)
    assert not terminal.is_there()
    ours, theirs = os.openpty()
    with os.fdopen(theirs) as stdin:
        monkeypatch.setattr(sys, "__stdin__", stdin)
        assert terminal.is_there()
        os.close(ours)
    assert not terminal.is_there()
