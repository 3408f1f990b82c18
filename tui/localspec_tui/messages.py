"""Events of the engine's thread, posted to the screen. They are facts and never change."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual.message import Message

from localspec.errors import LocalspecError

if TYPE_CHECKING:
    from localspec.bench.race import Lane
    from localspec.chat.introduction import Introduction
    from localspec.models.registry import TargetCard
    from localspec.pulling.pull import Planned
    from localspec.store.conversations import ConversationInfo, Turn
    from localspec.store.drafts import Drafts
    from localspec.store.history import History


@dataclass
class ChatOpened(Message):
    """The store is open and the conversation found. Its model comes next. `history` is None without a store."""

    history: "History | None"
    prompts: Sequence[str]  # entered earlier, the newest first
    drafts: "Drafts | None"  # None where nothing is to be kept


@dataclass
class ConversationShown(Message):
    """Another conversation, or a new one, is the one that goes on."""

    turns: "Sequence[Turn]"
    unanswered: str | None
    system: str | None
    title: str
    last: "ConversationInfo | None" = None  # the one used before, where this one is new
    number: int | None = None  # under which it is kept
    left: Sequence[str] = ()  # what earlier chats did not come to send in it
    waiting: str = ""  # the title of another one in which an earlier chat left something


@dataclass
class StageReached(Message):
    """Something that takes a while has begun."""

    stage: str


@dataclass
class Measuring(Message):
    """The progress of measuring while nobody waits. Empty after it has ended or paused."""

    stage: str


@dataclass
class ModelComes(Message):
    """This model is being loaded, and these are prompts to begin with, as far as they are known before it is."""

    name: str
    starters: Sequence[str]


@dataclass
class ModelLoaded(Message):
    """This model answers from here on."""

    card: "TargetCard"
    introduction: "Introduction"


@dataclass
class ModelFailed(Message):
    """A model could not be loaded, so that none answers now."""

    sentence: str


@dataclass
class StartFailed(Message):
    """What was asked for on the command line cannot be had."""

    error: LocalspecError


@dataclass
class ReplyEnded(Message):
    """No more text comes. `turn` is None if the prompt was refused. Its reply is "" if no text came."""

    prompt: str
    turn: "Turn | None"
    trouble: str | None  # why it ended, where that was a mistake or a failure
    before: "Sequence[Turn] | None" = None  # of the conversation that goes on again, where nothing was said instead
    same: bool = False  # the answer came out the same as one before it


@dataclass
class RaceBegun(Message):
    """A race is on; its lanes grow."""

    lanes: "Sequence[Lane]"


@dataclass
class RaceEnded(Message):
    """What came of a race, in sentences; `over`: it was not stopped, and did not fail."""

    sentences: Sequence[str]
    over: bool


@dataclass
class Noticed(Message):
    """A sentence for the conversation. `trouble`: something failed or was refused."""

    sentence: str
    trouble: bool = False


@dataclass
class Unkept(Message):
    """This many of the newest turns could not be saved, or only in part; 0 if all are saved."""

    turns: int


@dataclass
class Titled(Message):
    """This is what the conversation is called."""

    title: str


@dataclass
class Branched(Message):
    """What is said from here on is another way to go on; the one before stays in this conversation."""

    conversation: int


@dataclass
class Copied(Message):
    """What became of a text that was copied, and which text it was where that is not plain."""

    sentence: str
    what: str = ""


@dataclass
class FetchPlanned(Message):
    """The plan of a download, for the user to agree."""

    model: str
    planned: "Planned"


@dataclass
class FetchEnded(Message):
    """A model is here now, or its download was stopped or failed."""

    model: str
    sentence: str
    trouble: bool


@dataclass
class BackgroundKnown(Message):
    """The terminal has said which one it has."""

    light: bool


@dataclass
class ThreadFailed(Message):
    """The engine's thread met what it should not have, and has ended."""

    error: Exception


class Outlet:
    """A sender of messages to the screen. It holds notices until there is a conversation to show them in."""

    def __init__(self) -> None:
        self.send: Callable[[Message], object] = lambda _: None
        self.held: list[str] | None = []  # None while a conversation is shown

    def post(self, message: Message) -> None:
        """Send a message, unless the screen has ended."""
        with suppress(RuntimeError):
            self.send(message)

    def notice(self, sentence: str) -> None:
        """Send a notice, or hold it."""
        if self.held is None:
            self.post(Noticed(sentence))
        else:
            self.held.append(sentence)

    def hold(self) -> None:
        """Hold the notices from now on."""
        self.held = []

    def release(self) -> None:
        """Send the held notices."""
        held, self.held = self.held or [], None
        for sentence in held:
            self.notice(sentence)
