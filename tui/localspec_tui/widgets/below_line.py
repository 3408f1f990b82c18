"""How much came below while one reads above."""

from textual.content import Content
from textual.widget import Widget

from localspec_tui import keymap


class BelowLine(Widget):
    """It takes no room where nothing came. A click goes there."""

    def __init__(self) -> None:
        super().__init__()
        self._lines = 0
        self.display = False

    def show(self, lines: int) -> None:
        """So many lines are new."""
        if lines != self._lines:
            self._lines, self.display = lines, lines > 0
            self.refresh()

    def render(self) -> Content:
        key = keymap.key(self.app, "chat.end")
        return Content(f"↓ {self._lines:,} new line{'' if self._lines == 1 else 's'} ({key})")

    async def on_click(self) -> None:
        await self.run_action("screen.end")
