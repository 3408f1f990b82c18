"""What a command prints to standard error: notices, and a line of progress."""

import os
import re
import sys
from contextlib import suppress
from threading import Lock, Timer
from time import monotonic

from localspec.cli.console import folded, window
from localspec.events import Reporter
from localspec.marks import drawable
from localspec.pulling.arrival import Arrival
from localspec.text import one_line


def tell(text: str, end: str = "\n") -> None:
    """Prints to standard error, if there is one: that it is closed or full must not cost the reply."""
    if sys.stderr is not None:
        with suppress(OSError):
            print(drawable(text, sys.stderr), end=end, file=sys.stderr, flush=True)


def say(sentence: str) -> None:
    """One sentence to standard error, broken between words where that is a terminal."""
    for line in folded(f"localspec: {one_line(sentence)}", window(sys.stderr)[0]):
        tell(line)


WAIT_SECONDS = 8.0  # after which a wait is named where no line can be overwritten


class Progress:
    """One line on standard error that is overwritten, where that is a terminal that can.

    Elsewhere a line names a wait that takes long, once, unless `names_waits` is False.
    """

    def __init__(self, names_waits: bool = True) -> None:
        self._on = sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._shown = False
        self._names_waits = names_waits
        self._lock, self._what, self._named = Lock(), "", ""
        self._wait: Timer | None = None  # which is over where `_named` is what was named

    @property
    def reporter(self) -> Reporter:
        """What the engine and the others that work for this command report to."""
        return Reporter(self.notice, self.show)

    def show(self, what: str) -> None:
        if self._on:
            self._shown = True
            fitting = max((window(sys.stderr)[0] or 80) - len(" …") - 1, 0)  # what went on in the next line would stay
            tell(f"\r\x1b[K{one_line(what)[:fitting]} …", end="")
            return
        with self._lock:
            self._what = what
            if self._named and _kind(what) != self._named:  # what is waited for now is something else
                self._wait, self._named = None, ""
            if self._wait is None and self._names_waits:
                self._wait = Timer(WAIT_SECONDS, self._name)
                self._wait.daemon = True
                self._wait.start()

    def clear(self) -> None:
        with self._lock:
            if self._wait is not None:
                self._wait.cancel()
            self._wait, self._what, self._named = None, "", ""
        if self._shown:
            tell("\r\x1b[K", end="")
            self._shown = False

    def _name(self) -> None:
        with self._lock:
            if self._what:
                self._named = _kind(self._what)
                say(f"{self._what} …")

    def notice(self, sentence: str) -> None:
        """Puts a sentence that stays in the place of the line."""
        self.clear()
        say(sentence)


def _kind(what: str) -> str:
    """Return what is waited for, without how far it is."""
    return re.split(r"\d|: ", what, maxsplit=1)[0]


class Download:
    """The line of progress of a download."""

    PAUSE = 0.2  # seconds between two lines

    def __init__(self, progress: Progress, name: str) -> None:
        self._progress, self._name = progress, name
        self._arrival, self._shown = Arrival(), float("-inf")

    def show(self, done: int, total: int) -> None:
        """`done` of `total` bytes are here."""
        now = monotonic()
        if now - self._shown >= self.PAUSE or done >= total:
            self._shown = now
            self._progress.show(f"fetching {self._name}: {', '.join(self._arrival.parts(done, total, now))}")
