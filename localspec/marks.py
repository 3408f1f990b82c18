"""Draws bars, curves, borders, arrows, dots and quotes. On terminals without Unicode, ASCII characters replace them."""

import locale
import sys
from collections.abc import Sequence
from typing import TextIO

from rich.cells import cell_len, chop_cells

EIGHTHS = " ▁▂▃▄▅▆▇█"
PARTS = " ▏▎▍▌▋▊▉█"


def bar(share: float, width: int) -> str:
    """Return a bar of `share`, 0 to 1, in `width` columns. Any share above 0 is visible."""
    eighths = max(round(8 * width * min(share, 1.0)), 1 if share > 0 else 0)
    return "█" * (eighths // 8) + PARTS[eighths % 8].strip()


def no_room(heads: Sequence[str]) -> str:
    """Return the line below a table that names the columns left out for lack of room."""
    return f"no room here for {', '.join(heads)}; see --json"


def wrapped(text: str, width: int) -> list[str]:
    """Return a text as lines of at most `width` columns, broken between words. Longer words are cut."""
    lines: list[str] = []
    for paragraph in text.expandtabs(4).split("\n"):
        line = ""
        for word in paragraph.split(" "):
            longer = f"{line} {word}" if line else word
            if cell_len(longer) <= width:
                line = longer
                continue
            if line:
                lines.append(line)
            *full, line = chop_cells(word, width) or [""]
            lines += full
        lines.append(line)
    return lines


def means(values: Sequence[float], most: int) -> list[float]:
    """Return at most `most` values: the given values, or the means of groups of neighbours if there are more."""
    groups = [values[len(values) * at // most : len(values) * (at + 1) // most] for at in range(most)]
    return [sum(group) / len(group) for group in groups if group]


def curve(values: Sequence[float], height: int) -> list[str]:
    """Return a chart of values as `height` lines, the top line first. Each value is one column: the largest value has
    the full height, and the smallest the least."""
    low, high = min(values), max(values)
    levels = [1 + round((8 * height - 1) * (value - low) / (high - low)) if high > low else 1 for value in values]
    return [
        "".join(EIGHTHS[max(0, min(8, level - 8 * row))] for level in levels).rstrip()
        for row in reversed(range(height))
    ]


# Each is as wide as its original, because layouts assume that width.
_MARKS = {
    "▁▂▃": ".",
    "▄▅▆▇█▌▐▋▊▉▀▰▮░▒▓■◼▓": "#",
    "▏▎▍│┃║╎╏┆┇┊┋": "|",
    "▔─━╌╍┄┈┉–—‐‑−▱▭": "-",
    "═": "=",
    "≡": "#",
    "┅": "~",
    "∅": "0",
    "┌┐└┘├┤┬┴┼┏┓┗┛┣┫┳┻╋╔╗╚╝╠╣╦╩╬╭╮╰╯╒╓╕╖╘╙╛╜╞╡╤╥╧╨╪╫┍┑┕┙┎┒┖┚╺╸╶╴╹╻╵╷": "+",
    "·…": ".",
    "•●▪⭑★◆⬤": "*",
    "○◦▫◇°☐": "o",
    "❯›‣→▶►▸≥⇒⇥": ">",
    "❮‹←◀◄◂≤⏎↵⇐⌫": "<",
    "↑▲▴△⇧": "^",
    "↓▼▾▽✓✔": "v",
    "✗✘×✕✖☒": "x",
    "“”„«»″": '"',
    "‘’‚′": "'",
    "≈": "~",
    "±": "+",
    "⚠": "!",
    "τ": "t",
    "\N{NO-BREAK SPACE}": " ",
}
_WIDE = {"🔎": "> "}  # before a search text
_TABLE = str.maketrans({**{mark: drawn for marks, drawn in _MARKS.items() for mark in marks}, **_WIDE})


def in_ascii(text: str) -> str:
    """Return the text with ASCII in place of bars, borders, arrows, dots and quotes. Letters do not change."""
    return text.translate(_TABLE)


def ascii_only(stream: TextIO | None) -> bool:
    """Return whether bars and quotes must be ASCII, because the encoding of the stream or the locale is not Unicode.

    In the C locale Python writes UTF-8 anyway, but the terminal may not expect it.
    """
    encoding = locale.getencoding() if sys.flags.utf8_mode else getattr(stream, "encoding", None) or "utf-8"
    return not encoding.lower().replace("_", "-").startswith(("utf-", "utf8"))


def drawable(text: str, stream: TextIO | None) -> str:
    """Return a text, with ASCII in place of bars, borders and quotes if the stream may not support Unicode."""
    return in_ascii(text) if ascii_only(stream) else text
