"""What commands print in the same form: JSON, sizes, counts, times; and how they ask before they delete."""

import json
import sys
from collections.abc import Container, Sequence
from datetime import datetime
from typing import TextIO

import typer
from rich.cells import cell_len, set_cell_size

from localspec import charts
from localspec.errors import UsageMistake
from localspec.text import one_line

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def print_json(value: object) -> None:
    """One line of plain ASCII: escapes keep control characters from the terminal and every character in the data."""
    typer.echo(json.dumps(value))


def size(count: float) -> str:
    """Bytes as a person reads them."""
    power = 0
    while count >= 1024 and power < len(_UNITS) - 1:
        count, power = count / 1024, power + 1
    return f"{count:,.1f} {_UNITS[power]}" if power else "1 byte" if count == 1 else f"{count:,.0f} bytes"


def amount(count: int) -> str:
    """Parameters as a person reads them: `1.7 B`, `494 M`."""
    for unit, name in ((1e9, "B"), (1e6, "M")):
        if count >= unit:
            return f"{count / unit:.3g} {name}"
    return f"{count:,}"


def counted(count: int, what: str) -> str:
    """`1 phrase`, `1,234 phrases`."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def moment(seconds: float) -> str:
    """A time in seconds since 1970, to the minute, in this machine's time zone."""
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")


def ago(seconds: float, now: float) -> str:
    """How long before `now` that was, both in seconds since 1970; the day where it is more than a month."""
    passed = now - seconds
    for unit, name in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if passed >= 31 * 86400:
            break
        if passed >= unit:
            return f"{counted(int(passed // unit), name)} ago"
    return moment(seconds)[:10] if passed >= 31 * 86400 else "just now"


def table(rows: Sequence[Sequence[str]], right: Container[int] = (), width: int | None = None) -> list[str]:
    """Aligned columns, those numbered in `right` to the right; the last one is cut where a line would be too wide."""
    rows = [[one_line(cell) for cell in row] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    before = sum(widths[:-1]) + 2 * (len(widths) - 1)
    if width is not None:
        widths[-1] = max(8, min(widths[-1], width - before))
    lines = []
    for row in rows:
        cells = []
        for column, (cell, wide) in enumerate(zip(row, widths, strict=True)):
            if cell_len(cell) > wide:
                cell = set_cell_size(cell, wide - 1).rstrip() + "…"
            space = " " * (wide - cell_len(cell))
            cells.append(space + cell if column in right else cell + space)
        lines.append("  ".join(cells).rstrip())
    return lines


def seen() -> bool:
    """Whether a person reads standard output, and not a program."""
    return sys.stdout is not None and sys.stdout.isatty()


def drawable(text: str, stream: TextIO | None) -> str:
    """A text with bars and curves, in ASCII where the stream has no blocks."""
    try:
        "█▁▏".encode(getattr(stream, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return charts.in_ascii(text)
    return text


def may_delete(target: str, yes: bool) -> bool:
    """Asks whether to delete `target`, unless `yes`. Raises UsageMistake where nobody can be asked."""
    if not yes and not at_a_terminal():
        raise UsageMistake(one_line(f"{target} would be deleted and nobody can be asked here: add --yes."))
    if yes or typer.confirm(one_line(f"Delete {target}?")):
        return True
    typer.echo("Nothing was deleted.")
    return False


def at_a_terminal() -> bool:
    """Whether somebody can be asked."""
    return sys.stdin is not None and sys.stdin.isatty()
