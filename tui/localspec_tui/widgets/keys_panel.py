"""A panel with the keys and commands of the chat, and the footer of keys."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from rich.cells import cell_len
from rich.columns import Columns
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Column, Table
from rich.text import Text
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import Footer, Static

from localspec.chat.commands import COMMANDS
from localspec_tui import keymap
from localspec_tui.widgets.prompt import Prompt

NAMES = 18  # columns of the longest word of a command
NARROW = 15  # the same in two columns
TWO_COLUMNS = 72  # columns of a terminal that two columns of lines need


class Line(NamedTuple):
    """One key or command, and its effect."""

    name: str
    does: str


def lines_of(app: App[Any], bindings: Iterable[object]) -> Iterator[Line]:
    """Return one line for each key binding."""
    for binding in bindings:
        if isinstance(binding, Binding):
            yield Line(keymap.shown(app, binding), binding.tooltip or binding.description)


def table_of(lines: Iterable[Line], names: int = NAMES, gap: int = 2) -> Table:
    """Return the lines as one column, as wide as there is room. A name is at most `names` columns wide."""
    table = Table.grid(Column(max_width=names), Column(ratio=1), padding=(0, gap, 0, 0), expand=True)
    for name, does in lines:
        table.add_row(Text(name, "bold"), Text(does))
    return table


class InColumns:
    """A renderable of lines: in two columns if there is room, otherwise in one."""

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
    """Return the panel of the chat. `bindings` are those of its screen."""
    offered = [one for one in bindings if isinstance(one, Binding) and one.action != "back"]
    palette = Line(keymap.shown(app, Binding(app.COMMAND_PALETTE_BINDING, "")), "Search all commands")
    scroll = f"{keymap.key(app, 'chat.page_up')} and {keymap.key(app, 'chat.page_down')} scroll"
    return KeysPanel(
        (f"The chat · {scroll}", [*lines_of(app, (one for one in offered if one.show)), palette]),
        (
            "Commands · type / to see what each does",
            [Line(f"/{one.name} {one.argument}".strip(), "") for one in COMMANDS],
        ),
        ("The prompt", lines_of(app, (one for one in Prompt.LISTED if not one.action.startswith("screen.")))),
        ("The conversation", lines_of(app, [*(one for one in offered if not one.show), *_of_the_app(app)])),
    )


def _of_the_app(app: App[Any]) -> Iterator[Binding]:
    """Yield the keys that work anywhere, except those that the chat's screen lists itself."""
    yield from (one for one in app.BINDINGS if isinstance(one, Binding) and one.id == "app.interrupt")


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
            names = Columns([Text(line.name, "bold") for line in lines], padding=(0, 2))
            yield Static(InColumns(lines) if all(line.does for line in lines) else names, classes="lines")

    def page(self, step: int) -> None:
        """Scroll by a page; -1 is up."""
        self.scroll_relative(y=step * max(self.size.height - 1, 1), animate=False)


AROUND = 3  # spaces around one key
SHOW_KEYS = {"keys", "all_keys"}  # in the chat, and above it


class KeysFooter(Footer):
    """A footer with as many whole keys as there is room for, then the key that shows all keys, and the palette's."""

    def compose(self) -> ComposeResult:
        all_of_them: Iterator[Any] = (key for key in super().compose() if _action(key))
        keys = sorted(all_of_them, key=lambda key: rank(self.screen, key))
        palette = [key for key in keys if key.has_class("-command-palette")]
        help_keys = [key for key in keys if _action(key) in SHOW_KEYS]
        keys = [key for key in keys if key not in palette and key not in help_keys]
        room = self.app.size.width - sum(map(_width, (*help_keys, *palette))) - len(palette)  # and a space
        yield from keys[: bisect_right([*accumulate(map(_width, keys))], room)]
        yield from (*help_keys, *palette)

    def on_resize(self, _: events.Resize) -> None:
        self.call_after_refresh(self.recompose)


def rank(screen: Screen[object], key: object) -> int:
    """Return the rank of a key: keys of the focused widget, then those of the screen in its own order, then the
    rest."""
    own, rest = ([*map(_action, owner.BINDINGS)] for owner in (screen, screen.app))
    action = _action(key)
    return own.index(action) if action in own else len(own) if action in rest else -1


def _action(key: object) -> str:
    return str(getattr(key, "action", "")).removeprefix("app.")


def _width(key: Any) -> int:
    return cell_len(key.key_display) + cell_len(key.description) + AROUND
