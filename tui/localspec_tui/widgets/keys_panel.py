"""The keys and commands of the chat, beside or below the conversation: those of the chat itself come first."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.widgets import Static

SHORT = {"escape": "esc", "pageup": "pgup", "pagedown": "pgdn"}


class Line(NamedTuple):
    """One key or command, and what it does."""

    name: str
    does: str


def lines_of(bindings: Iterable[object]) -> Iterator[Line]:
    """A line for each binding."""
    for binding in bindings:
        if isinstance(binding, Binding):
            yield Line(_shown(binding.key), binding.tooltip or binding.description)


def _shown(keys: str) -> str:
    names = ("+".join(SHORT.get(part, part) for part in key.split("+")) for key in keys.split(","))
    return ", ".join(names)


class KeysPanel(VerticalScroll, can_focus=False):
    """Sections of lines, each under its heading."""

    def __init__(self, *sections: tuple[str, Iterable[Line]]) -> None:
        super().__init__()
        self._sections = [(heading, list(lines)) for heading, lines in sections]

    def compose(self) -> ComposeResult:
        for heading, lines in self._sections:
            yield Static(heading, markup=False, classes="heading")
            table = Table.grid(padding=(0, 2, 0, 0))
            for name, does in lines:
                table.add_row(Text(name, "bold", no_wrap=True), Text(does))
            yield Static(table, classes="lines")
