"""The layout of a reply's tokens in lines. Words are kept whole, and every token is visible, even spaces."""

from bisect import bisect_right
from typing import NamedTuple

from rich.cells import cell_len, get_character_cell_size

from localspec.text import safe

NEWLINE, TAB, NOTHING = "⏎", "⇥", "∅"  # how a line break, a tab and a token without text are shown


class Run(NamedTuple):
    """A piece of the reply, or its part in one line, from column `x` on."""

    piece: int
    text: str
    x: int
    width: int


Line = tuple[Run, ...]
_Cell = tuple[int, str]  # a piece and a character of it


class Layout:
    """The lines of a reply in a given number of columns. Pieces are added one after another."""

    def __init__(self, width: int) -> None:
        self.width = max(width, 2)
        self.pieces = 0
        self._closed: list[Line] = []
        self._first: list[int] = []  # by closed line: its first piece
        self._open: list[_Cell] = []
        self._column = 0

    def add(self, text: str) -> None:
        """Add the next piece of the reply."""
        number, self.pieces = self.pieces, self.pieces + 1
        shown = safe(text).replace("\t", TAB) or NOTHING
        blank = not shown.strip(" ")
        for character in shown:
            size, wrapped = get_character_cell_size(character), False
            if character == "\n":
                character, size = NEWLINE, 1
            while self._column + size > self.width:
                self._wrap()
                wrapped = True
            if wrapped and character == " " and not blank and not self._open:
                continue  # the line's end shows it
            self._open.append((number, character))
            self._column += size
            if character == NEWLINE:
                self._close(len(self._open))

    def _wrap(self) -> None:
        """End the line after its last whole word."""
        last = next((at for at in reversed(range(len(self._open))) if self._open[at][1] == " "), None)
        self._close(len(self._open) if last is None else last + 1)

    def _close(self, cells: int) -> None:
        line, self._open = self._open[:cells], self._open[cells:]
        self._closed.append(_runs(line))
        self._first.append(line[0][0])
        self._column = sum(get_character_cell_size(character) for _, character in self._open)

    @property
    def height(self) -> int:
        """Return the number of lines."""
        return len(self._closed) + bool(self._open)

    def line(self, number: int) -> Line:
        """Return a line. Beyond the last line it is empty."""
        if number < len(self._closed):
            return self._closed[number]
        return _runs(self._open) if number == len(self._closed) else ()

    def line_of(self, piece: int) -> int:
        """Return the line in which a piece begins."""
        at = bisect_right(self._first, piece)
        if self._open and self._open[0][0] <= piece:
            at = len(self._closed) + 1
        line = max(at - 1, 0)
        while line and self.line(line)[0].piece == piece and self.line(line - 1)[-1].piece == piece:
            line -= 1
        return line

    def piece_at(self, line: int, x: int) -> int | None:
        """Return the piece in this column, or the nearest piece in its line; None if there is no such line."""
        runs = self.line(max(line, 0))
        if not runs:
            return None
        return next((run.piece for run in runs if x < run.x + run.width), runs[-1].piece)

    def column_of(self, piece: int) -> int:
        """Return the column where a piece begins, in its first line."""
        return next((run.x for run in self.line(self.line_of(piece)) if run.piece == piece), 0)


def _runs(cells: list[_Cell]) -> Line:
    texts: list[tuple[int, str]] = []
    for piece, character in cells:
        if texts and texts[-1][0] == piece:
            texts[-1] = piece, texts[-1][1] + character
        else:
            texts.append((piece, character))
    runs, x = [], 0
    for piece, text in texts:
        width = cell_len(text)
        runs.append(Run(piece, text, x, width))
        x += width
    return tuple(runs)
