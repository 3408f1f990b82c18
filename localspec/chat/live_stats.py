"""The figures of the reply under way, as a person reads them while it comes."""

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from localspec.config import Rule
from localspec.events import Done, Event, Prefill, Text

if TYPE_CHECKING:
    from localspec.engine.engine import Engine

WORDS = {"target": "the model", "phrases": "seen before"}  # who proposed a token; the others go by their own name


class LiveStats:
    """Takes the events of one reply after another; `parts` are its figures so far, the most important first."""

    def __init__(self, engine: "Engine", rule: Rule = "exact") -> None:
        choice = engine.choice
        precision = choice.dtype if choice.quantize == "none" else choice.quantize
        self._exactness = f"{precision}, {engine.exactness.label(rule)}"
        self._context = engine.context
        self._peak: Callable[[], int] = engine.peak_bytes
        self._begin()

    def _begin(self) -> None:
        self._used = self._tokens = 0
        self._speed = self._acceptance = self._first = 0.0
        self._sources: Counter[str] = Counter()
        self._off_reason: str | None = None

    def take(self, event: Event) -> None:
        """Adds one event to the figures; the first `Prefill` of a reply begins them anew."""
        match event:
            case Prefill(done, _, _):
                self._begin()
                self._used = done
            case Text():
                self._first = self._first or event.seconds
                self._tokens += len(event.tokens)
                self._sources.update(event.sources)
                decoding = event.seconds - self._first
                self._speed = (self._tokens - 1) / decoding if decoding > 0 else 0.0
                self._acceptance = (self._tokens - 1) / event.steps if event.steps else 0.0  # the first is prefill's
            case Done(_, statistics):
                self._speed, self._acceptance = statistics.tokens_per_second, statistics.acceptance_length
                self._off_reason = statistics.off_reason

    def parts(self) -> list[str]:
        """Speed, acceptance length, context, why speculation is off, whose the tokens were, memory, exactness."""
        parts = []
        if self._speed:
            parts += [f"{self._speed:.1f} tokens/s", f"{self._acceptance:.2f} tokens a step"]
        if self._used:
            parts.append(f"{self._used + self._tokens:,} of {self._context:,} tokens")
        if self._off_reason:
            parts.append(f"speculation off: {self._off_reason}")
        if self._tokens:
            counted = self._sources.most_common()
            parts.append(", ".join(f"{WORDS.get(name, name)} {count / self._tokens:.0%}" for name, count in counted))
        return [*parts, f"{self._peak() / 2**30:.2f} GiB", self._exactness]
