"""The messages of the engine's thread to the screen, and the buffer for the text of the reply.

The thread adds text and figures to the buffer, and the screen takes them at its own pace.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual.message import Message

from localspec.chat.figures import Figures
from localspec.errors import LocalspecError
from localspec.events import Event, Prefill, Text
from localspec.text import safe

if TYPE_CHECKING:
    from localspec.bench.race import Lane
    from localspec.chat.figures import LiveStats
    from localspec.chat.introduction import Introduction
    from localspec.models.registry import TargetCard
    from localspec.pulling.pull import Planned
    from localspec.store.conversations import ConversationInfo, Turn
    from localspec.store.drafts import Drafts
    from localspec.store.history import History


@dataclass
class ChatOpened(Message):
    """A message that the store is open. Next, the model is loaded. `history` is None without a store."""

    history: "History | None"
    prompts: Sequence[str]  # entered earlier, the newest first
    drafts: "Drafts | None"  # None if nothing is to be saved


@dataclass
class ConversationShown(Message):
    """A message with the conversation that is now the current one, new or continued."""

    turns: "Sequence[Turn]"
    unanswered: str | None
    system: str | None
    title: str
    last: "ConversationInfo | None" = None  # the previous one, if this one is new
    number: int | None = None  # the id of this one in the history
    left: Sequence[str] = ()  # unsent prompts of earlier chats in this conversation
    waiting: str = ""  # the title of another conversation with a draft of an earlier chat


@dataclass
class StageReached(Message):
    """A message that the next stage of opening the chat or loading a model has begun."""

    stage: str


@dataclass
class Measuring(Message):
    """A message with the progress of a measurement between replies; empty if the measurement has ended or paused."""

    stage: str


@dataclass
class ModelComes(Message):
    """A message that a model is being loaded, with prompts to suggest to the user (`starters`), if any are known."""

    name: str
    starters: Sequence[str]


@dataclass
class ModelLoaded(Message):
    """A message that a model answers from now on."""

    card: "TargetCard"
    introduction: "Introduction"


@dataclass
class ModelFailed(Message):
    """A message that a model could not be loaded, so no model answers now."""

    sentence: str


@dataclass
class StartFailed(Message):
    """A message that a request on the command line cannot be fulfilled, so the chat ends."""

    error: LocalspecError


@dataclass
class ReplyEnded(Message):
    """A message that a reply has ended. `turn` is None if the prompt was refused. Its reply is "" without any text."""

    prompt: str
    turn: "Turn | None"
    trouble: str | None  # why it ended, if that was a mistake or a failure
    before: "Sequence[Turn] | None" = None  # of the conversation that continues, if the new reply is empty
    same: bool = False  # the answer equals an earlier one


@dataclass
class RaceStarted(Message):
    """A message that a race has begun, with its two answers (`lanes`), which grow while the race runs."""

    lanes: "Sequence[Lane]"


@dataclass
class RaceEnded(Message):
    """A message that a race has ended, with its result in sentences. `over` is False if it was stopped or failed."""

    sentences: Sequence[str]
    over: bool


@dataclass
class Noticed(Message):
    """A message with a notice to show in the conversation. `trouble` says that something failed or was refused."""

    sentence: str
    trouble: bool = False


@dataclass
class UnsavedTurns(Message):
    """A message that this many turns at the end of the conversation are not completely saved; 0 if all are saved."""

    turns: int


@dataclass
class Titled(Message):
    """A message that the conversation has a new title."""

    title: str


@dataclass
class Branched(Message):
    """A message that the conversation continues in a branch, with the number of its origin."""

    conversation: int


@dataclass
class Copied(Message):
    """A message with the result of copying, in a sentence, and a name for the copied text if it is not obvious."""

    sentence: str
    label: str = ""


@dataclass
class FetchPlanned(Message):
    """A message with the plan of a download, to which the user must agree."""

    model: str
    planned: "Planned"


@dataclass
class FetchEnded(Message):
    """A message that a download has ended: the model is here, or the download was stopped or failed."""

    model: str
    sentence: str
    trouble: bool


@dataclass
class BackgroundKnown(Message):
    """A message that the terminal has reported its background."""

    light: bool


@dataclass
class ThreadFailed(Message):
    """A message that the engine's thread has ended after an unexpected error."""

    error: Exception


class Outlet:
    """A sender of messages to the screen. It holds notices back until a conversation is shown."""

    def __init__(self) -> None:
        self.send: Callable[[Message], object] = lambda _: None
        self.held_back: list[str] | None = []  # None while a conversation is shown

    def post(self, message: Message) -> None:
        """Send a message, unless the screen has ended."""
        with suppress(RuntimeError):
            self.send(message)

    def notice(self, sentence: str) -> None:
        """Send a notice. After `hold`, it is kept until `release`."""
        if self.held_back is None:
            self.post(Noticed(sentence))
        else:
            self.held_back.append(sentence)

    def hold(self) -> None:
        """Hold notices back from now on."""
        self.held_back = []

    def release(self) -> None:
        """Send the notices that were held back."""
        sentences, self.held_back = self.held_back or [], None
        for sentence in sentences:
            self.notice(sentence)


# -- the reply ---------------------------------------------------------------------------------------------------------

FIGURES_SECONDS = 0.1  # between two updates; more often would not be visible


class ReplyBuffer:
    """The current reply: text that is not displayed yet, and its figures. One thread adds, another takes."""

    def __init__(self) -> None:
        self._texts: deque[str] = deque()
        self._thoughts: deque[str] = deque()
        self._figured_at = 0.0
        self.figures: Figures | None = None  # None while nothing is known of the reply
        self.accepted = False  # whether the engine has accepted the prompt

    def begin(self) -> None:
        """Discard the previous reply. Call this only while no thread adds anything."""
        self._texts.clear()
        self._thoughts.clear()
        self.figures, self.accepted = None, False

    def put(self, event: Event, live: "LiveStats") -> None:
        """Add an event of the reply to this buffer. The caller has already added the event to the figures `live`."""
        self.accepted = True
        match event:
            case Prefill(done, total, _) if done < total:
                self.figures = live.figures()
            case Text(text):
                if event.reasoning:
                    self._thoughts.append(safe(event.reasoning))
                self._texts.append(safe(text))
                now = time.monotonic()
                if now - self._figured_at >= FIGURES_SECONDS:
                    self.figures, self._figured_at = live.figures(), now

    def end(self, live: "LiveStats") -> None:
        """Set the final figures of the reply."""
        self.figures, self._figured_at = live.figures(), 0.0

    def take(self) -> str:
        """Return the text since the last call."""
        return _all_of(self._texts)

    def take_thoughts(self) -> str:
        """Return the thoughts since the last call. Call this before `take`, because the text follows the thoughts."""
        return _all_of(self._thoughts)


def _all_of(parts: deque[str]) -> str:
    return "".join(parts.popleft() for _ in range(len(parts)))


SHORTEST_WAIT, LONGEST_WAIT = 0.1, 0.5  # seconds
SHARE = 0.03  # of a core, of which the model loses a part: one of its threads rests meanwhile, and the others continue


class Pace:
    """A clock that decides when the screen takes new text, by the CPU time that the previous text took."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Start the clock for a new reply, with the shortest wait."""
        self.period = SHORTEST_WAIT
        self._spent = time.thread_time()

    def next(self) -> float:
        """Return the seconds to wait until new text is taken, so that showing text takes a fixed share of a CPU core.

        Drawing counts as well. The result has limits, so that text neither flickers nor stutters.
        """
        spent = time.thread_time()
        self.period = min(max((spent - self._spent) / SHARE, SHORTEST_WAIT), LONGEST_WAIT)
        self._spent = spent
        return self.period
