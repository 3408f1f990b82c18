"""Earlier conversations: search, continue, rename, export and delete them."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

from textual import work
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.timer import Timer
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from localspec import environment
from localspec.chat.branches import ListedConversation, by_present_name, by_present_names, rows
from localspec.chat.conversation import saved_conversation
from localspec.chat.export import as_markdown, proposed_file, write_new
from localspec.errors import LocalspecError, UsageMistake
from localspec.paths import Paths
from localspec.quantities import ago, counted, day, seconds_of
from localspec.store.cleaning import remove_copied
from localspec.store.conversations import ConversationInfo
from localspec.store.history import History
from localspec.text import one_line
from localspec_tui import keymap
from localspec_tui.screens.dialogs import DIALOG_KEYS, AskingScreen
from localspec_tui.widgets.typed_text import OneLine

LISTED = 100
PATIENCE = 0.5  # seconds of a search without a message
RETRY = 1.0  # seconds after a failed look
OLD = "30d"  # the proposed age


class _Entry(NamedTuple):
    row: ListedConversation
    excerpt: str  # the match in it; empty without a search

    @property
    def info(self) -> ConversationInfo:
        return self.row.info


@dataclass(frozen=True)
class OpenConversation:
    """A set of chat functions that the list of conversations calls. `number` returns the open conversation's id."""

    number: Callable[[], int | None]
    begin_another: Callable[[], None]
    call: Callable[[str], None]
    phrases_are_saved: Callable[[], bool]  # may wait for the disk
    nothing: str  # the text if no conversation is saved


class _ConversationSearch(OneLine):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "submit", "Resume", id="conversations.choose")]


class ConversationsScreen(AskingScreen[int | None]):
    """A dialog that returns the id of the chosen conversation, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "Back", id="conversations.back"),
        Binding("f2", "rename", "Rename", id="conversations.rename"),
        Binding("ctrl+d", "delete", "Delete", id="conversations.delete", priority=True),
        Binding("ctrl+s", "export", "Export", id="conversations.export", priority=True),
        Binding("f8", "delete_older", "Delete older", id="conversations.delete_older"),
        Binding("down", "move(1)", "Next", id="conversations.next", show=False, priority=True),
        Binding("up", "move(-1)", "Previous", id="conversations.previous", show=False, priority=True),
        DIALOG_KEYS,
    ]

    def __init__(self, history: History, chat: OpenConversation) -> None:
        super().__init__(_ConversationSearch(placeholder="Search in conversations", compact=True))
        self._history, self._chat = history, chat
        self._entries: list[_Entry] = []
        self._listed: str | None = None  # the words that were searched
        self._later: Timer | None = None

    # -- the list -----------------------------------------------------------------------------------------------------

    def on_mount(self) -> None:
        self._look_for("")

    def on_input_changed(self, changed: Input.Changed) -> None:
        self._look_for(changed.value)

    @work(exclusive=True)
    async def _look_for(self, words: str) -> None:
        await self._list(words)

    async def _list(self, words: str) -> None:
        entries: Sequence[_Entry] = ()
        trouble = ""
        self._do_later(PATIENCE, lambda: self._tell("Looking …"))
        try:
            entries = await asyncio.to_thread(_entries, self._history, words)
        except LocalspecError as error:  # another process may hold the database
            trouble = f"{error} Trying again …"
            self._do_later(RETRY, lambda: self._look_for(self._search.value))
        else:
            self._do_later(None)
        if self not in self.app.screen_stack:  # it was closed meanwhile
            return
        options = self._options
        self._listed, self._entries = words, list(entries)
        options.clear_options()
        options.add_options(Option(self._line(entry), id=str(entry.info.id)) for entry in entries)
        options.highlighted = 0 if entries else None
        nothing = "Nothing was found." if words.strip() else self._chat.nothing
        more = "Search to find older conversations." if len(entries) == LISTED and not words.strip() else ""
        self._tell(more if entries else trouble or nothing)

    def _do_later(self, seconds: float | None, action: Callable[[], object] = lambda: None) -> None:
        """Cancel the scheduled action, and run `action` after this many seconds, unless `seconds` is None."""
        if self._later is not None:
            self._later.stop()
        self._later = self.set_timer(seconds, action) if seconds is not None else None

    def _line(self, entry: _Entry) -> Content:
        info = entry.info
        below = entry.row.below and not entry.excerpt
        title, says = info.title, entry.row.says
        if below:
            title, says = (f"└ {title}", says) if entry.row.named else (f"└ {says}", "")
        says = f" · {one_line(says)}" if says else ""
        opened = " (open)" if info.id == self._chat.number() else ""
        facts = [str(info.id), ago(info.used, time.time()), counted(info.turns, "turn"), info.model_name]
        if entry.excerpt:
            facts[2:] = [entry.excerpt]
        indent = "  " * below
        details = f"{indent}{'  ' * below}{one_line(' · '.join(facts))}"
        return Content.assemble(indent, one_line(title), (says, "dim"), entry.row.mark, opened, "\n", (details, "dim"))

    async def on_input_submitted(self, submitted: Input.Submitted) -> None:
        if self._asking.asking:
            return
        if submitted.value != self._listed:  # the last letters may not have been searched yet
            await self._list(submitted.value)
        if (entry := self._highlighted()) is not None:
            self.dismiss(entry.info.id)

    def on_option_list_option_selected(self, selected: OptionList.OptionSelected) -> None:
        if not self._asking.asking:
            self.dismiss(int(selected.option_id or 0))

    def _chosen(self) -> _Entry | None:
        """Return the highlighted conversation for an action on it, and clear the last notice."""
        entry = self._highlighted()
        self._tell("" if entry else "No conversation is chosen.")
        return entry

    def _highlighted(self) -> _Entry | None:
        at = self._options.highlighted
        return self._entries[at] if at is not None and at < len(self._entries) else None

    async def _list_again(self, sentence: str) -> None:
        """List the conversations again after a change. Highlight the same conversation, or the next one."""
        chosen, at = self._highlighted(), self._options.highlighted or 0
        await self._list(self._listed or "")
        ids = [entry.info.id for entry in self._entries]
        if chosen is not None and chosen.info.id in ids:
            at = ids.index(chosen.info.id)
        self._options.highlighted = min(at, len(ids) - 1) if ids else None
        self._tell(sentence)

    # -- questions ----------------------------------------------------------------------------------------------------

    @work(exclusive=True, group="asking")
    async def action_rename(self) -> None:
        if (entry := self._chosen()) is None:
            return
        title = await self._asking.text("New title (leave it empty to use the first prompt)", entry.info.title)
        if title is None:
            return
        try:
            info = await asyncio.to_thread(_renamed, self._history, entry.info, title)
        except LocalspecError as error:
            self._tell(str(error))
            return
        if info.id == self._chat.number():
            self._chat.call(info.title)
        await self._list_again(f"The conversation is now called “{info.title}”.")

    @work(exclusive=True, group="asking")
    async def action_export(self) -> None:
        if (entry := self._chosen()) is None:
            return
        question = "Export as Markdown to which file?"
        name: str | None = await asyncio.to_thread(proposed_file, entry.info.title, Path())
        while (name := await self._asking.text(question, name or "")) is not None:
            try:
                path = await asyncio.to_thread(_exported, self._history, entry.info.id, name)
            except UsageMistake as mistake:
                question = str(mistake)
            except LocalspecError as error:
                self._tell(str(error))
                return
            else:
                self._tell(f"The conversation is in {path}.")
                return

    @work(exclusive=True, group="asking")
    async def action_delete(self) -> None:
        if (entry := self._chosen()) is None:
            return
        opened = " It is open, so a new conversation begins." if entry.info.id == self._chat.number() else ""
        branch = f" ({entry.row.says})" if entry.row.says else ""
        if await self._asking.decision(f"Delete “{entry.info.title}”{branch} for good?{opened}"):
            await self._delete([entry.info.id])

    @work(exclusive=True, group="asking")
    async def action_delete_older(self) -> None:
        self._tell("")
        question, age = "Delete conversations not used for this long (12h, 30d, 4w, 1y):", OLD
        while (typed := await self._asking.text(question, age)) is not None:
            try:
                cutoff, age = time.time() - seconds_of(typed), typed
                infos = await asyncio.to_thread(self._history.unused_since, cutoff)
            except UsageMistake as mistake:
                question, age = str(mistake), typed
                continue
            except LocalspecError as error:
                self._tell(str(error))
                return
            old = [info.id for info in infos if info.id != self._chat.number()]  # the open one is in use
            conversations = f"{counted(len(old), 'conversation')} last used before {day(cutoff)}"
            if not old:
                self._tell(f"No conversation was last used before {day(cutoff)}.")
            elif await self._asking.decision(f"Delete {conversations} for good?"):
                await self._delete(old)
            return

    async def _delete(self, conversations: Sequence[int]) -> None:
        """Delete conversations, on a separate thread, because the engine's thread may be busy with a reply."""
        if self._chat.number() in conversations:
            self._chat.begin_another()
        try:
            removed = await asyncio.to_thread(self._history.remove, conversations)
            await asyncio.to_thread(remove_copied, Paths(environment.home()).copied)  # it may come from any of them
            stay = await asyncio.to_thread(self._chat.phrases_are_saved)
            later = await asyncio.to_thread(lambda: self._history.database.unfinished)
        except LocalspecError as error:
            await self._list_again(str(error))
            return
        key = keymap.key(self.app, "chat.phrases")
        phrases = f" Phrases that were learned from replies stay; {key} in the chat deletes them." if stay else ""
        await self._list_again(f"Deleted {counted(removed, 'conversation')}.{phrases}{later and ' '}{later}")


def _entries(history: History, words: str) -> Sequence[_Entry]:
    if words.strip():
        hits = history.search(words, LISTED)
        by_id = {row.info.id: row for row in rows(history, by_present_names(hit.info for hit in hits))}
        return [_Entry(by_id[hit.info.id], hit.excerpt) for hit in hits]
    listed = history.conversations(LISTED, lambda info: info.for_a_chat)  # a search finds the others, too
    return [_Entry(row, "") for row in rows(history, by_present_names(listed))]


def _renamed(history: History, info: ConversationInfo, title: str) -> ConversationInfo:
    """Rename a conversation, and return its new state. Raises StoreTrouble; UsageMistake for a deleted conversation."""
    if title == info.title:
        return info
    history.rename(info.id, title)
    return by_present_name(saved_conversation(history, info.id)).info


def _exported(history: History, conversation: int, name: str) -> Path:
    return write_new(f"{as_markdown(by_present_name(saved_conversation(history, conversation)))}\n", name)
