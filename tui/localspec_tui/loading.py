"""Loads the model that answers, and holds it. Tests replace `load`."""

import gc
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from localspec.chat.attachments import measured
from localspec.chat.sampling import ChatSettings, ThinkingState, state, why_empty
from localspec.config import Settings
from localspec.errors import LocalspecError, UsageMistake
from localspec.events import Reporter
from localspec_tui import messages
from localspec_tui.messages import Outlet, ReplyBuffer

if TYPE_CHECKING:
    from localspec import Engine
    from localspec.chat.answerer import Answerer
    from localspec.chat.conversation import Conversation
    from localspec.chat.figures import LiveStats
    from localspec.models.registry import TargetCard
    from localspec.store.conversations import Turn
    from localspec.store.store import Store

SHOWN_SECONDS = 0.5  # between two updates of the progress of measuring, at least


def load(
    settings: Settings,
    card: "TargetCard",
    *,
    store: "Store | None",
    notice: Callable[[str], None],
    progress: Callable[[str], None],
) -> "Answerer":
    """Return the engine for these settings: on a server of this user, or in this process."""
    from localspec.serving.socket_engine import for_chat

    def here() -> "Engine":
        """Load the model in this process, and return its engine. Report each stage, such as the import of torch."""
        from localspec.machine.hardware import gpu_expected

        if gpu_expected():
            progress("importing torch")
        from localspec import Engine

        progress(f"loading {card.name}")
        return Engine.open(settings, card, store=store, notice=notice, progress=progress)

    return for_chat(settings, card, Reporter(notice, progress), here)


class LoadedModel:
    """The model that answers, and the sampling of its replies.

    The engine's thread loads and measures the model. Any thread may call the methods after `measure`.
    """

    def __init__(
        self,
        settings: Settings,
        loading: "Callable[..., Answerer]",
        outlet: Outlet,
        buffer: ReplyBuffer,
        progress: Callable[[str], None],
    ) -> None:
        self.settings = ChatSettings(settings)
        self.card: TargetCard
        self.engine: Answerer | None = None  # None while no model is loaded
        self.live: LiveStats | None = None
        self.measures: bool | None = None  # between prompts; None before its first reply
        self._loading, self._outlet, self._buffer, self._progress = loading, outlet, buffer, progress

    def load(self, card: "TargetCard", conversation: "Conversation", store: "Store | None") -> None:
        """Load a model for a conversation. Raises LocalspecError if that fails."""
        from localspec.chat.introduction import introduction
        from localspec.models import registry

        engine = self._loading(
            self.settings.first, card, store=store, notice=self._outlet.notice, progress=self._progress
        )
        if taken_back := self.settings.fit(engine):  # refuses flags that contradict the model
            self._outlet.notice(taken_back)
        self.card, self.engine, self.measures = card, engine, None
        conversation.model = registry.reference(card)
        self.begin_figures(conversation)
        self._outlet.post(messages.ModelLoaded(card, introduction(engine, card)))

    def begin_figures(self, conversation: "Conversation") -> None:
        """Reset the displayed figures, such as tokens and speed, for this conversation, if a model is loaded."""
        from localspec.chat.figures import LiveStats

        if self.engine is not None:
            first = self.settings.first
            self.live = LiveStats(self.engine, first.accept, conversation.tokens, no_drafts=first.plain)
            self._buffer.end(self.live)

    def switch(self, card: "TargetCard", conversation: "Conversation", store: "Store | None") -> None:
        """Replace the model by another. If that fails, load the previous model again."""
        from localspec.chat.start import choose

        trouble = self._replace(card, conversation, store)
        if trouble is None:
            if self.settings.first.elsewhere is None:
                choose(card, "chat", self._outlet.notice)
            return
        self._outlet.post(messages.Noticed(trouble, trouble=True))
        if (trouble := self._replace(self.card, conversation, store)) is not None:
            self._outlet.post(messages.ModelFailed(trouble))

    def _replace(self, card: "TargetCard", conversation: "Conversation", store: "Store | None") -> str | None:
        """Unload the present model, then load another: both may not fit in memory. Return why that failed, or None."""
        self.engine = self.live = None
        gc.unfreeze()  # these objects were expected to stay to the end
        gc.collect()
        try:
            self.load(card, conversation, store)
        except LocalspecError as error:
            return str(error)  # only the text: the traceback would hold the partly loaded model
        return None

    def measure(self, idle: Callable[[], bool]) -> None:
        """Measure speed and exactness of the model while `idle` returns True. A later call resumes the measurement."""
        measure = getattr(self.engine, "measure", None)  # None for a model on a server, which measures it itself
        if not self.measures or measure is None:
            return
        shown = float("-inf")
        for stage in measure():
            if not self.measures or not idle():
                break
            if time.monotonic() - shown >= SHOWN_SECONDS:  # drawing disturbs measurements
                shown = time.monotonic()
                self._outlet.post(messages.Measuring(stage))
        else:
            self.measures = False
        if self.live is not None and idle():  # the self-test may have changed the label of exactness
            self._buffer.end(self.live)
        self._outlet.post(messages.Measuring(""))

    # -- from any thread ----------------------------------------------------------------------------------------------

    @property
    def freed_memory(self) -> tuple[str, int]:
        """The device, and the bytes of its memory that become free when another model replaces this one."""
        engine = self.engine
        return ("cpu", 0) if engine is None else engine.freed_memory

    def files_in(self, text: str) -> list[str]:
        """Read the files that a prompt names, count their tokens, and return sentences about the files."""
        engine = self.engine
        if engine is None:
            return measured(text, None, 0)
        try:
            return measured(text, engine.count_tokens, engine.context)
        except LocalspecError as error:  # a tokenizer that cannot read this text
            return [str(error)]

    def thinking(self, system: str | None) -> ThinkingState:
        """Return whether the model thinks before it answers, and how to change that. Raises UsageMistake."""
        if self.engine is None:
            raise UsageMistake("No model is loaded now.")
        return state(self.settings.now, self.engine, system)

    def why_empty(self, turn: "Turn", system: str | None) -> str | None:
        """Return a sentence that explains why a reply ended without text; None for any other reply."""
        return why_empty(turn, self.settings.now, self.engine, system) if self.engine is not None else None

    def resampling_notice(self) -> str | None:
        """Return a notice that the next answer is sampled, because replies are greedy (temperature 0); else None."""
        return self.settings.resampling_notice(self.engine) if self.engine is not None else None
