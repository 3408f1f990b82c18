"""Asks the user for a text, or for yes or no, in a line below the subject of the question."""

from asyncio import Future, get_running_loop
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Input, Static

from localspec.text import one_line
from localspec_tui.widgets.typed_text import OneLine


class _AnswerField(OneLine):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "submit", "Take it", id="asking.take"),
        Binding("escape", "screen.leave_question", "Leave it", id="asking.leave"),
    ]


class _Decision(Static, can_focus=True):
    """A yes-or-no question. Enter does not mean yes: it may have been typed before the question appeared."""

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
        self._asked: Future[str | None] | None = None

    def compose(self) -> ComposeResult:
        yield self._question
        yield self._text
        yield self._decision

    def on_mount(self) -> None:
        self.display = False

    @property
    def asking(self) -> bool:
        """Whether a question is open."""
        return self._asked is not None

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
        before = self.screen.focused
        asked: Future[str | None] = get_running_loop().create_future()
        self._asked = asked
        self.screen.set_focus(field)  # at once, before the next typed key
        self.screen.refresh_bindings()
        try:
            return await asked
        finally:
            if self._asked is asked and self.is_attached:
                self._asked, self.display = None, False
                self.screen.set_focus(before)
                self.screen.refresh_bindings()

    def answer(self, text: str | None) -> None:
        """Answer the question with a text. None means no, or no text."""
        if self._asked is not None and not self._asked.done():
            self._asked.set_result(text)

    def on_input_submitted(self, submitted: Input.Submitted) -> None:
        submitted.stop()
        self.answer(submitted.value)

    def on_input_changed(self, changed: Input.Changed) -> None:
        changed.stop()
