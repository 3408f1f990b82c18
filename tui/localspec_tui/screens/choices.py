"""The user's choices: a model, a conversation, and the settings of the next replies.

A chosen model is loaded, and fetched first if necessary. The settings are the system prompt, the sampling, and whether
the model thinks first.
"""

from typing import TYPE_CHECKING, cast

from localspec.chat.sampling import THINK
from localspec.errors import UsageMistake
from localspec_tui import keymap, messages

if TYPE_CHECKING:
    from collections.abc import Mapping

    from localspec.chat.sampling import ThinkingState
    from localspec.models.registry import TargetCard
    from localspec.store.history import History
    from localspec_tui.app import ChatApp
    from localspec_tui.screens.chat import ChatScreen
    from localspec_tui.screens.models import Chosen
    from localspec_tui.screens.settings_dialogs import Typed


class ModelChoice:
    """A controller of the choice of the model that answers, by a dialog or by name."""

    def __init__(self, chat: "ChatScreen") -> None:
        self._chat = chat
        self.card: TargetCard | None = None  # of the model that answered last
        self._pace: tuple[str, ...] = ()  # of that model, in words

    @property
    def at_a_server(self) -> bool:
        """Return whether a server answers. The models of a server are known only by name."""
        return self._chat.engine.settings.elsewhere is not None

    def open(self) -> None:
        """Open the list of models."""
        if self.at_a_server:
            self._chat.notify(
                "A server runs the model. To use another of its models, type /model NAME.", title="Models", markup=False
            )
            return
        from localspec_tui.screens.models import ModelsScreen

        current, engine = self.card if self._chat.outbox.model_loaded else None, self._chat.engine
        models = ModelsScreen(
            current, engine.model.freed_memory, self._pace, self._chat.download, engine.settings.drafter_rule
        )
        self._chat.app.push_screen(models, self._choose)

    def _choose(self, chosen: "Chosen | None") -> None:
        if chosen is not None and chosen.fetch:
            self._chat.download.offer(chosen.card.name)
        elif chosen is not None:
            self.switch(chosen.card)

    def switch(self, card: "TargetCard") -> None:
        """Change to this model, or offer to fetch the model if it is not here."""
        if not card.here:
            self._chat.download.offer(card.name)
            return
        self._chat.turns.notify_stop()
        self._chat.turns.stop_reply()
        self._chat.outbox.model_loaded = False
        self._chat.engine.do(self._chat.engine.conversation.switch_model, card)

    def take(self, loaded: messages.ModelLoaded) -> None:
        """Remember the model that answers from now on."""
        self._chat.outbox.model_loaded = True
        self.card, self._pace = loaded.card, loaded.introduction.pace


class ConversationChoice:
    """A controller of the choice of the conversation. A running reply is stopped before another conversation begins."""

    def __init__(self, chat: "ChatScreen") -> None:
        self._chat = chat
        self.history: History | None = None  # None before it is open, and if nothing is saved
        self._branch_noticed = False

    def start_new(self) -> None:
        """Begin a new conversation."""
        self._chat.turns.notify_stop()
        self._start_new()

    def _start_new(self) -> None:
        self._chat.turns.stop()
        self._chat.draft.put_aside()
        self._chat.outbox.to_be_shown += 1
        self._chat.engine.do(self._chat.engine.conversation.start_new)

    def open(self) -> None:
        """Open the list of earlier conversations."""
        if self.history is None:
            self._chat.notify("No conversations are saved here.", markup=False)
            return
        from localspec_tui.screens.conversations import ConversationsScreen, OpenConversation

        current, nothing = self._chat.engine.conversation, "No conversation is saved here yet."
        if current.store is not None and current.store.path is None:
            nothing = "Saved conversations could not be opened when this chat started; start it again to see them."
        call, phrases = self._chat.top.call, current.has_phrases
        now = OpenConversation(lambda: current.now.id, self._start_new, call, phrases, nothing)
        self._chat.app.push_screen(ConversationsScreen(self.history, now), self.resume)

    def resume(self, number: int | None) -> None:
        """Continue an earlier conversation, if one was chosen."""
        if number is not None:
            self._chat.turns.notify_stop()
            self._chat.turns.stop()
            self._chat.draft.put_aside(for_new=True)
            self._chat.outbox.to_be_shown += 1
            self._chat.engine.do(self._chat.engine.conversation.resume, number)

    def check(self, number: int) -> None:
        """Raise UsageMistake if the history has no conversation with this id.

        Call this before a running reply is stopped to open the conversation. The disk is read.
        """
        if self.history is not None and self.history.info(number) is None:
            resumes = keymap.key(self._chat.app, "chat.resume")
            raise UsageMistake(f"There is no conversation {number}; {resumes} lists them.")

    def rename(self, title: str) -> None:
        """Give the conversation a title. An empty title restores the title made from its first prompt."""
        self._chat.engine.do(self._chat.engine.conversation.rename, title)
        if title:
            self._chat.top.call(title)  # at once; the engine's thread may be busy

    def notify_of_branch(self, branched: messages.Branched) -> None:
        """Notify the user, once per chat, which conversation keeps the replaced turns; not while a toast is visible."""
        if self._branch_noticed or cast("ChatApp", self._chat.app).toasts:
            return
        self._branch_noticed = True
        where = f"conversation {branched.conversation} ({keymap.key(self._chat.app, 'chat.resume')})"
        self._chat.notify(f"The conversation so far stays in {where}.", markup=False)


# -- settings of replies -----------------------------------------------------------------------------------------------


class ReplySettings:
    """The settings of replies, their dialogs, and drafts that the user left in the dialogs without saving."""

    def __init__(self, chat: "ChatScreen") -> None:
        self._chat = chat
        self._settings = chat.engine.model.settings
        self._system: str | None = None
        self._system_draft: str | None = None
        self._sampling_draft: dict[str, str] = {}

    def show(self) -> bool:
        """Show the changed settings in the top line. Return whether the user can see a difference there."""
        system = ["system prompt"] if self._system else []
        return self._chat.top.show_set(*system, *self._settings.chosen)

    def _show_change(self, title: str, sentence: str = "This applies from the next reply.") -> None:
        """Show a change in the top line. Also notify the user if it is not visible there, or if a reply is running."""
        if not self.show() or self._chat.outbox.under_way is not None:
            self._notify(title, sentence)

    def _notify(self, title: str, sentence: str) -> None:
        self._chat.notify(sentence, title=title, markup=False)

    def _notify_of_draft(self, title: str, binding: str) -> None:
        key = keymap.key(self._chat.app, binding)
        self._notify(title, f"Nothing changed; {key} brings back what you typed.")

    # -- system prompt ------------------------------------------------------------------------------------------------

    def begin(self, system: str | None) -> None:
        """Show the settings of another conversation, which has this system prompt."""
        self._system = system
        self.show()

    def open_system(self) -> None:
        """Open the dialog of the system prompt."""
        from localspec_tui.screens.settings_dialogs import SystemPromptScreen

        self._chat.app.push_screen(SystemPromptScreen(self._system or "", self._system_draft), self._leave_system)

    def _leave_system(self, typed: "Typed | None") -> None:
        if typed is not None and typed.saved:
            self.set_system(typed.text)
        elif typed is not None:
            self._system_draft = None if typed.text == (self._system or "") else typed.text
            if self._system_draft is not None:
                self._notify_of_draft("System prompt", "chat.system")

    def set_system(self, system: str) -> None:
        """Set the system prompt, from the next reply on."""
        self._system, self._system_draft = system.strip() or None, None
        self._chat.engine.do(self._chat.engine.conversation.set_system, self._system)
        self._show_change("System prompt")

    # -- thinking -----------------------------------------------------------------------------------------------------

    def toggle_thinking(self) -> None:
        """Switch between thinking first and answering without thinking."""
        try:
            self.think(self._thinking.other)
        except UsageMistake as mistake:
            self._notify("Thinking", str(mistake))

    def think(self, word: str) -> None:
        """Set whether the model thinks first: on, off or auto. Raises UsageMistake."""
        self._settings.change({THINK: word}, self._chat.engine.model.engine)
        self._show_change("Thinking", f"From the next reply, thinking is {word}.")

    def notify_thinking(self) -> None:
        """Notify the user whether the model thinks now. Raises UsageMistake."""
        self._notify("Thinking", self._thinking.sentence)

    @property
    def _thinking(self) -> "ThinkingState":
        return self._chat.engine.model.thinking(self._chat.engine.conversation.now.system)

    # -- sampling -----------------------------------------------------------------------------------------------------

    def open_sampling(self) -> None:
        """Open the dialog of the sampling."""
        from localspec_tui.screens.settings_dialogs import SamplingScreen

        lines = self._settings.lines(self._chat.engine.model.engine)
        screen = SamplingScreen(lines, self._settings.typed, self.set_sampling, self._sampling_draft)
        self._chat.app.push_screen(screen, self._leave_sampling)

    def _leave_sampling(self, draft: dict[str, str] | None) -> None:
        self._sampling_draft = draft or {}
        if self._sampling_draft:
            self._notify_of_draft("Sampling", "chat.sampling")

    def notify_sampling(self, key: str) -> None:
        """Notify the user of the value of one setting. Raises UsageMistake."""
        self._notify("Sampling", " ".join(self._settings.lines(self._chat.engine.model.engine, key)[0]))

    def set_sampling(self, values: "Mapping[str, str]") -> None:
        """Set values of the sampling by their keys, from the next reply on. Raises UsageMistake."""
        self._settings.change(values, self._chat.engine.model.engine)
        self._sampling_draft = {}
        self._show_change("Sampling")
