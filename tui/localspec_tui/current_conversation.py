"""The current conversation, on the engine's thread: prompts and replies, branches, and changes of conversation or
model."""

import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, closing, suppress
from typing import TYPE_CHECKING, Any

from textual.message import Message

from localspec.chat.attachments import ComposedPrompt, with_files
from localspec.chat.sampling import first_sampled, sampling_words
from localspec.chat.trace import Trace
from localspec.errors import LocalspecError, UsageMistake
from localspec.events import Event, Prefill
from localspec_tui import interpreter, messages
from localspec_tui.loading import LoadedModel
from localspec_tui.messages import Outlet, ReplyBuffer

if TYPE_CHECKING:  # imported on the engine's thread, so that the first paint does not wait
    from pathlib import Path

    from localspec.chat.answerer import Answerer
    from localspec.chat.conversation import Conversation
    from localspec.chat.figures import LiveStats
    from localspec.config import Settings
    from localspec.models.registry import TargetCard
    from localspec.store.conversations import ConversationInfo, Turn
    from localspec.store.store import Store

PROMPTS = 500  # for the arrow keys


class CurrentConversation:
    """A conversation, the store that saves it, and the model that answers in it.

    The engine's thread calls its methods. Properties may be read from any thread.
    """

    def __init__(self, model: LoadedModel, outlet: Outlet, buffer: ReplyBuffer) -> None:
        self._model, self._outlet, self._buffer = model, outlet, buffer
        self._first = model.settings.first
        self.now: Conversation
        self.store: Store | None = None  # None before it is open, and if nothing is saved
        self.title: str | None = None  # None before there is a conversation
        self._unsaved = 0  # turns that the screen shows as unsaved
        self._replaced: Mapping[str, Any] | None = None  # figures of the reply that the next one replaces
        self._branched: int | None = None  # the saved conversation from which the next reply branches off

    @property
    def file(self) -> "Path | None":
        """Return the file in which conversations are saved; None if they are not saved now."""
        store = self.store
        return None if store is None or store.read_only or not self._first.log else store.path

    def has_phrases(self) -> bool:
        """Return whether the store has phrases that were learned from earlier replies. Raises StoreTrouble."""
        return self.store is not None and self.store.phrases.any_phrase()

    # -- beginning and end --------------------------------------------------------------------------------------------

    def open(self, store: "Store | None", conversation: "Conversation") -> None:
        """Begin with the first conversation of this chat, new or continued."""
        self.store, self.now = store, conversation
        history = store.history if store else None
        drafts = store.drafts if store and self._first.log else None
        prompts: list[str] = []
        try:
            prompts = history.prompts(PROMPTS) if history else []
        except LocalspecError as error:
            self._outlet.notice(str(error))
        self._outlet.post(messages.ChatOpened(history, prompts, drafts))
        self.show(first=True)

    def close(self) -> None:
        """Save the turns that are not saved yet."""
        self.now.keep_rest()
        self._see_what_is_saved()

    def _see_what_is_saved(self) -> None:
        """Post the number of unsaved turns to the screen, if it has changed.

        Copy the title, too. The screen needs it at the end of the chat, when this thread may be too busy to return it.
        """
        self.title = self.now.title
        if self.now.unsaved != self._unsaved:
            self._unsaved = self.now.unsaved
            self._outlet.post(messages.UnsavedTurns(self.now.unsaved))

    # -- another conversation -----------------------------------------------------------------------------------------

    def start_new(self) -> None:
        """Begin a new conversation with the chat's initial settings."""
        self._outlet.hold()
        self._model.settings.reset()
        self.now = self.now.start_new(self._first.system)
        self.show()

    def resume(self, number: int) -> None:
        """Continue a conversation of the history."""
        from localspec.chat.conversation import saved_conversation

        try:
            saved = saved_conversation(self.store.history if self.store else None, number)
        except LocalspecError as error:
            self.show()
            self._outlet.post(messages.Noticed(str(error), trouble=True))
            return
        self._outlet.hold()
        self.now = self.now.resume_other(saved)
        self.show()

    def show(self, *, first: bool = False) -> None:
        """Show the conversation, then the notices that were held back. `first` says that the chat has just started."""
        now = self.now
        self._model.begin_figures(now)
        last = None if now.turns else self._last_used_chat()
        left, waiting = self._earlier_drafts(first)
        self._outlet.post(
            messages.ConversationShown(
                tuple(now.turns), now.unanswered, now.system, now.title, last, now.id, left, waiting
            )
        )
        self._see_what_is_saved()
        self._outlet.release()

    def _earlier_drafts(self, first: bool) -> tuple[list[str], str]:
        """Return this conversation's unsent prompts, and the title of another conversation that has unsent prompts.

        Earlier chats left the prompts. The title is empty if this conversation has prompts, or if `first` is False.
        """
        store, server = self.store, self._first.elsewhere
        if store is None or self.file is None:
            return [], ""
        try:
            left = store.drafts.take_orphaned(server, self.now.id)
            waiting = store.drafts.waiting(server) if first and not left else []
            info = store.history.info(waiting[-1]) if waiting else None
        except LocalspecError as error:
            self._outlet.notice(str(error))
            return [], ""
        return left, info.title if info is not None else ""

    def _last_used_chat(self) -> "ConversationInfo | None":
        with suppress(LocalspecError):  # the user does not wait for this
            infos = self.store.history.conversations(1, lambda info: info.by_chat) if self.store else ()
            return next(iter(infos), None)
        return None

    # -- this conversation --------------------------------------------------------------------------------------------

    def set_system(self, system: str | None) -> None:
        """Set the system prompt, from the next reply on."""
        self.now.instruct(system)

    def switch_model(self, card: "TargetCard") -> None:
        """Change the model. If the new model cannot be loaded, the previous model answers again."""
        self._model.switch(card, self.now, self.store)

    def rename(self, title: str) -> None:
        """Give the conversation a title."""
        try:
            self.now.rename(title)
        except LocalspecError as error:
            self._outlet.post(messages.Noticed(str(error), trouble=True))
        self._outlet.post(messages.Titled(self.now.title))

    def branch(self, turns: int, again: bool) -> None:
        """Continue after the first `turns` answered turns. The conversation so far stays as it is.

        With `again`, the next reply is another answer to the prompt after these turns.
        """
        origin = self.now
        self._replaced = origin.turns[turns].figures if again else None
        self.now = origin.branch(turns)
        self._branched = origin.id if not origin.unsaved else None

    def race(self, prompt: str, post: Callable[[Message], object], stop: threading.Event) -> None:
        """Answer a prompt with and without speculation, outside the conversation."""
        engine = self._model.engine
        with interpreter.shared(engine):
            run_race(engine, prompt, self.now.system, self._model.settings.now, stop, post)

    def answer(self, prompt: ComposedPrompt, stop: threading.Event, trace: Trace) -> None:
        """Answer a prompt until the model ends or `stop` is set, and post ReplyEnded."""
        talk, engine, live = self.now, self._model.engine, self._model.live
        replaced, self._replaced = self._replaced, None
        begun, trouble = False, None
        if engine is not None and live is not None and not stop.is_set():
            trace.untold = engine.decode is None
            trace.decode = engine.decode or trace.decode  # the model may be gone when the trace is shown
            engine.wanted = lambda: not stop.is_set()
            try:
                events = self._ask(engine, live, prompt, replaced)
                with interpreter.shared(engine), closing(events):
                    for event in events:
                        dropped = event.dropped if isinstance(event, Prefill) and event.done == event.total else 0
                        if sentence := talk.memory_notice(dropped):
                            self._outlet.notice(sentence)
                        if not begun or talk.unsaved != self._unsaved:
                            begun = True
                            self._see_what_is_saved()
                        live.take(event)
                        if not trace.untold:
                            trace.take(event)
                        self._buffer.put(event, live)
                        if stop.is_set():
                            break
            except LocalspecError as error:
                trouble = str(error)
            self._buffer.end(live)
            if begun:
                self._see_what_is_saved()
        turn = talk.turns[-1] if begun else None
        same = talk.same_answer
        origin_turns = self._back() if turn is None or turn.unanswered or same else None
        trace.turn, trace.ended = turn.id if turn is not None and not same else 0, True
        if begun and self._model.measures is None:
            self._model.measures = True
        self._outlet.post(messages.ReplyEnded(prompt.prompt, turn, trouble, origin_turns, same))
        if origin_turns is None and self._branched is not None:
            self._outlet.post(messages.Branched(self._branched))
        self._branched = None

    def _ask(
        self, engine: "Answerer", live: "LiveStats", prompt: ComposedPrompt, replaced: Mapping[str, Any] | None
    ) -> "Generator[Event]":
        """Ask the model with the present settings, and return the events of its reply.

        If the reply replaces an earlier one, `replaced` has the figures saved with that one, such as its seed.
        """
        from localspec import Limits

        settings = self._model.settings.another(replaced, engine)
        limits = Limits(settings.max_tokens, settings.stop, loop_prompt=prompt.typed)
        think = engine.thinking(settings, self.now.system)
        sampling = engine.sampling(settings)
        live.sampling = sampling_words(sampling)
        if sampled := first_sampled(self._model.card, sampling, self.store, self._first):
            self._outlet.notice(sampled)
        return self.now.ask(engine, prompt.prompt, sampling, limits, prompt.figures, think)

    def _back(self) -> "tuple[Turn, ...] | None":
        """Return from a branch without a reply to the conversation that it began from.

        Return the turns of that conversation; None if the present conversation is no such branch.
        """
        origin = self.now.back()
        if origin is None:
            return None
        self.now = origin
        self._model.begin_figures(origin)
        return tuple(origin.turns)


def run_race(
    engine: "Answerer | None",
    prompt: str,
    system: str | None,
    settings: "Settings",
    stop: threading.Event,
    post: Callable[[Message], object],
) -> None:
    """Answer a prompt with and without speculation until both answers end or `stop` is set. Messages go to `post`.

    `prompt` is the typed text. The files that the text names are read, as in the chat.
    """
    from localspec.bench.race import opponents, race, result, sentences
    from localspec.serving.socket_engine import in_this_process

    lines, over = ["The race was stopped."], False
    try:
        text = with_files(prompt).prompt
        if engine is None:
            raise UsageMistake("No model is loaded, so there is no race.")
        lanes, streams = opponents(in_this_process(engine), text, system, settings)
        with ExitStack() as at_the_end:
            for stream in streams:
                at_the_end.callback(stream.close)
            post(messages.RaceStarted(lanes))
            over = all(not stop.is_set() for _ in race(lanes, streams))
        if over:
            lines = list(sentences(lanes, result(*lanes)))
    except LocalspecError as error:
        lines, over = [str(error)], False
    with suppress(RuntimeError):  # the screen is already gone
        post(messages.RaceEnded(lines, over))
