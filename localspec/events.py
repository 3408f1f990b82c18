"""What the engine reports to its consumer: a generator of these is the only way that results leave it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

TUNING = "tuning drafts (once)"  # the progress of a search of hyper-parameters, which takes minutes
SLACK = 1.05  # by which a measured speedup may exceed what is possible: clocks, and medians of few

Reason = Literal["stop", "length", "interrupted", "repetition"]


@dataclass(frozen=True)
class Memory:
    """Bytes that are held, and the most that this process ever held."""

    target: int
    drafter: int
    cache: int
    peak: int
    parked: int = 0  # of the caches of texts that may be gone on with


@dataclass(frozen=True)
class Statistics:
    """The figures of one reply. Times are in seconds; tokens/s counts decoding only, from the first token on."""

    token_ids: tuple[int, ...]  # of the reply, the stop token left out
    prompt_tokens: int
    reused_tokens: int  # of the prompt, those in a cache already
    prefill_seconds: float
    first_token_seconds: float
    decode_seconds: float
    draft_seconds: float  # of the decode seconds, those of the drafter
    verify_seconds: float  # and those of the target's forwards
    step_seconds: float  # and those of whole steps, in which whoever reads the text had no part
    tokens_per_second: float
    steps: int  # target forwards after prefill
    acceptance_length: float  # τ: tokens committed per target forward, bonus included
    acceptance_by_depth: tuple[float, ...]  # chance that a node at depth 1, 2, ... is accepted, given its parent was
    drafted: int
    accepted: int
    sources: Mapping[str, int]  # reply tokens by who proposed them; "target" = bonus tokens
    off_reason: str | None  # why speculation is off at the end of the reply
    memory: Memory
    rows: Mapping[int, int] = field(default_factory=dict)  # how many forwards verified so many rows, root included
    # What plain decoding would have taken instead of `decode_seconds`, by plain steps that were timed in passing; None
    # where too few were seen.
    plain_seconds: float | None = None
    reasoning_tokens: int = 0  # of the reply, those before the answer: what was thought, and its marks
    reasoning_seconds: float = 0.0  # from the end of the prompt to the answer
    dropped_turns: int = 0  # of the conversation, which the model did not read: the context is full
    told_tokens: int | None = None  # of the reply, where a server told how many they were and not which

    @property
    def tokens(self) -> int:
        """How many tokens the reply was; 0 also where nobody told."""
        return len(self.token_ids) if self.told_tokens is None else self.told_tokens

    @property
    def unanswered(self) -> bool:
        """Whether nothing but thinking came of it."""
        return 0 < self.reasoning_tokens == self.tokens

    @property
    def speedup(self) -> float | None:
        """How many times as fast as plain decoding it came; below 1 where drafting cost more than it saved.

        None also where it is above what so many tokens a step can bring: too little was seen, or the machine changed.
        """
        if not self.plain_seconds or self.decode_seconds <= 0:
            return None
        found = self.plain_seconds / self.decode_seconds
        return found if possible(found, self.acceptance_length) else None


@dataclass(frozen=True)
class Prefill:
    """How many prompt tokens the target has read so far. `dropped` turns were left out, for the context is full."""

    done: int
    total: int
    dropped: int = 0


class Draft(NamedTuple):
    """The draft tree of one decode step, and what became of it: to be looked at by whoever wants to, at any time.

    Node 0 is the root, the token before the step; parents precede their children. `path` are the nodes that were
    accepted, the root first; the step brought their tokens and one more of the target's own. A `probe` node is no
    proposal. `sources` name who proposed each node, where that is known.
    """

    tokens: Sequence[int]
    parents: Sequence[int]
    sources: Sequence[str] | None
    probe: Sequence[bool] | None
    path: Sequence[int]


@dataclass(frozen=True)
class Text:
    """What one decode step added: its text, token ids, who proposed each, seconds since the reply began.

    The text is as the model wrote it: `text.safe` is for whatever draws it. What stands between the marks of
    thinking is `reasoning`, and not part of the text.

    A step whose text is held back, because it may be half a character or the start of a stop string, has no event of
    its own: the next event brings its tokens too. `steps` counts the target's forwards so far, without prefill, and
    `drafts` are those of the steps since the event before: the tokens of a reply are one of prefill, then those of each
    step in turn.
    """

    text: str
    tokens: tuple[int, ...]
    sources: tuple[str, ...]
    seconds: float
    steps: int
    drafts: tuple[Draft, ...] = ()
    reasoning: str = ""
    reasoning_tokens: int = 0  # of the tokens, the first so many came before the answer


@dataclass(frozen=True)
class Done:
    """The last event of a reply."""

    reason: Reason
    statistics: Statistics


Event = Prefill | Text | Done


def possible(speedup: float, limit: float) -> bool:
    """Whether a speedup, or a quantile of several, is within the limit, or the same quantile of their limits."""
    return speedup <= SLACK * limit


def _ignore(sentence: str) -> None:
    pass


@dataclass(frozen=True)
class Reporter:
    """How a person is kept informed: troubles that cost no text through `notice`, what takes a while by `progress`."""

    notice: Callable[[str], None] = _ignore
    progress: Callable[[str], None] = _ignore
