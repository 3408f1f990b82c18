"""What was thought before a reply: one line, which opens."""

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widget import Widget

from localspec.text import one_line
from localspec_tui.block_view import PlainText
from localspec_tui.widgets.status_line import BETWEEN

FOLDED, OPEN = "▸", "▾"
NEWEST = 400  # characters of the thoughts that a line may show the end of


class ThoughtLine(Widget):
    """How long was thought; while it goes on and is folded, the newest words as well."""

    def __init__(self, words: str) -> None:
        super().__init__()
        self.words, self.newest, self.mark = words, "", FOLDED

    def show(self, words: str, newest: str, mark: str) -> None:
        """All of it anew."""
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
    """The thoughts before one reply, folded until somebody opens them."""

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
        """More was thought."""
        self.reasoning += reasoning
        self._show()

    def tell(self, words: str) -> None:
        """How long it takes so far."""
        self._words = words
        self._show()

    def finish(self, reasoning: str, words: str) -> None:
        """This is all of it."""
        self.reasoning, self._words, self._going_on = reasoning, words, False
        self._show()

    def toggle(self) -> None:
        """Opens or folds it."""
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
