"""What one chooses in the chat: who answers, the system prompt, how replies are sampled, what it is called."""

from typing import TYPE_CHECKING, cast

from localspec.chat.sampling import THINK
from localspec.errors import UsageMistake
from localspec_tui import keymap, messages
from localspec_tui.screens.looking import LookingScreen
from localspec_tui.widgets.download_line import DownloadLine
from localspec_tui.widgets.status_line import TopLine

if TYPE_CHECKING:
    from collections.abc import Mapping

    from localspec.models.registry import TargetCard
    from localspec_tui.app import ChatApp
    from localspec_tui.screens.models import Chosen
    from localspec_tui.screens.system_prompt import Typed


class ChoosingScreen(LookingScreen):
    """The part of the chat's screen that asks for it. The chat sees to what stands here."""

    _system: str | None
    _system_draft: str | None  # typed into its dialog, and not saved
    _sampling_draft: dict[str, str]  # likewise
    _pace_told: tuple[str, ...]  # of the model that answers
    _told_of_branches: bool
    _top: TopLine
    download: DownloadLine

    def _show_what_is_set(self) -> bool:
        """What is as somebody set it stands at the top. Whether one sees that something has changed."""
        return self._top.show_set(*(["system prompt"] if self._system else []), *self._engine.sampling_chosen)

    def _show_change(self, title: str, sentence: str = "It holds from the next reply on.") -> None:
        """A word more where one does not see it, or might take it for what the reply under way is subject to."""
        if not self._show_what_is_set() or self._outbox.asked is not None:
            self.notify(sentence, title=title, markup=False)

    @property
    def at_a_server(self) -> bool:
        """Whether models are those of a server, which are known by name alone."""
        return self._engine.settings.elsewhere is not None

    def action_models(self) -> None:
        if self.at_a_server:
            self.notify("A server answers; /model NAME takes another of its models.", title="Models", markup=False)
            return
        from localspec_tui.screens.models import ModelsScreen

        current = self._card if self._model else None
        self.app.push_screen(ModelsScreen(current, self._engine.held, self._pace_told, self.download), self._choose)

    def _choose(self, chosen: "Chosen | None") -> None:
        if chosen is not None and chosen.fetch:
            self.download.offer(chosen.card.name)
        elif chosen is not None:
            self.switch(chosen.card)

    def switch(self, card: "TargetCard") -> None:
        """Lets another model answer; one that is not here is offered to be fetched."""
        if not card.here:
            self.download.offer(card.name)
            return
        self.tell_of_stopping()
        self.stop_reply()
        self._model = ""
        self._engine.switch_model(card)

    def action_system(self) -> None:
        from localspec_tui.screens.system_prompt import SystemPromptScreen

        self.app.push_screen(SystemPromptScreen(self._system or "", self._system_draft), self._system_typed)

    def _system_typed(self, typed: "Typed | None") -> None:
        """What was left without saving is there again when the dialog is opened the next time."""
        if typed is not None and typed.saved:
            self.set_system(typed.text)
        elif typed is not None:
            self._system_draft = None if typed.text == (self._system or "") else typed.text
            if self._system_draft is not None:
                self._tell_of_draft("System prompt", "chat.system")

    def _tell_of_draft(self, title: str, binding: str) -> None:
        again = keymap.key(self.app, binding)
        self.notify(f"It stays as it was; what you typed is there again with {again}.", title=title, markup=False)

    def set_system(self, system: str) -> None:
        """From the next reply on."""
        self._system, self._system_draft = system.strip() or None, None
        self._engine.set_system(self._system)
        self._show_change("System prompt")

    def action_think(self) -> None:
        """Lets the model think first where it does not, and the other way round."""
        try:
            self.think(self._engine.thinking().other)
        except UsageMistake as mistake:
            self.notify(str(mistake), title="Thinking", markup=False)

    def think(self, word: str) -> None:
        """From the next reply on. Raises UsageMistake."""
        self._engine.set_sampling({THINK: word})
        self._show_change("Thinking", f"It is {word} from the next reply on.")

    def say_thinking(self) -> None:
        """What holds now. Raises UsageMistake."""
        self.notify(self._engine.thinking().sentence, title="Thinking", markup=False)

    def action_sampling(self) -> None:
        from localspec_tui.screens.sampling import SamplingScreen

        engine = self._engine
        screen = SamplingScreen(engine.sampling(), engine.sampling_typed, self.set_sampling, self._sampling_draft)
        self.app.push_screen(screen, self._sampling_left)

    def _sampling_left(self, draft: dict[str, str] | None) -> None:
        """What was left without saving is there again when the dialog is opened the next time."""
        self._sampling_draft = draft or {}
        if self._sampling_draft:
            self._tell_of_draft("Sampling", "chat.sampling")

    def say_sampling(self, key: str) -> None:
        """What holds now of one setting. Raises UsageMistake."""
        self.notify(" ".join(self._engine.sampling(key)[0]), title="Sampling", markup=False)

    def set_sampling(self, values: "Mapping[str, str]") -> None:
        """From the next reply on. Raises UsageMistake."""
        self._engine.set_sampling(values)
        self._sampling_draft = {}
        self._show_change("Sampling")

    def rename(self, title: str) -> None:
        """Calls the conversation so; an empty title is that of its first prompt."""
        self._engine.rename(title)
        if title:
            self._top.call(title)  # at once; the engine's thread may be busy

    def on_titled(self, titled: messages.Titled) -> None:
        self._top.call(titled.title)

    def on_branched(self, branched: messages.Branched) -> None:
        """Once is enough to know where to look, at a moment when nothing else is told."""
        if self._told_of_branches or cast("ChatApp", self.app).toasts:
            return
        self._told_of_branches = True
        where = f"conversation {branched.conversation} ({keymap.key(self.app, 'chat.resume')})"
        self.notify(f"What was said before stays in {where}.", markup=False)
