"""The one thread that uses the engine and writes to the store. It works off jobs, and posts what happened."""

import gc
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing, suppress
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from textual.message import Message

from localspec.chat.attachments import Written, measured
from localspec.chat.sampling import ChatSettings, first_sampled, sampling_words
from localspec.chat.thinking import State, state, why_empty
from localspec.chat.trace import Trace
from localspec.config import Settings
from localspec.errors import LocalspecError, UsageMistake
from localspec.events import Prefill
from localspec_tui import interpreter, messages
from localspec_tui.loading import Loading, Opening
from localspec_tui.reply_buffer import ReplyBuffer

if TYPE_CHECKING:  # what only this thread needs it imports itself: the first paint waits for nothing of it
    from pathlib import Path

    from localspec.chat.answerer import Answerer
    from localspec.chat.conversation import Conversation
    from localspec.chat.live_stats import LiveStats
    from localspec.chat.sampling import Line
    from localspec.models.registry import TargetCard
    from localspec.store.conversations import ConversationInfo, Turn
    from localspec.store.store import Store

SHOWN_SECONDS = 0.5  # least time between two updates of the progress of measuring
PROMPTS = 500  # for the arrow keys


class _Left(BaseException):
    """The chat was closed while a model was being loaded. Nothing in between may take it for a failure."""


class EngineThread(threading.Thread):
    """Every public method may be called from the screen's thread; but for those that wait, they return at once."""

    def __init__(self, settings: Settings, opening: Opening, loading: Loading) -> None:
        super().__init__(name="engine", daemon=True)  # torch cannot be interrupted: `close` may have to leave it behind
        self.buffer = ReplyBuffer()
        self.traces: list[Trace] = []  # of all replies of this session, the newest last
        self._settings, self._opening, self._loading = ChatSettings(settings), opening, loading
        self._jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._leaving = threading.Event()
        self._stop_asked = threading.Event()  # of the newest reply
        self._post_message: Callable[[Message], object] = lambda _: None
        self._title: str | None = None  # of the conversation; None before there is one
        self._unkept = 0  # turns, as the screen knows
        self._held: list[str] | None = []  # notices, until there is a conversation to show them in
        self._at_the_end = ExitStack()
        self._answered: Mapping[str, Any] | None = None  # figures of the reply that the next one replaces
        self._branched: int | None = None  # the saved conversation from which the next reply branches off
        self._card: TargetCard
        self._conversation: Conversation
        self._store: Store | None = None
        self._engine: Answerer | None = None
        self._live: LiveStats | None = None
        # Whether the model is measured between prompts; None before its first reply.
        self._measures: bool | None = None

    # -- what the screen asks for -------------------------------------------------------------------------------------

    @property
    def settings(self) -> Settings:
        """Those that models are loaded with."""
        return self._settings.first

    @property
    def untold(self) -> tuple[str, ...]:
        """Notices that no screen has shown, because the chat could not begin."""
        return tuple(self._held or ())

    @property
    def held(self) -> tuple[str, int]:
        """The device of the model that answers, and the bytes of its memory that go with it if another one comes."""
        engine = self._engine
        return ("cpu", 0) if engine is None else engine.held

    def begin(self, post: Callable[[Message], object]) -> None:
        """Opens the conversation, loads its model and tells `post`, which may be called from any thread."""
        if not self._leaving.is_set():
            self._post_message = post
            self.start()

    def ask(self, asked: Written) -> None:
        """Asks the model; its reply comes through `buffer`, and ReplyEnded after it."""
        self._stop_asked = threading.Event()
        self.buffer.begin()
        self.traces.append(Trace(asked.typed))
        self._jobs.put(partial(self._answer, asked, self._stop_asked, self.traces[-1]))

    def stop_reply(self) -> None:
        """Stops the reply under way; what was said stays."""
        self._stop_asked.set()

    def skip_measuring(self) -> None:
        """Stop measuring this model; estimates stay in use."""
        self._measures = False

    def race(self, prompt: str, post: Callable[[Message], object]) -> None:
        """Answers a prompt plainly and speculatively, beside the conversation; tells `post`. `stop_reply` stops it."""
        self._stop_asked = threading.Event()
        self._jobs.put(partial(self._race, prompt, post, self._stop_asked))

    def switch_model(self, card: "TargetCard") -> None:
        """The conversation goes on with another model, or with the one before where that cannot be loaded."""
        self._jobs.put(partial(self._switch, card))

    def set_system(self, system: str | None) -> None:
        """From the next reply on."""
        self._jobs.put(partial(self._set_system, system))

    def set_sampling(self, values: Mapping[str, str]) -> None:
        """How replies are sampled from the next one on, by keys. Raises UsageMistake."""
        self._settings.change(values, self._engine)

    def sampling(self, key: str = "") -> "list[Line]":
        """How they are sampled now. Raises UsageMistake for a key that is none."""
        return self._settings.lines(self._engine, key)

    @property
    def sampling_typed(self) -> Mapping[str, str]:
        """What was changed of that since the chat began, by keys."""
        return self._settings.typed

    @property
    def sampling_chosen(self) -> list[str]:
        """What of it is not the model's own, in words."""
        return self._settings.chosen

    def files_in(self, text: str) -> list[str]:
        """What is to be said of the files that a prompt names. It reads them, and counts their tokens."""
        engine = self._engine
        if engine is None:
            return measured(text, None, 0)
        try:
            return measured(text, engine.count_tokens, engine.context)
        except LocalspecError as error:  # a tokenizer that cannot read this text
            return [str(error)]

    def thinking(self) -> State:
        """Whether the model thinks before it answers, and what changes that. Raises UsageMistake."""
        if self._engine is None:
            raise UsageMistake("No model is loaded now.")
        return state(self._settings.now, self._engine, self._conversation.system)

    def why_empty(self, turn: "Turn") -> str | None:
        """Return the sentence for a reply that ended without text."""
        system = self._conversation.system
        return why_empty(turn, self._settings.now, self._engine, system) if self._engine is not None else None

    def resampling_notice(self) -> str | None:
        """Return the notice that another answer is sampled although replies are greedy; None if all are sampled."""
        return self._settings.resampling_notice(self._engine) if self._engine is not None else None

    def branch(self, turns: int, *, again: bool = False) -> None:
        """Goes on after the first `turns` that were answered; the conversation so far stays as it is.

        `again`: with another answer to the prompt that comes next there.
        """
        self._jobs.put(partial(self._branch, turns, again))

    def rename(self, title: str) -> None:
        """Gives the conversation a title."""
        self._jobs.put(partial(self._rename, title))

    def new_conversation(self) -> None:
        """Begins a new conversation; the one so far stays in the history."""
        self._jobs.put(self._renew)

    def resume(self, conversation: int) -> None:
        """Goes on with a conversation of the history."""
        self._jobs.put(partial(self._resume, conversation))

    def conversation_id(self) -> int | None:
        """The conversation that goes on now, once something of it is kept."""
        return self._conversation.id

    @property
    def store(self) -> "Store | None":
        """What is kept, once it is open; None where nothing is."""
        return self._store

    @property
    def place(self) -> "Path | None":
        """Where what is said is kept; None where nothing is, or nothing can be now."""
        store = self._store
        return None if store is None or store.read_only or not self._settings.first.log else store.path

    def phrases_are_kept(self) -> bool:
        """Whether there are any of earlier replies. Waits for the disk. Raises StoreTrouble."""
        return self._store is not None and self._store.phrases.any_kept()

    def farewell(self, unsent: str) -> str | None:
        """What is said at the end. `unsent`: why what was typed and not sent is not kept, if it is not."""
        from localspec.chat.farewell import farewell

        return None if self._title is None else farewell(self._conversation, self._title, unsent)

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
                self._open()  # before what keys have asked for since the first paint
                while not self._leaving.is_set():
                    self._measure_meanwhile()
                    self._jobs.get()()
        except Exception as error:  # noqa: BLE001  # the application ends with it
            self._post(messages.ThreadFailed(error))

    def _measure_meanwhile(self) -> None:
        """Measure the model until another job arrives; the next call resumes."""
        measure = getattr(self._engine, "measure", None)  # None of a model on a server, which measures it
        if not self._measures or measure is None:
            return
        shown = float("-inf")
        for stage in measure():
            if not self._measures or self._leaving.is_set() or not self._jobs.empty():
                break
            if time.monotonic() - shown >= SHOWN_SECONDS:  # drawing disturbs what is timed
                shown = time.monotonic()
                self._post(messages.Measuring(stage))
        else:
            self._measures = False
        if (
            self._live is not None and self._jobs.empty()
        ):  # the self-test may have changed what the figures say about exactness
            self.buffer.end(self._live)
        self._post(messages.Measuring(""))

    def _post(self, message: Message) -> None:
        with suppress(RuntimeError):  # the screen is gone already
            self._post_message(message)

    def _notice(self, sentence: str) -> None:
        if self._held is None:
            self._post(messages.Noticed(sentence))
        else:
            self._held.append(sentence)

    def _notice_while_opening(self, sentence: str) -> None:
        """Hold a notice, and show it meanwhile: opening a large store may take a minute, which it announces."""
        self._notice(sentence)
        self._post(messages.StageReached(sentence.rstrip(".")))

    def _see_what_is_kept(self) -> None:
        """Its title is asked for while the store is open, and before this thread may have to be left behind."""
        talk = self._conversation
        self._title = talk.title
        if talk.unkept != self._unkept:
            self._unkept = talk.unkept
            self._post(messages.Unkept(talk.unkept))

    def _end(self) -> None:
        self._conversation.keep_rest()
        self._see_what_is_kept()

    def _progress(self, stage: str) -> None:
        if self._leaving.is_set():
            raise _Left
        self._post(messages.StageReached(stage))

    def _open(self) -> None:
        try:
            self._card, self._store, self._conversation = self._opening(self._at_the_end, self._notice_while_opening)
        except LocalspecError as error:
            self._post(messages.StartFailed(error))
            self._leaving.set()
            return
        self._at_the_end.callback(self._end)  # while the store is open
        history = self._store.history if self._store else None
        drafts = self._store.drafts if self._store and self._settings.first.log else None
        prompts: list[str] = []
        try:
            prompts = history.prompts(PROMPTS) if history else []
        except LocalspecError as error:
            self._notice(str(error))
        self._post(messages.ChatOpened(history, prompts, drafts))
        self._show_conversation(first=True)
        from localspec.chat.introduction import expected_starters

        starters = expected_starters(self._card, self._settings.first.elsewhere is not None)
        self._post(messages.ModelComes(self._card.name, starters))
        try:
            self._load(self._card)
        except UsageMistake as error:  # flags that cannot be meant: better reported at once than with every reply
            self._post(messages.StartFailed(error))
        except LocalspecError as error:
            self._post(messages.ModelFailed(str(error)))

    def _load(self, card: "TargetCard") -> None:
        from localspec.chat.introduction import introduction
        from localspec.models import registry

        engine = self._loading(
            self._settings.first, card, store=self._store, notice=self._notice, progress=self._progress
        )
        if taken_back := self._settings.fit(engine):  # refuses flags that contradict the model
            self._notice(taken_back)
        self._card, self._engine, self._measures = card, engine, None
        self._conversation.model = registry.reference(card)
        self._begin_figures(engine)
        self._post(messages.ModelLoaded(card, introduction(engine, card)))

    def _begin_figures(self, engine: "Answerer") -> None:
        from localspec.chat.live_stats import LiveStats

        first = self._settings.first
        self._live = LiveStats(engine, first.accept, self._conversation.tokens, plain_asked=first.plain)
        self.buffer.end(self._live)

    def _switch(self, card: "TargetCard") -> None:
        from localspec.chat.start import choose

        trouble = self._loaded_instead(card)
        if trouble is None and self._settings.first.elsewhere is None:
            choose(card, "chat", self._notice)
        if trouble is not None:
            self._post(messages.JobRefused(trouble))
            trouble = self._loaded_instead(self._card)
            if trouble is not None:
                self._post(messages.ModelFailed(trouble))

    def _loaded_instead(self, card: "TargetCard") -> str | None:
        """Loads a model in the place of the one before, which goes first: two may not fit. Else says why not."""
        self._engine = self._live = None
        gc.unfreeze()  # it was to stay to the end
        gc.collect()
        try:
            self._load(card)
        except LocalspecError as error:
            return str(error)  # and no more of it: its traceback holds what was loaded so far
        return None

    def _set_system(self, system: str | None) -> None:
        self._conversation.instruct(system)

    def _branch(self, turns: int, again: bool) -> None:
        before = self._conversation
        self._answered = before.turns[turns].figures if again else None
        self._conversation = before.branch(turns)
        self._branched = before.id if not before.unkept else None

    def _rename(self, title: str) -> None:
        try:
            self._conversation.rename(title)
        except LocalspecError as error:
            self._post(messages.JobRefused(str(error)))
        self._post(messages.Titled(self._conversation.title))

    def _renew(self) -> None:
        self._held = []
        self._settings.reset()
        self._conversation = self._conversation.start_new(self._settings.first.system)
        self._show_conversation()

    def _resume(self, conversation: int) -> None:
        from localspec.chat.conversation import saved_conversation

        try:
            found = saved_conversation(self._store.history if self._store else None, conversation)
        except LocalspecError as error:
            self._show_conversation()
            self._post(messages.JobRefused(str(error)))
            return
        self._held = []
        self._conversation = self._conversation.resume_other(found)
        self._show_conversation()

    def _show_conversation(self, *, first: bool = False) -> None:
        """Show the conversation, with the held notices below it. `first` says that the chat has just started."""
        now = self._conversation
        if self._engine is not None:
            self._begin_figures(self._engine)
        last = None if now.turns else self._latest()
        left, waiting = self._left_drafts(first)
        self._post(
            messages.ConversationShown(
                tuple(now.turns), now.unanswered, now.system, now.title, last, now.id, left, waiting
            )
        )
        self._see_what_is_kept()
        held, self._held = self._held or [], None
        for sentence in held:
            self._notice(sentence)

    def _left_drafts(self, first: bool) -> tuple[list[str], str]:
        """Return the unsent drafts of this conversation, and the title of another one that has a draft.

        Both are from earlier chats. The title is looked up only with `first`.
        """
        store, server = self._store, self._settings.first.elsewhere
        if store is None or self.place is None:
            return [], ""
        try:
            left = store.drafts.take_left(server, self._conversation.id)
            waiting = store.drafts.waiting(server) if first and not left else []
            info = store.history.info(waiting[-1]) if waiting else None
        except LocalspecError as error:
            self._notice(str(error))
            return [], ""
        return left, info.title if info is not None else ""

    def _latest(self) -> "ConversationInfo | None":
        """The conversation that was used last, if one is kept."""
        with suppress(LocalspecError):  # nobody asked for it
            found = self._store.history.conversations(1, lambda info: info.for_a_chat) if self._store else ()
            return next(iter(found), None)
        return None

    def _race(self, prompt: str, post: Callable[[Message], object], stop: threading.Event) -> None:
        from localspec_tui import race_job

        with interpreter.shared(self._engine):
            race_job.run(self._engine, prompt, self._conversation.system, self._settings.now, stop, post)

    def _answer(self, asked: Written, stop: threading.Event, trace: Trace) -> None:
        from localspec import Limits

        engine, live, talk = self._engine, self._live, self._conversation
        instead, self._answered = self._answered, None
        begun, trouble = False, None
        if engine is not None and live is not None and not stop.is_set():
            trace.untold = engine.decode is None
            trace.decode = engine.decode or trace.decode  # the model may be gone when somebody looks
            engine.wanted = lambda: not stop.is_set()
            try:
                settings = self._settings.another(instead, engine)
                limits = Limits(settings.max_tokens, settings.stop, loop_prompt=asked.typed)
                think = engine.thinking(settings, talk.system)
                sampling = engine.sampling(settings)
                live.sampling = sampling_words(sampling)
                if sampled := first_sampled(self._card, sampling, self._store, self._settings.first):
                    self._notice(sampled)
                events = talk.ask(engine, asked.prompt, sampling, limits, asked.figures, think)
                with interpreter.shared(engine), closing(events):
                    for event in events:
                        dropped = event.dropped if isinstance(event, Prefill) and event.done == event.total else 0
                        if sentence := talk.memory_notice(dropped):
                            self._notice(sentence)
                        if not begun or talk.unkept != self._unkept:
                            begun = True
                            self._see_what_is_kept()
                        live.take(event)
                        if not trace.untold:
                            trace.take(event)
                        self.buffer.put(event, live)
                        if stop.is_set():
                            break
            except LocalspecError as error:
                trouble = str(error)
            self.buffer.end(live)
            if begun:
                self._see_what_is_kept()
        turn = talk.turns[-1] if begun else None
        same = talk.came_out_the_same
        before = self._back(talk) if turn is None or turn.unanswered or same else None
        trace.turn, trace.ended = turn.id if turn is not None and not same else 0, True
        if begun and self._measures is None:
            self._measures = True
        self._post(messages.ReplyEnded(asked.prompt, turn, trouble, before, same))
        if before is None and self._branched is not None:
            self._post(messages.Branched(self._branched))
        self._branched = None

    def _back(self, talk: "Conversation") -> "tuple[Turn, ...] | None":
        """Where nothing came of another way to go on, the conversation before goes on again: its turns."""
        before = talk.back()
        if before is None:
            return None
        self._conversation = before
        if self._engine is not None:
            self._begin_figures(self._engine)
        return tuple(before.turns)
