"""The base of dialogs with a search and a list, and of those that also ask a question."""

from collections.abc import Iterable
from typing import TypeVar

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Input, OptionList, Static

from localspec.text import one_line
from localspec_tui.screens.dialogs import ClosesOnce
from localspec_tui.widgets.asking_line import AskingLine
from localspec_tui.widgets.keys_panel import KeysFooter

Result = TypeVar("Result")


class SearchedScreen(ClosesOnce, ModalScreen[Result]):
    """A dialog with a search, its matches, and a sentence about them.

    The arrow keys move through the list while the user types.
    """

    def __init__(self, search: Input) -> None:
        super().__init__()
        self._search, self._options = search, OptionList(markup=False)
        self._sentence = Static("", id="sentence", markup=False)

    def compose(self) -> ComposeResult:
        with Vertical(classes="panel"):
            yield from self._above()
            yield self._search
            yield self._options
            yield self._sentence
            yield from self._below()
        yield KeysFooter(show_command_palette=False)

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
    """A dialog that can ask a question below its list. Until the answer it does nothing else."""

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
