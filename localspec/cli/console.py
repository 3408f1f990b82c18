"""What commands print in the same form: JSON, sizes, counts, times; and how they ask before they delete."""

import json
import sys
from datetime import datetime
from typing import TextIO

import typer

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


def counted(count: int, what: str) -> str:
    """`1 phrase`, `1,234 phrases`."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def moment(seconds: float) -> str:
    """A time in seconds since 1970, to the minute, in this machine's time zone."""
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")


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
