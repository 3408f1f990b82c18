"""The base classes of dialogs: a panel, a panel with a search and a list, and one that can ask a question.

These classes work around two faults of Textual's screens when many events arrive at once: wrong sizes, and events for
removed widgets.
"""

from collections.abc import Iterable
from typing import Any, TypeVar

from textual import events
from textual.app import ComposeResult
from textual.await_complete import AwaitComplete
from textual.binding import Binding
from textual.containers import Vertical
from textual.geometry import Offset
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Input, OptionList, Static

from localspec.text import one_line
from localspec_tui.widgets.asking_line import AskingLine
from localspec_tui.widgets.keys_panel import KeysFooter


class StableLayout:
    """A mixin that keeps a screen's layout stable while the size of the terminal changes.

    It is not a Screen itself, because Textual reads styles and keys only from the first Screen base.
    """

    async def on_event(self: Any, event: events.Event) -> None:
        """Replace the size in an event by the present size of the terminal.

        Textual would use the size in each event, and post it to the screen again. Two sizes could then alternate
        forever.
        """
        if isinstance(event, events.Resize) and event.size != self.app.size:
            event = events.Resize.from_dimensions(self.app.size, None)
        await super().on_event(event)  # type: ignore[misc]

    @property
    def is_covered(self: Any) -> bool:
        """Return whether another screen hides this one completely, so that it need not be drawn."""
        stack = self.app.screen_stack
        above = stack[stack.index(self) + 1 :] if self in stack else []
        return any(screen.styles.background.a == 1 for screen in above)

    def get_widget_and_offset_at(self: Any, x: int, y: int) -> tuple[Widget | None, Offset | None]:
        """Return the widget at a place; None if it was removed since the last layout.

        A removed widget has no parent, which Textual does not expect.
        """
        widget, offset = super().get_widget_and_offset_at(x, y)  # type: ignore[misc]
        return (None, None) if widget is not None and widget.parent is None else (widget, offset)


DIALOG_KEYS = Binding("f1", "app.all_keys", "Keys", id="dialog.keys")


class ClosesOnce(StableLayout):
    """A mixin for screens that close once: further keys neither choose a second time nor close the screen below."""

    def dismiss(self: Any, result: Any = None) -> AwaitComplete:
        """Close the screen, if it is in front."""
        done: AwaitComplete
        if not self.is_active:
            done = AwaitComplete.nothing()  # type: ignore[no-untyped-call]
        else:
            self.workers.cancel_node(self)  # Textual does so only after the widgets that they write to are gone
            done = super().dismiss(result)  # type: ignore[misc]
        return done


Result = TypeVar("Result")


class Dialog(ClosesOnce, ModalScreen[Result]):
    """A dialog: a panel with its content, and the keys that work in it."""

    def compose(self) -> ComposeResult:
        with Vertical(classes="panel"):
            yield from self.content()
        yield KeysFooter(show_command_palette=False)

    def content(self) -> ComposeResult:
        """Yield the widgets of the panel."""
        return ()


class SearchedScreen(Dialog[Result]):
    """A dialog with a search, its matches, and a sentence about them.

    The arrow keys move through the list while the user types.
    """

    def __init__(self, search: Input) -> None:
        super().__init__()
        self._search, self._options = search, OptionList(markup=False)
        self._sentence = Static("", id="sentence", markup=False)

    def content(self) -> ComposeResult:
        yield from self._above()
        yield self._search
        yield self._options
        yield self._sentence
        yield from self._below()

    def _above(self) -> Iterable[Widget]:
        """Yield the widgets above the search field."""
        return ()

    def _below(self) -> Iterable[Widget]:
        """Yield the widgets below the sentence about the matches."""
        return ()

    def _tell(self, sentence: str) -> None:
        """Replace the sentence. An empty one takes no room."""
        self._sentence.update(one_line(sentence))
        self._sentence.display = bool(sentence)

    def action_move(self, step: int) -> None:
        if step > 0:
            self._options.action_cursor_down()
        else:
            self._options.action_cursor_up()


class AskingScreen(SearchedScreen[Result]):
    """A dialog that can ask a question below its list. Until the user has answered, the list does nothing."""

    def __init__(self, search: Input) -> None:
        super().__init__(search)
        self._asking = AskingLine()

    def _below(self) -> Iterable[Widget]:
        return (self._asking,)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return action in {"answer", "leave_question"} or not self._asking.asking

    def action_answer(self, yes: bool) -> None:
        self._asking.answer("yes" if yes else None)

    def action_leave_question(self) -> None:
        self._asking.answer(None)
