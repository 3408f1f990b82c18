"""Where lines that are longer than the screen is wide are cut. Code goes on below its own beginning, further in."""

import re

from rich.cells import cell_len, get_character_cell_size

FURTHER = 2  # columns

_BLANKS = re.compile(r"[^\S\n]*")


def indent_of(text: str, at: int) -> int:
    """Return in which column the line that holds this place goes on."""
    begin = text.rfind("\n", 0, at) + 1
    blanks = _BLANKS.match(text, begin)
    assert blanks is not None
    return blanks.end() - begin + FURTHER


def cuts(line: str, first: int, later: int, *, halves: bool = False) -> list[int]:
    """Return where the line is cut so that it has at most `first` columns and then `later` ones.

    It is cut after a blank, if there is one; with `halves`, only in the second half of a row.
    Blanks at the end of a row are not counted, unless with `halves`.
    """
    found: list[int] = []
    start, room = 0, first
    single = line.isascii()
    if not single and cell_len(line) <= first:
        return found
    while start < len(line):
        end = min(start + max(room, 1), len(line)) if single else _fitting(line, start, max(room, 1))
        if not halves and end < len(line) and line[end] == " ":
            blanks = _BLANKS.match(line, end)
            end = blanks.end() if blanks is not None else end
        elif end < len(line):
            blank = line.rfind(" ", start + (end - start) // 2 * halves, end)
            end = blank + 1 if blank > 0 and line[start:blank].strip() else end
        if end < len(line):
            found.append(end)
        start, room = end, later
    return found


def _fitting(line: str, start: int, room: int) -> int:
    """Return the end of what fits, one character at least."""
    end = start
    while end < len(line) and (room := room - get_character_cell_size(line[end])) >= 0:
        end += 1
    return max(end, start + 1)
