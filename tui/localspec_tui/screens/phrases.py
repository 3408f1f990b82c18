"""The dialog that shows and deletes a model's saved phrases, the pieces of earlier replies that drafts reuse."""

import asyncio
import threading
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import ClassVar

from textual import work
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Input, Static
from textual.widgets.option_list import Option

from localspec.chat.readable_phrases import Decode, ReadablePhrase, Stories, pools_of, readable_phrases, reader
from localspec.errors import LocalspecError
from localspec.models.registry import TargetCard
from localspec.quantities import counted, size
from localspec.store.phrases import PoolInfo
from localspec.store.store import Store
from localspec.text import one_line
from localspec_tui.screens.dialogs import DIALOG_KEYS, AskingScreen
from localspec_tui.widgets.typed_text import OneLine

LISTED = 200
NOTHING = "No phrases are saved for this model yet."


class _OtherSearch(Exception):
    """An exception that ends a search, because the user has begun another one."""


class PhrasesScreen(AskingScreen[None]):
    """A dialog with the saved phrases of one model, the most useful first."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "Back", id="phrases.back"),
        Binding("ctrl+d", "delete", "Delete", id="phrases.delete", priority=True),
        Binding("f7", "delete_chat", "Delete this chat's", id="phrases.delete_chat", priority=True),
        Binding("f8", "delete_all", "Delete all", id="phrases.delete_all", priority=True),
        Binding("down", "move(1)", "Next", id="phrases.next", show=False, priority=True),
        Binding("up", "move(-1)", "Previous", id="phrases.previous", show=False, priority=True),
        DIALOG_KEYS,
    ]

    def __init__(self, store: Store, card: TargetCard, words: str = "") -> None:
        super().__init__(OneLine(words, placeholder="Search in phrases", compact=True))
        self._store, self._card = store, card
        self._summary = Static("", id="kept", markup=False)
        self._stories = Stories(store.history)
        self._readers: dict[int, tuple[Decode, str]] = {}  # by pool: its decoder, or why there are only token ids
        self._pools: list[PoolInfo] = []
        self._listed: list[ReadablePhrase] = []
        self._superseded = threading.Event()  # set when the current search is no longer wanted

    def _above(self) -> Iterable[Widget]:
        return (self._summary,)

    # -- the list -----------------------------------------------------------------------------------------------------

    async def on_mount(self) -> None:
        self._search.focus()
        self._look_for(self._search.value)

    def on_unmount(self) -> None:
        self._superseded.set()

    def on_input_changed(self, changed: Input.Changed) -> None:
        if not self._asking.asking:
            self._look_for(changed.value)

    @work(exclusive=True)
    async def _look_for(self, words: str, sentence: str = "") -> None:
        self._superseded.set()
        self._superseded = threading.Event()
        try:
            phrases, stories = await asyncio.to_thread(self._find, words, self._superseded)
        except _OtherSearch:
            return
        except LocalspecError as error:
            self._tell(str(error))
            return
        options, self._listed = self._options, phrases
        options.clear_options()
        options.add_options(
            Option(Content.assemble(one_line(phrase.line), "\n", (one_line(story), "dim")))
            for phrase, story in zip(phrases, stories, strict=True)
        )
        options.highlighted = 0 if phrases else None
        room = sum(pool.bytes for pool in self._pools)
        learned = f"{counted(self._all(), 'phrase')} from past replies"
        summary = f"{self._card.name}: {learned}, {size(room)}, saved only on this machine"
        self._summary.update(one_line(summary))
        nothing = "Nothing was found." if words.strip() else NOTHING
        more = "Search to find other phrases." if len(phrases) == LISTED else ""
        why_ids = [why for pool in self._pools if pool.phrases and (why := self._readers[pool.pool][1])]
        self._tell(sentence or " ".join([*why_ids, more] if phrases else [nothing]))
        self.refresh_bindings()

    def _find(self, words: str, superseded: threading.Event) -> tuple[list[ReadablePhrase], list[str]]:
        """Return the phrases that contain all of `words`, and a clause about the use of each.

        Run this in a thread: a hundred thousand phrases take seconds. Raises _OtherSearch once `superseded` is set.
        """
        self._pools = pools_of(self._store, self._card)
        matches: list[ReadablePhrase] = []
        for pool in self._pools:
            if pool.pool not in self._readers:
                self._readers[pool.pool] = reader(pool)

            def decode(tokens: Sequence[int], use: Decode = self._readers[pool.pool][0]) -> str | None:
                if superseded.is_set():
                    raise _OtherSearch
                return use(tokens)

            phrases = readable_phrases(pool, self._store.phrases.most_useful(pool.pool), decode, words)
            matches += islice(phrases, LISTED - len(matches))
        return matches, [self._stories.of(readable.phrase) for readable in matches]

    def _highlighted(self) -> ReadablePhrase | None:
        at = self._options.highlighted
        return self._listed[at] if at is not None and at < len(self._listed) else None

    def _all(self) -> int:
        """Return the number of all phrases of this model, even if a search shows fewer."""
        return sum(pool.phrases for pool in self._pools)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Return False for a key that would delete nothing, so that the footer does not show it."""
        targets = {"delete": self._highlighted(), "delete_chat": self._highlighted(), "delete_all": self._all()}
        return bool(targets.get(action, True)) and super().check_action(action, parameters)

    def _chosen(self) -> ReadablePhrase | None:
        """Return the highlighted phrase for an action on it, and clear the last notice."""
        self._tell("")
        return self._highlighted()

    # -- deleting -----------------------------------------------------------------------------------------------------

    @work(exclusive=True, group="asking")
    async def action_delete(self) -> None:
        if (chosen := self._chosen()) is not None:
            delete, pool = self._store.phrases.delete, chosen.pool.pool
            await self._delete(f"“{chosen.line}”", lambda: delete(pool, phrases=[chosen.name]))

    @work(exclusive=True, group="asking")
    async def action_delete_chat(self) -> None:
        if (chosen := self._chosen()) is None:
            return
        if (conversation := chosen.phrase.conversation) is None:
            self._tell("This phrase belongs to no saved conversation.")
            return
        delete, pool = self._store.phrases.delete, chosen.pool.pool
        count = await asyncio.to_thread(self._store.phrases.count, pool, conversation)
        phrases, title = counted(count, "phrase"), self._stories.title(conversation)
        subject = f"the {phrases} last used in {title}"
        await self._delete(subject, lambda: delete(pool, conversation=conversation))

    @work(exclusive=True, group="asking")
    async def action_delete_all(self) -> None:
        pools, delete = [pool.pool for pool in self._pools], self._store.phrases.delete
        subject = f"all {counted(self._all(), 'phrase')} of {self._card.name}"
        await self._delete(subject, lambda: sum(delete(pool) for pool in pools))

    async def _delete(self, subject: str, delete: Callable[[], int]) -> None:
        if not await self._asking.decision(f"Delete {subject} for good?"):
            return
        try:
            sentence = f"Deleted {counted(await asyncio.to_thread(delete), 'phrase')}."
        except LocalspecError as error:
            sentence = str(error)
        self._look_for(self._search.value, sentence)
