"""The line about the files that a prompt names and about its length, and the line about new text below."""

import asyncio
from collections.abc import Callable

from textual import work
from textual.content import Content
from textual.timer import Timer
from textual.widget import Widget

from localspec.chat.attachments import is_long
from localspec.text import one_line
from localspec_tui import keymap
from localspec_tui.widgets.status_line import fitting

QUIET_SECONDS = 0.15  # after the last key, before the disk is read


class AttachedLine(Widget):
    """A line about the typed prompt, which takes no room without content.

    A thread calls `measure`, which may read the disk.
    """

    def __init__(self, measure: Callable[[str], list[str]]) -> None:
        super().__init__()
        self._measure = measure
        self._said: tuple[str, ...] = ()
        self._asking: Timer | None = None
        self.display = False

    def look(self, text: str) -> None:
        """Show notices about the files and the length of the typed prompt, once typing pauses."""
        if self._asking is not None:
            self._asking.stop()
        if "@" in text or is_long(text):
            self._asking = self.set_timer(QUIET_SECONDS, lambda: self._find(text))
        else:
            self.workers.cancel_node(self)
            self._show()

    @work(exclusive=True)
    async def _find(self, text: str) -> None:
        self._show(*await asyncio.to_thread(self._measure, text))

    def _show(self, *said: str) -> None:
        self._said, self.display = tuple(map(one_line, said)), bool(said)
        self.refresh()

    def render(self) -> Content:
        return Content("+ " + fitting(self._said, self.size.width - 2))


class BelowLine(Widget):
    """A line that says how much new text is below. It takes no room if there is none. A click scrolls there."""

    def __init__(self) -> None:
        super().__init__()
        self._lines = 0
        self.display = False

    def show(self, lines: int) -> None:
        """Show how many lines of new text are below."""
        if lines != self._lines:
            self._lines, self.display = lines, lines > 0
            self.refresh()

    def render(self) -> Content:
        key = keymap.key(self.app, "chat.end")
        return Content(f"↓ {self._lines:,} new line{'' if self._lines == 1 else 's'} ({key})")

    async def on_click(self) -> None:
        await self.run_action("screen.end")
