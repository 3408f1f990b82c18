"""Code whose lines are longer than the screen is wide: they go on below their own beginning, a little further in."""

import re

from rich.cells import get_character_cell_size

FURTHER = 2  # columns

_BLANKS = re.compile(r"[^\S\n]*")


def indent_of(text: str, at: int) -> int:
    """Return in which column the line that holds this place goes on."""
    begin = text.rfind("\n", 0, at) + 1
    blanks = _BLANKS.match(text, begin)
    assert blanks is not None
    return blanks.end() - begin + FURTHER


def cuts(line: str, first: int, later: int) -> list[int]:
    """Where the line is cut so that it has at most `first` columns and then `later` ones: behind a blank if it can."""
    found: list[int] = []
    start, room = 0, first
    single = line.isascii()
    while start < len(line):
        end = min(start + max(room, 1), len(line)) if single else _fitting(line, start, max(room, 1))
        if end < len(line):
            blank = line.rfind(" ", start + (end - start) // 2, end)
            end = blank + 1 if blank > 0 and line[start:blank].strip() else end
            found.append(end)
        start, room = end, later
    return found


def _fitting(line: str, start: int, room: int) -> int:
    """Return the end of what fits, one character at least."""
    end = start
    while end < len(line) and (room := room - get_character_cell_size(line[end])) >= 0:
        end += 1
    return max(end, start + 1)
