"""A program on a pseudo-terminal, for pictures and measurements. Linux and macOS."""

import contextlib
import os
import pty
import select
import struct
import subprocess
import time
from collections.abc import Callable

import psutil
import pyte

CHECKING = 0.25  # seconds between two checks whether a reply has ended


class Terminal:
    """A program on a pseudo-terminal. `screen` is the text that a person would see."""

    def __init__(self, command: list[str], environment: dict[str, str], size: tuple[int, int] = (120, 40)) -> None:
        self.screen = pyte.Screen(*size)
        self._stream = pyte.ByteStream(self.screen)
        self.began = time.perf_counter()
        self._file, theirs = pty.openpty()
        self._resize(theirs, *size)
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True
        )
        os.close(theirs)

    @staticmethod
    def _resize(terminal: int, columns: int, lines: int) -> None:
        import fcntl
        import termios

        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def send(self, keys: str) -> None:
        os.write(self._file, keys.encode())

    def until(self, seen: Callable[[str], bool], seconds: float = 120, every: float = 0.0) -> float:
        """Read until the screen shows it; return the seconds from the start until then.

        Look once in `every` seconds, because looking takes time from the program that is measured.
        """
        looked = -every
        while True:
            now = time.perf_counter() - self.began
            if now - looked >= every:
                looked = now
                if seen("\n".join(self.screen.display)):
                    return time.perf_counter() - self.began
            if now > seconds:
                raise SystemExit("the screen never showed it:\n" + "\n".join(self.screen.display))
            if data := self.read(0.05):
                self.feed(data)

    def read(self, seconds: float) -> bytes:
        """Return the next bytes of the program, or none after `seconds`."""
        if select.select([self._file], [], [], seconds)[0]:
            with contextlib.suppress(OSError):
                return os.read(self._file, 1 << 16)
        return b""

    def feed(self, data: bytes) -> None:
        """Draw it. That takes longer than most programs need to send it."""
        self._stream.feed(data)

    def skim(self, done: Callable[[], bool], seconds: float = 600) -> None:
        """Read until `done` without drawing, so that the terminal takes no time from the timed program.

        Asking fifty times a second whether it is done took 1.6 % of a core.
        """
        until, checked = time.perf_counter() + seconds, -CHECKING
        while True:
            now = time.perf_counter()
            if now - checked >= CHECKING:
                checked = now
                if done():
                    return
            if now > until:
                raise SystemExit("the reply never came, or never ended")
            self.read(CHECKING)

    def seconds_of_the_screen(self) -> float:
        """Return the CPU seconds of its first thread; 0 if the system does not name it by the number of the process."""
        threads = psutil.Process(self.process.pid).threads()
        return sum((float(one.user_time + one.system_time) for one in threads if one.id == self.process.pid), 0.0)

    def leave(self) -> None:
        """Press Ctrl+Q, and read until the program has ended, or it would wait."""
        self.send("\x11")
        self.until(lambda _: self.process.poll() is not None, time.perf_counter() - self.began + 60, every=0.05)
