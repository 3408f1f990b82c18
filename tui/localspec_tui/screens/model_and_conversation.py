"""The user's choice of a model, in a dialog or by name, and of a conversation.

The chosen model is loaded, and fetched first if necessary.
"""

from typing import TYPE_CHECKING, cast

from textual.screen import Screen

from localspec.errors import UsageMistake
from localspec_tui import keymap, messages
from localspec_tui.engine_thread import EngineThread
from localspec_tui.turns import Outbox, Turns, UnsentText
from localspec_tui.widgets.download_line import DownloadLine
from localspec_tui.widgets.status_line import TopLine

if TYPE_CHECKING:
    from localspec.models.registry import TargetCard
    from localspec.store.history import History
    from localspec_tui.app import ChatApp
    from localspec_tui.screens.models import Chosen


class ModelChoice:
    """The choice of the model that answers."""

    def __init__(
        self, screen: Screen[None], engine: EngineThread, outbox: Outbox, turns: Turns, download: DownloadLine
    ) -> None:
        self._screen, self._engine, self._outbox, self._turns, self._download = screen, engine, outbox, turns, download
        self.card: TargetCard | None = None  # of the model that answered last
        self._pace: tuple[str, ...] = ()  # of that model, in words

    @property
    def at_a_server(self) -> bool:
        """Return whether a server answers. The models of a server are known only by name."""
        return self._engine.settings.elsewhere is not None

    def open(self) -> None:
        """Open the list of models."""
        if self.at_a_server:
            self._screen.notify(
                "A server answers; /model NAME chooses another of its models.", title="Models", markup=False
            )
            return
        from localspec_tui.screens.models import ModelsScreen

        current = self.card if self._outbox.model_loaded else None
        models = ModelsScreen(
            current, self._engine.model.held, self._pace, self._download, self._engine.settings.drafter_rule
        )
        self._screen.app.push_screen(models, self._choose)

    def _choose(self, chosen: "Chosen | None") -> None:
        if chosen is not None and chosen.fetch:
            self._download.offer(chosen.card.name)
        elif chosen is not None:
            self.switch(chosen.card)

    def switch(self, card: "TargetCard") -> None:
        """Change to this model, or offer to fetch the model if it is not here."""
        if not card.here:
            self._download.offer(card.name)
            return
        self._turns.notify_stop()
        self._turns.stop_reply()
        self._outbox.model_loaded = False
        self._engine.do(self._engine.conversation.switch_model, card)

    def take(self, loaded: messages.ModelLoaded) -> None:
        """Remember the model that answers from now on."""
        self._outbox.model_loaded = True
        self.card, self._pace = loaded.card, loaded.introduction.pace


class ConversationChoice:
    """The choice of the current conversation. If another conversation is chosen, a running reply is stopped."""

    def __init__(
        self, screen: Screen[None], engine: EngineThread, outbox: Outbox, turns: Turns, draft: UnsentText, top: TopLine
    ) -> None:
        self._screen, self._engine, self._outbox = screen, engine, outbox
        self._turns, self._draft, self._top = turns, draft, top
        self.history: History | None = None  # None before it is open, and if nothing is saved
        self._branch_noticed = False

    def start_new(self) -> None:
        """Begin a new conversation."""
        self._turns.notify_stop()
        self._start_new()

    def _start_new(self) -> None:
        self._turns.stop()
        self._draft.put_aside()
        self._outbox.to_be_shown += 1
        self._engine.do(self._engine.conversation.start_new)

    def open(self) -> None:
        """Open the list of earlier conversations."""
        if self.history is None:
            self._screen.notify("No conversations are saved here.", markup=False)
            return
        from localspec_tui.screens.conversations import ConversationsScreen, OpenConversation

        current, nothing = self._engine.conversation, "No conversation is saved here yet."
        if current.store is not None and current.store.path is None:
            nothing = "Saved conversations could not be opened when this chat started; start it again to see them."
        now = OpenConversation(lambda: current.now.id, self._start_new, self._top.call, current.has_phrases, nothing)
        self._screen.app.push_screen(ConversationsScreen(self.history, now), self.resume)

    def resume(self, number: int | None) -> None:
        """Continue an earlier conversation, if one was chosen."""
        if number is not None:
            self._turns.notify_stop()
            self._turns.stop()
            self._draft.put_aside(for_new=True)
            self._outbox.to_be_shown += 1
            self._engine.do(self._engine.conversation.resume, number)

    def check(self, number: int) -> None:
        """Raise UsageMistake if the history has no conversation with this id.

        Call this before a running reply is stopped for the change. The disk is read.
        """
        if self.history is not None and self.history.info(number) is None:
            resumes = keymap.key(self._screen.app, "chat.resume")
            raise UsageMistake(f"There is no conversation {number}; {resumes} lists them.")

    def rename(self, title: str) -> None:
        """Give the conversation a title. An empty title restores the title made from its first prompt."""
        self._engine.do(self._engine.conversation.rename, title)
        if title:
            self._top.call(title)  # at once; the engine's thread may be busy

    def notify_of_branch(self, branched: messages.Branched) -> None:
        """Notify the user once where the turns before a branch are, as soon as no other notification is visible."""
        if self._branch_noticed or cast("ChatApp", self._screen.app).toasts:
            return
        self._branch_noticed = True
        where = f"conversation {branched.conversation} ({keymap.key(self._screen.app, 'chat.resume')})"
        self._screen.notify(f"The conversation so far stays in {where}.", markup=False)
