"""Keeps the terminal whole: who may write to it, what a signal does, what is left when the chat ends."""

import codecs
import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from textual._ansi_sequences import ANSI_SEQUENCES_KEYS

from localspec import marks
from localspec.paths import private_directory
from localspec_tui import paste

HANGUP = 129  # what shells expect of a program whose terminal was closed
LOG_BYTES = 1_000_000  # then it begins anew
QUIET = {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}


class _Key(Enum):
    ALT_ENTER = "alt+enter"


# Most terminals send this for it, which Textual takes for Escape and Enter: it would send what is half written.
SEQUENCES = {"\x1b\r": (_Key.ALT_ENTER,), "\x1b\n": (_Key.ALT_ENTER,)}


def prepare(meant: Callable[[str], str] = lambda typed: typed) -> None:
    """What has to happen before Textual takes the place of standard error; of what is typed it sees what is `meant`."""
    ANSI_SEQUENCES_KEYS.update(SEQUENCES)  # type: ignore[attr-defined]  # a dict, declared as less
    paste.install(meant)
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    if os.name == "posix":
        # A progress bar makes a lock, whose tracker is a process, and Textual's standard error cannot be handed on.
        from multiprocessing import resource_tracker

        resource_tracker.ensure_running()

        from textual.drivers import linux_driver

        linux_driver.getincrementaldecoder = _lenient  # type: ignore[attr-defined, assignment]


def _lenient(encoding: str) -> Callable[[], codecs.IncrementalDecoder]:
    """Of what is typed: bytes of another encoding, or of a paste, would end the thread that reads keys."""
    return partial(codecs.getincrementaldecoder(encoding), errors="replace")


class _Terminal(io.TextIOWrapper):
    """The terminal, which may be closed at any time: Textual would wait for ever for a thread that failed to write."""

    def __init__(self, descriptor: int, real: TextIO, gone: Callable[[], None]) -> None:
        super().__init__(os.fdopen(descriptor, "wb"), encoding=real.encoding, errors="replace", newline="")
        self._gone, self._ascii = gone, marks.ascii_only(real)

    def write(self, text: str) -> int:
        try:
            return super().write(marks.in_ascii(text) if self._ascii else text)
        except OSError:
            self._gone()
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError:
            self._gone()

    def close(self) -> None:
        with suppress(OSError):
            super().close()


@contextmanager
def guarded(log: Path, gone: Callable[[], None]) -> Iterator[None]:
    """Textual draws on a private copy of the terminal, and what libraries write to descriptors 1 and 2 goes to `log`.

    Calls `gone`, on the thread that draws, when there is no terminal any more.
    """
    with ExitStack() as afterwards:
        sink = _open_log(log)
        afterwards.callback(os.close, sink)
        for number, name in ((1, "stdout"), (2, "stderr")):
            stream = getattr(sys, name)
            stream.flush()
            kept = os.dup(number)
            afterwards.callback(os.close, kept)
            afterwards.callback(os.dup2, kept, number)
            afterwards.callback(stream.flush)  # what was written meanwhile belongs to the log
            real = getattr(sys, f"__{name}__")
            terminal = _Terminal(os.dup(kept), real, gone)
            setattr(sys, f"__{name}__", terminal)
            afterwards.callback(terminal.close)
            afterwards.callback(setattr, sys, f"__{name}__", real)
        for number in (1, 2):
            os.dup2(sink, number)
        yield


def _open_log(log: Path) -> int:
    """Readable for its owner alone; where it cannot be written, nowhere."""
    try:
        private_directory(log.parent)
        cut = os.O_TRUNC if log.exists() and log.stat().st_size > LOG_BYTES else 0
        sink = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0) | cut, 0o600)
        if os.name == "posix":
            os.fchmod(sink, 0o600)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY)
    return sink


def is_there() -> bool:
    """Whether keys can still come from it."""
    try:
        return sys.__stdin__ is not None and os.isatty(sys.__stdin__.fileno())
    except (OSError, ValueError):
        return False


@contextmanager
def signals(leave: Callable[[int], None], overdue: Callable[[int], None]) -> Iterator[None]:
    """A signal that would end the process ends the chat as a key does, with the exit code that shells expect.

    `leave` is called between two steps of the main thread. `overdue` is called at once, on a thread of its own: the
    main thread may be busy for long.
    """
    handlers: dict[int, Any] = {}

    def ours(number: int) -> bool:  # an editor that has the terminal has Ctrl+C, too
        return number in handlers and signal.getsignal(number) is handlers[number]

    with ExitStack() as afterwards:
        for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"):
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                handlers[number] = lambda signum, _: leave(128 + signum)
                afterwards.callback(signal.signal, number, signal.signal(number, handlers[number]))
        if os.name == "posix":
            afterwards.enter_context(_watched(ours, overdue))
        for name in ("SIGTSTP", "SIGCONT"):  # the application's own, which ends before
            if hasattr(signal, name):
                number = getattr(signal, name)
                afterwards.callback(signal.signal, number, signal.getsignal(number))
        yield


@contextmanager
def _watched(ours: Callable[[int], bool], overdue: Callable[[int], None]) -> Iterator[None]:
    """Call `overdue` on a thread when one of `ours` comes; Python writes a signal's number to a pipe at once."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)

    def watch() -> None:
        while came := os.read(reading, 1):
            if ours(came[0]):
                overdue(128 + came[0])
        os.close(reading)

    threading.Thread(target=watch, name="signals", daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(writing)


def end_without_waiting(code: int) -> None:
    """For a thread that cannot be stopped: the interpreter would take its modules away while it works."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)
