"""What a command prints beside its output: notices, and a line of progress."""

import os
import sys
from collections import deque
from contextlib import suppress
from time import monotonic

from localspec.cli.console import size
from localspec.events import Reporter
from localspec.text import one_line


def tell(text: str, end: str = "\n") -> None:
    """Prints to standard error, if there is one: that it is closed or full must not cost the reply."""
    if sys.stderr is not None:
        with suppress(OSError):
            print(text, end=end, file=sys.stderr, flush=True)


class Progress:
    """One line on standard error that is overwritten, where that is a terminal that can."""

    def __init__(self) -> None:
        self._on = sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._shown = False

    @property
    def reporter(self) -> Reporter:
        """What the engine and the others that work for this command report to."""
        return Reporter(self.notice, self.show)

    def show(self, what: str) -> None:
        if self._on:
            self._shown = True
            tell(f"\r\x1b[K{one_line(what)} …", end="")

    def clear(self) -> None:
        if self._shown:
            tell("\r\x1b[K", end="")
            self._shown = False

    def notice(self, sentence: str) -> None:
        """Puts a sentence that stays in the place of the line."""
        self.clear()
        tell(f"localspec: {one_line(sentence)}")


class Download:
    """The line of progress of a download: how much, how fast over the last seconds, and how long it will still take."""

    PAUSE, WINDOW = 0.2, 10.0  # seconds between two lines, and over which the rate is taken

    def __init__(self, progress: Progress, name: str) -> None:
        self._progress, self._name = progress, name
        self._seen: deque[tuple[float, int]] = deque()  # when, and how many bytes were here

    def show(self, done: int, total: int) -> None:
        """`done` of `total` bytes are here."""
        now = monotonic()
        if self._seen and now - self._seen[-1][0] < self.PAUSE and done < total:
            return
        self._seen.append((now, done))
        while len(self._seen) > 2 and now - self._seen[0][0] > self.WINDOW:
            self._seen.popleft()
        (then, before), line = self._seen[0], f"fetching {self._name}: {size(done)} of {size(total)}"
        if now > then and done > before:
            rate = (done - before) / (now - then)
            line += f", {size(rate)}/s, {_duration((total - done) / rate)} left"
        self._progress.show(line)


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = int(seconds / 60 + 0.5)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
