"""Output in the forms that commands share, JSON and tables, and questions before deletions."""

import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Container, Sequence
from contextlib import suppress
from typing import TextIO, TypeGuard

import typer
from rich.cells import cell_len, set_cell_size

from localspec.errors import UsageMistake
from localspec.marks import no_room
from localspec.text import one_line

LEAST = 8  # columns of the beginning of a cut cell
_SPEAKER = "localspec: "  # precedes messages on standard error, in the line of the first word
# Text that may be copied to a shell, within a sentence or at its end.
_WHOLE = re.compile(f"^{_SPEAKER}|`[^`]*`|(?<!^{_SPEAKER})(?<=: )localspec .*")


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
    """Return rows as aligned columns below their heads; columns whose number is in `right` are aligned to the right.

    If a line would be too wide, the last columns are left out, and a line names them. A column is left out if there is
    no room for the beginning of its values, or for the whole values if its number is in `whole`. A value that is too
    wide for the last column is cut, or continues on the next line if the column's number is in `wraps`.
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
    """Break a cell into lines after blanks and plus signs if it `wraps`. Cut what is still too wide."""
    parts = [""]
    for word in re.findall(r"[^ +]*[ +]?", cell) if wraps else [cell]:
        if parts[-1] and cell_len((parts[-1] + word).rstrip()) > wide:
            parts.append("")
        parts[-1] += word
    parts = [part.rstrip() for part in parts]
    return [part if cell_len(part) <= wide else set_cell_size(part, wide - 1).rstrip() + "…" for part in parts]


def folded(line: str, width: int | None, indent: int = 0) -> list[str]:
    """Break a line between words if it is too wide. Indent the parts after the first.

    Paths and commands stay whole. If one is wider than a line, the terminal breaks it, and copying joins it again.
    """
    if width is None:
        return [line]
    line = _WHOLE.sub(lambda found: found[0].replace(" ", "\0"), line)
    parts = textwrap.wrap(line, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)
    return [part.replace("\0", " ") for part in parts] or [""]


def once_more(lines: Sequence[str], height: int | None) -> list[str]:
    """Return the lines of a page.

    If its first part would scroll away, repeat that part, up to the first empty line, at the end.
    """
    return [*lines] if height is None or len(lines) < height else [*lines, "", *lines[: lines.index("")]]


def seen() -> bool:
    """Return whether a person, not a program, reads standard output."""
    return _is_terminal(sys.stdout)


def window(stream: TextIO | None) -> tuple[int | None, int | None]:
    """Return the columns and lines of a stream's terminal; None if a program reads the stream, or if unknown."""
    if stream is sys.stdout:
        return shutil.get_terminal_size() if seen() else (None, None)
    with suppress(OSError):
        if _is_terminal(stream):
            columns, lines = os.get_terminal_size(stream.fileno())
            return columns or None, lines or None
    return None, None


def width() -> int | None:
    """Return the columns of the terminal of standard output; None if a program reads it."""
    return window(sys.stdout)[0]


def _is_terminal(stream: TextIO | None) -> TypeGuard[TextIO]:
    return stream is not None and stream.isatty()


def may_delete(target: str, yes: bool) -> bool:
    """Ask whether to delete `target`, unless `yes` is set. Raises UsageMistake if there is no terminal."""
    if not yes and not at_a_terminal():
        raise UsageMistake(one_line(f"Deleting {target} needs confirmation; no terminal to ask, so add --yes."))
    if yes or typer.confirm(one_line(f"Delete {target}?")):
        return True
    typer.echo("Nothing was deleted.")
    return False


def at_a_terminal() -> bool:
    """Return whether standard input is a terminal, where a question can be answered."""
    return _is_terminal(sys.stdin)


def piped() -> bool:
    """Return whether a program writes the prompts or reads the replies. A chat does not list such conversations."""
    return not (at_a_terminal() and seen())
