"""The dialogs of reply settings: the sampling, with one field per setting, and the system prompt."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widgets import Input, Label, Static

from localspec.config import TYPED
from localspec.errors import UsageMistake
from localspec.text import one_line, safe
from localspec_tui.screens.dialogs import DIALOG_KEYS, Dialog
from localspec_tui.widgets.typed_text import KeysInOrder, OneLine, TypedText

if TYPE_CHECKING:
    from localspec.chat.sampling import SettingLine

SAMPLING = "Sampling (used from the next reply; leave a field empty for the default)"
SAMPLING_UNSAVED = "Sampling (not saved yet; leave a field empty for the default)"
SYSTEM = "System prompt: what the model reads before everything else"
SYSTEM_UNSAVED = "System prompt (not saved yet; ctrl+z brings back the one in use)"


class _Setting(OneLine):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "submit", "Save", id="sampling.take")]


class SamplingScreen(Dialog[dict[str, str]]):
    """A dialog with a field per sampling setting. An empty field keeps the value that it displays in grey.

    At first the fields contain an unsaved `draft`, if there is one, or else the values set in this chat (`typed`). To
    save, the dialog calls `change` with all fields, which raises UsageMistake for an invalid value. The dialog returns
    unsaved fields as a draft.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+s", "save", "Save", id="sampling.save", show=False),
        Binding("escape", "back", "Back", id="sampling.back"),
        Binding("up", "app.focus_previous", "Field above", id="sampling.above", show=False),
        Binding("down", "app.focus_next", "Field below", id="sampling.below", show=False),
        DIALOG_KEYS,
    ]

    def __init__(
        self,
        lines: "Sequence[SettingLine]",
        typed: Mapping[str, str],
        change: Callable[[Mapping[str, str]], None],
        draft: Mapping[str, str],
    ) -> None:
        super().__init__()
        self._lines, self._typed, self._change, self._draft = lines, typed, change, draft

    def content(self) -> ComposeResult:
        yield Static(SAMPLING_UNSAVED if self._draft else SAMPLING, markup=False)
        fields = self._draft or self._typed
        for key, value, origin in self._lines:
            with Horizontal(classes="field"):
                yield Label(key, markup=False)
                now = "as it was at the start of this chat" if key in self._typed else f"{value} {origin}"
                yield _Setting(fields.get(key, ""), placeholder=now, compact=True, id=key)
        yield Static("", id="mistake", markup=False)

    def on_input_submitted(self) -> None:
        self.action_save()

    def action_save(self) -> None:
        try:
            self._change(self._values())
        except UsageMistake as mistake:
            self.query_one("#mistake", Static).update(one_line(str(mistake)).removeprefix(f"{TYPED} "))
        else:
            self.dismiss({})

    def action_back(self) -> None:
        values = self._values()
        self.dismiss({} if all(self._typed.get(key, "") == value for key, value in values.items()) else values)

    def _values(self) -> dict[str, str]:
        return {str(field.id): field.value for field in self.query(Input)}


class Typed(NamedTuple):
    """The text that a dialog returns, and whether to use the text or keep it as a draft."""

    text: str
    saved: bool


class _Prompt(KeysInOrder, TypedText):
    """The field of the system prompt. Its keys act in order, so ctrl+s saves all letters that were typed before it."""


class SystemPromptScreen(Dialog[Typed | None]):
    """A dialog that edits the system prompt, and returns the typed text.

    At first the field has `text`, the system prompt in use. If there is an unsaved `draft`, the field has the draft
    instead, and undo restores `text`.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+s", "save", "Save", id="system.save"),
        Binding("escape", "back", "Back", id="system.back"),
        DIALOG_KEYS,
    ]

    def __init__(self, text: str, draft: str | None = None) -> None:
        super().__init__()
        self._text, self._draft = text, draft

    def content(self) -> ComposeResult:
        yield Static(SYSTEM if self._draft is None else SYSTEM_UNSAVED, markup=False)
        yield _Prompt(compact=True, highlight_cursor_line=False)

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
        """Close the dialog, and return the typed text as a draft; None if the dialog is not completely open yet."""
        self.dismiss(Typed(self.query_one(TypedText).text, saved=False) if self.is_mounted else None)
