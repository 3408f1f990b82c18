"""What happened on the engine's thread, posted to the screen. Messages are facts: nobody changes them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual.message import Message

from localspec.errors import LocalspecError

if TYPE_CHECKING:
    from localspec.models.registry import TargetCard
    from localspec.store.drafts import Drafts
    from localspec.store.history import History, Turn


@dataclass
class ChatOpened(Message):
    """The store is open, the conversation found; its model comes next. `history` is None where there is no store."""

    history: "History | None"
    prompts: Sequence[str]  # entered earlier, the newest first
    drafts: "Drafts | None"  # None where nothing is kept
    left: Sequence[str]  # what earlier chats did not come to send


@dataclass
class ConversationShown(Message):
    """Another conversation, or a new one, is the one that goes on."""

    turns: "Sequence[Turn]"
    unanswered: str | None
    system: str | None


@dataclass
class StageReached(Message):
    """Something that takes a while has begun."""

    stage: str


@dataclass
class ModelLoaded(Message):
    """This model answers from here on."""

    card: "TargetCard"
    precision: str
    device: str


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
    """No more text comes. `turn` is None where the prompt was refused, and its reply "" where nothing was said."""

    prompt: str
    turn: "Turn | None"
    trouble: str | None  # why it ended, where that was a mistake or a failure


@dataclass
class Noticed(Message):
    """A sentence that a person should know, and that costs no text."""

    sentence: str


@dataclass
class Branched(Message):
    """What is said from here on is another way to go on; the one before stays in this conversation."""

    conversation: int


@dataclass
class JobRefused(Message):
    """What was asked for was not done."""

    sentence: str


@dataclass
class Copied(Message):
    """What became of a text that was copied."""

    sentence: str


@dataclass
class ThreadFailed(Message):
    """The engine's thread met what it should not have, and has ended."""

    error: Exception
