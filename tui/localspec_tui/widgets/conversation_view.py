"""The view of the conversation: its messages, the last of which may grow, and the reader's place among them."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING
from unicodedata import is_normalized

from textual.await_complete import AwaitComplete
from textual.geometry import Size
from textual.widget import Widget

from localspec.chat.attachments import ComposedPrompt, saved_prompt
from localspec.store.searched_words import fold, span
from localspec_tui.block_view import BlockView
from localspec_tui.widgets.message_view import MessageView, NoticeView
from localspec_tui.widgets.mounted_turns import Exchange, MountedTurns, import_replies

if TYPE_CHECKING:
    from localspec.chat.trace import Trace
    from localspec.store.conversations import Turn
    from localspec_tui.widgets.reply_view import ReplyView


MOST = 1000  # occurrences marked in one text


def mark_words(view: MessageView, word: str, at: int) -> tuple[int, Callable[[], None]]:
    """Underline a word in a message, and select its occurrence number `at`, or the last if fewer are displayed.

    Return the row of that occurrence, and a function that removes the marks. The row is 0 if the word is only in the
    source of the message.
    """
    shown = view.query(BlockView).last()  # thoughts are above the reply
    matches = {number: spans for number, block in enumerate(shown.blocks) if (spans := [*_spans(word, block.text)])}
    shown.mark(matches)
    places = [(number, *hit) for number, spans in matches.items() for hit in spans]
    row = shown.select(*places[min(at, len(places) - 1)]) + shown.content_region.y - view.region.y if places else 0
    return row, lambda: shown.mark({})


def _spans(word: str, text: str) -> Iterator[tuple[int, int]]:
    """Yield the start and end of the first MOST occurrences of a word."""
    if len(fold(text)) == len(text) and is_normalized("NFC", text):  # by character
        folded, start = fold(text), 0
        for _ in range(MOST):
            if (start := folded.find(word, start)) < 0:
                return
            yield start, start + len(word)
            start += len(word)
        return
    begin, remaining = 0, MOST
    for line in text.split("\n"):
        start = 0
        while remaining and (hit := span(word, line[start:])):
            yield begin + start + hit[0], begin + start + hit[1]
            start += max(hit[1], 1)
            remaining -= 1
        begin += len(line) + 1


TOASTS = 1  # line that two toasts cover


class ConversationView(MountedTurns):
    """The view of the messages, the newest at the bottom. The view follows the end until the user scrolls up."""

    BLANK = True  # draws nothing behind messages; otherwise everything is drawn again whenever they grow

    def __init__(self, show_below: Callable[[int], None]) -> None:
        """Begin empty. `show_below` is called with the number of lines that arrived below the visible ones."""
        super().__init__()
        self._show_below = show_below
        self.match: MessageView | None = None  # the match of a search
        self._unmark_words: Callable[[], None] = lambda: None
        self._growing: ReplyView | None = None
        self._reads_above = False  # whether the user has scrolled up from the end
        # The last widget when the user scrolled up, and its lines then.
        self._left_at: tuple[Widget, int] | None = None

    @property
    def growing(self) -> str:
        """Return the displayed source of the current reply."""
        return self._growing.source if self._growing is not None else ""

    @property
    def last_reply(self) -> str | None:
        """Return the source of the newest reply, even while it grows."""
        if self.growing:
            return self.growing
        return next((exchange.reply for exchange in reversed(self._every) if exchange.reply), None)

    @property
    def messages(self) -> list[tuple[str, str]]:
        """Return the typed part of each prompt, together with the reply so far."""
        texts = [(exchange.prompt.typed, exchange.reply) for exchange in self._every]
        if texts and self.growing:
            texts[-1] = texts[-1][0], self.growing
        return texts

    @property
    def chosen(self) -> Widget | None:
        """Return the message that keys act on: the match of a search, or else the focused message."""
        return self.match or self.screen.focused

    @property
    def chosen_source(self) -> str:
        """Return the Markdown source of the chosen message, or else of the last reply; empty if there is no reply."""
        return self.chosen.source if isinstance(self.chosen, MessageView) else self.last_reply or ""

    def turn_of(self, view: Widget | None) -> tuple[int, ComposedPrompt] | None:
        """Return the number and prompt of the turn of `view`, or else of the last turn; None without turns."""
        exchanges = self._every
        numbers = [n for n, exchange in enumerate(exchanges) if view in exchange.views] or [len(exchanges) - 1]
        return (numbers[0], exchanges[numbers[0]].prompt) if exchanges else None

    def trace_of(self, view: Widget | None) -> "Trace | None":
        """Return the trace (record of drafts) of the turn of `view`, or else of the last turn; None if it has none."""
        exchanges = self._every
        exchange = next(
            (exchange for exchange in exchanges if view in exchange.views), exchanges[-1] if exchanges else None
        )
        return exchange.trace if exchange else None

    # -- whole conversations ------------------------------------------------------------------------------------------

    async def show(self, turns: "Sequence[Turn]", traces: "Sequence[Trace]") -> None:
        """Replace all messages by the messages of `turns`. `traces` are the traces of this session's replies."""
        if turns:
            await import_replies()
        known = {trace.turn: trace for trace in traces if trace.turn}
        self._growing = self.match = None
        await self._replace(
            [
                Exchange(saved_prompt(turn), turn.reply, turn.reasoning, turn.reason, turn.figures, known.get(turn.id))
                for turn in turns
            ]
        )
        self.screen.remove_class("-noticed")
        self.anchor()
        await self._show_memory()
        await self._mount_newest()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self._look_below()

    def watch_virtual_size(self, old: Size, new: Size) -> None:
        super().watch_virtual_size(old, new)
        if old.width != new.width:  # lines are broken elsewhere, and nothing is new
            self._left_at = None
        self._look_below()

    def _look_below(self) -> None:
        """Update the number of new lines below the visible ones: 0 while the view follows the end."""
        self._reads_above = self._reads_above and not self.is_vertical_scroll_end
        if not self._reads_above:
            self._left_at = None
        elif self.children and (self._left_at is None or not self._left_at[0].is_attached):
            self._left_at = self.children[-1], self._to_the_end(self.children[-1])
        self._show_below(0 if self._left_at is None else max(0, self._to_the_end(self._left_at[0]) - self._left_at[1]))

    def _to_the_end(self, view: Widget) -> int:
        return self.virtual_size.height - view.virtual_region.y

    def anchor(self, anchor: bool = True) -> None:
        """Follow the end of the conversation while it grows. With False, stop following."""
        self._reads_above = False
        super().anchor(anchor)

    def release_anchor(self) -> None:
        """Stop following the end: stay at the reader's place."""
        self._reads_above = True
        super().release_anchor()

    async def follow(self) -> None:
        """Scroll to the end, and follow it."""
        await self._unmount_sought()
        self.anchor()

    # -- search matches -----------------------------------------------------------------------------------------------

    async def reveal(self, turn: int, reply: bool, at: int, word: str) -> None:
        """Mark a word in the prompt or the reply of a turn, and show its occurrence number `at`."""
        self.unmark()
        exchange = self._every[turn]
        await self._bring(exchange)
        views = [view for view in exchange.views if isinstance(view, MessageView)]
        self.match = view = views[-1 if reply else 0]
        view.add_class("-found")
        self.release_anchor()

        def show() -> None:
            if exchange.views:  # otherwise it was unmounted meanwhile
                self._unmark_words()
                row, self._unmark_words = mark_words(view, word, at)
                top, word_at = exchange.views[0].virtual_region.y, view.virtual_region.y + row
                far = word_at - top > self.size.height // 2  # otherwise its prompt is visible, too
                self.scroll_to(y=word_at - self.size.height // 3 if far else top - TOASTS, animate=False, force=True)

        self.call_after_refresh(show)

    def _unmount_sought(self) -> AwaitComplete:
        self.unmark()
        return super()._unmount_sought()

    def unmark(self) -> None:
        """Remove the marks of a search."""
        if self.match is not None:
            self.match.remove_class("-found")
            self._unmark_words()
            self.screen.clear_selection()
            self.match = None

    def restorer(self) -> Callable[[], Awaitable[None]]:
        """Return a function that restores the present scroll position and the focus on a message."""
        back, focused = self._scroll_restorer(), self.screen.focused
        message = next(
            ((exchange, exchange.views.index(focused)) for exchange in self._every if focused in exchange.views), None
        )

        async def back_in_focus() -> None:
            await back()
            if message is not None and message[0].views:
                self.screen.set_focus(message[0].views[message[1]], scroll_visible=False)

        return back_in_focus

    def _scroll_restorer(self) -> Callable[[], Awaitable[None]]:
        shown = (
            exchange
            for exchange in self._every
            if any(view.virtual_region.bottom > self.scroll_y for view in exchange.views)
        )
        first = next(shown, None)
        if first is None or not self._reads_above or self.is_vertical_scroll_end:
            return self.follow
        below = first.views[0].virtual_region.y - self.scroll_y

        def scroll_there() -> None:
            if first.views:
                self.scroll_to(y=first.views[0].virtual_region.y - below, animate=False, force=True)

        async def back() -> None:
            if all(exchange is not first for exchange in self._every):  # another branch is gone instead
                await self.follow()
                return
            await self._bring(first)
            self.call_after_refresh(scroll_there)

        return back

    # -- the current turn ---------------------------------------------------------------------------------------------

    async def add_prompt(self, prompt: ComposedPrompt, trace: "Trace") -> None:
        """Begin a turn with this prompt."""
        await self._unmount_sought()
        exchange = Exchange(prompt, trace=trace)
        self._exchanges.append(exchange)
        await self.mount_all(exchange.mountable())
        self.anchor()
        await self._unmount_old()

    async def grow(self, text: str) -> None:
        """Begin or extend the reply to the last prompt."""
        await (await self._current()).grow(text)

    async def think(self, reasoning: str) -> None:
        """Extend the thoughts before the current reply."""
        await (await self._current()).think(reasoning)

    def tell_thought(self, words: str) -> None:
        """Show how long the model has thought so far."""
        if self._growing is not None:
            self._growing.tell_thought(words)

    async def _current(self) -> "ReplyView":
        if self._growing is None:
            await import_replies()
            from localspec_tui.widgets.reply_view import ReplyView

            self._growing = ReplyView()
            self._exchanges[-1].views.append(self._growing)
            await self.mount(self._growing)
        return self._growing

    async def finish(self, turn: "Turn") -> None:
        """End the current reply with its complete text."""
        await (await self._current()).finish(turn.reply, turn.reason, turn.figures, turn.reasoning)
        last = self._exchanges[-1]
        last.reply, last.reasoning, last.reason, last.figures = turn.reply, turn.reasoning, turn.reason, turn.figures
        self._growing = None
        await self._show_memory()

    async def take_back(self) -> None:
        """Remove the last prompt from the view, because it gets no reply."""
        for view in self._exchanges.pop().views:
            await view.remove()

    async def cut(self, turns: int) -> None:
        """Remove all turns after the first `turns`, because other turns will replace them."""
        await self._unmount_sought()
        while self._exchanges and len(self._older) + len(self._exchanges) > turns:
            await self.take_back()
        while len(self._older) > turns:
            self._older.pop()
        await self._show_memory()
        await self._mount_newest()

    # -- other parts --------------------------------------------------------------------------------------------------

    async def tell(self, sentence: str, *, trouble: bool = False) -> NoticeView:
        """Show a notice, unless the last notice is the same, and return its view. With `trouble`, scroll to the end."""
        if trouble:
            await self.follow()
        if self.children and isinstance(last := self.children[-1], NoticeView) and last.sentence == sentence:
            return last
        view = NoticeView(sentence, trouble=trouble)
        if self._exchanges:
            self._exchanges[-1].views.append(view)
        if self.is_attached:  # otherwise the chat is ending
            await self.mount(view)
            self.screen.add_class("-noticed")
        return view

    async def forget(self, notice: NoticeView | None) -> None:
        """Remove a notice, if it still exists."""
        for exchange in self._exchanges:
            exchange.views = [view for view in exchange.views if view is not notice]
        if notice is not None and notice.is_attached:
            await notice.remove()

    def toggle_thoughts(self, view: Widget | None) -> bool:
        """Open or fold the thoughts before the focused reply, or before the last reply that has thoughts.

        Return False if there are no thoughts.
        """
        from localspec_tui.widgets.reply_view import ReplyView

        chosen = [view] if isinstance(view, ReplyView) else reversed(self.query(ReplyView))
        return any(reply.toggle_thoughts() for reply in chosen)

    def walk(self, step: int) -> bool:
        """Move the focus to a message that a search found, or to the message above (-1) or below (1) the focused one.

        Return False if there is no such message.
        """
        if self.match is not None:
            self.screen.set_focus(self.match)
            return True
        messages = list(self.query(MessageView))
        focused = self.screen.focused
        at = messages.index(focused) if isinstance(focused, MessageView) else len(messages)
        if at + step < 0:
            self.fetch_older()
            return True
        if at + step >= len(messages):
            return False
        if step > 0 and self._gap is not None and messages[at] in self._sought[-1].views[-1:]:
            self._fill_gap()
            return True
        self.screen.set_focus(messages[at + step])  # at once: the next key continues from there
        return True

    def page(self, step: int) -> None:
        """Scroll one screenful up (-1) or down (1)."""
        if step > 0:
            self.scroll_page_down(animate=False)
        elif self.scroll_y <= 0:
            self.fetch_older()
        else:
            self.scroll_page_up(animate=False)
