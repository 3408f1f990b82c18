"""The layout of a block for one width: where its text is broken into rows. Nothing is drawn here."""

from bisect import bisect_right
from itertools import zip_longest
from typing import NamedTuple, Self

from rich._wrap import divide_line
from rich.cells import cell_len

from localspec_tui.code_wrap import cuts, indent_of
from localspec_tui.reply_blocks import Block

LEAST_ROOM = 16  # columns for text, however deep it is nested
LEAST_COLUMN = 3  # width of a column in a table; with less room, the rows of the table are shown as lines of text
PADDING = 2  # columns on both sides of code
AROUND = 3  # columns around a cell: a blank on each side, a line


class Part(NamedTuple):
    """A part of a row, which begins at `column`: a range of the block's text, or `drawn`, such as a line of a table."""

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

    def __init__(self, block: Block, room: int, earlier: Self | None) -> None:
        self._block = block
        self.height = 0
        self._widest: list[int] = []
        cells, text = block.cells, block.text
        columns = max(map(len, cells), default=0)
        same = 0  # first rows of cells that are those of `earlier`; its last row may have grown
        widest = [1] * columns
        if earlier is not None and len(earlier._widest) == columns:
            same = max(min(len(earlier._block.cells), len(cells)) - 1, 0)
            end = cells[same][0][0] if same and cells[same] else 0
            if earlier._block.text[:end] == text[:end]:
                widest = [*earlier._widest]
            else:
                same = 0
        for row in cells[same:]:
            for column, (start, end) in enumerate(row):
                if end - start > widest[column] or not text[start:end].isascii():
                    widest[column] = max(widest[column], cell_len(text[start:end]))
        self._widest = widest
        most = _at_most(widest, room - AROUND * columns - 1)
        self.fits = most >= LEAST_COLUMN or sum(widest) + AROUND * columns + 1 <= room
        self.stays = 0  # rows on the screen that are those of `earlier`
        if not self.fits:
            return
        self.widths = [min(one, most) for one in widest]
        self._tops: list[int] = []  # the y of the first line of text of each row
        # Where the lines of a cell begin in the text, by (row, column), for cells of several lines.
        self._breaks: dict[tuple[int, int], list[int]] = {}
        top = 1
        if earlier is not None and earlier.fits and earlier.widths == self.widths and same:
            self._tops = earlier._tops[: same + 1]
            self._breaks = {place: one for place, one in earlier._breaks.items() if place[0] < same}
            top = self._tops.pop()
            self.stays = top
        else:
            same = 0
        for number, row in enumerate(cells[same:], same):
            self._tops.append(top)
            lines = 1
            for column, (start, end) in enumerate(row):
                if end - start > self.widths[column] or not text[start:end].isascii():
                    breaks = divide_line(text[start:end], self.widths[column])
                    if breaks:
                        self._breaks[number, column] = [start, *(start + one for one in breaks)]
                        lines = max(lines, len(breaks) + 1)
            top += lines + 1
        self.height = max(top, 2)

    def parts(self, y: int) -> list[Part]:
        """Return the parts of one row on the screen, from the left."""
        number = bisect_right(self._tops, y) - 1
        if y == 0:
            return [Part(0, 0, 0, self._line("┌┬┐"))]
        if y == self.height - 1:
            return [Part(0, 0, 0, self._line("└┴┘"))]
        after = self._tops[number + 1] if number + 1 < len(self._tops) else self.height
        if y == after - 1:
            return [Part(0, 0, 0, self._line("├┼┤"))]
        parts, column, line = [Part(0, 0, 0, "│ ")], 2, y - self._tops[number]
        for at, (start, end) in enumerate(self._block.cells[number]):
            breaks = self._breaks.get((number, at), [start])
            if line < len(breaks):
                begin = breaks[line]
                end = breaks[line + 1] if line + 1 < len(breaks) else end
                parts.append(Part(column, begin, begin + len(self._block.text[begin:end].rstrip())))
            column += self.widths[at] + AROUND
            parts.append(Part(column - 2, 0, 0, "│ "))
        for at in range(len(self._block.cells[number]), len(self.widths)):
            column += self.widths[at] + AROUND
            parts.append(Part(column - 2, 0, 0, "│ "))
        parts[-1] = parts[-1]._replace(drawn="│")
        return parts

    def row_of(self, place: int) -> int:
        """Return the y of a place in the text."""
        firsts = [row[0][0] if row else 0 for row in self._block.cells]
        number = max(bisect_right(firsts, place) - 1, 0)
        for at, (start, end) in enumerate(self._block.cells[number]):
            if start <= place <= end:
                return self._tops[number] + bisect_right(self._breaks.get((number, at), [start]), place) - 1
        return self._tops[number]

    def _line(self, ends: str) -> str:
        """Return a horizontal line; `ends` is its left end, its crossings and its right end."""
        return ends[0] + ends[1].join("─" * (width + 2) for width in self.widths) + ends[2]


class LaidBlock:
    """A block in `width` columns: its rows, and the parts of each."""

    def __init__(self, block: Block, width: int, earlier: Self | None = None) -> None:
        """Break the block into rows. Rows of `earlier`, the same block before it grew, are used again if possible."""
        self.block, self.width = block, width
        self.margin = min(sum(len(one.text) for one in block.rest), max(width - LEAST_ROOM, 0))
        self.room = max(width - self.margin, 1)
        self.changed_from = 0  # the first row that differs from `earlier`
        if earlier is not None and (earlier.width, earlier.block.kind) != (width, block.kind):
            earlier = None
        table_before = earlier._table if earlier is not None else None
        self._table: _Table | None = _Table(block, self.room, table_before) if block.kind == "table" else None
        if self._table is not None and not self._table.fits:
            self._table = None
        self._starts = [0]  # where each row begins in the text
        if self._table is None:
            self._break_text(earlier if earlier is not None and earlier._table is None else None)
        self.head = block.above + (block.kind == "code")  # rows before those of the text
        self.height = self.head + (self._table.height if self._table is not None else len(self._starts))
        if earlier is not None:
            self.changed_from = self._first_changed(earlier)

    def parts(self, row: int) -> list[Part]:
        """Return the parts of a row, from the left; `row` counts without the head."""
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
        return [Part(column, start, end)]

    def row_of(self, place: int) -> int:
        """Return the row of a place in the text; it counts with the head."""
        rows = self._table.row_of(place) if self._table is not None else bisect_right(self._starts, place) - 1
        return self.head + rows

    def _break_text(self, earlier: Self | None) -> None:
        """Set `_starts`: where each row begins in the text."""
        text, begin = self.block.text, 0
        if earlier is not None:
            begin = self._keep_rows(earlier)
        width = max(self.room - 2 * PADDING, 1) if self.block.kind == "code" else self.room
        add = self._starts.append
        for number, line in enumerate(text[begin:].split("\n")):
            if number:
                add(begin)
            if len(line) > width or not line.isascii():
                if self.block.kind == "code":
                    if cell_len(line) > width:
                        indent = min(indent_of(line, 0), width // 2)
                        self._starts += (begin + one for one in cuts(line, width, width - indent))
                else:
                    self._starts += (begin + one for one in divide_line(line, width))
            begin += len(line) + 1

    def _keep_rows(self, earlier: "LaidBlock") -> int:
        """Take over the unchanged rows of `earlier`, and return where the text after them begins.

        Where a line is wrapped depends on the words up to the end of the row. So a row is unchanged if the text up to
        the row after it is. Then go back to a row that begins a line, in code and plain text, or a word, elsewhere.
        """
        text, same = self.block.text, _same(earlier.block.text, self.block.text)
        stay = bisect_right(earlier._starts, same) - 2
        if self.block.kind in ("code", "plain"):
            while stay > 0 and text[earlier._starts[stay] - 1] != "\n":
                stay -= 1
        else:
            while stay > 0 and not _begins_word(text, earlier._starts[stay]):
                stay -= 1
        if stay <= 0:
            return 0
        self._starts = earlier._starts[: stay + 1]
        return self._starts[-1]

    def _first_changed(self, earlier: "LaidBlock") -> int:
        """Return the first row that may look different from the same row of `earlier`."""
        block, before = self.block, earlier.block
        if (block.lead, block.rest, block.above, block.between, block.language) != (
            before.lead, before.rest, before.above, before.between, before.language
        ):  # fmt: skip
            return 0
        if self._table is not None:
            return self.head + self._table.stays if earlier._table is not None else 0
        if block.kind == "code":  # more code may change the colours before it
            return min(self.head, earlier.head)
        same = _same(before.text, block.text)
        changed = same  # the first place where the text or a run differs
        for run_before, run in zip_longest(before.runs, block.runs):
            if run_before != run:
                changed = min(one.start for one in (run_before, run) if one is not None)
                break
        return max(self.row_of(min(same, changed)) - 1, 0)


def _at_most(widest: list[int], room: int) -> int:
    """Return the width to which the widest columns must shrink so that all columns fit in the room."""
    rest = room
    for number, width in enumerate(sorted(widest)):
        share = rest // (len(widest) - number)
        if width > share:
            return share
        rest -= width
    return max(widest, default=0)


def _same(one: str, other: str) -> int:
    """Return the length of the common beginning of two texts."""
    if other.startswith(one):
        return len(one)
    same, end = 0, min(len(one), len(other))
    while same < end:  # binary search, because comparing slices is fast
        middle = (same + end + 1) // 2
        if one[same:middle] == other[same:middle]:
            same = middle
        else:
            end = middle - 1
    return same


def _begins_word(text: str, at: int) -> bool:
    return at < len(text) and text[at - 1].isspace() and not text[at].isspace()
