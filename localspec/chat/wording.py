"""The words for the figures of a reply: plain names, the most important first."""

from collections.abc import Iterator, Mapping
from typing import Any

from localspec.chat.figures import TOKENS, Figures
from localspec.quantities import counted, short_pace, speedup
from localspec.text import one_line

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
    """Return `3.1 tokens/step`; empty if the number is unknown, or 1, as in plain decoding."""
    words = f"{tokens or 1:.1f}"
    return "" if words == "1.0" else f"{words} tokens/step"


def context_share(used: int, context: int) -> str:
    """Return how full the context is: `context 1 %`; empty if unknown."""
    return f"context {max(1, round(100 * used / context))} %" if used and context else ""


def drafting_off(reason: str | None, *, drafts: bool) -> str:
    """Return why drafting has paused, or, if `drafts` is False, why nothing is drafted at all.

    The text is empty if `reason` is None.
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
    named = sorted(sources.items(), key=lambda one: -one[1])
    return [(source_name(name), count / total) for name, count in named if count]


def seconds_words(seconds: float) -> str:
    """Return `under 0.1 s`, `4.1 s`, `41 s`, `2 min 5 s`."""
    if seconds < 0.05:
        return "under 0.1 s"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    return f"{whole} s" if whole < 120 else f"{whole // 60} min {whole % 60} s"


def thought(tokens: int, seconds: float, *, still: bool = False) -> str:
    """Return `thought for 3.1 s, 214 tokens`; or `thinking for …` while it continues."""
    words = "thinking" if still else "thought"
    return f"{words} for {seconds_words(seconds)}, {counted(tokens, 'token')}"


def saved_thought(kept: Mapping[str, Any]) -> str:
    """Return the result of the function `thought` for figures that were saved; the word "thought" without figures."""
    tokens, seconds = _figure(kept.get("reasoning_tokens")), _figure(kept.get("reasoning_s"))
    return "thought" if tokens is None or seconds is None else thought(int(tokens), seconds)


def summary(kept: Mapping[str, Any]) -> str:
    """Return the line below a reply, from the figures saved with it: `4.1 s · 248 tokens · 2.4× faster`.

    The figures may come from another version or from a file that somebody changed. Invalid figures are left out.
    """
    first, decoding, tokens, ratio = (
        _figure(kept.get(name)) for name in ("first_token_s", "decode_s", "completion_tokens", "speedup")
    )
    parts = []
    if first is not None and decoding is not None:
        parts.append(seconds_words(first + decoding))
    if tokens:
        parts.append(f"{tokens:,.0f} token{'' if tokens == 1 else 's'}")
    if ratio and (tokens is None or tokens >= TOKENS):  # earlier versions saved chance figures, too
        parts.append(gain(ratio))
    return " · ".join(filter(None, parts))


def ending(reason: str | None, kept: Mapping[str, Any]) -> str:
    """Return how a reply with these saved figures ended; "" if the model ended it, or if the reason is unknown."""
    if reason == "length" and kept.get("context_full") is True:
        return "the reply ended because the context was full"
    return ENDINGS.get(reason, "")


def repeated(kept: Mapping[str, Any], warmer: str) -> str:
    """Return why this reply was stopped: it repeated itself. `warmer` is advice to raise the temperature."""
    return f"stopped: the reply repeated itself; {_remedy(kept, warmer)}"


def same_answer(kept: Mapping[str, Any], warmer: str) -> str:
    """Return the notice that a new answer equals an earlier one, with the same advice as `repeated`."""
    return f"The answer is the same as an earlier one, so it makes no branch; {_remedy(kept, warmer)}."


def _remedy(kept: Mapping[str, Any], warmer: str) -> str:
    """Return advice for more variety: `warmer`, unless the temperature of the reply was high already."""
    temperature = _figure(kept.get("temperature"))
    return warmer if temperature is None or temperature < WARM else "ask again, or in other words"


def _figure(value: object) -> float | None:
    """Return a saved value as a number; None if it is not a valid number to display."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < LARGEST
    return float(value) if is_number else None  # type: ignore[arg-type]


def in_words(figures: Figures) -> Iterator[str]:
    """Yield the figures of a reply in words, for a line below it where no panel is displayed."""
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
