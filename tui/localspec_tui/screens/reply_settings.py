"""The user's settings for the next replies: the system prompt, the sampling, and whether the model thinks first."""

from typing import TYPE_CHECKING

from textual.screen import Screen

from localspec.chat.sampling import THINK
from localspec.errors import UsageMistake
from localspec_tui import keymap
from localspec_tui.engine_thread import EngineThread
from localspec_tui.turns import Outbox
from localspec_tui.widgets.status_line import TopLine

if TYPE_CHECKING:
    from collections.abc import Mapping

    from localspec.chat.sampling import ThinkingState
    from localspec_tui.screens.settings_dialogs import Typed


class ReplySettings:
    """The settings of replies, their dialogs, and drafts that the user left in the dialogs without saving."""

    def __init__(self, screen: Screen[None], engine: EngineThread, outbox: Outbox, top: TopLine) -> None:
        self._screen, self._engine, self._outbox, self._top = screen, engine, outbox, top
        self._settings = engine.model.settings
        self._system: str | None = None
        self._system_draft: str | None = None
        self._sampling_draft: dict[str, str] = {}

    def show(self) -> bool:
        """Show the changed settings in the top line. Return whether this changed the visible line."""
        system = ["system prompt"] if self._system else []
        return self._top.show_set(*system, *self._settings.chosen)

    def _show_change(self, title: str, sentence: str = "Saved; used from the next reply.") -> None:
        """Notify the user of a change that the top line does not show, or that the current reply does not use."""
        if not self.show() or self._outbox.under_way is not None:
            self._notify(title, sentence)

    def _notify(self, title: str, sentence: str) -> None:
        self._screen.notify(sentence, title=title, markup=False)

    def _notify_of_draft(self, title: str, binding: str) -> None:
        key = keymap.key(self._screen.app, binding)
        self._notify(title, f"Nothing changed; {key} brings back what you typed.")

    # -- system prompt ------------------------------------------------------------------------------------------------

    def begin(self, system: str | None) -> None:
        """Show the settings of another conversation, which has this system prompt."""
        self._system = system
        self.show()

    def open_system(self) -> None:
        """Open the dialog of the system prompt."""
        from localspec_tui.screens.settings_dialogs import SystemPromptScreen

        self._screen.app.push_screen(SystemPromptScreen(self._system or "", self._system_draft), self._leave_system)

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
        self._engine.do(self._engine.conversation.set_system, self._system)
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
        self._settings.change({THINK: word}, self._engine.model.engine)
        self._show_change("Thinking", f"Thinking is {word} from the next reply on.")

    def notify_thinking(self) -> None:
        """Notify the user whether the model thinks now. Raises UsageMistake."""
        self._notify("Thinking", self._thinking.sentence)

    @property
    def _thinking(self) -> "ThinkingState":
        return self._engine.model.thinking(self._engine.conversation.now.system)

    # -- sampling -----------------------------------------------------------------------------------------------------

    def open_sampling(self) -> None:
        """Open the dialog of the sampling."""
        from localspec_tui.screens.settings_dialogs import SamplingScreen

        lines = self._settings.lines(self._engine.model.engine)
        screen = SamplingScreen(lines, self._settings.typed, self.set_sampling, self._sampling_draft)
        self._screen.app.push_screen(screen, self._leave_sampling)

    def _leave_sampling(self, draft: dict[str, str] | None) -> None:
        self._sampling_draft = draft or {}
        if self._sampling_draft:
            self._notify_of_draft("Sampling", "chat.sampling")

    def notify_sampling(self, key: str) -> None:
        """Notify the user of the value of one setting. Raises UsageMistake."""
        self._notify("Sampling", " ".join(self._settings.lines(self._engine.model.engine, key)[0]))

    def set_sampling(self, values: "Mapping[str, str]") -> None:
        """Set values of the sampling by their keys, from the next reply on. Raises UsageMistake."""
        self._settings.change(values, self._engine.model.engine)
        self._sampling_draft = {}
        self._show_change("Sampling")
