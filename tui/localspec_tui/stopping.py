"""An application that a shell can stop, and let go on: `kill -TSTP`, `kill -STOP`, `fg`, `bg`."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from textual.app import App


class StoppableApp(App[None]):
    """Stops, and goes on, between two callbacks of its event loop.

    Textual's own handlers act at once: in the middle of a write they wait for ever for the lock of what they
    interrupted, and after a stop that they did not see (SIGSTOP) they begin a second time.
    """

    _lent = False  # the terminal, to a program that was started

    @contextmanager
    def suspend(self) -> Iterator[None]:
        with super().suspend():
            self._lent = True
            try:
                yield
            finally:
                self._lent = False

    def serve_stops(self) -> None:
        """To be called once it has the terminal, on the main thread; before that, Textual's own handlers serve."""
        if self._driver is not None and self._driver.can_suspend and os.name == "posix":
            signal.signal(signal.SIGTSTP, self._asked_to_stop)
            signal.signal(signal.SIGCONT, self._let_go_on)

    def _asked_to_stop(self, *_: Any) -> None:
        if self._lent:  # a shell waits for all that have its terminal
            os.kill(os.getpid(), signal.SIGSTOP)
        else:
            self._in_turn(lambda: os.kill(os.getpid(), signal.SIGSTOP))

    def _let_go_on(self, *_: Any) -> None:
        if not self._lent:  # else whoever lent it takes it back
            self._in_turn(lambda: None)

    def _in_turn(self, act: Callable[[], None]) -> None:
        """Gives the terminal away for what it does, and takes it back: with its modes, which the shell has changed."""

        def between() -> None:
            if not self._exit:
                with self.suspend():
                    act()

        if self._loop is not None:
            with suppress(RuntimeError):  # it is ending already
                self._loop.call_soon_threadsafe(between)
