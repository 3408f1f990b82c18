"""The display of a race: two growing columns of text, for a terminal or a recording."""

import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TypedDict

from rich.cells import set_cell_size

from localspec.bench.race import Lane
from localspec.marks import bar, wrapped
from localspec.quantities import counted

LEAST_COLUMNS, MOST_COLUMNS, AROUND = 24, 160, 10  # AROUND: lines outside the text: six, and the sentences at the end
TEXT_LINES = 16  # most lines of a reply; the last ones are shown
PAUSE = 1 / 20  # seconds between two frames
READING = "reading…"  # shown while the prompt is read; it fits into the narrowest column
LIVE = "race: both take turns, step by step"
REPLAY, REPLAYED = "replay at true speed", "replayed at true speed"
LINGER = 2.0  # seconds that the last frame of a recording stays


class Size(TypedDict):
    """The size of a terminal, in characters."""

    columns: int
    lines: int


def fits(size: Size) -> bool:
    """Return whether a terminal of this size has room for a frame."""
    return size["columns"] >= LEAST_COLUMNS and size["lines"] > AROUND


def frame(lanes: Sequence[Lane], size: Size, seconds: float | None = None) -> list[str]:
    """Return the lines of one frame: the present state, or the state after this many seconds of each lane's clock.

    Lines are cut to the size of the terminal, which may have shrunk: a longer line would wrap into the next one.
    """
    width = (max(LEAST_COLUMNS, min(MOST_COLUMNS, size["columns"])) - 4) // 2
    height = max(1, min(TEXT_LINES, size["lines"] - AROUND))
    columns_of_lines = [_column(lane, width, height, seconds) for lane in lanes]
    rule = "─" * width + "─┼─" + "─" * width
    rows = [" │ ".join(set_cell_size(cell, width) for cell in cells) for cells in zip(*columns_of_lines, strict=True)]
    wide = min(2 * width + 3, size["columns"] - 1)  # terminals may wrap in the last column
    lines = [_caption(lanes, seconds), rows[0], rule, *rows[1 : height + 1], rule, *rows[height + 1 :]]
    return [set_cell_size(line, wide).rstrip() for line in lines[: size["lines"]]]


def ends(lanes: Sequence[Lane]) -> float:
    """Return when the replay ends, in seconds since its start."""
    return max(lane.seconds for lane in lanes)


def _caption(lanes: Sequence[Lane], seconds: float | None) -> str:
    if seconds is None:
        return LIVE
    return REPLAY if seconds < ends(lanes) else REPLAYED


def _column(lane: Lane, width: int, height: int, seconds: float | None) -> list[str]:
    """Return a name, `height` lines of text, and two lines of figures."""
    text, tokens = lane.until(seconds)
    passed = lane.seconds if seconds is None else min(seconds, lane.seconds)
    over = lane.statistics is not None and passed >= lane.seconds
    whole = max(1, len(lane.statistics.token_ids)) if lane.statistics else None
    drawn = bar(tokens / whole, width) if whole else ""
    lines = wrapped(text, width)[-height:]
    return [
        lane.name,
        *lines,
        *[""] * (height - len(lines)),
        drawn,
        _figures(tokens, lane.decoding(seconds))
        + (f", {lane.tokens_per_second:.1f} tokens/s" if over and width >= 36 else ""),
    ]


def _figures(tokens: int, decoding: float | None) -> str:
    """Return a line with the number of tokens and the seconds of decoding, or `READING` before decoding begins."""
    return READING if decoding is None else f"{counted(tokens, 'token')}, {_seconds(decoding)}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1e3 * seconds:.0f} ms"


def moments(lanes: Sequence[Lane]) -> Iterator[float]:
    """Yield when to redraw the replay, in seconds since its start, so that both lanes run at true speed."""
    end = ends(lanes)
    times = {0.0, *(moment.seconds for lane in lanes for moment in lane.moments), *(lane.seconds for lane in lanes)}
    shown = -PAUSE
    for now, later in pairwise([*sorted(times), end + PAUSE]):
        if now - shown >= PAUSE or later > now + PAUSE or now == end:  # earlier changes are shown in the next frame
            shown = now
            yield now


def redrawn(lines: Sequence[str], before: int) -> str:
    """Return the output that replaces a frame of this many lines."""
    up = f"\x1b[{before}A" if before else ""
    return up + "".join(f"\r\x1b[K{line}\n" for line in lines)


def whole_screen(lines: Sequence[str]) -> str:
    """Return the output that replaces everything on the screen with a frame."""
    return "\x1b[H" + "\r\n".join(f"\x1b[K{line}" for line in lines) + "\x1b[J"


def recording(lanes: Sequence[Lane], size: Size, end: Sequence[str], title: str, made: int) -> Iterator[str]:
    """Yield the lines of a file in asciinema's format, version 2: the replay at true speed, and the result.

    `made` is the present time in seconds since 1970. https://docs.asciinema.org/manual/asciicast/v2/
    """
    head = {"version": 2, "width": size["columns"], "height": size["lines"], "timestamp": made, "title": title}
    yield json.dumps(head) + "\n"
    before, seconds = 0, 0.0
    for seconds in moments(lanes):
        lines = frame(lanes, size, seconds)
        yield _output(seconds, redrawn(lines, before))
        before = len(lines)
    yield _output(seconds, "".join(f"{line}\n" for line in end))
    yield _output(seconds + LINGER, "")


def _output(seconds: float, text: str) -> str:
    return json.dumps([round(seconds, 6), "o", text.replace("\n", "\r\n")]) + "\n"
