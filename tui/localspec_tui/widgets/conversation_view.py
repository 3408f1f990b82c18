"""The conversation so far: owns the messages, decides how many of them are mounted, and lets the last one grow."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from textual.containers import VerticalScroll
from textual.widget import Widget

from localspec_tui.widgets.message_view import MessageView, NoticeView, PromptView

if TYPE_CHECKING:
    from localspec.store.history import Turn
    from localspec_tui.widgets.reply_view import ReplyView

MOUNTED = 10  # turns; each mounted one makes every later frame cost more
BATCH = 5  # turns more, whenever one scrolls beyond the first


@dataclass
class _Exchange:
    """A prompt and its reply, and their widgets while they are mounted."""

    prompt: str
    reply: str = ""
    reason: str | None = "stop"
    views: list[Widget] = field(default_factory=list)

    def mountable(self) -> list[Widget]:
        self.views = [PromptView(self.prompt)]
        if self.reply:
            from localspec_tui.widgets.reply_view import ReplyView

            self.views.append(ReplyView(self.reply, self.reason))
        return self.views


class ConversationView(VerticalScroll, can_focus=False):
    """The messages, the newest below. It stays at the end until one scrolls up."""

    def __init__(self) -> None:
        super().__init__()
        self._older: list[_Exchange] = []  # not mounted
        self._exchanges: list[_Exchange] = []  # mounted
        self._growing: ReplyView | None = None
        self._fetching = False

    @property
    def last_reply(self) -> str | None:
        """The source of the newest reply, also while it grows."""
        if self._growing is not None and self._growing.source:
            return self._growing.source
        return next((one.reply for one in reversed([*self._older, *self._exchanges]) if one.reply), None)

    def turn_of(self, view: Widget | None) -> tuple[int, str] | None:
        """The number and the prompt of the turn that a message belongs to, else of the last one; None where none is."""
        exchanges = [*self._older, *self._exchanges]
        found = [at for at, one in enumerate(exchanges) if view in one.views] or [len(exchanges) - 1]
        return (found[0], exchanges[found[0]].prompt) if exchanges else None

    # -- whole conversations ------------------------------------------------------------------------------------------

    async def show(self, turns: "Sequence[Turn]") -> None:
        """Replaces everything."""
        self._older = [_Exchange(turn.prompt, turn.reply, turn.reason) for turn in turns]
        self._exchanges, self._growing = [], None
        await self.remove_children()
        self.anchor()
        while self._older and len(self._exchanges) < MOUNTED:
            await self._mount_older(1)  # one at a time, the newest first: typing goes on meanwhile

    async def fetch_older(self) -> None:
        """Mounts some more above the first, and keeps the place that is being read."""
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
        if new_value <= 0 < old_value:
            self.run_worker(self.fetch_older())

    # -- the turn under way -------------------------------------------------------------------------------------------

    async def add_prompt(self, prompt: str) -> None:
        """A turn begins."""
        exchange = _Exchange(prompt)
        self._exchanges.append(exchange)
        await self.mount_all(exchange.mountable())
        self.anchor()
        await self._unmount_old()

    async def grow(self, text: str) -> None:
        """The reply to the last prompt begins, or goes on."""
        if self._growing is None:
            from localspec_tui.widgets.reply_view import ReplyView

            self._growing = ReplyView()
            self._exchanges[-1].views.append(self._growing)
            await self.mount(self._growing)
        await self._growing.grow(text)

    async def finish(self, reply: str, reason: str | None) -> None:
        """The reply under way has ended, and this is all of it."""
        if self._growing is None:
            await self.grow("")
        assert self._growing is not None
        await self._growing.finish(reply, reason)
        self._exchanges[-1].reply, self._exchanges[-1].reason = reply, reason
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

    async def tell(self, sentence: str, *, trouble: bool = False) -> None:
        """A sentence of localspec's own."""
        view = NoticeView(sentence, trouble=trouble)
        if self._exchanges:
            self._exchanges[-1].views.append(view)
        await self.mount(view)

    def walk(self, step: int) -> bool:
        """The focus goes to the message above (-1) or below (1); False where there is none."""
        messages = list(self.query(MessageView))
        focused = self.screen.focused
        at = messages.index(focused) if isinstance(focused, MessageView) else len(messages)
        if at + step < 0:
            self.run_worker(self.fetch_older())
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
            self.run_worker(self.fetch_older())
        else:
            self.scroll_page_up(animate=False)
