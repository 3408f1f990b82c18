"""The events of a reply. The engine is a generator of events, and reports nothing in any other way."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

TUNING = "tuning drafts (once)"  # the progress of a search of hyperparameters, which takes minutes
SLACK = 1.05  # factor by which a measured speedup may exceed the possible one: clocks, and medians of few

Reason = Literal["stop", "length", "interrupted", "repetition"]


@dataclass(frozen=True)
class Memory:
    """The memory in use for each purpose, and the peak memory of this process, in bytes."""

    target: int
    drafter: int
    cache: int
    peak: int
    parked: int = 0  # bytes of the caches of texts that may be continued


@dataclass(frozen=True)
class Statistics:
    """The figures of one reply. Times are in seconds; tokens/s counts only decoding, from the first token on."""

    token_ids: tuple[int, ...]  # of the reply, without the stop token
    prompt_tokens: int
    reused_tokens: int  # tokens of the prompt that were already in a cache
    prefill_seconds: float
    first_token_seconds: float
    decode_seconds: float
    draft_seconds: float  # decode seconds in the drafter
    verify_seconds: float  # decode seconds in the target's forwards
    step_seconds: float  # decode seconds of whole steps, without the time that the reader of the text takes
    tokens_per_second: float
    steps: int  # target forwards after prefill
    acceptance_length: float  # τ: tokens committed per target forward, including the bonus token
    acceptance_by_depth: tuple[float, ...]  # chance that a node at depth 1, 2, ... is accepted, given its parent is
    drafted: int
    accepted: int
    sources: Mapping[str, int]  # reply tokens by proposer; "target" = bonus tokens
    off_reason: str | None  # why speculation is off at the end of the reply
    memory: Memory
    rows: Mapping[int, int] = field(default_factory=dict)  # number of forwards by their rows, root included
    # The seconds of plain decoding for the same tokens, by plain steps timed during the reply; None if there were too
    # few.
    plain_seconds: float | None = None
    reasoning_tokens: int = 0  # of the reply, those before the answer: thoughts, and their marks
    reasoning_seconds: float = 0.0  # from the end of the prompt to the answer
    dropped_turns: int = 0  # turns of the conversation that the model did not read, because the context is full
    reported_tokens: int | None = None  # of the reply, if a server reported only their number

    @property
    def tokens(self) -> int:
        """The number of tokens of the reply; 0 if unknown."""
        return len(self.token_ids) if self.reported_tokens is None else self.reported_tokens

    @property
    def speedup(self) -> float | None:
        """The speedup over plain decoding; below 1 if drafting cost more than it saved.

        None if unknown, or if the speedup exceeds the tokens per step: then too little was measured, or the machine's
        speed changed.
        """
        if not self.plain_seconds or self.decode_seconds <= 0:
            return None
        ratio = self.plain_seconds / self.decode_seconds
        return ratio if possible(ratio, self.acceptance_length) else None


@dataclass(frozen=True)
class Prefill:
    """The number of prompt tokens that the target has read so far. `dropped` turns were left out, because the context
    is full."""

    done: int
    total: int
    dropped: int = 0


class Draft(NamedTuple):
    """The draft tree of one decode step, and which nodes (drafted tokens) were accepted. It may be read at any time.

    Node 0 is the root, the last token before the step. Parents precede their children. `path` lists the root, then the
    accepted nodes. The step committed the accepted tokens and a bonus token. `sources` names the proposer of each node,
    if known. A node marked in `probe` is never accepted: it only requests the target's pick after it.
    """

    tokens: Sequence[int]
    parents: Sequence[int]
    sources: Sequence[str] | None
    probe: Sequence[bool] | None
    path: Sequence[int]


@dataclass(frozen=True)
class Text:
    """The text of one decode step, with its token ids, the proposer of each, and the seconds since the reply began.

    The first token of a reply comes from prefill, the others from decode steps. The text is as the model wrote it;
    `text.safe` makes it safe to print. Thoughts are in `reasoning` instead.

    Text that may be half a character or the start of a stop string is held back. If the whole text of a step is held
    back, its tokens are in the next event. `steps` counts the target's forward passes so far, without prefill. `drafts`
    are the draft trees of all steps since the previous event.
    """

    text: str
    tokens: tuple[int, ...]
    sources: tuple[str, ...]
    seconds: float
    steps: int
    drafts: tuple[Draft, ...] = ()
    reasoning: str = ""
    reasoning_tokens: int = 0  # how many of the tokens come before the answer


@dataclass(frozen=True)
class Done:
    """The last event of a reply, with its reason and figures."""

    reason: Reason
    statistics: Statistics


Event = Prefill | Text | Done


def possible(speedup: float, limit: float) -> bool:
    """Return whether a measured speedup is plausible: at most 5 % above `limit`, the largest possible speedup.

    To check several speedups together, pass their median (or another quantile) and the same quantile of their limits.
    """
    return speedup <= SLACK * limit


@dataclass(frozen=True)
class Reporter:
    """The receiver of messages for the user: problems that do not stop a reply go to `notice`, long waits to
    `progress`."""

    notice: Callable[[str], None] = lambda _: None
    progress: Callable[[str], None] = lambda _: None
