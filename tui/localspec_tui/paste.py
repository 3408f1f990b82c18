"""What is pasted is text: Textual takes what follows an ESC in it for keys, Enter and Ctrl+Q among them."""

from collections.abc import Callable, Iterable

from textual._xterm_parser import BRACKETED_PASTE_END, BRACKETED_PASTE_START, XTermParser
from textual.message import Message

ESCAPE, SHOWN = "\x1b", "\N{SYMBOL FOR ESCAPE}"


class PasteFilter:
    """What a terminal sends, in pieces of any length, with the escapes in what is pasted made visible."""

    def __init__(self) -> None:
        self._inside = False
        self._mark = ""  # as much as has come of the mark that is waited for

    def shown(self, data: str) -> str:
        """The next piece. What may be the beginning of a paste's end comes with a later one."""
        given = []
        for char in data:
            mark = BRACKETED_PASTE_END if self._inside else BRACKETED_PASTE_START
            if not mark.startswith(self._mark + char):
                given.append(self._mark.replace(ESCAPE, SHOWN) if self._inside else "")
                self._mark = ""
            if mark.startswith(self._mark + char):
                self._mark += char
            if not (self._inside and self._mark):
                given.append(char)
            if self._mark == mark:
                given.append(mark if self._inside else "")
                self._inside, self._mark = not self._inside, ""
        return "".join(given)


_feed = XTermParser.feed


def install(meant: Callable[[str], str] = lambda typed: typed) -> None:
    """From here on Textual reads what a terminal sends in this way, and of what is not pasted only what is `meant`."""

    def feed(parser: XTermParser, data: str) -> Iterable[Message]:
        pasted: PasteFilter = parser.__dict__.setdefault("_localspec_pasted", PasteFilter())
        shown = meant(pasted.shown(data))
        return _feed(parser, shown) if shown or not data else ()  # an empty piece would mean the end

    XTermParser.feed = feed  # type: ignore[method-assign, assignment]
