"""What Ctrl+C does: while a reply is being written, where nobody would hear of it, and at any other time.

And what other signals do that end a program, while a large file is being written.
"""

import _thread
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn, Self

INTERRUPTED = 130
_PAUSE = 0.05  # seconds until an import is looked at again


class Interrupt:
    """The first Ctrl+C lets the step under way finish, so that text and tokens agree; the second one stops at once.

    With `ends_too` SIGTERM and SIGHUP stop what is inside as the first one does, however many come, for a logout sends
    both; once all is left they end the process, and whoever waits for it learns what ended it.
    """

    def __init__(self, ends_too: bool = False) -> None:
        self.asked = self.wait_for_step = False
        self._ends = _ending() if ends_too else []
        self._ended: int | None = None

    def __enter__(self) -> Self:
        self._before = signal.getsignal(signal.SIGINT)
        self._ours = self._before in (signal.default_int_handler, interrupt)  # nohup and the like ignore it
        if self._ours:
            signal.signal(signal.SIGINT, self._ask)
        for number in self._ends:
            signal.signal(number, self._ask)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._ours:
            signal.signal(signal.SIGINT, self._before)
        for number in self._ends:
            signal.signal(number, signal.SIG_DFL)
        if self._ended:
            signal.raise_signal(self._ended)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if ends := number in self._ends:
            self._ended = self._ended or number
        if _would_be_lost(frame):
            return _postpone()
        # It is remembered, for a library may swallow the exception.
        first, self.asked = not self.asked, True
        if not (self.wait_for_step if first else ends):
            raise KeyboardInterrupt
        return None


def interrupt(_: int, frame: FrameType | None) -> None:
    """Ctrl+C where nothing else is said of it. Raises KeyboardInterrupt, once no import or finaliser is under way.

    A library that was half imported cannot be imported again, and some swallow what is raised meanwhile; what a
    finaliser raises Python prints and forgets.
    """
    if _would_be_lost(frame):
        return _postpone()
    raise KeyboardInterrupt


def postponed() -> bool:
    """Whether a Ctrl+C came that nobody has heard of yet."""
    return _waiting.is_set()


@contextmanager
def cleared_up_when_ended() -> Iterator[None]:
    """Has SIGTERM and SIGHUP end what is inside as an error does, so that nothing half written stays, and then all.

    nohup and the like ignore them, and go on doing so.
    """
    ended: list[int] = []

    def end(number: int, _: object) -> NoReturn:
        ended.append(number)
        raise SystemExit(128 + number)

    mine = _ending()
    for number in mine:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in mine:
            signal.signal(number, signal.SIG_DFL)
        if ended:
            signal.raise_signal(ended[0])  # whoever waits for this process learns what ended it


def _ending() -> list[int]:
    """The signals that end a program unless it asks for them: nohup and the like have some of them ignored."""
    names = [name for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    return [number for name in names if signal.getsignal(number := getattr(signal, name)) is signal.SIG_DFL]


def end_at_once(*_: object) -> NoReturn:
    """Ends the process without a word: nothing is left to be done, or nothing was begun."""
    os._exit(INTERRUPTED)


_waiting = threading.Event()  # set while a Ctrl+C is put off


def _would_be_lost(frame: FrameType | None) -> bool:
    """Whether an import or a finaliser is under way in this frame or one that called it."""
    while frame is not None:
        code = frame.f_code
        if code.co_filename == "<frozen importlib._bootstrap>":
            return True
        if code.co_name == "__del__" or code.co_qualname == "finalize.__call__":
            return True
        frame = frame.f_back
    return False


def _postpone() -> None:
    """Sends the signal again in a moment. Who presses Ctrl+C a second time meanwhile does not want to wait."""
    if _waiting.is_set():
        os.write(2, b"localspec: Interrupted.\n")
        end_at_once()
    _waiting.set()
    _thread.start_new_thread(_again, ())  # threading's own locks may be held by what was interrupted


def _again() -> None:
    time.sleep(_PAUSE)
    _waiting.clear()
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    else:
        signal.raise_signal(signal.SIGINT)
