"""The system prompt of the conversation."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static

from localspec_tui.screens.closing import DIALOG_KEYS, ClosesOnce
from localspec_tui.widgets.keys_footer import KeysFooter
from localspec_tui.widgets.typed_text import TypedText


class SystemPromptScreen(ClosesOnce, ModalScreen[str | None]):
    """Gives the new text, or None where it shall stay as it was."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+s", "save", "Save", id="system.save", priority=True),
        Binding("escape", "dismiss(None)", "Back", id="system.back"),
        DIALOG_KEYS,
    ]

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        with Vertical(classes="panel"):
            yield Static("System prompt: what the model reads before everything else", markup=False)
            yield TypedText(compact=True, highlight_cursor_line=False)
        yield KeysFooter(show_command_palette=False)

    def on_mount(self) -> None:
        text = self.query_one(TypedText)
        text.put(self._text)
        text.focus()

    def action_save(self) -> None:
        self.dismiss(self.query_one(TypedText).text)
