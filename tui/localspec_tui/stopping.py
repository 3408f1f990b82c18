"""An application that a shell can stop, and let go on: `kill -TSTP`, `kill -STOP`, `fg`, `bg`."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, cast

from textual.app import App
from textual.driver import Driver

# Of a SIGTSTP and a SIGCONT within so many seconds nobody can tell which came first (Python calls their handlers by
# their numbers, and two threads may take one each): going on is safe, for who is stopped must wait for another SIGCONT.
AT_ONCE = 0.01


class StoppableApp(App[None]):
    """Stops, and goes on, between two callbacks of its event loop.

    Textual's own handlers act at once: in the middle of a write they wait for ever for the lock of what they
    interrupted, and after a stop that they did not see (SIGSTOP) they begin a second time.
    """

    _lent = False  # the terminal is, to a program that was started
    _has_terminal = False
    _to_stop = _to_go_on = False  # what was asked for and not yet done
    _went_on = -1.0  # when it was last let, in seconds of the monotonic clock

    def get_driver_class(self) -> type[Driver]:
        found = super().get_driver_class()
        return StoppableDriver if sys.platform != "win32" and found is LinuxDriver else found

    @contextmanager
    def suspend(self) -> Iterator[None]:
        self._lent = True
        try:
            with super().suspend():
                yield
                self._lent = False
        finally:
            self._lent = False

    def give_terminal_back(self) -> None:
        """On another thread, where the event loop is too busy to end; nothing may be drawn after it."""
        if sys.platform != "win32" and isinstance(self._driver, StoppableDriver):
            self._driver.give_back()

    def serve_stops(self) -> None:
        """To be called once it has the terminal; what was asked for before is done then."""
        if sys.platform != "win32" and isinstance(self._driver, StoppableDriver):
            self._has_terminal = True
            self._between_two()

    def asked_to_stop(self) -> None:
        """From the handler of a signal."""
        if time.monotonic() - self._went_on < AT_ONCE:
            return
        if self._lent:  # a shell waits for all that have its terminal
            self._to_stop = False
            os.kill(os.getpid(), signal.SIGSTOP)
        else:
            self._to_stop = True
            self._soon()

    def let_go_on(self) -> None:
        """From the handler of a signal; whoever had stopped it, if anybody had."""
        self._to_stop = False
        self._went_on = time.monotonic()
        if not self._lent:  # else whoever lent it takes it back
            self._to_go_on = True
            self._soon()

    def _soon(self) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # it is ending already
                self._loop.call_soon_threadsafe(self._between_two)

    def _between_two(self) -> None:
        if not self._has_terminal or self._exit:
            return
        go_on, self._to_go_on = self._to_go_on, False
        if self._to_stop:
            with super().suspend():
                if self._to_stop:  # still
                    self._to_stop = False
                    os.kill(os.getpid(), signal.SIGSTOP)
        elif go_on:
            if cast(StoppableDriver, self._driver).gets_keys():
                self.refresh(layout=True)  # all of it; to take the terminal anew would lose what is typed or pasted
            else:
                with self.suspend():  # a shell has changed its modes
                    pass


if sys.platform != "win32":
    import termios

    from textual.drivers.linux_driver import LinuxDriver

    class StoppableDriver(LinuxDriver):
        """Textual's own, from whose first moment on signals are the application's to serve."""

        def _sigtstp_application(self, *_: Any) -> None:
            cast(StoppableApp, self._app).asked_to_stop()

        def _sigcont_application(self, *_: Any) -> None:
            cast(StoppableApp, self._app).let_go_on()

        def give_back(self) -> None:
            """Leave the terminal as it was. The way of Textual needs the main thread, which is busy here."""
            self._disable_bracketed_paste()
            self._enable_line_wrap()
            self._disable_in_band_window_resize()
            self._disable_mouse_support()
            if self.attrs_before is not None:
                with suppress(termios.error):
                    termios.tcsetattr(self.fileno, termios.TCSANOW, self.attrs_before)
            self.write("\x1b[<u\x1b[?1049l\x1b[?25h\x1b[?1004l")
            self.flush()
            self.close()

        def gets_keys(self) -> bool:
            """Whether keys come one by one, and to this program: no shell has the terminal, or had it meanwhile."""
            try:
                by_lines = termios.tcgetattr(self.fileno)[3] & termios.ICANON
                return not by_lines and os.tcgetpgrp(self.fileno) == os.getpgrp()
            except (termios.error, OSError):
                return False
