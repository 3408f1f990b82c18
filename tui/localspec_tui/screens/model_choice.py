"""Which model answers: chosen in a dialog or by its name, loaded, and fetched before if it is not here."""

from typing import TYPE_CHECKING

from textual.screen import Screen

from localspec_tui import messages
from localspec_tui.engine_thread import EngineThread
from localspec_tui.outbox import Outbox
from localspec_tui.turns import Turns
from localspec_tui.widgets.download_line import DownloadLine

if TYPE_CHECKING:
    from localspec.models.registry import TargetCard
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
        """Return whether a server answers: its models are known only by name."""
        return self._engine.settings.elsewhere is not None

    def open(self) -> None:
        """Open the list of models."""
        if self.at_a_server:
            self._screen.notify(
                "A server answers; /model NAME takes another of its models.", title="Models", markup=False
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
        """Let another model answer, or offer to fetch it if it is not here."""
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
