"""The sampling dialog, with one field per setting."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Label, Static

from localspec.config import TYPED
from localspec.errors import UsageMistake
from localspec.text import one_line
from localspec_tui.screens.dialogs import DIALOG_KEYS, ClosesOnce
from localspec_tui.widgets.keys_panel import KeysFooter
from localspec_tui.widgets.typed_text import OneLine

if TYPE_CHECKING:
    from localspec.chat.sampling import SettingLine

HEADING = "Sampling (used from the next reply; leave a field empty for the default)"
UNSAVED = "Sampling (not saved yet; leave a field empty for the default)"


class _Field(OneLine):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "submit", "Save", id="sampling.take")]


class SamplingScreen(ClosesOnce, ModalScreen[dict[str, str]]):
    """A dialog whose empty fields keep the setting shown in grey. `change` takes all fields, or raises UsageMistake.

    The fields begin as `typed`, the values in use, or as `draft`. It returns the contents that `change` has not taken.
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

    def compose(self) -> ComposeResult:
        with Vertical(classes="panel"):
            yield Static(UNSAVED if self._draft else HEADING, markup=False)
            fields = self._draft or self._typed
            for key, value, origin in self._lines:
                with Horizontal(classes="field"):
                    yield Label(key, markup=False)
                    now = "as it was at the start of this chat" if key in self._typed else f"{value} {origin}"
                    yield _Field(fields.get(key, ""), placeholder=now, compact=True, id=key)
            yield Static("", id="mistake", markup=False)
        yield KeysFooter(show_command_palette=False)

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
