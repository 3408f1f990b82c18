"""Output of commands: JSON, tables and wrapped text, notices and a line of progress; questions before deletions."""

import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Container, Sequence
from contextlib import suppress
from threading import Lock, Timer
from typing import Self, TextIO, TypeGuard

import typer
from rich.cells import cell_len, set_cell_size

from localspec.errors import UsageMistake
from localspec.events import Reporter
from localspec.marks import drawable, no_room
from localspec.text import one_line

LEAST = 8  # columns of the beginning of a cut cell
_SPEAKER = "localspec: "  # precedes messages on standard error, in the line of the first word
# Text that may be copied to a shell, within a sentence or at its end.
_WHOLE = re.compile(f"^{_SPEAKER}|`[^`]*`|(?<!^{_SPEAKER})(?<=: )localspec .*")
HELD_BACK = 24  # characters that `WordWrap` holds back until their word ends; Thai has no spaces
_PARTS = re.compile(r"\n| +|[^\n ]+")
_FENCES = ("```", "~~~")


def print_json(value: object) -> None:
    """Print a value as one line of JSON in ASCII.

    Escapes preserve every character, and protect the terminal from control characters.
    """
    typer.echo(json.dumps(value))


def table(
    rows: Sequence[Sequence[str]],
    right: Container[int] = (),
    width: int | None = None,
    whole: Container[int] = (),
    wraps: Container[int] = (),
) -> list[str]:
    """Return the lines of a table. The first row has the heads; columns whose number is in `right` align to the right.

    If lines would be wider than `width`, the last columns are left out, and a line below the table names them. Values
    of the last remaining column may be cut, or wrapped if its number is in `wraps`. A column whose number is in `whole`
    is left out rather than cut.
    """
    rows = [[one_line(cell) for cell in row] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    if width is not None:
        while (room := width - sum(widths[:-1]) - 2 * (len(widths) - 1)) < widths[-1] and len(widths) > 1:
            if room >= LEAST and len(widths) - 1 not in whole:
                break
            widths.pop()
        widths[-1] = max(1, min(widths[-1], room))
    lines = []
    for row in rows:
        *first, last = row[: len(widths)]
        cells = []
        for column, (cell, wide) in enumerate(zip(first, widths, strict=False)):
            space = " " * (wide - cell_len(cell))
            cells.append(space + cell if column in right else cell + space)
        for part in _parts(last, widths[-1], wraps=len(first) in wraps):
            space = " " * (widths[-1] - cell_len(part))
            lines.append("  ".join([*cells, space + part if len(first) in right else part]).rstrip())
            cells = [" " * wide for wide in widths[:-1]]
    return lines if len(widths) == len(rows[0]) else [*lines, *folded(no_room(rows[0][len(widths) :]), width)]


def _parts(cell: str, wide: int, *, wraps: bool) -> list[str]:
    """Break a cell into lines after blanks and plus signs if it `wraps`. Cut lines that are still too wide.

    Words in wide characters, such as Chinese, are broken anywhere, because such text has no blanks.
    """
    parts = [""]
    for word in re.findall(r"[^ +]+[ +]?|[ +]", cell) if wraps else [cell]:
        anywhere = wraps and cell_len(word.rstrip()) > max(wide, len(word))
        for piece in word if anywhere else [word]:
            if parts[-1] and cell_len((parts[-1] + piece).rstrip()) > wide:
                parts.append("")
            parts[-1] += piece
    parts = [part.rstrip() for part in parts]
    return [part if cell_len(part) <= wide else set_cell_size(part, wide - 1).rstrip() + "…" for part in parts]


def folded(line: str, width: int | None, indent: int = 0) -> list[str]:
    """Break a line between words if it is too wide. Indent the parts after the first.

    Paths and commands stay whole. The terminal breaks a path that is wider than a line, and copying joins it again.
    """
    if width is None:
        return [line]
    line = _WHOLE.sub(lambda match: match[0].replace(" ", "\0"), line)
    parts = textwrap.wrap(line, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)
    return [part.replace("\0", " ") for part in parts] or [""]


class WordWrap:
    """A filter that breaks text between words, into lines of at most `columns`. With None, the text stays as it is.

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
            word = self.flush()
            blanks = part if self._code else part[: max((self._columns or 0) - self._at, 0)]
            self._at, self._line = self._at + len(blanks), self._line + part
            return word + blanks
        if self._code:
            self._word += part
            return self.flush()
        shown = ""
        for character in part:
            self._word += character
            if cell_len(character) > 1 or len(self._word) > HELD_BACK:  # Chinese may be broken anywhere
                shown += self.flush()
        return shown


def output_is_terminal() -> bool:
    """Return whether a person, not a program, reads standard output."""
    return is_terminal(sys.stdout)


def window(stream: TextIO | None) -> tuple[int | None, int | None]:
    """Return the columns and lines of a stream's terminal; None if a program reads the stream, or if unknown."""
    if stream is sys.stdout:
        return shutil.get_terminal_size() if output_is_terminal() else (None, None)
    with suppress(OSError):
        if is_terminal(stream):
            columns, lines = os.get_terminal_size(stream.fileno())
            return columns or None, lines or None
    return None, None


def width() -> int | None:
    """Return the columns of the terminal of standard output; None if a program reads it."""
    return window(sys.stdout)[0]


def is_terminal(stream: TextIO | None) -> TypeGuard[TextIO]:
    """Return whether a standard stream is open, and is a terminal."""
    return stream is not None and stream.isatty()


def may_delete(target: str, yes: bool) -> bool:
    """Return whether `target` may be deleted; ask unless `yes` is set. Raises UsageMistake if there is no terminal."""
    if not yes and not at_a_terminal():
        raise UsageMistake(
            one_line(f"Deleting {target} needs confirmation, and there is no terminal to ask on; add --yes.")
        )
    if yes or typer.confirm(one_line(f"Delete {target}?")):
        return True
    typer.echo("Nothing was deleted.")
    return False


def at_a_terminal() -> bool:
    """Return whether standard input is a terminal, where a question can be answered."""
    return is_terminal(sys.stdin)


def piped() -> bool:
    """Return whether a program, not a person, writes the prompts or reads the replies, as in a script."""
    return not (at_a_terminal() and output_is_terminal())


# -- on standard error ------------------------------------------------------------------------------------------------


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
    """A line of progress on standard error. On a terminal it is overwritten; leaving the context removes it.

    Elsewhere one line is printed for each wait of more than WAIT_SECONDS, unless `names_waits` is False.
    """

    def __init__(self, names_waits: bool = True) -> None:
        self._on = is_terminal(sys.stderr) and os.environ.get("TERM") != "dumb"
        self._shown = False
        self._names_waits = names_waits
        self._lock, self._stage, self._printed = Lock(), "", ""
        self._wait: Timer | None = None  # it has ended once `_printed` is set

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.clear()

    @property
    def reporter(self) -> Reporter:
        """Return a reporter for the engine, which shows notices and progress on standard error."""
        return Reporter(self.notice, self.show)

    def show(self, stage: str) -> None:
        """Display what the user waits for now, such as "loading qwen3: 40 %"."""
        if self._on:
            self._shown = True
            # a longer one would wrap, and could not be overwritten
            fitting = max((window(sys.stderr)[0] or 80) - len(" …") - 1, 0)
            tell(f"\r\x1b[K{one_line(stage)[:fitting]} …", end="")
            return
        with self._lock:
            self._stage = stage
            if self._printed and _kind(stage) != self._printed:  # another wait has begun
                self._wait, self._printed = None, ""
            if self._wait is None and self._names_waits:
                self._wait = Timer(WAIT_SECONDS, self._print_wait)
                self._wait.daemon = True
                self._wait.start()

    def clear(self) -> None:
        """Remove the line of progress, and forget when the wait began."""
        with self._lock:
            if self._wait is not None:
                self._wait.cancel()
            self._wait, self._stage, self._printed = None, "", ""
        if self._shown:
            tell("\r\x1b[K", end="")
            self._shown = False

    def _print_wait(self) -> None:
        """Print the current wait; the timer calls this after WAIT_SECONDS."""
        with self._lock:
            if self._stage:
                self._printed = _kind(self._stage)
                say(f"{self._stage} …")

    def notice(self, sentence: str) -> None:
        """Remove the line of progress, and print a sentence that stays."""
        self.clear()
        say(sentence)


def _kind(stage: str) -> str:
    """Return the name of a wait without its progress: "loading qwen3" for "loading qwen3: 40 %"."""
    return re.split(r"\d|: ", stage, maxsplit=1)[0]
