"""The base classes of dialogs: a panel, a panel with a search and a list, and one that can ask a question.

These classes work around two faults of Textual's screens when many events arrive at once: wrong sizes, and events for
removed widgets.
"""

from asyncio import Future, get_running_loop
from collections.abc import Iterable
from typing import Any, ClassVar, TypeVar

from textual import events
from textual.app import ComposeResult
from textual.await_complete import AwaitComplete
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.geometry import Offset
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Input, OptionList, Static

from localspec.text import one_line
from localspec_tui.widgets.keys_panel import KeysFooter
from localspec_tui.widgets.typed_text import OneLine


class StableLayout:
    """A mixin that keeps a screen's layout stable while the size of the terminal changes.

    It is not a Screen itself, because Textual reads styles and keys only from the first base class that is a Screen.
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
    """A mixin for screens that close only once. Later keys do not choose again, and do not close the screen below."""

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
        """Replace the sentence about the matches. An empty sentence takes no room."""
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


# -- a question --------------------------------------------------------------------------------------------------------


class _AnswerField(OneLine):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "submit", "Save", id="asking.take"),
        Binding("escape", "screen.leave_question", "Cancel", id="asking.leave"),
    ]


class _Decision(Static, can_focus=True):
    """A yes-or-no question. Only y means yes. Enter does not, because it may be typed before the question appears."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "screen.answer(True)", "Yes", id="asking.yes"),
        Binding("n,escape", "screen.answer(False)", "No", id="asking.no"),
    ]


class AskingLine(Vertical):
    """A line that asks a question. It is invisible without a question.

    The caller waits for the answer. A new question ends an open one.
    """

    def __init__(self) -> None:
        super().__init__()
        self._question, self._text, self._decision = (
            Static(markup=False),
            _AnswerField(compact=True),
            _Decision(markup=False),
        )
        self._awaited: Future[str | None] | None = None

    def compose(self) -> ComposeResult:
        yield self._question
        yield self._text
        yield self._decision

    def on_mount(self) -> None:
        self.display = False

    @property
    def asking(self) -> bool:
        """Whether a question is open."""
        return self._awaited is not None

    async def text(self, question: str, value: str) -> str | None:
        """Ask for a text, and return it; None if the user left. The field begins with `value`."""
        self._question.update(one_line(question))
        self._text.value = one_line(value)
        return await self._ask(self._text)

    async def decision(self, question: str) -> bool:
        """Ask for yes or no, and return whether the answer was yes."""
        self._decision.update(one_line(question))
        return await self._ask(self._decision) is not None

    async def _ask(self, field: Input | Static) -> str | None:
        self.answer(None)
        self._question.display = self._text.display = field is self._text
        self._decision.display = field is self._decision
        self.display = True
        focused = self.screen.focused
        answer: Future[str | None] = get_running_loop().create_future()
        self._awaited = answer
        self.screen.set_focus(field)  # at once, before the next typed key
        self.screen.refresh_bindings()
        try:
            return await answer
        finally:
            if self._awaited is answer and self.is_attached:
                self._awaited, self.display = None, False
                self.screen.set_focus(focused)
                self.screen.refresh_bindings()

    def answer(self, text: str | None) -> None:
        """Answer the question with a text. None means no, or no text."""
        if self._awaited is not None and not self._awaited.done():
            self._awaited.set_result(text)

    def on_input_submitted(self, submitted: Input.Submitted) -> None:
        submitted.stop()
        self.answer(submitted.value)

    def on_input_changed(self, changed: Input.Changed) -> None:
        changed.stop()
