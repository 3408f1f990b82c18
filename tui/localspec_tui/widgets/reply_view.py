"""The view of a reply, complete or growing."""

import asyncio
from collections.abc import Mapping
from typing import Any

from rich.cells import cell_len
from textual import work
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Static

from localspec.chat.figures import ending, saved_thought, summary
from localspec.repetition import goes_round
from localspec.text import one_line, safe
from localspec_tui.block_view import BlockView, PlainText
from localspec_tui.growing_document import LONGEST, GrowingDocument, is_long, read_blocks
from localspec_tui.widgets.message_view import MessageView
from localspec_tui.widgets.status_line import BETWEEN

FOLDED, OPEN = "▸", "▾"
NEWEST = 400  # last characters of the thoughts that the line may show


class ThoughtLine(Widget):
    """A line that says how long the model thought. While folded thoughts grow, it also shows their newest words."""

    def __init__(self, words: str) -> None:
        super().__init__()
        self.words, self.newest, self.mark = words, "", FOLDED

    def show(self, words: str, newest: str, mark: str) -> None:
        """Show how long the model thought, its newest words, and the mark for folded or opened thoughts."""
        self.words, self.newest, self.mark = words, newest, mark
        self.refresh()

    def render(self) -> Content:
        line = f"{self.mark} {self.words}"
        room = self.size.width - cell_len(line) - len(BETWEEN)
        newest = self.newest
        while newest and cell_len(newest) > room:
            newest = newest[1 + max(0, (cell_len(newest) - room) // 2 - 1) :]
        return Content(f"{line}{BETWEEN}{newest}" if newest else line)


class ThoughtView(Vertical):
    """The thoughts before one reply, folded until they are opened."""

    def __init__(self, reasoning: str = "", words: str = "") -> None:
        super().__init__()
        self.reasoning, self._words = reasoning, words
        self._going_on = not words
        self._line = ThoughtLine(words or "thinking")
        self._text = PlainText(reasoning, classes="thoughts")
        self._text.display = False

    def compose(self) -> ComposeResult:
        yield self._line
        yield self._text

    def grow(self, reasoning: str) -> None:
        """Add thoughts."""
        self.reasoning += reasoning
        self._show()

    def tell(self, words: str) -> None:
        """Show how long the model has thought so far."""
        self._words = words
        self._show()

    def finish(self, reasoning: str, words: str) -> None:
        """Show the complete thoughts."""
        self.reasoning, self._words, self._going_on = reasoning, words, False
        self._show()

    def toggle(self) -> None:
        """Open or fold the thoughts."""
        self._text.display = not self._text.display
        self._show()

    def on_click(self) -> None:
        self.toggle()

    def _show(self) -> None:
        opened = bool(self._text.display)
        newest = one_line(self.reasoning[-NEWEST:]) if self._going_on and not opened else ""
        self._line.show(self._words or "thinking", newest, OPEN if opened else FOLDED)
        if opened:
            self._text.set_text(self.reasoning)


AT_ONCE = 4096  # characters; longer texts are read on another thread, while keys are handled


class ReplyMarkdown(BlockView):
    """The Markdown of one reply.

    `append` adds text while the reply grows. `update` parses the complete text again, because its end may change the
    meaning of earlier parts.
    """

    BELOW = 1

    def __init__(self, text: str = "") -> None:
        super().__init__()
        self._document = GrowingDocument()
        self._first = safe(text)
        self._lock = asyncio.Lock()
        self._reading = False  # whether a long block is being parsed on another thread

    async def on_mount(self) -> None:
        if self._first:
            await self.update(self._first)

    @property
    def is_plain(self) -> bool:
        """Whether the text is too long to be shown as Markdown."""
        return is_long(self._document.source)

    async def update(self, text: str) -> None:
        """Show this text in place of the present one."""
        text = safe(text)
        async with self._lock:
            long = len(text) > AT_ONCE
            blocks = await asyncio.to_thread(read_blocks, text) if long else read_blocks(text)
            self._document = GrowingDocument(text, blocks)
            self.show(blocks)

    async def append(self, text: str) -> None:
        """Add text to the end of the reply."""
        async with self._lock:
            self._grow(safe(text))

    def _grow(self, text: str) -> None:
        if self._document.add(text):
            if self._document.is_slow:
                self._read_later()
            else:
                self._document.append("")
        self.show(self._document.blocks)

    @work
    async def _read_later(self) -> None:
        """Parse a long block again on another thread, so that keys are handled meanwhile."""
        if self._reading:
            return
        self._reading, document = True, self._document
        read = await asyncio.to_thread(document.read)
        async with self._lock:
            self._reading = False
            if document is self._document:
                document.settle(*read)
                self._grow("")  # with the text that came meanwhile


LONG = f"(longer than {LONGEST // 1024} KB, so it is shown as plain text)"


class ReplyView(MessageView):
    """A reply, complete or growing, with its thoughts folded above."""

    def __init__(
        self,
        source: str = "",
        reason: str | None = "stop",
        figures: Mapping[str, Any] | None = None,
        reasoning: str = "",
    ) -> None:
        super().__init__(source)
        self._below = _below(source, reason, figures or {})
        self._markdown = ReplyMarkdown(source)
        self._thoughts = ThoughtView(reasoning, saved_thought(figures or {})) if reasoning else None

    def render_lines(self, crop: Region) -> list[Strip]:
        """Return blank lines, because the widgets of the reply cover them, and drawing them would cost time.

        If the reply has the focus or was found by a search, draw them: they have a bar at the left.
        """
        if self.has_focus or self.has_class("-found"):
            return super().render_lines(crop)
        return [Strip.blank(crop.width, self.visual_style.rich_style)] * crop.height

    def compose(self) -> ComposeResult:
        if self._thoughts is not None:
            yield self._thoughts
        yield self._markdown
        if self._below:
            yield _line(self._below)

    async def grow(self, text: str) -> None:
        """Append text. The reply must be mounted."""
        self.source += text
        was_plain = self._markdown.is_plain
        await self._markdown.append(text)
        if self._markdown.is_plain and not was_plain:
            self.notify(
                f"The reply is longer than {LONGEST // 1024} KB; the rest is shown as plain text.", markup=False
            )

    async def think(self, reasoning: str) -> None:
        """Append thoughts. The reply must be mounted."""
        if self._thoughts is None:
            self._thoughts = ThoughtView()
            await self.mount(self._thoughts, before=0)
        self._thoughts.grow(reasoning)

    def tell_thought(self, words: str) -> None:
        """Show how long the model has thought so far."""
        if self._thoughts is not None:
            self._thoughts.tell(words)

    def toggle_thoughts(self) -> bool:
        """Open or fold the thoughts. Return False if there are no thoughts."""
        if self._thoughts is None:
            return False
        self._thoughts.toggle()
        return True

    async def finish(self, source: str, reason: str | None, figures: Mapping[str, Any], reasoning: str = "") -> None:
        """Show the whole reply once more, because its last line may change the meaning of earlier lines."""
        if reasoning:
            await self.think("")
            assert self._thoughts is not None
            self._thoughts.finish(reasoning, saved_thought(figures))
        self.source = source
        if len(source) > AT_ONCE:
            self._update_later(source)
        else:
            await self._markdown.update(source)
        if (below := _below(source, reason, figures)) and self.is_attached:  # otherwise the chat is ending
            await self.mount(_line(below))

    @work
    async def _update_later(self, source: str) -> None:
        await self._markdown.update(source)


def _below(source: str, reason: str | None, figures: Mapping[str, Any]) -> str:
    """Return the line below a reply: how it ended if not as usual, whether it repeats itself, and its figures."""
    how = ending(reason, figures)
    ended = f"({how})" if how else ""
    circles = "(the reply repeats itself)" if reason != "repetition" and goes_round(source) else ""
    long = LONG if is_long(source) else ""
    return " · ".join(filter(None, (ended, long, circles, summary(figures))))


def _line(text: str) -> Static:
    return Static(text, markup=False, classes="ending")
