"""Reads a line. At a terminal the line can be edited, recalled by the arrow keys, and completed by Tab."""

import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress

from rich.cells import cell_len

from localspec.chat.commands import Completion, Suggestion, choices, needed
from localspec.cli.progress import tell
from localspec.cli.texts import LONGEST
from localspec.errors import UsageMistake
from localspec.outside_files import MIB
from localspec.text import one_line

HELD_BACK = 24  # characters that are held back until their word ends; Thai has no spaces
_PARTS = re.compile(r"\n| +|[^\n ]+")
_FENCES = ("```", "~~~")


class WordWrap:
    """A filter that breaks text between words, into lines of `columns`. None leaves it unchanged.

    Code between fences stays whole, so that it can be copied.
    """

    def __init__(self, columns: int | None) -> None:
        self._columns = columns
        self._at = 0  # columns of the line so far
        self._line = self._word = ""
        self._code = False

    def add(self, text: str) -> str:
        """Add text. Return the text that can be printed now. A word is held back until it has ended."""
        if self._columns is None:
            return text
        return "".join(map(self._take, _PARTS.findall(text)))

    def flush(self) -> str:
        """Return the word that was held back."""
        word, self._word = self._word, ""
        if self._columns is None or not word:
            return word
        wide, self._line = cell_len(word), self._line + word
        broken = not self._code and self._at > 0 and self._at + wide > self._columns
        self._at = (0 if broken else self._at) + wide
        return f"\n{word}" if broken else word

    def _take(self, part: str) -> str:
        if part == "\n":
            shown = self.flush() + part
            self._code ^= self._line.lstrip().startswith(_FENCES)
            self._at, self._line = 0, ""
            return shown
        if part[0] == " ":
            before = self.flush()
            blanks = part if self._code else part[: max((self._columns or 0) - self._at, 0)]
            self._at, self._line = self._at + len(blanks), self._line + part
            return before + blanks
        if self._code:
            self._word += part
            return self.flush()
        shown = ""
        for character in part:
            self._word += character
            if cell_len(character) > 1 or len(self._word) > HELD_BACK:  # Chinese may be broken anywhere
                shown += self.flush()
        return shown


TOO_LONG = f"A prompt is longer than {LONGEST // MIB} MiB, more than any model reads; pipe less."

LookUp = Callable[[str], Sequence[Suggestion]]


def read_line(mark: str, look_up: LookUp) -> str:
    """Return one line without its end. At a terminal, display `mark` before it. Raises EOFError, UsageMistake."""
    if sys.stdin is None:
        raise EOFError
    if sys.stdin.isatty() and sys.stdout is not None and sys.stdout.isatty():
        with suppress(ImportError):  # Windows has its own line editing
            _complete_with(look_up, mark)
        return input(mark)
    try:
        line = sys.stdin.readline(LONGEST + 1)
    except OSError as error:
        raise UsageMistake(f"Standard input cannot be read ({error.strerror}); pipe text in, or </dev/null.") from None
    if not line:
        raise EOFError
    if len(line) > LONGEST:
        raise UsageMistake(TOO_LONG)
    return line.rstrip("\n")


class Completer:
    """The completions of a line. readline requests them one at a time."""

    def __init__(self, look_up: LookUp) -> None:
        self._look_up = look_up
        self.found: list[Completion] = []

    def __call__(self, line: str, number: int) -> str | None:
        if number == 0:
            need = needed(line)
            self.found = choices(line, {} if need is None else {need: self._look_up(need)})
        return self.found[number].line if number < len(self.found) else None


def _complete_with(look_up: LookUp, mark: str) -> None:
    """Make Tab request completions from `look_up`. Raises ImportError if there is no readline."""
    import readline  # input() uses it once it is imported

    completer = Completer(look_up)

    def show(*_: object) -> None:
        tell("\n" + "\n".join(one_line(f"{shown}  {does}") for _, shown, does in completer.found))
        print(mark + readline.get_line_buffer(), end="", flush=True)

    readline.set_completer(completer)
    readline.set_completer_delims("")  # complete the whole line, not its last word
    readline.set_completion_display_matches_hook(show)
    readline.parse_and_bind("bind ^I rl_complete" if "libedit" in (readline.__doc__ or "") else "tab: complete")
