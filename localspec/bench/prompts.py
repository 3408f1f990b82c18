"""The prompts of a bench, from a file or from localspec, and the order in which the compared drafters answer them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TypeVar

from localspec.errors import UsageMistake
from localspec.outside_files import decoded, parse_json, read_bytes

T = TypeVar("T")


@dataclass(frozen=True)
class BenchPrompt:
    """One question, and its category of text."""

    id: str
    category: str
    text: str


def read(file: Path) -> list[BenchPrompt]:
    """Read prompts from JSONL or from a text with one prompt per line.

    A line of JSONL is {"turns": ["…"]} or {"prompt": "…"}, with optional "id" and "category". Raises UsageMistake for a
    file that is neither, or has no prompt.
    """
    try:
        lines = decoded(read_bytes(file, pipe=True)).split("\n")
    except OSError as error:
        raise UsageMistake(f"{file} cannot be read ({error.strerror}); give a readable file of prompts.") from None
    except ValueError as error:
        raise UsageMistake(
            f"{file} cannot be read, because it {error}; give JSONL, or plain text with one prompt per line."
        ) from None
    numbered = [(number, line.strip()) for number, line in enumerate(lines, start=1) if line.strip()]
    if not numbered:
        raise UsageMistake(f"{file} has no prompts; write one per line.")
    if not numbered[0][1].startswith("{"):
        return [BenchPrompt(str(number), "text", line) for number, line in numbered]
    return [_from_json(line, f"{file}, line {number}", str(number)) for number, line in numbered]


def _from_json(line: str, place: str, number: str) -> BenchPrompt:
    try:
        entry = parse_json(line)
    except ValueError:
        raise UsageMistake(f"{place}: this line is not JSON, but the first line is; correct this line.") from None
    turns = entry.get("turns", [entry.get("prompt")]) if isinstance(entry, dict) else None
    text = turns[0] if isinstance(turns, list) and turns else None
    if not isinstance(text, str) or not text.strip():
        raise UsageMistake(f'{place}: there is no prompt; write {{"prompt": "…"}} or {{"turns": ["…"]}}.')
    text = text.encode("utf-8", "replace").decode()  # a lone surrogate is not text, and no tokenizer accepts it
    return BenchPrompt(str(entry.get("id", number)), str(entry.get("category", "text")), text)


def message(prompt: str) -> list[dict[str, str]]:
    """Return a conversation of one question."""
    return [{"role": "user", "content": prompt}]


def spread(prompts: Sequence[BenchPrompt], limit: int | None) -> list[BenchPrompt]:
    """Return the first `limit` prompts, one of each category in turn."""
    kinds: dict[str, list[BenchPrompt]] = {}
    for prompt in prompts:
        kinds.setdefault(prompt.category, []).append(prompt)
    return [prompt for turn in zip_longest(*kinds.values()) for prompt in turn if prompt is not None][:limit]


def in_turns(contenders: Sequence[T], turns: int) -> Iterator[tuple[int, T]]:
    """Yield (turn, contender) in rotating order: for a and b in two turns (0, a), (0, b), (1, b), (1, a)."""
    for turn in range(turns):
        first = turn % len(contenders)
        for contender in (*contenders[first:], *contenders[:first]):
            yield turn, contender


def remaining_words(seconds: float) -> str:
    """Return the remaining time in words: `12 s left`."""
    return f"{seconds:.0f} s left" if seconds <= 90 else f"{seconds / 60:.0f} min left"


_TEXTS = {
    "code": (
        "Write a Python class Stack with push, pop, peek and is_empty, and a short test for each method.",
        "Rename the variable x to total in this function and return all of it:\n\n"
        "def add(values):\n    x = 0\n    for value in values:\n        x = x + value\n    return x",
    ),
    "math": (
        "A baker makes 24 rolls an hour and works 7 hours. A fifth of the rolls is left in the evening. "
        "How many were sold? Explain step by step.",
    ),
    "summary": (
        "Summarise in two sentences: The tide is the slow rise and fall of the sea. The moon pulls at the water, and a "
        "bulge of water follows it around the earth. A second bulge stands on the far side. As the earth turns, most "
        "coasts pass through both bulges in a day, and so see two high tides and two low ones.",
    ),
    "editing": (
        "Correct the spelling and change nothing else: The libary opens at nine oclock on weekdays. Visiters may borow "
        "five books for three weeks, and must retern them to the desk on the frist floor.",
    ),
    "extraction": (
        "List every name and every year in this text: Ada Lovelace was born in 1815 and wrote about the Analytical "
        "Engine in 1843. Charles Babbage, born in 1791, had designed it.",
    ),
    "translation": ("Translate into German: The train leaves at noon, and my sister waits at the station.",),
    "question": ("Why do leaves change their colour in autumn?", "What is the difference between weather and climate?"),
    "writing": ("Write a short story about a lighthouse keeper who finds a letter in a bottle.",),
}
BUILT_IN = [
    BenchPrompt(f"{category}-{number}", category, text)
    for category, texts in _TEXTS.items()
    for number, text in enumerate(texts, start=1)
]
