"""The conversation so far: owns the messages, decides how many of them are mounted, and lets the last one grow."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from textual import work
from textual.containers import VerticalScroll
from textual.scrollbar import ScrollBar
from textual.widget import Widget

from localspec.chat.attachments import Written, written_in
from localspec_tui.widgets.lean_scroll_bar import LeanScrollBar
from localspec_tui.widgets.message_view import MessageView, NoticeView, PromptView

if TYPE_CHECKING:
    from localspec.chat.trace import Trace
    from localspec.store.conversations import Turn
    from localspec_tui.widgets.reply_view import ReplyView

MOUNTED = 10  # turns; each mounted one makes every later frame cost more
BATCH = 5  # turns more, whenever one scrolls beyond the first


@dataclass
class _Exchange:
    """A prompt and its reply, and their widgets while they are mounted."""

    written: Written
    reply: str = ""
    reasoning: str = ""
    reason: str | None = "stop"
    figures: Mapping[str, Any] = field(default_factory=dict)
    trace: "Trace | None" = None  # of replies of this session
    views: list[Widget] = field(default_factory=list)

    def mountable(self) -> list[Widget]:
        self.views = [PromptView(self.written)]
        if self.reply or self.reasoning:
            from localspec_tui.widgets.reply_view import ReplyView

            self.views.append(ReplyView(self.reply, self.reason, self.figures, self.reasoning))
        return self.views


async def import_replies() -> None:
    """What shows replies takes a while to import. Not before it is needed: it would hold up keys, and the model."""
    await asyncio.to_thread(import_module, "localspec_tui.widgets.reply_view")


class ConversationView(VerticalScroll, can_focus=False):
    """The messages, the newest below. It stays at the end until one scrolls up."""

    BLANK = True  # behind the messages; else all of it is drawn anew whenever they grow

    def __init__(self) -> None:
        super().__init__()
        self._older: list[_Exchange] = []  # not mounted
        self._exchanges: list[_Exchange] = []  # mounted
        self._growing: ReplyView | None = None
        self._fetching = False
        self.tell_below: Callable[[int], None] = lambda _: None  # how many lines came while one reads above
        self._left_at: int | None = None  # the height when one left the end

    @property
    def vertical_scrollbar(self) -> ScrollBar:
        if self._vertical_scrollbar is None:
            self._vertical_scrollbar = LeanScrollBar(self.scrollbar_size_vertical)
            self.app._start_widget(self, self._vertical_scrollbar)
        return self._vertical_scrollbar

    @property
    def growing(self) -> str:
        """The source of the reply under way, as far as it is shown."""
        return self._growing.source if self._growing is not None else ""

    @property
    def last_reply(self) -> str | None:
        """The source of the newest reply, also while it grows."""
        if self.growing:
            return self.growing
        return next((one.reply for one in reversed([*self._older, *self._exchanges]) if one.reply), None)

    def turn_of(self, view: Widget | None) -> tuple[int, Written] | None:
        """The number and the prompt of the turn that a message belongs to, else of the last one; None where none is."""
        exchanges = [*self._older, *self._exchanges]
        found = [at for at, one in enumerate(exchanges) if view in one.views] or [len(exchanges) - 1]
        return (found[0], exchanges[found[0]].written) if exchanges else None

    def trace_of(self, view: Widget | None) -> "Trace | None":
        """Of the turn that a message belongs to, else of the last one; None where none is kept."""
        exchanges = [*self._older, *self._exchanges]
        found = next((one for one in exchanges if view in one.views), exchanges[-1] if exchanges else None)
        return found.trace if found else None

    # -- whole conversations ------------------------------------------------------------------------------------------

    async def show(self, turns: "Sequence[Turn]", traces: "Sequence[Trace]") -> None:
        """Replaces everything. `traces` are those of this session."""
        if turns:
            await import_replies()
        known = {trace.turn: trace for trace in traces if trace.turn}
        self._older = [
            _Exchange(written_in(turn), turn.reply, turn.reasoning, turn.reason, turn.figures, known.get(turn.id))
            for turn in turns
        ]
        self._exchanges, self._growing = [], None
        await self.remove_children()
        self.screen.remove_class("-told")
        self.anchor()
        while self._older and len(self._exchanges) < MOUNTED:
            await self._mount_older(1)  # one at a time, the newest first: typing goes on meanwhile

    @work
    async def fetch_older(self) -> None:
        """Mounts some more above the first, and keeps the place that is being read."""
        if not self._older or self._fetching:
            return
        self._fetching, height = True, self.virtual_size.height
        first = self.children[0] if self.children else None
        below = first.virtual_region.y - self.scroll_y if first else 0
        await self._mount_older(BATCH)

        def restore() -> None:
            if self._left_at is not None:
                self._left_at += self.virtual_size.height - height
            if first is not None and first.is_mounted:
                self.scroll_to(y=first.virtual_region.y - below, animate=False, force=True)
            self._fetching = False

        self.call_after_refresh(restore)

    async def _mount_older(self, count: int) -> None:
        batch, self._older = self._older[-count:], self._older[:-count]
        self._exchanges[:0] = batch
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
        self._look_below()
        if new_value <= 0 < old_value:
            self.fetch_older()

    def watch_virtual_size(self) -> None:
        self._look_below()

    def _look_below(self) -> None:
        """Whoever follows is at the end, or will be with the next frame."""
        following = self._anchored and not self._anchor_released
        if following or self.is_vertical_scroll_end:
            self._left_at = None
        elif self._left_at is None:
            self._left_at = self.virtual_size.height
        self.tell_below(0 if self._left_at is None else max(0, self.virtual_size.height - self._left_at))

    def follow(self) -> None:
        """Goes to the end, and stays there."""
        self._anchor_released = False
        self.anchor()

    # -- the turn under way -------------------------------------------------------------------------------------------

    async def add_prompt(self, written: Written, trace: "Trace") -> None:
        """A turn begins."""
        exchange = _Exchange(written, trace=trace)
        self._exchanges.append(exchange)
        await self.mount_all(exchange.mountable())
        self.anchor()
        await self._unmount_old()

    async def grow(self, text: str) -> None:
        """The reply to the last prompt begins, or goes on."""
        await (await self._begun()).grow(text)

    async def think(self, reasoning: str) -> None:
        """What is thought before that reply goes on."""
        await (await self._begun()).think(reasoning)

    def tell_thought(self, words: str) -> None:
        """How long it was thought so far."""
        if self._growing is not None:
            self._growing.tell_thought(words)

    async def _begun(self) -> "ReplyView":
        """The reply under way."""
        if self._growing is None:
            await import_replies()
            from localspec_tui.widgets.reply_view import ReplyView

            self._growing = ReplyView()
            self._exchanges[-1].views.append(self._growing)
            await self.mount(self._growing)
        return self._growing

    async def finish(self, turn: "Turn") -> None:
        """The reply under way has ended, and this is all of it."""
        await (await self._begun()).finish(turn.reply, turn.reason, turn.figures, turn.reasoning)
        last = self._exchanges[-1]
        last.reply, last.reasoning, last.reason, last.figures = turn.reply, turn.reasoning, turn.reason, turn.figures
        self._growing = None

    async def take_back(self) -> None:
        """The last prompt gets no reply."""
        for view in self._exchanges.pop().views:
            await view.remove()

    async def cut(self, turns: int) -> None:
        """Leaves the first `turns`; what was said after them is to be said in another way."""
        while self._exchanges and len(self._older) + len(self._exchanges) > turns:
            await self.take_back()
        while len(self._older) > turns:
            self._older.pop()
        while self._older and len(self._exchanges) < MOUNTED:
            await self._mount_older(1)

    # -- beside the messages ------------------------------------------------------------------------------------------

    async def tell(self, sentence: str, *, trouble: bool = False) -> NoticeView:
        """A sentence of localspec's own, once where it would stand below itself. One of trouble is seen at once."""
        if trouble:
            self.follow()
        if self.children and isinstance(last := self.children[-1], NoticeView) and last.sentence == sentence:
            return last
        view = NoticeView(sentence, trouble=trouble)
        if self._exchanges:
            self._exchanges[-1].views.append(view)
        await self.mount(view)
        self.screen.add_class("-told")
        return view

    async def forget(self, notice: NoticeView | None) -> None:
        """Takes back what was told, if it still stands there."""
        for exchange in self._exchanges:
            exchange.views = [view for view in exchange.views if view is not notice]
        if notice is not None and notice.is_attached:
            await notice.remove()

    def toggle_thoughts(self, view: Widget | None) -> bool:
        """Opens or folds what was thought before the reply in focus, else before the last that was thought about."""
        from localspec_tui.widgets.reply_view import ReplyView

        chosen = [view] if isinstance(view, ReplyView) else reversed(self.query(ReplyView))
        return any(reply.toggle_thoughts() for reply in chosen)

    def walk(self, step: int) -> bool:
        """The focus goes to the message above (-1) or below (1); False where there is none."""
        messages = list(self.query(MessageView))
        focused = self.screen.focused
        at = messages.index(focused) if isinstance(focused, MessageView) else len(messages)
        if at + step < 0:
            self.fetch_older()
            return True
        if at + step >= len(messages):
            return False
        messages[at + step].focus()
        return True

    def page(self, step: int) -> None:
        """One screenful up (-1) or down (1)."""
        if step > 0:
            self.scroll_page_down(animate=False)
        elif self.scroll_y <= 0:
            self.fetch_older()
        else:
            self.scroll_page_up(animate=False)
