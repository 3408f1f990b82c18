"""Where one types words that are looked for in the conversation, and which message of how many is shown."""

from typing import ClassVar

from textual import events
from textual.actions import SkipAction
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.message import Message
from textual.timer import Timer
from textual.widgets import Input, Static

from localspec_tui.widgets.keys_in_order import OneLine

QUIET_SECONDS = 0.1  # after the last key, before a message is shown


class _Words(OneLine):
    proposed = False  # what is selected

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter,up", "look(1)", "Older", id="find.older"),
        Binding("shift+enter,down", "look(-1)", "Newer", id="find.newer"),
        Binding("escape", "leave", "Back", tooltip="Back to where one was", id="find.leave"),
    ]

    def action_look(self, step: int) -> None:
        self.post_message(FindLine.Stepped(step))

    def action_leave(self) -> None:
        self.post_message(FindLine.Left(back=True))

    def propose(self) -> None:
        """What is typed takes the place of the words that stand there."""
        self.action_select_all()
        self.proposed = True

    def watch_selection(self) -> None:
        self.proposed = False

    def action_copy(self) -> None:
        """Nobody has selected what is proposed: where a reply is under way, the key stops it."""
        if self.proposed and self.screen.check_action("stop", ()):
            raise SkipAction
        super().action_copy()

    def on_blur(self, _: events.Blur) -> None:
        """What one has gone to is what one looked for; another window is no such thing."""
        if self.app.app_focus:
            self.post_message(FindLine.Left(back=False))


class FindLine(Horizontal):
    """It takes no room while nothing is looked for. Whoever shows it is asked for a message, and says which it is."""

    class Asked(Message):
        """The newest message with these words is wanted (0), the next older (1) or newer (-1), or a count (None)."""

        def __init__(self, words: str, step: int | None) -> None:
            super().__init__()
            self.words, self.step = words, step

    class Stepped(Message):
        """A key asks for another one."""

        def __init__(self, step: int) -> None:
            super().__init__()
            self.step = step

    class Left(Message):
        """Nothing is looked for any more; `back`: and what was found is not what one wants to read."""

        def __init__(self, back: bool) -> None:
            super().__init__()
            self.back = back

    def __init__(self) -> None:
        super().__init__()
        self._words, self._told = _Words(compact=True, placeholder="words in this conversation"), Static(markup=False)
        self._asked = ""
        self._quiet: Timer | None = None
        self.display = False

    def compose(self) -> ComposeResult:
        yield Static("find ", markup=False)
        yield self._words
        yield self._told

    def open(self, words: str) -> None:
        """Words are looked for, those of the last time, which are but counted, where none are given."""
        self._asked = ""
        self._told.update("")
        self.display = True
        if words:
            self._words.value = words
        self.screen.set_focus(self._words)  # at once: what is typed next is meant for it
        self._words.propose()
        if self._words.value:
            self._ask(0 if words else None)

    def close(self) -> None:
        self.display = False

    def tell(self, which: str) -> None:
        """Which of how many is shown."""
        self._told.update(f" {which}" if which else "")

    def on_input_changed(self, changed: Input.Changed) -> None:
        changed.stop()
        if self._quiet is not None:
            self._quiet.stop()
        if changed.value != self._asked:
            self._quiet = self.set_timer(QUIET_SECONDS, lambda: self._ask(0))

    def on_find_line_stepped(self, stepped: Stepped) -> None:
        stepped.stop()
        self.step(stepped.step)

    def step(self, step: int) -> None:
        """An older message (1) or a newer one (-1); where other words were typed meanwhile, the newest with them."""
        self._ask(step if self._words.value == self._asked else 0)

    def _ask(self, step: int | None) -> None:
        if self._quiet is not None:
            self._quiet.stop()
        self._asked = self._words.value
        if self.display:
            self.post_message(self.Asked(self._asked, step))
