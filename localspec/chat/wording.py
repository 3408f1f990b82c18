"""What a person reads of the figures of a reply: plain names, the most important first."""

from collections.abc import Iterator, Mapping
from typing import Any

from localspec.chat.figures import TOKENS, Figures
from localspec.quantities import counted, tokens_a_second
from localspec.text import one_line

LARGEST = 1e9  # of a figure that means something
SOURCES = {
    "target": "the model", "phrases": "past replies", "prompt": "this chat", "drafter": "the drafter",
    "draft_model": "draft model", "ouroboros": "draft model", "s3d": "own layers", "layers": "own layers",
    "medusa": "Medusa", "parallelspec": "ParallelSpec", "semi": "small drafter", "lookahead": "look-ahead",
}  # fmt: skip
SAMENESS = {
    "bitwise": "same text ✓",  # bit for bit what the model writes without drafts
    "numerical": "same text but for rounding",
    "same distribution": "as likely a text",
    "not lossless": "another text",
    "unchecked": "not checked yet",  # whether the text is the same: the self-test runs after the first reply
}


def source_name(source: str) -> str:
    """Who proposed a token, for a person; several who agreed are joined by +."""
    return " and ".join(SOURCES.get(name, name) for name in source.split("+"))


def times(speedup: float) -> str:
    """`×2.4`; below 1 with one digit more, so that no loss is rounded away."""
    return f"×{speedup:.1f}" if speedup >= 1 else f"×{min(speedup, 0.99):.2f}"


def worth(speedup: float) -> str:
    """The same, with words where it is a loss."""
    return times(speedup) if speedup >= 1 else f"{times(speedup)} as fast as without drafts"


def a_step(tokens: float) -> str:
    """How many tokens come at once: `3.1 a step`."""
    return f"{tokens:.1f} a step"


def short_number(count: int) -> str:
    """`820`, `1.2k`, `128k`."""
    thousands = count / 1000
    return (
        str(count)
        if count < 1000
        else f"{thousands:.1f}k".replace(".0k", "k")
        if count < 10_000
        else f"{thousands:.0f}k"
    )


def memory_words(size: int) -> str:
    """`0.50 GiB`."""
    return f"{size / 2**30:.2f} GiB"


def share_words(sources: Mapping[str, int]) -> str:
    """`the model 50%, past replies 50%`."""
    return ", ".join(f"{name} {share:.0%}" for name, share in shares(sources))


def shares(sources: Mapping[str, int]) -> list[tuple[str, float]]:
    """Who proposed which part of the tokens, the most first, by the names that a person reads."""
    total = sum(sources.values())
    named = sorted(sources.items(), key=lambda one: -one[1])
    return [(source_name(name), count / total) for name, count in named if count]


def seconds_words(seconds: float) -> str:
    """`under 0.1 s`, `4.1 s`, `41 s`, `2 min 5 s`."""
    if seconds < 0.05:
        return "under 0.1 s"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    return f"{whole} s" if whole < 120 else f"{whole // 60} min {whole % 60} s"


def thought(tokens: int, seconds: float, *, still: bool = False) -> str:
    """`thought for 3.1 s, 214 tokens`; or `thinking for …` while it goes on."""
    words = "thinking" if still else "thought"
    return f"{words} for {seconds_words(seconds)}, {counted(tokens, 'token')}"


def kept_thought(kept: Mapping[str, Any]) -> str:
    """The same by the figures that were kept with a reply; `thought` alone where there are none."""
    tokens, seconds = _figure(kept.get("reasoning_tokens")), _figure(kept.get("reasoning_s"))
    return "thought" if tokens is None or seconds is None else thought(int(tokens), seconds)


def summary(kept: Mapping[str, Any]) -> str:
    """What is said below a reply, by the figures that were kept with it: `4.1 s · 248 tokens · ×2.4`.

    They may come from another version, or from a file that somebody changed: what is no figure is left out.
    """
    first, decoding, tokens, speedup = (
        _figure(kept.get(name)) for name in ("first_token_s", "decode_s", "completion_tokens", "speedup")
    )
    parts = []
    if first is not None and decoding is not None:
        parts.append(seconds_words(first + decoding))
    if tokens:
        parts.append(f"{tokens:,.0f} token{'' if tokens == 1 else 's'}")
    if speedup and (tokens is None or tokens >= TOKENS):  # earlier versions kept chance, too
        parts.append(worth(speedup))
    return " · ".join(parts)


def _figure(value: object) -> float | None:
    """The value, where it is a number that a figure can be."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < LARGEST
    return float(value) if is_number else None  # type: ignore[arg-type]


def in_words(figures: Figures) -> Iterator[str]:
    """The parts of a line that says it all."""
    if figures.tokens_per_second is not None:
        yield tokens_a_second(figures.tokens_per_second)
    if figures.reasoning_tokens:
        yield thought(figures.reasoning_tokens, figures.reasoning_seconds)
    if figures.speedup is not None:
        yield f"{times(figures.speedup)} as fast as without drafts"
    if figures.acceptance_length is not None:
        yield a_step(figures.acceptance_length)
    if figures.used:
        yield f"{figures.used:,} of {figures.context:,} tokens" if figures.context else f"{figures.used:,} tokens"
    if figures.exactness:
        yield SAMENESS[figures.exactness]
    if figures.off_reason:
        yield f"no drafts now: {one_line(figures.off_reason)}"
    if figures.sources:
        yield share_words(figures.sources)
    if figures.memory.peak:
        yield memory_words(figures.memory.peak)
    if figures.precision:
        yield one_line(figures.precision)
