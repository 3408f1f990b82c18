"""The keys and commands of the chat, beside or below the conversation: those of the chat itself come first."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Column, Table
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.widgets import Static

from localspec.chat.commands import COMMANDS
from localspec_tui import keymap
from localspec_tui.widgets.prompt import Prompt

NAMES = 18  # columns of the longest word of a command
NARROW = 15  # the same in two columns
TWO_COLUMNS = 72  # columns of a terminal that two columns of lines need


class Line(NamedTuple):
    """One key or command, and what it does."""

    name: str
    does: str


def lines_of(app: App[Any], bindings: Iterable[object]) -> Iterator[Line]:
    """A line for each binding."""
    for binding in bindings:
        if isinstance(binding, Binding):
            yield Line(keymap.shown(app, binding), binding.tooltip or binding.description)


def table_of(lines: Iterable[Line], names: int = NAMES, gap: int = 2) -> Table:
    """Return the lines below each other, as wide as there is room. A name is at most `names` columns wide."""
    table = Table.grid(Column(max_width=names), Column(ratio=1), padding=(0, gap, 0, 0), expand=True)
    for name, does in lines:
        table.add_row(Text(name, "bold"), Text(does))
    return table


class InColumns:
    """A renderable of lines in two columns where these have room, else below each other."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self._lines = lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if options.max_width < TWO_COLUMNS:
            yield table_of(self._lines)
            return
        table = Table.grid(Column(ratio=1), Column(ratio=1), expand=True)
        half = (len(self._lines) + 1) // 2
        table.add_row(*(table_of(part, NARROW, gap=1) for part in (self._lines[:half], self._lines[half:])))
        yield table


def of_the_chat(app: App[Any], bindings: Iterable[object]) -> "KeysPanel":
    """`bindings`: those of the chat's screen."""
    offered = [one for one in bindings if isinstance(one, Binding) and one.action != "back"]
    palette = Line(keymap.shown(app, Binding(app.COMMAND_PALETTE_BINDING, "")), "Every command, to search in")
    scroll = f"{keymap.key(app, 'chat.page_up')} and {keymap.key(app, 'chat.page_down')} scroll"
    return KeysPanel(
        (f"The chat · {scroll}", [*lines_of(app, (one for one in offered if one.show)), palette]),
        (
            "Commands · type / to see what each does",
            [Line(f"/{one.name} {one.argument}".strip(), "") for one in COMMANDS],
        ),
        ("Where one types", lines_of(app, (one for one in Prompt.LISTED if not one.action.startswith("screen.")))),
        ("The conversation", lines_of(app, [*(one for one in offered if not one.show), *_of_the_app(app)])),
    )


def _of_the_app(app: App[Any]) -> Iterator[Binding]:
    """What can be pressed anywhere, but for what the chat's screen lists itself."""
    yield from (one for one in app.BINDINGS if isinstance(one, Binding) and one.id == "app.interrupt")


def _names_of(lines: Sequence[Line]) -> Text:
    """Return the names in running text. A line breaks between two names."""
    return Text("  ".join(line.name.replace(" ", "\N{NO-BREAK SPACE}") for line in lines), "bold")


class KeysPanel(VerticalScroll, can_focus=False):
    """Sections of lines, each under its heading."""

    def __init__(self, *sections: tuple[str, Iterable[Line]]) -> None:
        super().__init__()
        self._sections = [(heading, list(lines)) for heading, lines in sections]

    def on_mount(self) -> None:
        self.screen.add_class("-keys")  # the side panel makes room

    def on_unmount(self) -> None:
        self.screen.remove_class("-keys")

    def compose(self) -> ComposeResult:
        for heading, lines in self._sections:
            yield Static(heading, markup=False, classes="heading")
            named = all(line.does for line in lines)
            yield Static(InColumns(lines) if named else _names_of(lines), classes="lines")

    def page(self, step: int) -> None:
        """Scrolls by a page; -1 is up."""
        self.scroll_relative(y=step * max(self.size.height - 1, 1), animate=False)
