"""Handles Ctrl+C while a reply is written, and other signals that end a program while it writes a large file."""

import _thread
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn, Self

INTERRUPTED = 130


class Interrupt:
    """A context that handles Ctrl+C. The first Ctrl+C lets the current decode step end, so that the reply has all of
    its tokens. The second stops the reply at once.

    `waits` is called, on another thread, when the first Ctrl+C has to wait for a step. With `ends_too`, the first
    SIGTERM and the first SIGHUP act like the first Ctrl+C, because a logout sends both. After the context, the signal
    ends the process, so that the parent process sees it. The same signal a second time ends the process at once.
    """

    def __init__(self, ends_too: bool = False, waits: Callable[[], object] | None = None) -> None:
        self.requested = self.wait_for_step = False
        self._waits = waits
        self._ends = _ending() if ends_too else []
        self._ended: int | None = None

    def __enter__(self) -> Self:
        self._previous_handler = signal.getsignal(signal.SIGINT)
        self._is_ours = self._previous_handler is signal.default_int_handler  # nohup and similar programs ignore it
        if self._is_ours:
            signal.signal(signal.SIGINT, self._ask)
        for number in self._ends:
            signal.signal(number, self._ask)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._is_ours:
            signal.signal(signal.SIGINT, self._previous_handler)
        for number in self._ends:
            signal.signal(number, signal.SIG_DFL)
        if self._ended:
            signal.raise_signal(self._ended)

    def _ask(self, number: int, _: object) -> None:
        if ends := number in self._ends:
            self._ended = self._ended or number
            signal.signal(number, signal.SIG_DFL)  # so that the next one ends the process, even in compiled code
        # It is stored, because a library may swallow the exception.
        first, self.requested = not self.requested, True
        if not (self.wait_for_step if first else ends):
            raise KeyboardInterrupt
        if first and self._waits:
            _thread.start_new_thread(self._waits, ())  # the signal may have interrupted code that prints


@contextmanager
def cleared_up_when_ended() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise SystemExit within this context, so that it can delete half-written files. Then they
    end the process.

    Signals that the process ignores, such as SIGHUP under nohup, stay ignored.
    """
    ended: list[int] = []

    def end(number: int, _: object) -> NoReturn:
        ended.append(number)
        raise SystemExit(128 + number)

    signals = _ending()
    for number in signals:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in signals:
            signal.signal(number, signal.SIG_DFL)
        if ended:
            signal.raise_signal(ended[0])  # the parent process learns the signal


def _ending() -> list[int]:
    """Return the signals that would end this program now. Programs like nohup make a program ignore some signals."""
    names = [name for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    return [number for name in names if signal.getsignal(number := getattr(signal, name)) is signal.SIG_DFL]


def end_at_once(*_: object) -> NoReturn:
    """End the process at once, without output: nothing is left to clean up."""
    os._exit(INTERRUPTED)
