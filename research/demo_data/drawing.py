"""The class of generated examples, their form for training, and the choice of held-out examples."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

HELD_OUT = 0.02  # of every generator's keys, and of every other source's examples


@dataclass(frozen=True)
class Drawing:
    """A generated example: a text if it has one turn, otherwise a chat of user and assistant in turn.

    `keys` name its subject, without the wording ("sum 37 45"). Examples with a held-out key are never trained on, so
    the model does not know a held-out question from another wording.
    """

    keys: tuple[str, ...]
    turns: tuple[str, ...]


Draw = Callable[[Random], Drawing]


def chat(key: str, *turns: str) -> Drawing:
    """Return a chat with one key. Raises ValueError for an empty turn, or if the assistant does not speak last."""
    if len(turns) % 2 or not all(turns):
        raise ValueError(f"a chat ends with the assistant and has no empty turn: {turns}")
    return Drawing((key,), turns)


def example(source: str, drawing: Drawing) -> dict[str, Any]:
    """Return a generated example in the form of the shared training data, with its keys in addition."""
    record: dict[str, Any] = {"source": source, "keys": list(drawing.keys)}
    if len(drawing.turns) == 1:
        return record | {"text": drawing.turns[0]}
    roles = ("user", "assistant")
    return record | {"messages": [{"role": roles[i % 2], "content": t} for i, t in enumerate(drawing.turns)]}


def _fraction(text: str) -> float:
    return int.from_bytes(hashlib.sha1(text.encode()).digest()[:4], "big") / 2**32


def held_out(example: dict[str, Any]) -> bool:
    """Return whether an example is never trained on. It depends on a hash of the example, or of its keys if it has any."""
    import json

    if "keys" in example:
        return any(_fraction(key) < HELD_OUT for key in example["keys"])
    return _fraction(json.dumps(example, sort_keys=True)) < HELD_OUT


def generate(source: str, draw: Draw, seed: int, count: int) -> Iterator[dict[str, Any]]:
    """Yield `count` different examples, or fewer if a hundred draws in a row bring nothing new."""
    random, drawn, idle = Random(f"{source} {seed}"), set[tuple[str, ...]](), 0
    while count and idle < 100:
        drawing = draw(random)
        if drawing.turns in drawn:
            idle += 1
            continue
        drawn.add(drawing.turns)
        idle, count = 0, count - 1
        yield example(source, drawing)
