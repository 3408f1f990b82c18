"""The one thread that uses the engine and writes to the store. It works off jobs, and posts what happened."""

import gc
import threading
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Protocol

from textual.message import Message

from localspec.config import Settings
from localspec.errors import LocalspecError, UsageMistake
from localspec.events import Prefill
from localspec_tui import messages, preload_torch
from localspec_tui.reply_buffer import ReplyBuffer

if TYPE_CHECKING:  # what only this thread needs it imports itself: the first paint waits for nothing of it
    from localspec import Engine, Limits
    from localspec.chat.conversation import Conversation
    from localspec.chat.live_stats import LiveStats
    from localspec.chat.start import StartedChat
    from localspec.models.registry import TargetCard
    from localspec.store.store import Store

PROMPTS = 500  # for the arrow keys


class Opening(Protocol):
    """Opens the store, which the ExitStack closes, and finds the conversation and its model. Raises LocalspecError."""

    def __call__(self, at_the_end: ExitStack, notice: Callable[[str], None], /) -> "StartedChat": ...


class Loading(Protocol):
    """Loads a model. Raises LocalspecError."""

    def __call__(
        self,
        settings: Settings,
        card: "TargetCard",
        *,
        store: "Store | None",
        notice: Callable[[str], None],
        progress: Callable[[str], None],
    ) -> "tuple[Engine, Limits]": ...


def load(
    settings: Settings,
    card: "TargetCard",
    *,
    store: "Store | None",
    notice: Callable[[str], None],
    progress: Callable[[str], None],
) -> "tuple[Engine, Limits]":
    """The engine that the settings ask for, and where its replies end. Imports torch where a GPU may want it."""
    from localspec.machine.hardware import gpu_expected

    if gpu_expected():
        progress("importing torch")
        preload_torch.load()
    from localspec import Engine, Limits

    progress(f"loading {card.name}")
    engine = Engine.open(settings, card, store=store, notice=notice, progress=progress)
    return engine, Limits(settings.max_tokens, settings.stop)


class _Left(BaseException):
    """The chat was closed while a model was being loaded. Nothing in between may take it for a failure."""


class EngineThread(threading.Thread):
    """Every public method may be called from the screen's thread and returns at once, but for `close`."""

    def __init__(self, settings: Settings, opening: Opening, loading: Loading) -> None:
        super().__init__(name="engine", daemon=True)  # torch cannot be interrupted: `close` may have to leave it behind
        self.buffer = ReplyBuffer()
        self._settings, self._opening, self._loading = settings, opening, loading
        self._jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._leaving = threading.Event()
        self._stop_asked = threading.Event()  # of the newest reply
        self._post_message: Callable[[Message], object] = lambda _: None
        self._held: list[str] | None = []  # notices, until there is a conversation to show them in
        self._at_the_end = ExitStack()
        self._card: TargetCard
        self._conversation: Conversation
        self._store: Store | None = None
        self._engine: Engine | None = None
        self._limits: Limits | None = None
        self._live: LiveStats | None = None

    # -- what the screen asks for -------------------------------------------------------------------------------------

    def begin(self, post: Callable[[Message], object]) -> None:
        """Opens the conversation, loads its model and tells `post`, which may be called from any thread."""
        if not self._leaving.is_set():
            self._post_message = post
            self._jobs.put(self._open)
            self.start()

    def ask(self, prompt: str) -> None:
        """Asks the model; its reply comes through `buffer`, and ReplyEnded after it."""
        self._stop_asked = threading.Event()
        self.buffer.begin()
        self._jobs.put(partial(self._answer, prompt, self._stop_asked))

    def stop_reply(self) -> None:
        """Stops the reply under way; what was said stays."""
        self._stop_asked.set()

    def switch_model(self, card: "TargetCard") -> None:
        """The conversation goes on with another model, or with the one before where that cannot be loaded."""
        self._jobs.put(partial(self._switch, card))

    def set_system(self, system: str | None) -> None:
        """From the next reply on."""
        self._jobs.put(partial(self._set_system, system))

    def branch(self, turns: int) -> None:
        """Goes on after the first `turns` that were answered; the conversation so far stays as it is."""
        self._jobs.put(partial(self._branch, turns))

    def rename(self, title: str) -> None:
        """Gives the conversation a title."""
        self._jobs.put(partial(self._rename, title))

    def new_conversation(self) -> None:
        """Begins a new conversation; the one so far stays in the history."""
        self._jobs.put(self._renew)

    def resume(self, conversation: int) -> None:
        """Goes on with a conversation of the history."""
        self._jobs.put(partial(self._resume, conversation))

    def close(self, seconds: float) -> bool:
        """Ends the reply under way, so that it is kept, and closes the store. Waits so long; False: it still works."""
        self._leaving.set()
        self._stop_asked.set()
        if self.ident is None:  # it was never begun
            return True
        self._jobs.put(lambda: None)  # wakes it
        self.join(seconds)
        return not self.is_alive()

    # -- the thread itself --------------------------------------------------------------------------------------------

    def run(self) -> None:
        try:
            with suppress(_Left), self._at_the_end:
                while not self._leaving.is_set():
                    self._jobs.get()()
        except Exception as error:  # noqa: BLE001  # the application ends with it
            self._post(messages.ThreadFailed(error))

    def _post(self, message: Message) -> None:
        with suppress(RuntimeError):  # the screen is gone already
            self._post_message(message)

    def _notice(self, sentence: str) -> None:
        if self._held is None:
            self._post(messages.Noticed(sentence))
        else:
            self._held.append(sentence)

    def _progress(self, stage: str) -> None:
        if self._leaving.is_set():
            raise _Left
        self._post(messages.StageReached(stage))

    def _open(self) -> None:
        try:
            self._card, self._store, self._conversation = self._opening(self._at_the_end, self._notice)
        except LocalspecError as error:
            self._post(messages.StartFailed(error))
            return
        history = self._store.history if self._store else None
        kept = self._store is not None and self._settings.log and not self._store.read_only
        drafts = self._store.drafts if self._store and kept else None
        prompts: list[str] = []
        left: list[str] = []
        try:
            prompts = history.prompts(PROMPTS) if history else []
            left = drafts.take_left() if drafts else []
        except LocalspecError as error:
            self._notice(str(error))
        self._post(messages.ChatOpened(history, prompts, drafts, left))
        self._show_conversation()
        held, self._held = self._held or [], None
        for sentence in held:
            self._notice(sentence)
        try:
            self._load(self._card)
        except UsageMistake as error:  # flags that cannot be meant: better reported at once than with every reply
            self._post(messages.StartFailed(error))
        except LocalspecError as error:
            self._post(messages.ModelFailed(str(error)))

    def _load(self, card: "TargetCard") -> None:
        from localspec.models import registry

        engine, limits = self._loading(
            self._settings, card, store=self._store, notice=self._notice, progress=self._progress
        )
        engine.sampling(self._settings)  # refuses flags that contradict the model
        self._card, self._engine, self._limits = card, engine, limits
        self._conversation.model = registry.reference(card)
        self._begin_figures(engine)
        choice = engine.choice
        precision = choice.dtype if choice.quantize == "none" else choice.quantize
        self._post(messages.ModelLoaded(card, precision, choice.device))

    def _begin_figures(self, engine: "Engine") -> None:
        from localspec.chat.live_stats import LiveStats

        self._live = LiveStats(engine, self._settings.accept)
        self.buffer.end(self._live)

    def _switch(self, card: "TargetCard") -> None:
        trouble = self._loaded_instead(card)
        if trouble is not None:
            self._post(messages.JobRefused(trouble))
            trouble = self._loaded_instead(self._card)
            if trouble is not None:
                self._post(messages.ModelFailed(trouble))

    def _loaded_instead(self, card: "TargetCard") -> str | None:
        """Loads a model in the place of the one before, which goes first: two may not fit. Else says why not."""
        self._engine = self._limits = self._live = None
        gc.collect()
        try:
            self._load(card)
        except LocalspecError as error:
            return str(error)  # and no more of it: its traceback holds what was loaded so far
        return None

    def _set_system(self, system: str | None) -> None:
        self._conversation.system = system

    def _branch(self, turns: int) -> None:
        before = self._conversation
        self._conversation = before.branch(turns)
        if before.id is not None:
            self._post(messages.Branched(before.id))

    def _rename(self, title: str) -> None:
        try:
            self._conversation.rename(title)
        except LocalspecError as error:
            self._post(messages.JobRefused(str(error)))

    def _renew(self) -> None:
        self._conversation = self._conversation.start_new()
        self._show_conversation()

    def _resume(self, conversation: int) -> None:
        from localspec.chat.conversation import saved_conversation

        try:
            found = saved_conversation(self._store.history if self._store else None, conversation)
        except LocalspecError as error:
            self._show_conversation()
            self._post(messages.JobRefused(str(error)))
            return
        self._conversation = self._conversation.resume_other(found)
        self._show_conversation()

    def _show_conversation(self) -> None:
        now = self._conversation
        if self._engine is not None:
            self._begin_figures(self._engine)
        self._post(messages.ConversationShown(tuple(now.turns), now.unanswered, now.system))

    def _answer(self, prompt: str, stop: threading.Event) -> None:
        from localspec.chat.conversation import dropped_turns_notice

        engine, live = self._engine, self._live
        begun, trouble = False, None
        if engine is not None and live is not None and not stop.is_set():
            try:
                events = self._conversation.ask(engine, prompt, engine.sampling(self._settings), self._limits)
                with closing(events):
                    for event in events:
                        if isinstance(event, Prefill) and event.done == event.total and event.dropped:
                            self._notice(dropped_turns_notice(event.dropped))
                        begun = True
                        live.take(event)
                        self.buffer.put(event, live)
                        if stop.is_set():
                            break
            except LocalspecError as error:
                trouble = str(error)
            self.buffer.end(live)
        turn = self._conversation.turns[-1] if begun else None
        self._post(messages.ReplyEnded(prompt, turn, trouble))
