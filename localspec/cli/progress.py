"""What a command says beside its output: notices, and a line of progress."""

import os
import sys
from contextlib import suppress

from localspec.text import one_line


def tell(text: str, end: str = "\n") -> None:
    """To standard error, if there is one: that it is closed or full must not cost the reply."""
    if sys.stderr is not None:
        with suppress(OSError):
            print(text, end=end, file=sys.stderr, flush=True)


class Progress:
    """One line on standard error that is overwritten, where that is a terminal that can."""

    def __init__(self) -> None:
        self._on = sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._shown = False

    def show(self, what: str) -> None:
        if self._on:
            self._shown = True
            tell(f"\r\x1b[K{one_line(what)} …", end="")

    def clear(self) -> None:
        if self._shown:
            tell("\r\x1b[K", end="")
            self._shown = False

    def notice(self, sentence: str) -> None:
        """A sentence that stays, in the place of the line."""
        self.clear()
        tell(f"localspec: {one_line(sentence)}")
