"""What one looks at in the chat: the reply under way and its figures, and screens above it."""

from typing import TYPE_CHECKING

from textual.screen import Screen

from localspec.chat.wording import thought
from localspec.repetition import goes_round
from localspec_tui import keymap
from localspec_tui.engine_thread import EngineThread
from localspec_tui.outbox import Outbox
from localspec_tui.widgets.conversation_view import ConversationView
from localspec_tui.widgets.keys_panel import KeysPanel, of_the_chat
from localspec_tui.widgets.live_line import LiveLine
from localspec_tui.widgets.side_panel import SidePanel

if TYPE_CHECKING:
    from localspec.models.registry import TargetCard


class LookingScreen(Screen[None]):
    """The part of the chat's screen that shows how replies come about. The chat sees to what stands here."""

    _engine: EngineThread
    _conversation: ConversationView
    _outbox: Outbox
    _live: LiveLine
    _panel: SidePanel
    _card: "TargetCard | None"
    _model: str
    _to_be_shown: int
    _stopping: bool

    def _show_figures(self) -> None:
        figures = self._engine.buffer.figures
        circles = goes_round(self._conversation.growing)
        warning = f"it repeats itself: {keymap.key(self.app, 'chat.stop')} stops it" if circles else ""
        self._live.show_figures(figures, warning)
        self._panel.show(figures)
        if figures is not None and figures.reasoning_tokens:
            tokens, still = figures.reasoning_tokens, figures.reasoning_tokens == figures.tokens
            self._conversation.tell_thought(thought(tokens, figures.reasoning_seconds, still=still))

    def action_thoughts(self) -> None:
        if not self._conversation.toggle_thoughts(self._conversation.chosen):
            self.notify("Nothing was thought before a reply yet.", markup=False)

    def stop_reply(self) -> bool:
        """Ends the reply under way; False where none is."""
        if self._outbox.asked is None:
            return False
        self._stopping = True
        self._engine.stop_reply()
        self._live.show("stopping")
        return True

    def tell_of_stopping(self) -> None:
        """Before something is done that the reply under way, if there is one, cannot outlast."""
        if self._outbox.asked is not None:
            stays = " What it said stays." if self._conversation.growing else ""
            self.notify(f"The reply under way was stopped.{stays}", markup=False)

    def action_xray(self) -> None:
        from localspec_tui.screens.xray import XRayScreen

        chosen, spoken = (
            self._conversation.trace_of(self._conversation.chosen),
            self._conversation.last_reply is not None,
        )
        self.app.push_screen(XRayScreen(self._engine.traces, chosen, chosen is None and spoken))

    async def action_keys(self) -> None:
        if shown := self.query(KeysPanel):
            await shown.remove()
        else:
            await self.query_one("#middle").mount(of_the_chat(self.app, type(self).BINDINGS))

    def action_panel(self) -> None:
        self._panel.toggle()

    def action_phrases(self, words: str = "") -> None:
        if self._engine.store is None or self._card is None:
            self.notify("No phrases are kept here.", markup=False)
        else:
            from localspec_tui.screens.phrases import PhrasesScreen

            self.app.push_screen(PhrasesScreen(self._engine.store, self._card, words))

    def action_race(self, prompt: str = "") -> None:
        """Beside the conversation, while no reply is under way."""
        if not self._outbox.empty or self._to_be_shown or not self._model:
            self.notify("A race waits until no reply is under way and a model is loaded.", markup=False)
        else:
            from localspec_tui.screens.race import RaceScreen

            turn = self._conversation.turn_of(None)
            self.app.push_screen(RaceScreen(self._engine, prompt, turn[1].typed if turn else ""))
