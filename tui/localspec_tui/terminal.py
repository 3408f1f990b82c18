"""Protects the terminal: redirects the output of libraries, handles signals, and restores it when the chat ends."""

import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from localspec import marks
from localspec.paths import private_directory

HANGUP = 129  # exit code of a program whose terminal was closed (128 + SIGHUP)
LOG_BYTES = 1_000_000  # a larger log is emptied at the next start
QUIET = {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}


def prepare() -> None:
    """Silence libraries. Start the helper process of `multiprocessing` now: it cannot start once Textual has replaced
    standard error."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    if os.name == "posix":
        # A progress bar creates a lock, which starts a tracker process. That fails once Textual has replaced standard
        # error, so start it now.
        from multiprocessing import resource_tracker

        resource_tracker.ensure_running()


class _Terminal(io.TextIOWrapper):
    """A stream to the terminal. If the terminal is closed, a write calls `on_close`, and raises no error.

    After an error, Textual would wait forever for its writing thread.
    """

    def __init__(self, descriptor: int, real: TextIO, on_close: Callable[[], None]) -> None:
        super().__init__(os.fdopen(descriptor, "wb"), encoding=real.encoding, errors="replace", newline="")
        self._on_close, self._ascii = on_close, marks.ascii_only(real)

    def write(self, text: str) -> int:
        try:
            return super().write(marks.in_ascii(text) if self._ascii else text)
        except OSError:
            self._on_close()
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError:
            self._on_close()

    def close(self) -> None:
        with suppress(OSError):
            super().close()


@contextmanager
def guarded(log: Path, on_close: Callable[[], None]) -> Iterator[None]:
    """Give Textual a private copy of the terminal. Send the output of libraries on descriptors 1 and 2 to `log`.

    `on_close` is called on the drawing thread when the terminal is closed.
    """
    with ExitStack() as afterwards:
        sink = _open_log(log)
        afterwards.callback(os.close, sink)
        for number, name in ((1, "stdout"), (2, "stderr")):
            stream = getattr(sys, name)
            stream.flush()
            saved = os.dup(number)
            afterwards.callback(os.close, saved)
            afterwards.callback(os.dup2, saved, number)
            afterwards.callback(stream.flush)  # buffered output belongs to the log
            real = getattr(sys, f"__{name}__")
            terminal = _Terminal(os.dup(saved), real, on_close)
            setattr(sys, f"__{name}__", terminal)
            afterwards.callback(terminal.close)
            afterwards.callback(setattr, sys, f"__{name}__", real)
        for number in (1, 2):
            os.dup2(sink, number)
        yield


def _open_log(log: Path) -> int:
    """Open the log, readable only by its owner. Return its descriptor; on an error, a descriptor of /dev/null."""
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
    """Return whether the terminal still exists and can send keys."""
    try:
        return sys.__stdin__ is not None and os.isatty(sys.__stdin__.fileno())
    except (OSError, ValueError):
        return False


@contextmanager
def signals(leave: Callable[[int], None], overdue: Callable[[int], None]) -> Iterator[None]:
    """Handle signals that would end the process: end the chat like ctrl+q, but with the exit code that shells expect.

    The main thread calls `leave` when it next runs Python code. That may take long, so another thread also calls
    `overdue` at once.
    """
    handlers: dict[int, Any] = {}

    def is_handled(number: int) -> bool:  # an editor that has the terminal also gets Ctrl+C
        return number in handlers and signal.getsignal(number) is handlers[number]

    with ExitStack() as afterwards:
        for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"):
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                handlers[number] = lambda signum, _: leave(128 + signum)
                afterwards.callback(signal.signal, number, signal.signal(number, handlers[number]))
        if os.name == "posix":
            afterwards.enter_context(_watched(is_handled, overdue))
        for name in ("SIGTSTP", "SIGCONT"):  # Textual replaces these; restore them after it
            if hasattr(signal, name):
                number = getattr(signal, name)
                afterwards.callback(signal.signal, number, signal.getsignal(number))
        yield


@contextmanager
def _watched(is_handled: Callable[[int], bool], overdue: Callable[[int], None]) -> Iterator[None]:
    """Call `overdue`, on a separate thread, with the exit code for each signal that `is_handled` accepts."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    previous = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)

    def watch() -> None:
        while data := os.read(reading, 1):
            if is_handled(data[0]):
                overdue(128 + data[0])
        os.close(reading)

    threading.Thread(target=watch, name="signals", daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(previous)
        os.close(writing)


def end_without_waiting(code: int) -> None:
    """Exit without waiting for a thread that cannot be stopped.

    A normal exit would unload modules that the thread uses.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)
