"""What is drawn beside text, in ASCII where the terminal has nothing else: bars, borders, arrows, dots and quotes."""

import locale
import sys
from typing import TextIO

# Each as wide as what it stands for: who lays out a line does not know.
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
_WIDE = {"🔎": "> "}  # before what one looks for
_TABLE = str.maketrans({**{mark: drawn for marks, drawn in _MARKS.items() for mark in marks}, **_WIDE})


def in_ascii(text: str) -> str:
    """The same in ASCII, as far as marks go; letters stay."""
    return text.translate(_TABLE)


def ascii_only(stream: TextIO | None) -> bool:
    """Whether what the stream writes to may lack marks: its encoding, or the locale's, is none of Unicode's.

    In the C locale Python writes UTF-8 all the same, and the terminal may know better.
    """
    encoding = locale.getencoding() if sys.flags.utf8_mode else getattr(stream, "encoding", None) or "utf-8"
    return not encoding.lower().replace("_", "-").startswith(("utf-", "utf8"))


def drawable(text: str, stream: TextIO | None) -> str:
    """A text with marks as the stream can show it."""
    return in_ascii(text) if ascii_only(stream) else text
