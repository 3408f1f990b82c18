"""A panel with the keys and commands of the chat, and the footer of keys."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
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
from textual.widgets._footer import FooterKey

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


def table_of(lines: Iterable[Line], name_width: int = NAMES, gap: int = 2) -> Table:
    """Return a table with a row per key or command, as wide as there is room; names have at most `name_width` cells."""
    table = Table.grid(Column(max_width=name_width), Column(ratio=1), padding=(0, gap, 0, 0), expand=True)
    for name, does in lines:
        table.add_row(Text(name, "bold"), Text(does))
    return table


class InColumns:
    """A renderable that shows keys and their effects in two columns if there is room, otherwise in one column."""

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
    """Return the panel with the keys of the chat; `bindings` are the key bindings of its screen."""
    offered = [binding for binding in bindings if isinstance(binding, Binding) and binding.action != "back"]
    palette = Line(keymap.shown(app, Binding(app.COMMAND_PALETTE_BINDING, "")), "Search all commands")
    scroll = f"{keymap.key(app, 'chat.page_up')} and {keymap.key(app, 'chat.page_down')} scroll"
    return KeysPanel(
        (f"The chat · {scroll}", [*lines_of(app, (binding for binding in offered if binding.show)), palette]),
        (
            "Commands · type / to see what each does",
            [Line(f"/{command.name} {command.argument}".strip(), "") for command in COMMANDS],
        ),
        (
            "The prompt",
            lines_of(app, (binding for binding in Prompt.LISTED if not binding.action.startswith("screen."))),
        ),
        ("The conversation", lines_of(app, [*(binding for binding in offered if not binding.show), *_of_the_app(app)])),
    )


def _of_the_app(app: App[Any]) -> Iterator[Binding]:
    """Yield the key that copies or stops. It belongs to the application, so the chat's screen does not list it."""
    yield from (binding for binding in app.BINDINGS if isinstance(binding, Binding) and binding.id == "app.interrupt")


class KeysPanel(VerticalScroll, can_focus=False):
    """A panel of keys and commands in sections, each under its heading."""

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


AROUND = 3  # spaces around one key
SHOW_KEYS = {"keys", "all_keys"}  # in the chat, and above it


class FooterLine(NamedTuple):
    """A key in the footer: its name, its effect, and whether it works now."""

    key: str
    display: str
    description: str
    action: str
    disabled: bool = False
    tooltip: str = ""
    palette: bool = False

    @property
    def width(self) -> int:
        """The number of columns that the key takes in the footer."""
        return cell_len(self.display) + cell_len(self.description) + AROUND

    def widget(self) -> FooterKey:
        """Return the key as a widget."""
        key, display, description, action, disabled, tooltip, palette = self
        classes = "-command-palette -compact" if palette else ""
        view = FooterKey(key, display, description, action, disabled, tooltip, classes)
        view.set_reactive(FooterKey.compact, palette)  # set together with its class, so that it is styled only once
        return view


class KeysFooter(Footer):
    """A footer with as many keys as there is room for. The last two keys show all keys, and open the palette."""

    _composed_of: Sequence[FooterLine] = ()

    def compose(self) -> ComposeResult:
        self._composed_of = self._fitting_keys()
        yield from (line.widget() for line in self._composed_of)

    async def recompose(self) -> None:
        """Make the footer's widgets again, but only if its keys have changed. Textual calls this far more often."""
        if self.is_attached and self._fitting_keys() != self._composed_of:
            await super().recompose()

    def _fitting_keys(self) -> list[FooterLine]:
        """Return the keys that there is room for; none before the screen knows its bindings."""
        if not self._bindings_ready:
            return []
        app, bindings = self.app, self.screen.active_bindings
        of_actions: dict[str, FooterLine] = {}
        for _, binding, enabled, tooltip in bindings.values():
            if binding.show:
                line = FooterLine(
                    binding.key, app.get_key_display(binding), binding.description, binding.action, not enabled, tooltip
                )
                of_actions.setdefault(binding.action, line)
        keys = sorted(of_actions.values(), key=_rank(self.screen))
        palette = []
        if self.show_command_palette and app.ENABLE_COMMAND_PALETTE and app.COMMAND_PALETTE_BINDING in bindings:
            _, binding, enabled, _ = bindings[app.COMMAND_PALETTE_BINDING]
            shown, does = app.get_key_display(binding), binding.description
            palette = [FooterLine(binding.key, shown, does, binding.action, not enabled, binding.tooltip or does, True)]
        help_keys = [line for line in keys if _action_name(line.action) in SHOW_KEYS]
        keys = [line for line in keys if line not in help_keys]
        room = app.size.width - sum(line.width for line in (*help_keys, *palette)) - len(palette)  # and a space
        fitting = bisect_right([*accumulate(line.width for line in keys)], room)
        return [*keys[:fitting], *help_keys, *palette]

    def on_resize(self, _: events.Resize) -> None:
        self.call_after_refresh(self.recompose)


def _rank(screen: Screen[object]) -> Callable[[FooterLine], int]:
    """Return a function that ranks a key: keys of the focused widget first, then those of the screen, then others."""
    of_screen, of_app = (
        [_action_name(getattr(binding, "action", "")) for binding in owner.BINDINGS] for owner in (screen, screen.app)
    )

    def rank(line: FooterLine) -> int:
        action = _action_name(line.action)
        return of_screen.index(action) if action in of_screen else len(of_screen) if action in of_app else -1

    return rank


def _action_name(action: str) -> str:
    return action.removeprefix("app.")
