"""A widget that displays all blocks of a reply, and draws only the visible rows."""

import sys
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import takewhile
from typing import TYPE_CHECKING, ClassVar, cast
from urllib.parse import unquote

from rich.segment import Segment
from rich.style import Style as RichStyle
from textual import events
from textual.content import Content, Span
from textual.geometry import Offset, Region, Size
from textual.selection import Selection
from textual.strip import Strip
from textual.style import Style
from textual.widget import Widget

from localspec.text import one_line, safe
from localspec_tui import keymap
from localspec_tui.laid_block import PADDING, LaidBlock, LaidOutOnce
from localspec_tui.reply_blocks import Margin, ReplyBlock, plain

if TYPE_CHECKING:
    from localspec_tui.app import ChatApp


MARKED = "bold underline"  # style of search matches


class BlockView(LaidOutOnce, Widget):
    """A widget that draws the blocks of a reply, one below another.

    Rows are the lines on the screen. Selected positions count from the beginning of a block's text. An example of two
    blocks, the first of them wrapped:

        row 0   A long          block 0
        row 1   paragraph       block 0
        row 2   • An item       block 1         so _tops = [0, 2, 3]
    """

    BELOW = 0  # blank rows below the last block
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "em", "strong", "s", "code_inline", "h1", "h2", "h3", "h4", "h5", "h6",
        "bullet", "quote", "quote-bar", "code", "copy", "table", "line", "header", "rule",
    }  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self._blocks: list[ReplyBlock] = []
        self._laid: list[LaidBlock] = []
        self._tops = [0]  # the first row of each block, then the row after the last block
        self._width = 0  # columns for which the blocks are broken into rows; 0 before the first layout
        self.matches: dict[int, list[tuple[int, int]]] = {}  # search matches, by number of the block

    # -- what is shown ------------------------------------------------------------------------------------------------

    def show(self, blocks: Sequence[ReplyBlock]) -> None:
        """Display these blocks."""
        pairs, height = zip(self._blocks, blocks, strict=False), self._tops[-1]
        same = sum(1 for _ in takewhile(lambda pair: pair[0] is pair[1] or pair[0] == pair[1], pairs))
        self._blocks[same:] = blocks[same:]
        self._lay(same)
        self.matches = {at: spans for at, spans in self.matches.items() if at < same}
        first = self._tops[min(same, len(self._tops) - 1)]  # the first row that changes
        rows = max(self._tops[-1] + self.BELOW, self.size.height) - first
        self.refresh(
            Region(0, first, max(self._width, 1), max(rows, 1)), layout=not self._width or self._tops[-1] != height
        )

    @property
    def blocks(self) -> Sequence[ReplyBlock]:
        """Return the displayed blocks."""
        return self._blocks

    def _lay(self, first: int) -> None:
        """Break the texts of the blocks into rows, from block number `first` on."""
        del self._laid[first:], self._tops[first + 1 :]
        if not self._width:
            return
        for block in self._blocks[first:]:
            self._laid.append(LaidBlock(block, self._width))
            self._tops.append(self._tops[-1] + self._laid[-1].height)

    def get_content_width(self, container: Size, viewport: Size) -> int:
        return container.width

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        if width != self._width:
            self._width = width
            self._lay(0)
        return self._tops[-1] + (self.BELOW if self._blocks else 0)

    # -- drawing ------------------------------------------------------------------------------------------------------

    def render_lines(self, crop: Region) -> list[Strip]:
        if not self.is_attached:  # it was removed after the screen began to draw
            return [Strip.blank(crop.width)] * crop.height
        return super().render_lines(crop)

    def render_line(self, y: int) -> Strip:
        number = bisect_right(self._tops, y) - 1
        if 0 <= number < len(self._laid):
            return self._draw(number, y - self._tops[number])
        return Strip.blank(self.size.width, self.visual_style.rich_style)

    def _draw(self, number: int, row: int) -> Strip:
        """Draw a row of a block; `row` counts from the top of the block."""
        laid = self._laid[number]
        block = laid.block
        base = self.visual_style
        if row < block.above:
            return self._padded(*self._margin(block.between, laid.margin, base))
        row -= block.above
        margins = block.lead if row == 0 else block.rest
        segments, base = self._margin(margins, laid.margin, base)
        if block.kind == "code":
            if row == 0:
                return self._padded([*segments, *self._copy_line(number, laid.room, base)], base)
            row -= 1
            base += self._component("code") + Style.parse("$text")
        elif block.kind == "rule":
            style = base + self._component("rule")
            return self._padded([*segments, Segment("─" * laid.room, style.rich_style)], base)
        elif block.kind.startswith("h"):
            base += self._component(block.kind)
            return self._padded([*segments, *self._row(number, row, base)], base, base.rich_style)
        return self._padded([*segments, *self._row(number, row, base)], base)

    def _row(self, number: int, row: int, base: Style) -> list[Segment]:
        """Draw a row of a block's text, or of the lines of a table."""
        laid = self._laid[number]
        if laid.block.kind == "table":
            base += self._component("table")
        drawn: list[Segment] = []
        column = 0
        for part in laid.parts(row):
            if part.column > column:
                drawn.append(Segment(" " * (part.column - column), base.background_style.rich_style))
                column = part.column
            if part.drawn:
                drawn.append(Segment(part.drawn, (base + self._component("line")).rich_style))
                column += len(part.drawn)
            elif part.end > part.start:
                line = self._text(number, part.start, part.end, base)
                drawn += line
                column += sum(segment.cell_length for segment in line)
        return drawn

    def _text(self, number: int, start: int, end: int, base: Style) -> list[Segment]:
        """Return the text of a block from `start` to `end`, with its styles, search matches and selection."""
        block = self._blocks[number]
        text = block.text[start:end]
        spans = [*self._spans(block, start, end)]
        for first, last in self.matches.get(number, ()):
            if first < end and last > start:
                spans.append(Span(max(first - start, 0), min(last, end) - start, MARKED))
        selection = self.text_selection
        if selection is not None and (chosen := selection.get_span(number)) is not None:
            first, last = chosen[0] - start, (chosen[1] - start if chosen[1] >= 0 else len(text))
            if last > 0 and first < len(text):
                style = Style.from_styles(self.screen.get_component_styles("screen--selection"))
                spans.append(Span(max(first, 0), min(last, len(text)), style))
        drawn, at = [], start
        for piece, style in Content(text, spans).render(base, end=""):
            drawn.append(Segment(piece, (base + style).rich_style_with_offset(at, number)))
            at += len(piece)
        if any(run.href for run in block.runs_in(start, end)):
            links = self.link_style
            drawn = [
                Segment(piece, style + links if style is not None and "@click" in style.meta else style)
                for piece, style, _ in drawn
            ]
        return drawn

    def _spans(self, block: ReplyBlock, start: int, end: int) -> Iterator[Span]:
        """Yield the styles of a block's text from `start` to `end`, as spans whose positions count from `start`."""
        if block.kind == "code":
            app = self.app
            colours = highlighted(block.text, block.language, app.native_ansi_color, app.current_theme.dark)
            for at in range(bisect_right(colours, start, key=lambda span: span.end), len(colours)):
                if colours[at].start >= end:
                    break
                yield Span(
                    max(colours[at].start - start, 0), min(colours[at].end - start, end - start), colours[at].style
                )
            return
        if block.kind == "table" and block.cells and start < (block.cells[0][-1][1] if block.cells[0] else 0):
            yield Span(0, end - start, self.get_visual_style("header", partial=True))
        for run in block.runs_in(start, end):
            for mark in run.marks:
                yield Span(run.start - start, run.end - start, self.get_visual_style(mark, partial=True))
            if run.href:
                action = Style.from_meta({"@click": f"link({run.href!r})"})
                yield Span(run.start - start, run.end - start, action)

    def _margin(self, margins: tuple[Margin, ...], columns: int, base: Style) -> tuple[list[Segment], Style]:
        """Return the bullets and bars to the left of a row, and the style of the text to the right of them."""
        segments: list[Segment] = []
        for margin in margins:
            if margin.is_quote:
                around = base.background
                base += self._component("quote")
                colour = self.get_component_styles("quote-bar").color
                bar = base + Style(foreground=around + colour)  # the bar has the background around the quote
                segments += [Segment(margin.text[:1], bar.rich_style), Segment(margin.text[1:], base.rich_style)]
            else:
                style = base + self._component("bullet")
                segments.append(Segment(margin.text, style.rich_style))
        if sum(segment.cell_length for segment in segments) > columns:
            segments = list(Strip(segments).crop(0, columns))
        return segments, base

    def _padded(self, segments: Sequence[Segment], style: Style, blank: RichStyle | None = None) -> Strip:
        return Strip(segments).adjust_cell_length(self.size.width, blank or style.background_style.rich_style)

    def _component(self, name: str) -> Style:
        """Return the style of a CSS component class, to be added to a style of the text or the widget."""
        styles = self.get_component_styles(name)
        style = Style.from_styles(styles)
        return style if styles.has_rule("color") or styles.auto_color else replace(style, foreground=None)

    def _copy_line(self, number: int, room: int, base: Style) -> list[Segment]:
        """Draw the row above a block of code, with the word "copy" at its right end."""
        style = base + self._component("copy")
        click = style + Style.from_meta({"@click": f"copy({number})"})
        blank = Segment(" " * max(room - len("copy") - PADDING, 0), style.rich_style)
        return [blank, Segment("copy", click.rich_style), Segment(" " * PADDING, style.rich_style)]

    # -- selection, search and clicks ---------------------------------------------------------------------------------

    def place_at(self, column: int, row: int) -> Offset:
        """Return the text position nearest to a cell: the block's number as y, the place in its text as x.

        A row without text counts as the end of the text above it.
        """
        for y in range(min(row, self._tops[-1] - 1), -1, -1):
            number = bisect_right(self._tops, y) - 1
            place = self._laid[number].place_at(column if y == row else sys.maxsize, y - self._tops[number])
            if place is not None:
                return Offset(place, number)
        return Offset(0, 0)

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """Return the selected text, with the bullets or numbers of whole blocks, and a line break to put after it."""
        start, end = selection.start or Offset(0, 0), selection.end or Offset(sys.maxsize, sys.maxsize)
        chosen = []
        for y, block in [*enumerate(self._blocks)][start.y : end.y + 1]:
            text = block.text[: end.x].rstrip() if y == end.y else block.text  # a selection may end right of the text
            whole = y > start.y or selection.start is None
            marks = "".join(margin.text for margin in block.lead if whole and not margin.is_quote)
            chosen.append(marks + block.source_text(0 if whole else start.x, len(text)))
        copied = "\n".join(chosen)
        return copied if selection.start is None else copied.lstrip("\n"), "\n"

    def mark(self, matches: dict[int, list[tuple[int, int]]]) -> None:
        """Underline search matches; `matches` has the start and end of each, by number of the block."""
        self.matches = matches
        self.refresh()

    def select(self, number: int, start: int, end: int) -> int:
        """Select a part of a block's text. Return the row of the view where the part begins."""
        self.screen.selections = {self: Selection(Offset(start, number), Offset(end, number))}
        return self._tops[number] + self._laid[number].row_of(start) if number < len(self._laid) else 0

    def action_copy(self, number: int) -> None:
        """Copy a piece of code as the model wrote it, without its last line break."""
        block = self._blocks[number]
        cast("ChatApp", self.app).copy_to_clipboard(block.source.removesuffix("\n"), block.language or "code")

    def action_link(self, href: str) -> None:
        """Show the address of a link, without opening it: a model could have put private text into the address."""
        self.notify(one_line(unquote(href)), title="Address of the link", markup=False, timeout=10)

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Explain the word "copy" above code while the pointer is on it."""
        on_copy = str(event.style.meta.get("@click", "")).startswith("copy(")
        if on_copy != (self.tooltip is not None):
            key = keymap.key(self.app, "chat.code") if on_copy else ""
            self.tooltip = (
                Content(f"{key} copies code too: the last block of a reply first, then earlier ones")
                if on_copy
                else None
            )


class PlainText(BlockView):
    """A view of a text without Markdown, of any length."""

    def __init__(self, text: str = "", classes: str = "") -> None:
        super().__init__()
        self.set_classes(classes)
        self.set_text(text)

    def set_text(self, text: str) -> None:
        """Display this text in place of the present one. Rows of an unchanged beginning are not computed again."""
        self.show([plain(safe(text))] if text else [])


LONGEST_CODE = 8192  # characters; longer code is not highlighted
COLOUR_SECONDS = 0.1  # code that is not coloured after this time stays plain


@lru_cache(maxsize=32)
def highlighted(code: str, language: str, ansi: bool, dark: bool) -> tuple[Span, ...]:
    """Return the styles of a piece of code, in the order of the text.

    The language must be named, because guessing it can take minutes.
    """
    from pygments.lexers import get_lexer_by_name  # after the first paint
    from pygments.util import ClassNotFound
    from textual.highlight import ANSIDarkHighlightTheme, ANSILightHighlightTheme, HighlightTheme

    if not language or len(code) > LONGEST_CODE:
        return ()
    try:
        lexer = get_lexer_by_name(language, stripnl=False, ensurenl=True)
    except ClassNotFound:
        return ()
    theme = (ANSIDarkHighlightTheme if dark else ANSILightHighlightTheme) if ansi else HighlightTheme
    spans, at, end = [], 0, time.perf_counter() + COLOUR_SECONDS
    for kind, text in lexer.get_tokens(code):
        while kind is not None and kind not in theme.STYLES:
            kind = kind.parent
        if kind is not None and (style := theme.STYLES[kind]):
            spans.append(Span(at, at + len(text), style))
        at += len(text)
        if time.perf_counter() > end:
            break
    return tuple(spans)
