"""What is kept of a conversation, as it is read."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from localspec.text import one_line

REASONS = ("stop", "length", "interrupted", "repetition")  # why a reply ended
Source = Literal["chat", "run", "pipe"]  # "pipe": by `run`, whose input or output was one
SOURCES: tuple[Source, ...] = ("chat", "run", "pipe")


@dataclass(frozen=True)
class Turn:
    """A prompt and its reply; `asked` is in seconds since 1970.

    `reason` is one of REASONS; None while the reply is being written, or where its process was
    killed. A turn without reply and reasoning is unanswered; only the last of a conversation can be.
    """

    id: int
    prompt: str
    reply: str
    reason: str | None
    figures: Mapping[str, Any] = field(default_factory=dict)
    asked: float = 0.0
    reasoning: str = ""  # what was thought before the reply

    @property
    def unanswered(self) -> bool:
        """Whether nothing came of it, not even a thought."""
        return not (self.reply or self.reasoning)

    @property
    def typed_from(self) -> int:
        """Where in the prompt that begins which was typed; ahead of it stands the text of files."""
        at = self.figures.get("typed_from")
        return at if isinstance(at, int) and 0 < at <= len(self.prompt) else 0

    @property
    def typed(self) -> str:
        """What was typed of the prompt."""
        return self.prompt[self.typed_from :]

    @property
    def files(self) -> tuple[str, ...]:
        """What the files ahead of it are called."""
        names = self.figures.get("files") if self.typed_from else None
        return tuple(one_line(name) for name in names if isinstance(name, str)) if isinstance(names, list) else ()


class ConversationInfo(NamedTuple):
    """One conversation; times in seconds since 1970.

    Its `title` is the one it was given, where it is `named`, else made of its first prompt: safe, and on one short
    line. `branch_of` is the conversation that it went on from in another way. `source` is None where an earlier
    version kept it.
    """

    id: int
    title: str
    model: str
    created: float
    used: float
    turns: int
    branch_of: int | None = None
    named: bool = False
    source: Source | None = None

    @property
    def by_run(self) -> bool:
        """Return whether `run -c` may go on with it; of one that an earlier version kept nobody knows."""
        return self.source != "chat"

    @property
    def for_a_chat(self) -> bool:
        """Return whether a chat lists it: neither its input nor its output was a pipe."""
        return self.source != "pipe"

    @property
    def model_name(self) -> str:
        """The end of a directory's path; a list has no room for more."""
        return self.model.rstrip("/").rpartition("/")[2] or self.model


class Saved(NamedTuple):
    """All of one conversation."""

    info: ConversationInfo
    system: str | None
    turns: tuple[Turn, ...]


class Found(NamedTuple):
    """A conversation that holds some words: the id of its newest turn with all of them, and a safe line around one."""

    info: ConversationInfo
    turn: int
    excerpt: str
