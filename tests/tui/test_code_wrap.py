"""Long lines of code are wrapped with a hanging indent; selecting and copying gives the original line."""

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest
from each import each
from rich.cells import cell_len
from textual.app import App, ComposeResult
from textual.geometry import Offset
from textual.selection import Selection

import localspec_tui
from localspec_tui.laid_block import cuts
from localspec_tui.widgets.reply_view import ReplyMarkdown

LINE = "    return quicksort([x for x in rest if x < pivot]) + [pivot]"


@each("width", [1, 2, 3, 7, 20, 33, 61, 62, 63, 200])
@each("line", [LINE, "x" * 100, "日本語のコード" * 9, "    ", "", "a " * 40, " " * 90 + "x"])
@each("halves", [True, False])
def test_nothing_is_lost_and_nothing_is_too_wide(line, width, halves):
    found = [0, *cuts(line, width, width - width // 2, halves=halves), len(line)]
    pieces = [line[start:end] for start, end in pairwise(found)]
    assert "".join(pieces) == line
    for number, piece in enumerate(pieces):
        seen = piece if halves else piece.rstrip()
        assert cell_len(seen) <= (width - width // 2 if number else width) or len(seen) == 1


class Page(App[None]):
    CSS_PATH = Path(localspec_tui.__file__).parent / "app.tcss"

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        yield ReplyMarkdown(self._text)


def shown(text, size, look):
    async def run():
        app = Page(text)
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            return look(app)

    return asyncio.run(run())


def lines(app):
    return [strip.text.rstrip() for strip in app.screen._compositor.render_strips()]


@pytest.mark.slow
def test_it_continues_below_its_own_beginning():
    text = shown(f"```python\ndef f():\n{LINE}\n    pass\n```", (50, 12), lines)
    first = next(line for line in text if "return quicksort" in line)
    at = text.index(first)
    column = first.index("return")
    assert text[at + 1].index(text[at + 1].strip()) == column + 2 and "pivot" in text[at + 1]
    assert text[at + 2].index("pass") == column
    wide = shown(f"```python\n{LINE}\n```", (120, 8), lines)
    assert any(LINE.strip() in line for line in wide)


def test_what_is_selected_is_the_line_as_it_was():
    def selected(app):
        return app.query_one(ReplyMarkdown).get_selection(Selection(Offset(13, 0), Offset(9 + len(LINE), 0)))

    assert shown(f"```python\ndef f():\n{LINE}\n```", (40, 12), selected) == (LINE.strip(), "\n")


@pytest.mark.slow
def test_a_table_is_as_wide_as_what_it_holds():
    text = "| a | b |\n|---|---|\n| 1 | 2 |\n"
    assert shown(text, (200, 10), lambda app: len(lines(app)[0])) < 20
    long = "| a | b |\n|---|---|\n| " + "word " * 60 + "| 2 |\n"
    assert shown(long, (80, 40), lambda app: max(map(len, lines(app)))) <= 80
    assert "word" in "".join(shown(long, (40, 60), lines))
