"""The figures of the current or the last reply, and the words for them: plain names, the most important first."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from localspec.config import Rule
from localspec.events import Done, Event, Memory, Prefill, Statistics, Text
from localspec.machine.memory import free_memory
from localspec.quantities import counted, precision_in_words, short_pace, speedup
from localspec.text import one_line

if TYPE_CHECKING:
    from localspec.chat.answerer import Answerer, ReplySampling


NO_MEMORY = Memory(0, 0, 0, 0)
ENOUGH, TOKENS = 8, 16  # steps, and tokens of a reply, below which a speedup would be chance


def known_speedup(statistics: Statistics) -> float | None:
    """Return the speedup of a reply, rounded to three decimals; None if the reply is too short for a measurement."""
    enough = statistics.steps >= ENOUGH and len(statistics.token_ids) >= TOKENS
    return round(statistics.speedup, 3) if enough and statistics.speedup else None


def saved_figures(statistics: Statistics, sampling: "ReplySampling") -> dict[str, Any]:
    """Return the figures to save with a reply."""
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
    pieces_per_second: float | None = None  # pieces of text per second, until a server reports tokens
    speedup: float | None = None  # over plain decoding, timed during the reply; below 1 if drafts do not pay
    saved_seconds: float | None = None  # compared with plain decoding; below 0 if drafts cost more than they save
    acceptance_length: float | None = None  # tokens per step of the model
    acceptance_by_depth: tuple[float, ...] = ()  # chance that a token drafted at depth 1, 2, … is accepted
    used: int = 0  # tokens of the context, prompt and reply
    context: int = 0  # tokens that it can hold; 0 if a server does not report it
    drafts: bool = True  # whether anything may be drafted at all
    no_drafts: bool = False  # nothing is drafted, because the user chose that
    off_reason: str | None = None  # why nothing is drafted any more, as a sentence
    sources: Mapping[str, int] = field(default_factory=dict)  # reply tokens by proposer
    exactness: str = ""  # `Exactness.label` of the rule: a key of SAMENESS
    device: str = ""  # the computing device: "cpu", "cuda:0", or the address of a server
    precision: str = ""  # of the weights: "int8", "nf4", "bf16" …
    memory: Memory = NO_MEMORY  # of the device that answers; `cache` includes parked texts
    free: int | None = None  # bytes of its memory; None if unknown
    sampling: str = ""  # the sampling of the reply and its source, in words


def memory_begins(answered: Sequence[bool], dropped: int) -> int:
    """Return the index of the first turn that the model still reads, if it leaves out its oldest `dropped` turns.

    `answered` says for each turn whether it has a reply. The model reads only turns with a reply, so `dropped` counts
    only these. An example: with the turns "reply, no reply, reply, reply", 1 dropped turn gives index 2. If all are
    dropped, the result is the number of turns.
    """
    if not dropped:
        return 0
    read = [number for number, has_reply in enumerate(answered) if has_reply]
    return read[dropped] if dropped < len(read) else len(answered)


MEMORY_SECONDS = 1.0  # between queries of free memory, which are slow


class LiveStats:
    """The figures of the current or the last reply, computed from its events.

    The method `figures` asks the engine for all figures that no event contains.
    """

    def __init__(self, engine: "Answerer", rule: Rule = "exact", used: int = 0, *, no_drafts: bool = False) -> None:
        """Begin with empty figures, for a conversation that has `used` tokens so far (0: unknown)."""
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
        """Add one event to the figures. The first `Prefill` of a reply resets the figures."""
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
        figures = Figures(
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
            sampling=self.sampling,
        )
        now = self._engine.session.so_far if self._tokens else None
        return self._with_memory(figures if now is None else _with_decoding(figures, now))

    def _pieces_per_second(self) -> float | None:
        since = self._seconds - self._first
        return (self._pieces - 1) / since if not self._tokens and since > 0 else None

    def _with_memory(self, figures: Figures) -> Figures:
        memory = self._engine.session.memory
        if memory is None:  # it is on another machine, or unknown
            return figures
        when, free = self._free
        if time.monotonic() - when >= MEMORY_SECONDS:
            free = free_memory(self._engine.choice.device)
            self._free = time.monotonic(), free
        return replace(figures, memory=replace(memory, cache=memory.cache + memory.parked, parked=0), free=free)


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


# -- in words ----------------------------------------------------------------------------------------------------------

WARM = 0.7  # at this temperature raising it does not help
LARGEST = 1e9  # the largest figure that is meaningful
SOURCES = {
    "target": "the model", "phrases": "past replies", "prompt": "this chat", "drafter": "the drafter",
    "draft_model": "draft model", "ouroboros": "draft model", "s3d": "own layers", "layers": "own layers",
    "medusa": "Medusa", "parallelspec": "ParallelSpec", "semi": "small drafter", "lookahead": "look-ahead",
}  # fmt: skip
SAMENESS = {
    "bitwise": "same text as without drafts ✓",
    "numerical": "same text, except for rounding",
    "same distribution": "same probabilities as without drafts",
    "not lossless": "text may differ from the text without drafts",
    "unchecked": "not checked yet",  # the self-test runs after the first reply
}
ENDINGS = {
    "interrupted": "stopped",
    "length": "the reply reached its token limit",
    "repetition": "stopped: it repeated itself",
    None: "cut off: localspec was stopped while it wrote this",
}


def source_name(source: str) -> str:
    """Return the drafters that proposed a token, in words joined by +."""
    return " and ".join(SOURCES.get(name, name) for name in source.split("+"))


def gain(ratio: float | None) -> str:
    """Return the speedup of a reply in words: `1.6× faster`, `2 % slower`; empty if unknown or too small."""
    words = "" if ratio is None else speedup(ratio)
    return "" if words == "as fast" else words


def tokens_a_step(tokens: float | None) -> str:
    """Return the tokens per step as `3.1 tokens/step`; empty if the number is unknown, or 1, as in plain decoding."""
    words = f"{tokens or 1:.1f}"
    return "" if words == "1.0" else f"{words} tokens/step"


def context_share(used: int, context: int) -> str:
    """Return how full the context is: `context 1 %`; empty if unknown."""
    if not (used and context):
        return ""
    share = max(1, round(100 * used / context))
    return f"context {share} %"


def drafting_off(reason: str | None, *, drafts: bool) -> str:
    """Return "drafting paused: REASON" or, if `drafts` is False, "no drafts: REASON".

    The text is empty without a reason.
    """
    if not reason:
        return ""
    return f"{'drafting paused' if drafts else 'no drafts'}: {one_line(reason)}"


def share_words(sources: Mapping[str, int]) -> str:
    """Return the proposers of a reply's tokens with their shares: `the model 50 %, past replies 50 %`."""
    return ", ".join(f"{name} {100 * share:.0f} %" for name, share in shares(sources))


def shares(sources: Mapping[str, int]) -> list[tuple[str, float]]:
    """Return each drafter's share of the reply's tokens, with its name in words, the largest share first."""
    total = sum(sources.values())
    ranked = sorted(sources.items(), key=lambda item: -item[1])
    return [(source_name(name), count / total) for name, count in ranked if count]


def seconds_words(seconds: float) -> str:
    """Return a duration in words: `under 0.1 s`, `4.1 s`, `41 s`, `2 min 5 s`."""
    if seconds < 0.05:
        return "under 0.1 s"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    rounded = round(seconds)
    return f"{rounded} s" if rounded < 120 else f"{rounded // 60} min {rounded % 60} s"


def thought(tokens: int, seconds: float, *, still: bool = False) -> str:
    """Return how long the model thought: `thought for 3.1 s, 214 tokens`; if it `still` thinks, `thinking for …`."""
    duration, number = seconds_words(seconds), counted(tokens, "token")
    return f"thinking for {duration}, {number}" if still else f"thought for {duration}, {number}"


def saved_thought(saved: Mapping[str, Any]) -> str:
    """Return how long the model thought, as `thought` does, from figures saved with a reply; `thought` without them."""
    tokens, seconds = _valid_number(saved.get("reasoning_tokens")), _valid_number(saved.get("reasoning_s"))
    return "thought" if tokens is None or seconds is None else thought(int(tokens), seconds)


def summary(saved: Mapping[str, Any]) -> str:
    """Return the line below a reply, from the figures saved with it: `4.1 s · 248 tokens · 2.4× faster`.

    The figures may come from another version or from a file that somebody changed. Invalid figures are left out.
    """
    first, decoding, tokens, ratio = (
        _valid_number(saved.get(name)) for name in ("first_token_s", "decode_s", "completion_tokens", "speedup")
    )
    parts = []
    if first is not None and decoding is not None:
        parts.append(seconds_words(first + decoding))
    if tokens:
        parts.append(f"{tokens:,.0f} token{'' if tokens == 1 else 's'}")
    if ratio and (tokens is None or tokens >= TOKENS):  # earlier versions saved chance figures, too
        parts.append(gain(ratio))
    return " · ".join(filter(None, parts))


def ending(reason: str | None, saved: Mapping[str, Any]) -> str:
    """Return how a reply with these saved figures ended; "" if the model ended it, or if the reason is unknown."""
    if reason == "length" and saved.get("context_full") is True:
        return "the reply ended because the context was full"
    return ENDINGS.get(reason, "")


def repeated(saved: Mapping[str, Any], warmer: str) -> str:
    """Return why this reply was stopped: it repeated itself. `warmer` is advice to raise the temperature."""
    return f"stopped: the reply repeated itself; {_remedy(saved, warmer)}"


def same_answer(saved: Mapping[str, Any], warmer: str) -> str:
    """Return the notice that a new answer equals an earlier one, with advice such as to raise the temperature."""
    return f"The answer is the same as an earlier one, so it is not kept as a new branch; {_remedy(saved, warmer)}."


def _remedy(saved: Mapping[str, Any], warmer: str) -> str:
    """Return advice for more variety: `warmer`, unless the temperature of the reply was high already."""
    temperature = _valid_number(saved.get("temperature"))
    return warmer if temperature is None or temperature < WARM else "ask again, or use other words"


def _valid_number(value: object) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < LARGEST
    return float(value) if is_number else None  # type: ignore[arg-type]


def in_words(figures: Figures) -> Iterator[str]:
    """Yield the figures of a reply in words, for the line below the reply in `chat --plain`."""
    speed = figures.tokens_per_second
    parts = (
        "" if speed is None else short_pace(speed),
        gain(figures.speedup),
        tokens_a_step(figures.acceptance_length),
        context_share(figures.used, figures.context),
        thought(figures.reasoning_tokens, figures.reasoning_seconds) if figures.reasoning_tokens else "",
        drafting_off(figures.off_reason, drafts=figures.drafts),
    )
    yield from filter(None, parts)
