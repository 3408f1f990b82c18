"""Output of commands on standard error: notices, and a line of progress."""

import os
import re
import sys
from contextlib import suppress
from threading import Lock, Timer
from time import monotonic

from localspec.cli.console import folded, window
from localspec.events import Reporter
from localspec.marks import drawable
from localspec.quantities import Arrival
from localspec.text import one_line


def tell(text: str, end: str = "\n") -> None:
    """Print to standard error. Errors are ignored, because a closed stream must not end the reply."""
    if sys.stderr is not None:
        with suppress(OSError):
            print(drawable(text, sys.stderr), end=end, file=sys.stderr, flush=True)


def say(sentence: str) -> None:
    """Print a sentence to standard error, wrapped between words on a terminal."""
    for line in folded(f"localspec: {one_line(sentence)}", window(sys.stderr)[0]):
        tell(line)


WAIT_SECONDS = 8.0  # a longer wait gets one line if no line can be overwritten


class Progress:
    """A line of progress on standard error. On a terminal it is overwritten.

    Elsewhere one line is printed for each wait of more than WAIT_SECONDS, unless `names_waits` is False.
    """

    def __init__(self, names_waits: bool = True) -> None:
        self._on = sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._shown = False
        self._names_waits = names_waits
        self._lock, self._what, self._named = Lock(), "", ""
        self._wait: Timer | None = None  # it has ended once `_named` is set

    @property
    def reporter(self) -> Reporter:
        """Return a reporter for the engine, which shows notices and progress here."""
        return Reporter(self.notice, self.show)

    def show(self, what: str) -> None:
        """Display the current wait, such as "loading qwen3: 40 %"."""
        if self._on:
            self._shown = True
            fitting = max(
                (window(sys.stderr)[0] or 80) - len(" …") - 1, 0
            )  # a longer one would wrap, and could not be overwritten
            tell(f"\r\x1b[K{one_line(what)[:fitting]} …", end="")
            return
        with self._lock:
            self._what = what
            if self._named and _kind(what) != self._named:  # another wait has begun
                self._wait, self._named = None, ""
            if self._wait is None and self._names_waits:
                self._wait = Timer(WAIT_SECONDS, self._name)
                self._wait.daemon = True
                self._wait.start()

    def clear(self) -> None:
        """Remove the line of progress, and forget when the wait began."""
        with self._lock:
            if self._wait is not None:
                self._wait.cancel()
            self._wait, self._what, self._named = None, "", ""
        if self._shown:
            tell("\r\x1b[K", end="")
            self._shown = False

    def _name(self) -> None:
        """Print a line that names a long wait."""
        with self._lock:
            if self._what:
                self._named = _kind(self._what)
                say(f"{self._what} …")

    def notice(self, sentence: str) -> None:
        """Print a sentence in place of the line. The sentence stays."""
        self.clear()
        say(sentence)


def _kind(what: str) -> str:
    """Return the name of a wait without its progress, such as "loading qwen3"."""
    return re.split(r"\d|: ", what, maxsplit=1)[0]


class DownloadProgress:
    """A line of progress for a download."""

    PAUSE = 0.2  # seconds between two lines

    def __init__(self, progress: Progress, name: str) -> None:
        self._progress, self._name = progress, name
        self._arrival, self._shown = Arrival(), float("-inf")

    def show(self, done: int, total: int) -> None:
        """Show that `done` of `total` bytes have arrived."""
        now = monotonic()
        if now - self._shown >= self.PAUSE or done >= total:
            self._shown = now
            self._progress.show(f"fetching {self._name}: {', '.join(self._arrival.parts(done, total, now))}")
