"""Asks the terminal whether its background is light or dark. The answer arrives as input, among typed keys.

The question is sent before slow imports. The chat does not wait for the answer, so a slow connection costs no time. The
answer may arrive before Textual reads keys, later, or never. Textual would read it as keys, so the answer is removed
from the input; typed keys are not lost.
"""

import os
import re
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from localspec import environment

QUESTION = b"\x1b]11;?\x1b\\"  # OSC 11; terminals that do not know it ignore it
AWAITED = 5.0  # seconds to wait for an answer; a later one is useless, and would be taken for keys
LINGER = 1.0  # seconds for the answer if a chat fails at once: otherwise it would appear at the shell's prompt
BRIGHT = 0.5  # of the way from black to white, as perceived

_ANSWER = re.compile(
    r"\x1b\]11;rgba?:([0-9a-f]{1,4})/([0-9a-f]{1,4})/([0-9a-f]{1,4})(?:/[0-9a-f]{1,4})?(?:\x07|\x1b\\)", re.IGNORECASE
)
_BEGUN = re.compile(r"\x1b\](?:1(?:1(?:;[rgba:0-9a-f/]{0,30}\x1b?)?)?)?\Z", re.IGNORECASE)


def askable() -> bool:
    """Return whether the terminal can be asked for its background colour. Some terminals would print the question."""
    if sys.platform == "win32" or environment.terminal_kind() in ("", "dumb", "linux") or environment.in_screen():
        return False
    if sys.__stdin__ is None or sys.__stderr__ is None:
        return False
    try:
        return os.isatty(sys.__stdin__.fileno()) and os.isatty(sys.__stderr__.fileno())
    except (OSError, ValueError):
        return False


class Answer:
    """A filter of typed keys that hides the terminal's answer about its background colour.

    When the answer arrives, the filter calls `tell`: with True for a light background, False for a dark one.
    """

    def __init__(self, awaited: bool = True) -> None:
        self.show_again: Callable[[], None] = lambda: None  # typed text, after the chat has ended
        self._withheld = ""  # the beginning of a possible answer
        self._escape = ""  # the last character, if it is one
        self._end = time.monotonic() + AWAITED
        self.tell: Callable[[bool], object] = lambda _: None
        self.awaited = awaited

    def without(self, data: str) -> str:
        """Return the input `data` without the answer about the colour. A possible beginning of the answer is held back.

        But an escape character at the end of `data` is returned at once, because it may be the Escape key.
        """
        if not self.awaited:
            return data
        data, sent = self._escape + self._withheld + data, len(self._escape)
        self._withheld = ""
        if (match := _ANSWER.search(data)) is not None:
            self.awaited = False
            self.tell(_is_light(match[1], match[2], match[3]))
            return data[sent : match.start()] + data[match.end() :]
        if time.monotonic() > self._end:
            self.awaited = False
        elif (begun := _BEGUN.search(data)) is not None:
            data, self._withheld = data[: begun.start()], begun[0]
            if begun.start() < sent:
                self._withheld = self._withheld[sent:]
                return ""
        self._escape = data[-1:] if data.endswith("\x1b") else ""
        return data[sent:]


def _is_light(*channels: str) -> bool:
    red, green, blue = (int(digits, 16) / ((1 << 4 * len(digits)) - 1) for digits in channels)
    return 0.299 * red + 0.587 * green + 0.114 * blue > BRIGHT


@contextmanager
def queried(theme: str) -> Iterator[Answer]:
    """Ask the terminal for its background colour if the theme needs it. Yield the filter that removes the answer."""
    if theme != "auto" or not askable():
        yield Answer(awaited=False)
        return
    import termios

    began = time.monotonic()
    try:
        assert sys.__stdin__ and sys.__stderr__  # there is a terminal
        terminal = sys.__stdin__.fileno()
        original = termios.tcgetattr(terminal)
        silent = termios.tcgetattr(terminal)
        silent[3] &= ~termios.ECHO
        termios.tcsetattr(terminal, termios.TCSANOW, silent)
        os.write(sys.__stderr__.fileno(), QUESTION)
    except (OSError, termios.error):
        yield Answer(awaited=False)
        return
    answer = Answer()

    def show_again() -> None:
        with suppress(OSError, termios.error):
            termios.tcsetattr(terminal, termios.TCSANOW, original)

    answer.show_again = show_again
    try:
        yield answer
    finally:
        with suppress(OSError, termios.error):
            if answer.awaited and time.monotonic() < began + LINGER:
                _drain(terminal, answer, began + LINGER)
        show_again()


def _drain(terminal: int, answer: Answer, end: float) -> None:
    """Read and discard the terminal's answer, if it arrives before `end`.

    Text typed meanwhile is lost, as in any program that ends.
    """
    import termios
    import tty

    tty.setcbreak(terminal, termios.TCSANOW)
    while answer.awaited and (left := end - time.monotonic()) > 0 and select.select([terminal], [], [], left)[0]:
        answer.without(os.read(terminal, 1024).decode("latin-1"))
