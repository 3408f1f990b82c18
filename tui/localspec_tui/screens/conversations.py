"""Earlier conversations: search, and go on with one."""

import asyncio
import time
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Footer, Input, OptionList, Static
from textual.widgets.option_list import Option

from localspec.errors import LocalspecError
from localspec.store.history import ConversationInfo, History
from localspec.text import one_line

LISTED = 100


class _Entry(NamedTuple):
    info: ConversationInfo
    excerpt: str  # what was found in it; empty where nothing was looked for


class _Search(Input):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "submit", "Resume", id="conversations.choose")]


class ConversationsScreen(ModalScreen[int | None]):
    """Gives the id of the chosen conversation, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "Back", id="conversations.back"),
        Binding("down", "move(1)", "Next", id="conversations.next", show=False, priority=True),
        Binding("up", "move(-1)", "Previous", id="conversations.previous", show=False, priority=True),
    ]

    def __init__(self, history: History) -> None:
        super().__init__()
        self._history = history
        self._listed = ""  # what was looked for

    def compose(self) -> ComposeResult:
        with Vertical(classes="panel"):
            yield _Search(placeholder="Search in what was said", compact=True)
            yield OptionList()
            yield Static("", id="nothing", markup=False)
        yield Footer(show_command_palette=False)

    async def on_mount(self) -> None:
        await self._list("")

    def on_input_changed(self, changed: Input.Changed) -> None:
        self._look_for(changed.value)

    @work(exclusive=True)
    async def _look_for(self, words: str) -> None:
        await self._list(words)

    async def _list(self, words: str) -> None:
        entries: Sequence[_Entry] = ()
        trouble = ""
        try:
            entries = await asyncio.to_thread(_entries, self._history, words)
        except LocalspecError as error:
            trouble = str(error)
        if self not in self.app.screen_stack:  # it was left meanwhile
            return
        options = self.query_one(OptionList)
        self._listed = words
        options.clear_options()
        options.add_options(Option(_line(entry), id=str(entry.info.id)) for entry in entries)
        options.highlighted = 0 if entries else None
        nothing = "Nothing was found." if words.strip() else "No conversation is kept here yet."
        self._tell("" if entries else trouble or nothing)

    def _tell(self, sentence: str) -> None:
        nothing = self.query_one("#nothing", Static)
        nothing.update(one_line(sentence))
        nothing.display = bool(sentence)

    def action_move(self, step: int) -> None:
        options = self.query_one(OptionList)
        if step > 0:
            options.action_cursor_down()
        else:
            options.action_cursor_up()

    async def on_input_submitted(self, submitted: Input.Submitted) -> None:
        if submitted.value != self._listed:  # the last letters came right before
            await self._list(submitted.value)
        option = self.query_one(OptionList).highlighted_option
        if option is not None and option.id is not None:
            self.dismiss(int(option.id))

    def on_option_list_option_selected(self, selected: OptionList.OptionSelected) -> None:
        self.dismiss(int(selected.option_id or 0))


def _entries(history: History, words: str) -> Sequence[_Entry]:
    if words.strip():
        return [_Entry(found.info, found.excerpt) for found in history.search(words, LISTED)]
    return [_Entry(info, "") for info in history.conversations(LISTED)]


def _line(entry: _Entry) -> Content:
    info = entry.info
    turns = "1 turn" if info.turns == 1 else f"{info.turns} turns"
    used = time.strftime("%Y-%m-%d %H:%M", time.localtime(info.used))
    about = entry.excerpt or f"{used} · {turns} · {info.model}"
    return Content.assemble(one_line(info.title), "\n", (one_line(about), "dim"))
