"""The dialog of the conversation's system prompt."""

from typing import ClassVar, NamedTuple

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static

from localspec.text import safe
from localspec_tui.screens.dialogs import DIALOG_KEYS, ClosesOnce
from localspec_tui.widgets.keys_panel import KeysFooter
from localspec_tui.widgets.typed_text import KeysInOrder, TypedText

HEADING = "System prompt: what the model reads before everything else"
UNSAVED = "System prompt (not saved yet; ctrl+z brings back the one in use)"


class Typed(NamedTuple):
    """The final text, and whether to use it."""

    text: str
    saved: bool


class _Field(KeysInOrder, TypedText):
    """The field, in which ctrl+s saves all letters that were typed before it."""


class SystemPromptScreen(ClosesOnce, ModalScreen[Typed | None]):
    """A dialog that returns the typed text. It begins with `text`, the prompt in use; or with `draft`, from which undo
    leads to it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+s", "save", "Save", id="system.save"),
        Binding("escape", "back", "Back", id="system.back"),
        DIALOG_KEYS,
    ]

    def __init__(self, text: str, draft: str | None = None) -> None:
        super().__init__()
        self._text, self._draft = text, draft

    def compose(self) -> ComposeResult:
        with Vertical(classes="panel"):
            yield Static(HEADING if self._draft is None else UNSAVED, markup=False)
            yield _Field(compact=True, highlight_cursor_line=False)
        yield KeysFooter(show_command_palette=False)

    def on_mount(self) -> None:
        text = self.query_one(TypedText)
        text.put(self._text)
        if self._draft is not None:
            text.replace(safe(self._draft), (0, 0), text.document.end)
            text.move_cursor(text.document.end)
        text.focus()

    def action_save(self) -> None:
        self.dismiss(Typed(self.query_one(TypedText).text, saved=True))

    def action_back(self) -> None:
        """Close, and keep the typed text as a draft. A key may arrive before the text has been put there."""
        self.dismiss(Typed(self.query_one(TypedText).text, saved=False) if self.is_mounted else None)
