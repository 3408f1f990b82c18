"""The palette: a dialog in which the user finds a command by its words. Keys may arrive faster than it is drawn."""

from collections.abc import Iterator
from typing import Any, ClassVar

from textual import on
from textual.actions import parse
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.command import CommandInput, CommandPalette, Hit, Hits
from textual.containers import VerticalScroll
from textual.content import Content
from textual.events import Mount
from textual.screen import Screen
from textual.system_commands import SystemCommandsProvider
from textual.widgets import Input, OptionList, Static

from localspec_tui.screens.dialogs import DIALOG_KEYS, ClosesOnce, Dialog
from localspec_tui.widgets.keys_panel import lines_of, table_of
from localspec_tui.widgets.typed_text import KeysInOrder

# Further words by which commands are found.
ALSO = {
    "Choose other colours": ("theme", "dark", "light", "appearance"),
    "Let the model think before it answers, or not": ("thinking", "reasoning"),
    "Show or hide all keys and commands": ("help", "shortcuts", "bindings"),
    "Leave the chat": ("quit", "exit", "close"),
    "Begin a new conversation": ("clear", "chat"),
    "Continue an earlier conversation": ("resume", "history", "branches", "rename", "delete", "export", "title"),
    "Change the model": ("switch", "download"),
    "Set the system prompt": ("instructions", "persona", "role"),
    "Answer the last prompt again": ("again", "regenerate", "retry"),
    "Edit the last prompt, or the one in focus": ("edit",),
    "Show which drafter proposed each token of a reply": ("xray", "x-ray", "sources"),
    "Find words in this conversation": ("search", "look"),
    "Change how replies are sampled": ("sampling", "temperature", "top-p", "seed", "settings"),
    "Show or hide the panel of figures": ("side", "memory", "speed"),
    "Race the model against itself without drafts": ("compare",),
    "Show the saved phrases": ("pool",),
    "Show or fold the model's thoughts": ("thinking", "reasoning"),
    "Write in your own editor": ("vim", "nano"),
}


class MatchingCommands(SystemCommandsProvider):
    """A provider of the commands that match all typed words; those with the words in their name come first."""

    async def search(self, query: str) -> Hits:
        words = query.casefold().split()
        for name, does, callback, *_ in self.app.get_system_commands(self.screen):
            also = " ".join((name, does, *ALSO.get(name, ()))).casefold()
            if words and all(word in also for word in words):
                yield Hit(
                    float(all(word in name.casefold() for word in words)),
                    self._marked(name, words),
                    callback,
                    help=does,
                )

    def _marked(self, name: str, words: list[str]) -> Content:
        marked = Content(name)
        for word in words:
            at = name.casefold().find(word)
            if at >= 0 and self.match_style is not None:
                marked = marked.stylize(self.match_style, at, at + len(word))
        return marked


class _CommandField(KeysInOrder, CommandInput):
    """The palette's text field, which behaves like the other one-line fields."""


class Palette(ClosesOnce, CommandPalette):
    """A palette of commands that, unlike Textual's, does not crash if keys are typed fast.

    Textual's palette crashes if Enter is typed twice, if a key is for an empty list, if letters arrive while it closes,
    or if Escape arrives while it opens.
    """

    def __init__(self, *, placeholder: str = "Search for commands…", **options: Any) -> None:
        super().__init__(placeholder=placeholder, **options)
        self._words = placeholder

    def compose(self) -> ComposeResult:
        for widget in super().compose():
            is_field = isinstance(widget, CommandInput)
            yield _CommandField(placeholder=self._words, select_on_focus=False) if is_field else widget

    @on(Input.Changed)
    def _ignore_late_letters(self, event: Input.Changed) -> None:
        if self not in self.app.screen_stack:
            event.prevent_default()

    @on(OptionList.OptionSelected)
    def _ignore_second_choice(self, event: OptionList.OptionSelected) -> None:
        if not self.is_active:
            event.prevent_default()

    def on_mount(self, event: Mount) -> None:
        if self not in self.app.screen_stack:
            event.prevent_default()


class AllKeysScreen(Dialog[None]):
    """A dialog with the keys of the screen below it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "Back", id="keys.back"),
        Binding("f1", "dismiss", "Back", id="keys.hide", show=False),
    ]

    def __init__(self, screen: Screen[object]) -> None:
        super().__init__()
        self._keys = [*_named_keys(screen)]

    def content(self) -> ComposeResult:
        yield Static("Keys", markup=False, classes="question")
        with VerticalScroll():
            yield Static(table_of(lines_of(self.app, self._keys)))


def _named_keys(screen: Screen[object]) -> Iterator[Binding]:
    """Yield the keys that work now: the keys of the focused widget and of the screen, and the key that quits."""
    for owner in (screen.focused, screen):
        for binding in getattr(owner, "BINDINGS", ()):
            if isinstance(binding, Binding) and binding.id not in {None, DIALOG_KEYS.id}:
                _, action, arguments = parse(binding.action)
                if screen.check_action(action, arguments):
                    yield binding
    yield from (binding for binding in screen.app.BINDINGS if isinstance(binding, Binding) and binding.id == "app.quit")
