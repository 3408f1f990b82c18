"""An application that a shell can stop and continue (Ctrl+Z, `fg`), and the driver that reads its terminal."""

import asyncio
import codecs
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, cast

from textual.app import App
from textual.driver import Driver

from localspec.text import PasteFilter

# The sequences that undo all of Textual's modes: pastes, wrapping, sizes, mouse, keyboard, screen, cursor, focus.
_UNDONE = (
    "\x1b[?2004l\x1b[?7h\x1b[?2048l\x1b[?1000l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[<u\x1b[?1049l\x1b[?25h\x1b[?1004l"
)

# Python may call the handlers of a SIGTSTP and a SIGCONT within this time in either order. Continuing is safe.
TOGETHER = 0.01


class StoppableApp(App[None]):
    """An application that a signal stops and continues, but only between two callbacks of its event loop.

    Textual's own signal handlers act at once. During a write to the terminal, they would wait forever for the lock that
    the write holds. No handler sees SIGSTOP, so at the next SIGCONT Textual would start its driver a second time.
    """

    driver: "TerminalDriver | None" = None  # None without a terminal, as in a tab of a browser
    event_loop: asyncio.AbstractEventLoop | None = None
    meant: Callable[[str], str] = staticmethod(lambda typed: typed)  # translates typed text
    _lent = False  # whether another program has the terminal
    _served = False  # whether signals are handled now
    _to_stop = _to_continue = False
    _continued_at = -TOGETHER

    def get_driver_class(self) -> type[Driver]:
        driver = super().get_driver_class()
        return TerminalDriver if sys.platform != "win32" and driver is LinuxDriver else driver

    def soon(self, call: Callable[[], object]) -> None:
        """Call a function between two callbacks of the event loop. Any thread or signal handler may call `soon`."""
        if self.event_loop is not None:
            with suppress(RuntimeError):  # the loop is closed
                self.event_loop.call_soon_threadsafe(call)

    def on_load(self) -> None:
        self.event_loop = asyncio.get_running_loop()

    def on_mount(self) -> None:
        """Handle the signals that arrived before the application ran. Later signals are handled when they arrive."""
        self._served = True
        self._serve()

    def on_unmount(self) -> None:
        self._served = False

    @contextmanager
    def suspend(self) -> Iterator[None]:
        self._lent = True
        try:
            with super().suspend():
                yield
                self._lent = False
        finally:
            self._lent = False

    def stop_requested(self) -> None:
        """Stop soon. If an editor has the terminal, stop at once, because the shell waits for both processes."""
        if time.monotonic() - self._continued_at < TOGETHER:
            return
        self._to_stop = not self._lent
        if self._lent:
            os.kill(os.getpid(), signal.SIGSTOP)
        self.soon(self._serve)

    def continue_requested(self) -> None:
        """Continue after a stop. If another program has the terminal, take it back later."""
        self._to_stop, self._to_continue, self._continued_at = False, not self._lent, time.monotonic()
        self.soon(self._serve)

    def _serve(self) -> None:
        if self.driver is None or not self._served:
            return
        to_continue, self._to_continue = self._to_continue, False
        if self._to_stop:
            with super().suspend():
                if self._to_stop:  # otherwise it was continued meanwhile
                    self._to_stop = False
                    os.kill(os.getpid(), signal.SIGSTOP)
        elif to_continue and self.driver.gets_keys():
            self.refresh(layout=True)  # suspending would lose typed or pasted text
        elif to_continue:
            with self.suspend():  # a shell has changed the terminal's modes
                pass


if sys.platform != "win32":
    import termios

    from textual.drivers.linux_driver import LinuxDriver

    class TerminalDriver(LinuxDriver):
        """Textual's driver with two changes: the application handles signals, and typed text is filtered."""

        def __init__(self, app: App[Any], **options: Any) -> None:
            super().__init__(app, **options)
            self.terminal = self.fileno
            self.application = cast("StoppableApp", app)
            self.application.driver = self
            signal.signal(signal.SIGTSTP, lambda *_: self.application.stop_requested())
            signal.signal(signal.SIGCONT, lambda *_: self.application.continue_requested())

        def run_input_thread(self) -> None:
            """Let Textual read from a pipe, to which another thread writes the filtered input of the terminal."""
            keys, write_end = os.pipe()
            ended, end = os.pipe()
            thread = threading.Thread(target=self._filter, args=(write_end, ended), name="keys", daemon=True)
            thread.start()
            self.fileno = keys
            try:
                super().run_input_thread()
            finally:
                self.fileno = self.terminal
                os.close(end)
                os.close(keys)
                thread.join()
                os.close(ended)

        def _filter(self, target: int, stop: int) -> None:
            """Copy filtered input from the terminal to the pipe `target`, until the terminal or pipe `stop` ends."""
            decode = codecs.getincrementaldecoder("utf-8")("replace").decode
            pastes = PasteFilter()
            with open(target, "wb", buffering=0) as keys:
                while stop not in select.select([self.terminal, stop], [], [])[0]:
                    try:
                        data = os.read(self.terminal, 4096)
                    except OSError:
                        data = b""
                    if not data:
                        self.application.soon(self.application.panic)
                        select.select([stop], [], [])
                        return
                    with suppress(OSError):  # Textual has stopped reading
                        keys.write(self.application.meant(pastes.read(decode(data))).encode())

        def give_back(self) -> None:
            """Restore the terminal. Textual's own method would wait for the main thread, which is still busy."""
            if self.attrs_before is not None:
                with suppress(termios.error):
                    termios.tcsetattr(self.terminal, termios.TCSANOW, self.attrs_before)
            self.write(_UNDONE)
            self.flush()
            self.close()

        def gets_keys(self) -> bool:
            """Return whether the terminal sends each key at once to this program, and not to a shell."""
            try:
                by_lines = termios.tcgetattr(self.terminal)[3] & termios.ICANON
                return not by_lines and os.tcgetpgrp(self.terminal) == os.getpgrp()
            except (termios.error, OSError):
                return False
