"""Code whose lines are longer than the screen is wide: they go on below their own beginning, a little further in."""

from typing import Any, Self

from rich.cells import cell_len
from textual.content import Content, _FormattedLine

FURTHER = 2  # columns
_ENDLESS = 1 << 20  # columns, for a line that is not to be wrapped


class WrappedCode(Content):
    """The same text as before, also where it is selected: what it goes on behind is no part of it."""

    @classmethod
    def of(cls, code: Content) -> Self:
        """Code with its colours."""
        return cls(code.plain, list(code.spans))

    @property
    def without_spans(self) -> Content:
        """Textual takes the height of this."""
        return type(self)(self.plain)

    def _wrap_and_format(self, width: int, *about: Any, **more: Any) -> list[_FormattedLine]:
        wrapped: list[_FormattedLine] = []
        for line in super()._wrap_and_format(_ENDLESS, *about, **more):
            content = line.content
            if content.cell_length <= width:
                wrapped.append(_FormattedLine(line.get_style, content, width, y=line.y))
                continue
            indent = min(len(content.plain) - len(content.plain.lstrip()) + FURTHER, width // 2)
            cuts = _cuts(content.plain, width, width - indent)
            for number, (piece, start) in enumerate(zip(content.divide(cuts), [0, *cuts], strict=True)):
                # To the right, in so many columns that the indent is what is left over.
                room = piece.cell_length + (indent if number else 0)
                wrapped.append(_FormattedLine(line.get_style, piece, room, start, line.y, "right"))
        return wrapped


def _cuts(line: str, first: int, later: int) -> list[int]:
    """Where the line is cut so that it has at most `first` columns and then `later` ones: behind a blank if it can."""
    cuts: list[int] = []
    start, room = 0, first
    while start < len(line):
        end = _fitting(line, start, max(room, 1))
        if end < len(line):
            blank = line.rfind(" ", start + (end - start) // 2, end)
            end = blank + 1 if blank > 0 and line[start:blank].strip() else end
            cuts.append(end)
        start, room = end, later
    return cuts


def _fitting(line: str, start: int, room: int) -> int:
    """The end of what fits, one character at least."""
    end = start
    while end < len(line) and (room := room - cell_len(line[end])) >= 0:
        end += 1
    return max(end, start + 1)
