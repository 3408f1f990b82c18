"""Markdown as it is shown: nothing of what a model writes is obeyed, fetched or opened."""

from collections.abc import Sequence
from itertools import takewhile, zip_longest
from typing import TYPE_CHECKING, cast
from urllib.parse import unquote

from textual.app import ComposeResult
from textual.await_complete import AwaitComplete
from textual.content import Content
from textual.geometry import Offset, Size
from textual.layout import DockArrangeResult, Layout, WidgetPlacement
from textual.layouts.vertical import VerticalLayout
from textual.widget import Widget
from textual.widgets import Markdown, Static
from textual.widgets._markdown import (
    MarkdownBlock,
    MarkdownFence,
    MarkdownTable,
    MarkdownTableCellContents,
    MarkdownTableContent,
)

from localspec.text import one_line, safe
from localspec_tui import keymap
from localspec_tui.code_wrap import WrappedCode
from localspec_tui.growing_paragraph import GrowingParagraph
from localspec_tui.markdown_parser import parser

if TYPE_CHECKING:
    from localspec_tui.app import ChatApp

AROUND = 3  # columns beside what a cell holds: a blank on each side, a line


class _TableContent(MarkdownTableContent):
    """Without Textual's tooltips, which take the text of a cell for markup."""

    def compose(self) -> ComposeResult:
        for header in self.headers:
            yield MarkdownTableCellContents(header, classes="header")
        for number, row in enumerate(self.rows, 1):
            for cell in row:
                yield MarkdownTableCellContents(cell, classes=f"row{number} cell")
            self.last_row = number


class _Table(MarkdownTable):
    def compose(self) -> ComposeResult:
        self._headers, self._rows = self._get_headers_and_rows()
        self._fit()
        yield _TableContent(self._headers, self._rows)

    def _fit(self) -> None:
        """As wide as what it holds, where there is room: else it would be stretched over the whole line."""
        columns = zip_longest(self._headers, *self._rows, fillvalue=Content(""))
        widest = [
            max(line.cell_length for cell in column for line in cell.split(allow_blank=True)) for column in columns
        ]
        self.styles.max_width = sum(width + AROUND for width in widest) + 1

    async def _update_from_block(self, block: MarkdownBlock) -> None:
        if isinstance(block, _Table) and len(block._get_headers_and_rows()[1]) >= max(len(self._rows), 1):
            await super()._update_from_block(block)
            self._fit()
        else:  # a line that was a row until more of it came; Textual counts on rows that only grow
            await MarkdownBlock._update_from_block(self, block)


class CopyLine(Static):
    """Above code: a click on its word copies that; a selection leaves it out."""

    ALLOW_SELECT = False

    def __init__(self) -> None:
        super().__init__(Content.from_markup("[@click=copy]copy[/]"))

    def on_mount(self) -> None:
        self.tooltip = Content(f"{keymap.key(self.app, 'chat.code')} copies code as well, the last of a reply first")

    def action_copy(self) -> None:
        fence = self.parent
        assert isinstance(fence, MarkdownFence)
        cast("ChatApp", self.app).copy_to_clipboard(fence.code, fence.lexer or "code")


class _Fence(MarkdownFence):
    def compose(self) -> ComposeResult:
        yield CopyLine()
        yield from super().compose()

    @classmethod
    def highlight(cls, code: str, language: str, ansi: bool = False, dark: bool = False) -> Content:
        return WrappedCode.of(super().highlight(code, language, ansi, dark))


class _Column(VerticalLayout):
    """Blocks one below the other. Those above the first that changed stay where they were."""

    def __init__(self) -> None:
        self._how: tuple[object, ...] = ()
        self._states: Sequence[tuple[object, ...]] = ()  # of the blocks, as Textual keeps their sizes
        self._placed: list[WidgetPlacement] = []

    def arrange(self, parent: Widget, children: list[Widget], size: Size, greedy: bool = True) -> list[WidgetPlacement]:
        how = size, parent.app.size, greedy
        states = [(child, child._layout_updates, child.styles._cache_key) for child in children]
        pairs = zip(states, self._states, strict=False) if how == self._how else iter(())
        stay = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        first = max(stay - 1, 0)  # the last that stays tells where those after it are
        placed = [*super().arrange(parent, children[first:], size, greedy)]
        if first:
            down = Offset(0, self._placed[first].region.y - placed[0].region.y)
            placed = [*self._placed[:first], *(one._replace(region=one.region.translate(down)) for one in placed)]
        self._how, self._states, self._placed = how, states, placed
        return placed


class ReplyMarkdown(Markdown):
    """One reply. It may grow by `append`; `update` with the whole text makes up for what only the end can tell."""

    BLANK = True  # but for what it holds: else each of its lines is drawn anew behind that, whenever it grows

    def __init__(self, text: str = "") -> None:
        super().__init__(text, parser_factory=parser, open_links=False)
        self._column = _Column()

    @property
    def layout(self) -> Layout:
        return self._column

    def update(self, markdown: str) -> AwaitComplete:
        return super().update(safe(markdown))

    def append(self, markdown: str) -> AwaitComplete:
        return AwaitComplete(self._append(safe(markdown)))

    async def _append(self, markdown: str) -> None:
        before = len(self.children)
        await super().append(markdown)
        for child in self.children[max(before - 1, 0) :]:
            for block in child.walk_children(MarkdownBlock, with_self=True):
                if block._layout_required:
                    block._check_refresh()  # one that is new would ask for a layout of its own after the first

    def arrange(self, size: Size, optimal: bool = False) -> DockArrangeResult:
        """Blocks are as high as what they hold, however high this is: so they are arranged once, and not twice."""
        return super().arrange(size.with_height(0), optimal)

    def get_block_class(self, block_name: str) -> type[MarkdownBlock]:
        own: dict[str, type[MarkdownBlock]] = {
            "table_open": _Table,
            "fence": _Fence,
            "code_block": _Fence,
            "paragraph_open": GrowingParagraph,
        }
        return own.get(block_name) or super().get_block_class(block_name)

    def on_markdown_link_clicked(self, event: Markdown.LinkClicked) -> None:
        """Shows where a link leads: following it could carry away what its address holds."""
        event.stop()
        self.notify(one_line(unquote(event.href)), title="The link leads to", markup=False, timeout=10)
