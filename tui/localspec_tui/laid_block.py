"""The layout of a reply's block (such as a paragraph) for one width: where its text breaks into rows. No drawing."""

import re
from bisect import bisect_right
from typing import Any, NamedTuple

from rich.cells import cell_len, get_character_cell_size
from textual.geometry import Region, Size

from localspec_tui.reply_blocks import ReplyBlock

FURTHER = 2  # columns

_BLANKS = re.compile(r"[^\S\n]*")


def indent_of(text: str, at: int) -> int:
    """Return the indentation, in columns, of the wrapped rows of the line that contains position `at`."""
    begin = text.rfind("\n", 0, at) + 1
    blanks = _BLANKS.match(text, begin)
    assert blanks is not None
    return blanks.end() - begin + FURTHER


def cuts(line: str, first: int, later: int, *, halves: bool = False) -> list[int]:
    """Return where to break a line into rows: at most `first` columns in the first row, and `later` in each other row.

    A row is broken after a blank, if it has one. Blanks at its end need no columns. With `halves`, blanks need columns,
    and a row is broken after a blank only in its second half.
    """
    positions: list[int] = []
    start, room = 0, first
    single = line.isascii()
    if not single and cell_len(line) <= first:
        return positions
    while start < len(line):
        end = min(start + max(room, 1), len(line)) if single else _fitting(line, start, max(room, 1))
        if not halves and end < len(line) and line[end] == " ":
            blanks = _BLANKS.match(line, end)
            end = blanks.end() if blanks is not None else end
        elif end < len(line):
            blank = line.rfind(" ", start + (end - start) // 2 * halves, end)
            end = blank + 1 if blank > 0 and line[start:blank].strip() else end
        if end < len(line):
            positions.append(end)
        start, room = end, later
    return positions


def _fitting(line: str, start: int, room: int) -> int:
    """Return the end of the part of a line that fits into `room` columns: at least one character."""
    end = start
    while end < len(line) and (room := room - get_character_cell_size(line[end])) >= 0:
        end += 1
    return max(end, start + 1)


LEAST_ROOM = 16  # columns for text, however deep it is nested
LEAST_COLUMN = 3  # width of a column in a table; with less room, the rows of the table are shown as lines of text
PADDING = 2  # columns on both sides of code
AROUND = 3  # columns around a cell: a blank on each side, a line


class RowPart(NamedTuple):
    """A part of a row, which begins at `column`.

    The part shows the block's text from `start` to `end`. If `drawn` is not empty, it shows that text instead, such as
    a line of a table.
    """

    column: int
    start: int
    end: int
    drawn: str = ""


class _Table:
    """A table with lines around its cells.

    y 0   ┌────┬────┐
    y 1   │ a  │ b  │     row 0 of `cells`
    y 2   ├────┼────┤
    y 3   │ c  │ d  │     row 1, so _tops = [1, 3]
    y 4   └────┴────┘
    """

    def __init__(self, block: ReplyBlock, room: int) -> None:
        self._block = block
        self.height = 0
        cells, text = block.cells, block.text
        columns = max(map(len, cells), default=0)
        widest = [1] * columns
        for row in cells:
            for column, (start, end) in enumerate(row):
                if end - start > widest[column] or not text[start:end].isascii():
                    widest[column] = max(widest[column], cell_len(text[start:end]))
        limit = _at_most(widest, room - AROUND * columns - 1)
        self.fits = limit >= LEAST_COLUMN or sum(widest) + AROUND * columns + 1 <= room
        if not self.fits:
            return
        self.widths = [min(size, limit) for size in widest]
        self._tops: list[int] = []  # the y of the first line of text of each row
        # Where the lines of a cell begin in the text, by (row, column), for cells of several lines.
        self._breaks: dict[tuple[int, int], list[int]] = {}
        top = 1
        for number, row in enumerate(cells):
            self._tops.append(top)
            lines = 1
            for column, (start, end) in enumerate(row):
                width = self.widths[column]
                if end - start > width or not text[start:end].isascii():
                    breaks = cuts(text[start:end], width, width)
                    if breaks:
                        self._breaks[number, column] = [start, *(start + cut for cut in breaks)]
                        lines = max(lines, len(breaks) + 1)
            top += lines + 1
        self.height = max(top, 2)

    def parts(self, y: int) -> list[RowPart]:
        """Return the parts of one row on the screen, from the left."""
        number = bisect_right(self._tops, y) - 1
        if y == 0:
            return [RowPart(0, 0, 0, self._line("┌┬┐"))]
        if y == self.height - 1:
            return [RowPart(0, 0, 0, self._line("└┴┘"))]
        after = self._tops[number + 1] if number + 1 < len(self._tops) else self.height
        if y == after - 1:
            return [RowPart(0, 0, 0, self._line("├┼┤"))]
        parts, column, line = [RowPart(0, 0, 0, "│ ")], 2, y - self._tops[number]
        for at, (start, end) in enumerate(self._block.cells[number]):
            breaks = self._breaks.get((number, at), [start])
            if line < len(breaks):
                begin = breaks[line]
                end = breaks[line + 1] if line + 1 < len(breaks) else end
                parts.append(RowPart(column, begin, begin + len(self._block.text[begin:end].rstrip())))
            column += self.widths[at] + AROUND
            parts.append(RowPart(column - 2, 0, 0, "│ "))
        for at in range(len(self._block.cells[number]), len(self.widths)):
            column += self.widths[at] + AROUND
            parts.append(RowPart(column - 2, 0, 0, "│ "))
        parts[-1] = parts[-1]._replace(drawn="│")
        return parts

    def _line(self, ends: str) -> str:
        """Return a horizontal line. `ends` has three characters: for the left end, the crossings and the right end."""
        return ends[0] + ends[1].join("─" * (width + 2) for width in self.widths) + ends[2]


class LaidBlock:
    """A block in `width` columns: its rows, and the parts of each row."""

    def __init__(self, block: ReplyBlock, width: int) -> None:
        self.block = block
        self.margin = min(sum(len(margin.text) for margin in block.rest), max(width - LEAST_ROOM, 0))
        self.room = max(width - self.margin, 1)
        table = _Table(block, self.room) if block.kind == "table" else None
        self._table = table if table is not None and table.fits else None
        self._starts = [0] if self._table is not None else self._row_starts()
        self.head = block.above + (block.kind == "code")  # rows before those of the text
        self.height = self.head + (self._table.height if self._table is not None else len(self._starts))

    def parts(self, row: int) -> list[RowPart]:
        """Return the parts of a row, from the left. Row 0 is the first row of the text, below blank rows."""
        if self._table is not None:
            return self._table.parts(row)
        text, start = self.block.text, self._starts[row]
        end = self._starts[row + 1] if row + 1 < len(self._starts) else len(text)
        if end > start and text[end - 1] == "\n" and row + 1 < len(self._starts):
            end -= 1
        column = 0
        if self.block.kind == "code":
            column = PADDING
            if start and text[start - 1] != "\n":
                column += min(indent_of(text, start), max(self.room - 2 * PADDING, 1) // 2)
        elif self.block.kind != "plain" and row + 1 < len(self._starts):
            end = start + len(text[start:end].rstrip(" "))
        return [RowPart(column, start, end)]

    def place_at(self, column: int, row: int) -> int | None:
        """Return the position in the text of the character that is nearest to a cell; None for a row without text.

        Blank rows above count as rows. A cell to the right of all text gives the position after the last character.
        """
        if row < self.head:
            return None
        is_table, text = self._table is not None, self.block.text
        parts = [
            part for part in self.parts(row - self.head) if not part.drawn and (part.end > part.start or not is_table)
        ]
        if not parts:
            return None
        column -= self.margin
        ends = [part.column + cell_len(text[part.start : part.end]) for part in parts]
        nearest = min(range(len(parts)), key=lambda at: max(parts[at].column - column, column - ends[at] + 1, 0))
        place, room = parts[nearest].start, column - parts[nearest].column
        while place < parts[nearest].end and (room := room - get_character_cell_size(text[place])) >= 0:
            place += 1
        return place if nearest == len(parts) - 1 else min(place, parts[nearest].end - 1)

    def row_of(self, place: int) -> int:
        """Return the row of a position in the text. Blank rows above the text count as rows."""
        if self._table is None:
            return self.head + bisect_right(self._starts, place) - 1
        rows = (
            row for row in range(self._table.height) if any(part.start <= place < part.end for part in self.parts(row))
        )
        return self.head + next(rows, 0)

    def _row_starts(self) -> list[int]:
        starts, begin = [0], 0
        is_code = self.block.kind == "code"
        width = max(self.room - 2 * PADDING, 1) if is_code else self.room
        for number, line in enumerate(self.block.text.split("\n")):
            if number:
                starts.append(begin)
            if len(line) > width or not line.isascii():
                indent = min(indent_of(line, 0), width // 2) if is_code else 0
                starts += (begin + cut for cut in cuts(line, width, width - indent, halves=is_code))
            begin += len(line) + 1
        return starts


def _at_most(widest: list[int], room: int) -> int:
    """Return the largest width that a column may have, so that all columns together fit into `room`."""
    remaining = room
    for number, width in enumerate(sorted(widest)):
        share = remaining // (len(widest) - number)
        if width > share:
            return share
        remaining -= width
    return max(widest, default=0)


class LaidOutOnce:
    """A mixin that prevents an unnecessary second layout of a growing widget.

    When a layout has given a widget a new size, Textual requests another layout. The mixin ignores this request. It is
    not a Widget itself, because Textual reads styles only from the first base class.
    """

    _has_grown = False

    def watch_virtual_size(self, old: Size, new: Size) -> None:
        self._has_grown = old != new

    def refresh(
        self: Any, *regions: Region, repaint: bool = True, layout: bool = False, recompose: bool = False
    ) -> Any:
        """Ignore a request that only follows from a new size. Otherwise draw again, as Textual does."""
        has_grown, self._has_grown = self._has_grown, False
        if has_grown and layout and not regions:
            return self
        return super().refresh(*regions, repaint=repaint, layout=layout, recompose=recompose)  # type: ignore[misc]
