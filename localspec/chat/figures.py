"""The figures of the current or the last reply. `wording.py` puts them into words."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from localspec.config import Rule
from localspec.events import Done, Event, Prefill, Statistics, Text
from localspec.machine.memory import free_memory
from localspec.quantities import precision_in_words

if TYPE_CHECKING:
    from localspec.chat.answerer import Answerer, ReplySampling

ENOUGH, TOKENS = 8, 16  # steps, and tokens of a reply, below which a speedup would be chance


def known_speedup(statistics: Statistics) -> float | None:
    """Return the speedup of a reply, rounded to three decimals; None if the reply is too short for a measurement."""
    enough = statistics.steps >= ENOUGH and len(statistics.token_ids) >= TOKENS
    return round(statistics.speedup, 3) if enough and statistics.speedup else None


def saved_figures(statistics: Statistics, sampling: "ReplySampling") -> dict[str, Any]:
    """Return the figures of a reply that are saved with it."""
    tokens, seconds = statistics.reasoning_tokens, round(statistics.reasoning_seconds, 4)
    return {
        "prompt_tokens": statistics.prompt_tokens,
        "completion_tokens": statistics.tokens,
        "first_token_s": round(statistics.first_token_seconds, 4),
        "decode_s": round(statistics.decode_seconds, 4),
        "tokens_per_second": round(statistics.tokens_per_second, 2),
        "acceptance_length": round(statistics.acceptance_length, 4),
        "speedup": known_speedup(statistics),
        "sources": dict(statistics.sources),
        **({"dropped_turns": statistics.dropped_turns} if statistics.dropped_turns else {}),
        **({"reasoning_tokens": tokens, "reasoning_s": seconds} if tokens else {}),
        "seed": sampling.seed,
        "temperature": sampling.temperature,
        **({} if sampling.greedy else {name: getattr(sampling, name) for name in ("top_p", "top_k", "min_p")}),
    }


@dataclass(frozen=True)
class HeldMemory:
    """Memory of the device that answers, in bytes: the used bytes by purpose, their peak, and the free bytes."""

    target: int = 0
    drafter: int = 0
    cache: int = 0
    peak: int = 0
    free: int | None = None  # None if unknown


@dataclass(frozen=True)
class Figures:
    """The figures of the current or the last reply. None means unknown (so far), never zero.

    Before the first reply only figures of the model are known: `context`, `precision` and `memory`.
    """

    reading: tuple[int, int] | None = None  # tokens of the prompt read so far, and all, while they are read
    tokens: int = 0  # of the reply
    reasoning_tokens: int = 0  # reply tokens before the answer
    reasoning_seconds: float = 0.0  # seconds until the answer
    seconds: float = 0.0  # since the request
    tokens_per_second: float | None = None  # only of decoding, from the first token on
    pieces_per_second: float | None = None  # pieces of text per second, as long as a server has not reported tokens
    speedup: float | None = (
        None  # over plain decoding, timed during the reply; below 1 if drafts cost more than they save
    )
    saved_seconds: float | None = None  # compared with plain decoding; below 0 if drafts cost more than they save
    acceptance_length: float | None = None  # tokens per step of the model
    acceptance_by_depth: tuple[float, ...] = ()  # chance that a token drafted at depth 1, 2, … is accepted
    used: int = 0  # tokens of the context, prompt and reply
    context: int = 0  # tokens that it can hold; 0 if a server does not report it
    drafts: bool = True  # whether anything may be drafted at all
    no_drafts: bool = False  # nothing is drafted, because the user chose that
    off_reason: str | None = None  # why nothing is drafted any more, as a sentence
    sources: Mapping[str, int] = field(default_factory=dict)  # reply tokens by proposer
    exactness: str = ""  # `Exactness.label` of the rule: a key of `wording.SAMENESS`
    device: str = ""  # the computing device: "cpu", "cuda:0", or the address of a server
    precision: str = ""  # of the weights: "int8", "nf4", "bf16" …
    memory: HeldMemory = HeldMemory()
    sampling: str = ""  # the sampling of the reply and its source, in words


def memory_begins(answered: Sequence[bool], dropped: int) -> int:
    """Return the index of the first turn that the model still reads, after its oldest `dropped` turns are left out.

    `answered` says for each turn whether it has a reply; the model reads only turns with a reply, and only these count
    as dropped. For the turns "reply, no reply, reply, reply", 0 dropped gives 0, 1 gives 2, and 3 gives 4, the number
    of turns.
    """
    if not dropped:
        return 0
    read = [number for number, has_reply in enumerate(answered) if has_reply]
    return read[dropped] if dropped < len(read) else len(answered)


MEMORY_SECONDS = 1.0  # between queries of free memory, which are slow


class LiveStats:
    """The figures of the current or the last reply, computed from its events.

    `figures` asks the engine for those figures that are in no event.
    """

    def __init__(self, engine: "Answerer", rule: Rule = "exact", used: int = 0, *, no_drafts: bool = False) -> None:
        """Begin the figures of a conversation, which has `used` tokens so far (0: unknown)."""
        self._engine, self._rule, self._no_drafts = engine, rule, no_drafts
        self.sampling = ""  # the sampling of replies, in words
        self._free = -MEMORY_SECONDS, 0  # when it was queried, and the result
        self._begin()
        self._used = used

    def _begin(self) -> None:
        self._reading: tuple[int, int] | None = None
        self._used = self._tokens = self._reasoning = 0
        self._seconds = self._first = 0.0
        self._pieces = 0
        self._sources: Counter[str] = Counter()

    def take(self, event: Event) -> None:
        """Add one event to the figures. The first `Prefill` of a reply resets them."""
        match event:
            case Prefill(done, total, _):
                self._begin()
                self._used, self._reading = done, (done, total) if done < total else None
            case Text():
                self._tokens += len(event.tokens)
                self._reasoning += event.reasoning_tokens
                self._sources.update(event.sources)
                self._seconds, self._first = event.seconds, self._first or event.seconds
                self._pieces += 1
            case Done(_, statistics) if not self._used:  # a server reports its figures only at the end
                self._tokens, self._used = statistics.tokens, statistics.prompt_tokens

    def figures(self) -> Figures:
        """Return the present figures. Call this only while the engine waits, for example between two events."""
        choice = self._engine.choice
        known = Figures(
            reading=self._reading,
            tokens=self._tokens,
            reasoning_tokens=self._reasoning,
            seconds=self._seconds,
            pieces_per_second=self._pieces_per_second(),
            used=self._used + self._tokens,
            context=self._engine.context,
            sources=dict(self._sources),
            drafts=choice.nodes > 0,
            no_drafts=self._no_drafts,
            exactness=self._engine.exactness.label(self._rule) if self._tokens else "",
            device=choice.device,
            precision=precision_in_words(choice.dtype, choice.quantize, choice.bits),
            memory=self._memory(),
            sampling=self.sampling,
        )
        now = self._engine.session.so_far if self._tokens else None
        return known if now is None else _with_decoding(known, now)

    def _pieces_per_second(self) -> float | None:
        since = self._seconds - self._first
        return (self._pieces - 1) / since if not self._tokens and since > 0 else None

    def _memory(self) -> HeldMemory:
        held = self._engine.session.memory
        if held is None:  # it is on another machine, or unknown
            return HeldMemory()
        when, free = self._free
        if time.monotonic() - when >= MEMORY_SECONDS:
            free = free_memory(self._engine.choice.device)
            self._free = time.monotonic(), free
        return HeldMemory(held.target, held.drafter, held.cache + held.parked, held.peak, free)


def _with_decoding(figures: Figures, now: Statistics) -> Figures:
    speedup = known_speedup(now)
    return replace(
        figures,
        tokens_per_second=now.tokens_per_second or None,
        speedup=speedup,
        saved_seconds=None if speedup is None else now.decode_seconds * (speedup - 1),
        acceptance_length=now.acceptance_length or None,
        acceptance_by_depth=now.acceptance_by_depth,
        off_reason=now.off_reason,
        reasoning_seconds=now.reasoning_seconds,
    )
