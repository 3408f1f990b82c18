"""The parts that all generators share: drawing, making an example of a drawing, and holding examples out."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

HELD_OUT = 0.02  # of every generator's keys, and of every other source's examples


@dataclass(frozen=True)
class Drawing:
    """One generated example: a text if it has one turn, else a chat of user and assistant in turn.

    `keys` say what it is about, without its wording ("sum 37 45"): what has a held-out key is never trained on, so a
    held-out question is not known from another phrasing.
    """

    keys: tuple[str, ...]
    turns: tuple[str, ...]


Draw = Callable[[Random], Drawing]


def chat(key: str, *turns: str) -> Drawing:
    """Return a chat about one thing."""
    if len(turns) % 2 or not all(turns):
        raise ValueError(f"a chat ends with the assistant and has no empty turn: {turns}")
    return Drawing((key,), turns)


def example(source: str, drawing: Drawing) -> dict[str, Any]:
    """In the form of the shared data, with the keys of the drawing beside it."""
    record: dict[str, Any] = {"source": source, "keys": list(drawing.keys)}
    if len(drawing.turns) == 1:
        return record | {"text": drawing.turns[0]}
    roles = ("user", "assistant")
    return record | {"messages": [{"role": roles[i % 2], "content": t} for i, t in enumerate(drawing.turns)]}


def _fraction(text: str) -> float:
    return int.from_bytes(hashlib.sha1(text.encode()).digest()[:4], "big") / 2**32


def held_out(example: dict[str, Any]) -> bool:
    """Return the same share of every source on every machine; of generated ones by what they are about."""
    import json

    if "keys" in example:
        return any(_fraction(key) < HELD_OUT for key in example["keys"])
    return _fraction(json.dumps(example, sort_keys=True)) < HELD_OUT


def generate(source: str, draw: Draw, seed: int, count: int) -> Iterator[dict[str, Any]]:
    """`count` different examples, or fewer where a hundred draws in a row bring nothing new."""
    random, drawn, idle = Random(f"{source} {seed}"), set[tuple[str, ...]](), 0
    while count and idle < 100:
        drawing = draw(random)
        if drawing.turns in drawn:
            idle += 1
            continue
        drawn.add(drawing.turns)
        idle, count = 0, count - 1
        yield example(source, drawing)
