"""The prompts that come with localspec: prompts for a model's training text, and held-out prompts."""

import random
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeVar

from localspec.bench.prompts import BenchPrompt
from localspec.training.examples import Question

FILE = Path(__file__).parent / "prompts.toml"
COPIES = 16  # of a template, each time with other words and numbers
T = TypeVar("T")
SLOT = re.compile("«(?:(\\d+)-(\\d+)|([a-z]+))»")


def shipped_questions() -> list[Question]:
    """Return the prompts for training text, of all kinds in turn, always in the same order."""
    return _in_turn([list(_questions(kind, entry)) for kind, entry in _kinds().items()])


def held_out_prompts() -> list[BenchPrompt]:
    """Return prompts that no drafter is trained on, of all kinds in turn."""
    return _in_turn(
        [
            [BenchPrompt(f"{kind}-{number}", kind, text) for number, text in enumerate(entry["held_out"], start=1)]
            for kind, entry in _kinds().items()
        ]
    )


def _in_turn(groups: Sequence[Sequence[T]]) -> list[T]:
    return [item for turn in zip_longest(*groups) for item in turn if item is not None]


def _questions(kind: str, entry: Mapping[str, Any]) -> Iterator[Question]:
    every = [*_single(entry), *entry.get("dialogues", ())]
    mixed = random.Random(kind).sample(every, len(every))  # noqa: S311
    for number, (first, *following) in enumerate(mixed, start=1):
        yield Question(f"{kind}-{number}", ({"role": "user", "content": first},), tuple(following))


@cache
def _content() -> Mapping[str, Any]:
    return tomllib.loads(FILE.read_text("utf-8"))


def _kinds() -> dict[str, Mapping[str, Any]]:
    return {kind: entry for kind, entry in _content().items() if kind != "words"}


def _single(entry: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    """Yield the single-turn prompts of a kind, including prompts made from templates, each once."""
    found = dict.fromkeys(entry["prompts"])
    for template in entry["templates"]:
        draw = random.Random(template)  # noqa: S311
        found |= dict.fromkeys(_filled(template, draw) for _ in range(entry.get("copies", COPIES)))
    return ((text,) for text in found)


def _filled(template: str, draw: random.Random) -> str:
    def word(slot: re.Match[str]) -> str:
        low, high, name = slot.groups()
        return str(draw.randint(int(low), int(high))) if name is None else draw.choice(_content()["words"][name])

    return SLOT.sub(word, template)
