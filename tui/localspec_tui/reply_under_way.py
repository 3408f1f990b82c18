"""The reply under way: how the chat shows it at its own pace, and how it is stopped."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from textual.screen import Screen
from textual.timer import Timer

from localspec.chat.wording import thought
from localspec.repetition import goes_round
from localspec_tui import keymap
from localspec_tui.engine_thread import EngineThread
from localspec_tui.pace import Pace
from localspec_tui.widgets.conversation_view import ConversationView
from localspec_tui.widgets.find_line import Finder
from localspec_tui.widgets.live_line import LiveLine
from localspec_tui.widgets.side_panel import SidePanel

if TYPE_CHECKING:
    from localspec_tui.outbox import Outbox


class ReplyUnderWay:
    """A reply that the engine is writing. `is_covered` says whether another screen hides all of the chat."""

    def __init__(
        self,
        screen: Screen[None],
        is_covered: Callable[[], bool],
        engine: EngineThread,
        outbox: "Outbox",
        conversation: ConversationView,
        finder: Finder,
        live: LiveLine,
        panel: SidePanel,
    ) -> None:
        self._screen, self._is_covered = screen, is_covered
        self._engine, self._outbox = engine, outbox
        self._conversation, self._finder, self._live, self._panel = conversation, finder, live, panel
        self._pace = Pace()
        self._timer: Timer | None = None
        self._stopping = False

    def begin(self) -> None:
        """Show the reply from now on, as it grows."""
        self._live.show("reading the prompt")
        self._pace.begin()
        self._follow_after(self._pace.period)

    def _follow_after(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.stop()
        self._timer = self._screen.set_timer(seconds, self._follow)

    async def _follow(self) -> None:
        """Show the text since the last look, and look again later."""
        if self._outbox.under_way is None:
            return
        if not self._is_covered():
            with self._screen.app.batch_update():  # text and figures are one picture
                if not self._stopping:
                    self.show_figures()  # first: they are drawn when the text has been read
                if thoughts := self._engine.buffer.take_thoughts():
                    await self._conversation.think(thoughts)
                if text := self._engine.buffer.take():
                    await self._conversation.grow(text)
                    await self._finder.search_again(last=True)
        self._follow_after(self._pace.next())

    def show_figures(self) -> None:
        """Show the figures of this reply, or of the last one."""
        figures = self._engine.buffer.figures
        circles = goes_round(self._conversation.growing)
        warning = f"it repeats itself: {keymap.key(self._screen.app, 'chat.stop')} stops it" if circles else ""
        self._live.show_figures(figures, warning)
        self._panel.show(figures)
        if figures is not None and figures.reasoning_tokens:
            tokens, still = figures.reasoning_tokens, figures.reasoning_tokens == figures.tokens
            self._conversation.tell_thought(thought(tokens, figures.reasoning_seconds, still=still))

    def stop(self) -> bool:
        """Stop the reply; return whether there was one."""
        if self._outbox.under_way is None:
            return False
        self._stopping = True
        self._engine.stop_reply()
        self._live.show("stopping")
        return True

    def notify_stop(self) -> None:
        """Notify that the reply, if there is one, is stopped for something else."""
        if self._outbox.under_way is not None:
            stays = " What it said stays." if self._conversation.growing else ""
            self._screen.notify(f"The reply under way was stopped.{stays}", markup=False)

    async def end(self) -> None:
        """Show the figures of the whole reply, and find searched words in it."""
        self._stopping = False
        self._engine.buffer.take()
        self.show_figures()
        await self._finder.search_again(last=False)
