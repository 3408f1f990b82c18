"""F1 in what opens above the chat: all of its keys, also those that its footer has no room for."""

from collections.abc import Iterator
from typing import ClassVar

from textual.actions import parse
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen, Screen
from textual.widgets import Static

from localspec_tui.screens.steady import DIALOG_KEYS, ClosesOnce
from localspec_tui.widgets.keys_footer import KeysFooter
from localspec_tui.widgets.keys_panel import lines_of, table_of


class AllKeysScreen(ClosesOnce, ModalScreen[None]):
    """Those of the screen that it opens above."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "Back", id="keys.back"),
        Binding("f1", "dismiss", "Back", id="keys.hide", show=False),
    ]

    def __init__(self, screen: Screen[object]) -> None:
        super().__init__()
        self._keys = [*_named(screen)]

    def compose(self) -> ComposeResult:
        with Vertical(classes="panel"):
            yield Static("Keys", markup=False, classes="question")
            with VerticalScroll():
                yield Static(table_of(lines_of(self.app, self._keys)))
        yield KeysFooter(show_command_palette=False)


def _named(screen: Screen[object]) -> Iterator[Binding]:
    """What can be pressed now: what has the focus, the screen, and what quits, which can be at any time."""
    for owner in (screen.focused, screen):
        for one in getattr(owner, "BINDINGS", ()):
            if isinstance(one, Binding) and one.id not in {None, DIALOG_KEYS.id}:
                _, action, given = parse(one.action)
                if screen.check_action(action, given):
                    yield one
    yield from (one for one in screen.app.BINDINGS if isinstance(one, Binding) and one.id == "app.quit")
