"""What Ctrl+C does while a command works."""

import _thread
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer, get_ident
from types import FrameType

from localspec.cli import end_at_once

PAUSE = 0.05  # seconds between two looks at whether an import has ended


class CtrlC(KeyboardInterrupt):
    """Not KeyboardInterrupt itself: where that leaves exec(), CPython ends with the signal instead of our exit code."""


class Interrupt:
    """The first Ctrl+C waits for the import under way: native libraries swallow what is raised there, or abort.

    With `wait_for_step` it only sets `asked`, so that the step under way ends and text and tokens agree. The second one
    stops at once.
    """

    def __init__(self) -> None:
        self.asked = self.wait_for_step = self._comes_again = False
        self._later: Timer | None = None

    @contextmanager
    def heard(self) -> Iterator[None]:
        """A command works: Ctrl+C comes here, unless it is ignored (nohup and the like) or somebody else's."""
        ours = signal.getsignal(signal.SIGINT) in (signal.SIG_DFL, signal.default_int_handler, end_at_once)
        self.forget()
        if ours:
            signal.signal(signal.SIGINT, self._ask)
        try:
            yield
        finally:
            self.forget()
            if ours:
                signal.signal(signal.SIGINT, signal.default_int_handler)

    @contextmanager
    def in_steps(self) -> Iterator[None]:
        """A block that may set `wait_for_step`, which ends with it."""
        try:
            yield
        except Exception:
            if self.wait_for_step:  # nothing was raised into the step, so this is its own
                self.forget()
            raise
        finally:
            self.wait_for_step = False

    def check(self) -> None:
        """Raises CtrlC where one came."""
        if self.asked:
            self._stop()

    def forget(self) -> None:
        """It was answered, and the command goes on."""
        self._cancel()
        self.asked = False

    def _ask(self, _: int, frame: FrameType | None) -> None:
        first = self._comes_again or not self.asked
        self.asked, self._comes_again = True, False
        if first and _is_importing(frame):
            self._cancel()
            self._later = Timer(PAUSE, self._come_again, (get_ident(),))
            self._later.daemon = True
            self._later.start()
        elif not (first and self.wait_for_step):
            self._stop()

    def _come_again(self, thread: int) -> None:
        """On the timer's thread. The signal goes to the main one, which may sleep or wait for input by now."""
        self._comes_again = True
        if sys.platform == "win32":
            _thread.interrupt_main()
        else:
            signal.pthread_kill(thread, signal.SIGINT)

    def _stop(self) -> None:
        self._cancel()  # once it is raised, nothing may disturb what is tidied up
        raise CtrlC

    def _cancel(self) -> None:
        if self._later is not None:
            self._later.cancel()
        self._later, self._comes_again = None, False


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_filename != "<frozen importlib._bootstrap>":
        frame = frame.f_back
    return frame is not None


interrupt = Interrupt()  # signals belong to the process
