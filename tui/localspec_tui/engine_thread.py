"""The only thread that uses the engine and writes to the store. It runs jobs, and posts events."""

import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING

from textual.message import Message

from localspec.chat.attachments import ComposedPrompt
from localspec.chat.trace import Trace
from localspec.config import Settings
from localspec.errors import LocalspecError, UsageMistake
from localspec_tui import messages
from localspec_tui.current_conversation import CurrentConversation
from localspec_tui.loading import LoadedModel
from localspec_tui.messages import Outlet, ReplyBuffer

if TYPE_CHECKING:
    from localspec.chat.answerer import Answerer
    from localspec.chat.start import StartedChat

    Opening = Callable[[ExitStack, Callable[[str], None]], StartedChat]


class _ChatClosed(BaseException):
    """An exception that stops the loading of a model when the chat is closed. It reports no failure."""


class EngineThread(threading.Thread):
    """A thread that runs jobs in order. The screen's thread may call every public method; only `close` waits."""

    def __init__(self, settings: Settings, opening: "Opening", loading: "Callable[..., Answerer]") -> None:
        """Prepare the thread. `opening` opens the store and the conversation, and `loading` loads a model."""
        super().__init__(name="engine", daemon=True)  # torch cannot be interrupted: `close` may have to leave it
        self.settings = settings  # for loading models
        self.buffer = ReplyBuffer()
        self.traces: list[Trace] = []  # of all replies of this session, the newest last
        self.outlet = Outlet()
        self.model = LoadedModel(settings, loading, self.outlet, self.buffer, self._progress)
        self.conversation = CurrentConversation(self.model, self.outlet, self.buffer)
        self._opening = opening
        self._jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._leaving = threading.Event()
        self._stops_reply = threading.Event()  # of the newest reply

    # -- jobs for it --------------------------------------------------------------------------------------------------

    def begin(self, post: Callable[[Message], object]) -> None:
        """Open the conversation and load its model. `post` receives the messages, on any thread."""
        if not self._leaving.is_set():
            self.outlet.send = post
            self.start()

    def ask(self, prompt: ComposedPrompt) -> None:
        """Ask the model. The reply arrives in `buffer`, followed by the message ReplyEnded."""
        self._stops_reply = threading.Event()
        self.buffer.begin()
        self.traces.append(Trace(prompt.typed))
        self.do(self.conversation.answer, prompt, self._stops_reply, self.traces[-1])

    def race(self, prompt: str, post: Callable[[Message], object]) -> None:
        """Answer a prompt with and without speculation, outside the conversation. `stop_reply` also stops a race."""
        self._stops_reply = threading.Event()
        self.do(self.conversation.race, prompt, post, self._stops_reply)

    def stop_reply(self) -> None:
        """Stop the current reply. Its text stays."""
        self._stops_reply.set()

    def do(self, job: Callable[..., None], *arguments: object) -> None:
        """Run `job`, a method of `conversation`, on this thread, after earlier jobs."""
        self._jobs.put(partial(job, *arguments))

    # -- the end ------------------------------------------------------------------------------------------------------

    def farewell(self, unsent: str) -> str | None:
        """Return the line to print after the chat. `unsent` says why unsent text is not saved; empty if it is saved."""
        from localspec.chat.introduction import farewell

        title = self.conversation.title
        return None if title is None else farewell(self.conversation.now, title, unsent)

    def close(self, seconds: float) -> bool:
        """End and save the current reply, and close the store. Return whether this took at most `seconds`."""
        self._leaving.set()
        self._stops_reply.set()
        if self.ident is None:  # it was never begun
            return True
        self._jobs.put(lambda: None)  # wakes the thread
        self.join(seconds)
        return not self.is_alive()

    # -- the thread itself --------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Open the chat, then run jobs until it is closed."""
        try:
            with suppress(_ChatClosed), ExitStack() as at_the_end:
                self._open(at_the_end)  # before jobs requested by keys since the first paint
                while not self._leaving.is_set():
                    self.model.measure(self._is_idle)
                    self._jobs.get()()
        except Exception as error:  # noqa: BLE001  # the application ends with it
            self.outlet.post(messages.ThreadFailed(error))

    def _open(self, at_the_end: ExitStack) -> None:
        try:
            card, store, conversation = self._opening(at_the_end, self._notice_while_opening)
        except LocalspecError as error:
            self.outlet.post(messages.StartFailed(error))
            self._leaving.set()
            return
        self.model.card = card
        at_the_end.callback(self.conversation.close)  # while the store is open
        self.conversation.open(store, conversation)
        from localspec.chat.introduction import expected_starters

        starters = expected_starters(card, self.settings.elsewhere is not None)
        self.outlet.post(messages.ModelComes(card.name, starters))
        try:
            self.model.load(card, conversation, store)
        except UsageMistake as error:  # impossible flags: better reported at once than with every reply
            self.outlet.post(messages.StartFailed(error))
        except LocalspecError as error:
            self.outlet.post(messages.ModelFailed(str(error)))

    def _notice_while_opening(self, sentence: str) -> None:
        """Show a notice while the store is being opened, which may take a minute, and again in the conversation."""
        self.outlet.notice(sentence)
        self.outlet.post(messages.StageReached(sentence.rstrip(".")))

    def _is_idle(self) -> bool:
        return not self._leaving.is_set() and self._jobs.empty()

    def _progress(self, stage: str) -> None:
        if self._leaving.is_set():
            raise _ChatClosed
        self.outlet.post(messages.StageReached(stage))
