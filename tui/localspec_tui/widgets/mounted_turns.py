"""Makes widgets only for some turns of a conversation: the newest, and the turns around a match of a search."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from textual import work
from textual.await_complete import AwaitComplete
from textual.containers import VerticalScroll
from textual.geometry import Region, Size
from textual.widget import Widget
from textual.widgets import Static

from localspec.chat.attachments import ComposedPrompt
from localspec.chat.figures import memory_begins
from localspec.quantities import counted
from localspec_tui.laid_block import LaidOutOnce
from localspec_tui.widgets.message_view import PromptView

if TYPE_CHECKING:
    from localspec.chat.trace import Trace

MOUNTED = 10  # turns; each mounted one makes every later frame cost more
BATCH = 5  # further turns, whenever the user scrolls beyond the first
AROUND = 1  # turn before and after a match
MEMORY_LINE = "── the model no longer reads the text above ──"


@dataclass
class Exchange:
    """A prompt and its reply, and their widgets while they are mounted."""

    prompt: ComposedPrompt
    reply: str = ""
    reasoning: str = ""
    reason: str | None = "stop"
    figures: Mapping[str, Any] = field(default_factory=dict)
    trace: "Trace | None" = None  # of replies of this session
    views: list[Widget] = field(default_factory=list)  # none while it is not mounted
    begins_memory: bool = False  # whether the model reads nothing above it

    def mountable(self) -> list[Widget]:
        self.views = [*([memory_line()] if self.begins_memory else []), PromptView(self.prompt)]
        if self.reply or self.reasoning:
            from localspec_tui.widgets.reply_view import ReplyView

            self.views.append(ReplyView(self.reply, self.reason, self.figures, self.reasoning))
        return self.views


def memory_line() -> Static:
    """Return a line that marks the first turn that the model still reads. Its context has no room for earlier turns."""
    return Static(MEMORY_LINE, markup=False, classes="memory")


async def import_replies() -> None:
    """Import the widgets of replies. At the start of the chat, this import would delay keys and the model."""
    await asyncio.to_thread(import_module, "localspec_tui.widgets.reply_view")


class MountedTurns(LaidOutOnce, VerticalScroll, can_focus=False):
    """A view of the turns, the newest at the bottom. Older turns are mounted when the user scrolls to them."""

    def __init__(self) -> None:
        super().__init__()
        self._older: list[Exchange] = []  # not mounted
        self._sought: list[Exchange] = []  # mounted old ones
        self._between: list[Exchange] = []  # not mounted
        self._exchanges: list[Exchange] = []  # mounted, up to the newest
        self._gap: Static | None = None  # stands for the turns between, which are mounted when it is visible
        self._fetching = False
        self._size_before = Size(0, 0)

    @property
    def _every(self) -> list[Exchange]:
        """Return all turns, the oldest first."""
        return [*self._older, *self._sought, *self._between, *self._exchanges]

    async def _replace(self, turns: Sequence[Exchange]) -> None:
        """Set all turns. None of them is mounted yet."""
        self._older, self._exchanges, self._sought, self._between = [*turns], [], [], []
        self._gap = None
        await self.remove_children()

    async def _mount_newest(self) -> None:
        """Mount the newest turns one at a time, so that typing is not delayed."""
        while self._older and len(self._exchanges) < MOUNTED:
            await self._mount_older(1)

    @work
    async def fetch_older(self) -> None:
        """Mount some more turns above the first mounted one, and keep the reader's place."""
        if not self._older or self._fetching:
            return
        self._fetching = True
        first = self.children[0] if self.children else None
        below = first.virtual_region.y - self.scroll_y if first else 0
        await self._mount_older(BATCH)

        def restore() -> None:
            if first is not None and first.is_mounted:
                self.scroll_to(y=first.virtual_region.y - below, animate=False, force=True)
            self._fetching = False

        self.call_after_refresh(restore)

    async def _mount_older(self, count: int) -> None:
        batch, self._older = self._older[-count:], self._older[:-count]
        (self._sought or self._exchanges)[:0] = batch
        views = [view for exchange in batch for view in exchange.mountable()]
        await self.mount_all(views, before=0 if self.children else None)

    async def _unmount_old(self) -> None:
        excess, self._exchanges = self._exchanges[:-MOUNTED], self._exchanges[-MOUNTED:]
        self._older += excess
        for exchange in excess:
            for view in exchange.views:
                await view.remove()
            exchange.views = []

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if new_value <= 0 < old_value:
            self.fetch_older()
        self._look_at_gap()

    def watch_virtual_size(self, old: Size, new: Size) -> None:
        super().watch_virtual_size(old, new)
        if self.size != self._size_before:  # Textual has found the end for the previous size, and must look again
            self._has_grown, self._size_before = False, self.size
        self._look_at_gap()

    async def _show_memory(self) -> None:
        """Mark the first turn that the model read for the last reply, if its context had no room for earlier turns."""
        exchanges = self._every
        answered = [bool(exchange.reply) for exchange in exchanges]
        last = next((exchange for exchange in reversed(exchanges) if exchange.reply), None)
        dropped = last.figures.get("dropped_turns") if last is not None else 0
        begins = memory_begins(answered, dropped if isinstance(dropped, int) else 0)
        for number, exchange in enumerate(exchanges):
            begins_here = 0 < begins == number
            if begins_here == exchange.begins_memory:
                continue
            exchange.begins_memory = begins_here
            if exchange.views and begins_here:
                line = memory_line()
                await self.mount(line, before=exchange.views[0])
                exchange.views.insert(0, line)
            elif exchange.views:
                await exchange.views.pop(0).remove()

    async def _bring(self, exchange: Exchange) -> None:
        """Mount a turn for a search, with its neighbours, in place of the turns of an earlier match."""
        if any(other is exchange for other in self._sought):
            return
        turn = next(number for number, other in enumerate(self._every) if other is exchange)
        leaving = self._unmount_sought()
        if exchange.views:
            await leaving
            return
        first, end = max(turn - AROUND, 0), turn + AROUND + 1
        self._sought, self._between = self._older[first:end], self._older[end:]
        del self._older[first:]
        views = [view for sought in self._sought for view in sought.mountable()]
        mounting = self.mount_all([*views, *self._bridge()], before=0)
        await leaving
        await mounting

    def _unmount_sought(self) -> AwaitComplete:
        leaving = [view for exchange in self._sought for view in exchange.views]
        if self._gap is not None:
            leaving.append(self._gap)
        for exchange in self._sought:
            exchange.views = []
        self._older += [*self._sought, *self._between]
        self._sought, self._between, self._gap = [], [], None
        return AwaitComplete(*(view.remove() for view in leaving))

    def _bridge(self) -> list[Widget]:
        """Return a line that counts the turns without widgets between a match of a search and the newest turns.

        If there are no such turns, join both groups of widgets, and return an empty list.
        """
        if self._between:
            self._gap = Static(f"… {counted(len(self._between), 'turn')} …", markup=False, classes="gap")
            return [self._gap]
        self._exchanges[:0], self._sought, self._gap = self._sought, [], None
        return []

    def _look_at_gap(self) -> None:
        """If the line that counts turns without widgets is visible, begin to make widgets for these turns."""
        region = self._gap.virtual_region if self._gap is not None else Region()
        if region.height and self.scroll_y - region.height < region.y < self.scroll_y + self.size.height:
            self._fill_gap()

    @work
    async def _fill_gap(self) -> None:
        """Mount some turns between a found turn and the newest, on the side from which the user scrolls."""
        if self._fetching or (gap := self._gap) is None or not gap.is_mounted:
            return
        self._fetching = True
        downward = self._sought[-1].views[-1].virtual_region.bottom > self.scroll_y
        first = self.children[self.children.index(gap) + 1]
        below = first.virtual_region.y - self.scroll_y
        if downward:
            batch, self._between = self._between[:BATCH], self._between[BATCH:]
            self._sought += batch
        else:
            batch, self._between = self._between[-BATCH:], self._between[:-BATCH]
            self._exchanges[:0] = batch
        views = [view for exchange in batch for view in exchange.mountable()]
        bridge = self._bridge()
        mounting = self.mount_all([*views, *bridge] if downward else [*bridge, *views], before=gap)
        await gap.remove()
        await mounting

        def filled() -> None:
            if not downward and first.is_attached:
                self.scroll_to(y=first.virtual_region.y - below, animate=False, force=True)
            self._fetching = False
            self._look_at_gap()

        self.call_after_refresh(filled)
