"""The figures of the reply under way, while it comes."""

import time
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from localspec.chat.figures import Figures, HeldMemory, known_speedup
from localspec.config import Rule
from localspec.events import Done, Event, Prefill, Statistics, Text
from localspec.machine.memory import free_memory
from localspec.quantities import precision_in_words

if TYPE_CHECKING:
    from localspec.chat.answerer import Answerer

MEMORY_SECONDS = 1.0  # between looks at what is free: the system takes its time to tell


class LiveStats:
    """Takes the events of one reply after another; `figures` are those of the latest so far.

    What an event tells is counted as it comes; the rest is the engine's, and asked for only with the figures.
    """

    def __init__(self, engine: "Answerer", rule: Rule = "exact", used: int = 0, *, plain_asked: bool = False) -> None:
        """`used`: tokens of the conversation that goes on, where they are known."""
        self._engine, self._rule, self._plain_asked = engine, rule, plain_asked
        self.sampling = ""  # how replies are sampled, in words
        self._free = -MEMORY_SECONDS, 0  # when it was looked at, and what was found
        self._begin()
        self._used = used

    def _begin(self) -> None:
        self._reading: tuple[int, int] | None = None
        self._used = self._tokens = self._reasoning = 0
        self._seconds = self._first = 0.0
        self._pieces = 0
        self._sources: Counter[str] = Counter()

    def take(self, event: Event) -> None:
        """Adds one event to the figures; the first `Prefill` of a reply begins them anew."""
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
            case Done(_, statistics) if not self._used:  # a server, which tells at the end
                self._tokens, self._used = statistics.tokens, statistics.prompt_tokens

    def figures(self) -> Figures:
        """What is known now; only where the engine stands still, as between two events."""
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
            plain_asked=self._plain_asked,
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
        if held is None:  # it is not in this machine, or nobody tells
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
