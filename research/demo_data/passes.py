"""The examples of one pass over the training data, and the examples that are never trained on."""

from pathlib import Path
from random import Random
from typing import Any

from demo_data import shared
from demo_data.drawing import generate, held_out
from demo_data.mixture import GENERATORS, MADE, SHARED

ROOT = Path(__file__).parents[2]
SET_ASIDE = 40  # held-out examples of a source, at most
# Whose prompts may be typed carelessly: not where large letters and periods are what it is about.
CARELESS = {
    "made-stories",
    "made-sums",
    "made-calendar",
    "made-things",
    "made-writing",
    "made-limits",
    "made-smalltalk",
}
Example = dict[str, Any]


def contents(example: Example) -> list[str]:
    """Return the strings in an example: its text, or the contents of its messages."""
    return [example["text"]] if "text" in example else [m["content"] for m in example["messages"]]


def _views(share: float, random: Random) -> int:
    return int(share) + (random.random() < share % 1)


def careless(random: Random, example: Example) -> Example:
    """Change one prompt in five to how people type: no capital, no final mark, or a word such as "hey," before it."""
    if example["source"] not in CARELESS or "messages" not in example or random.random() > 0.2:
        return example
    *before, question, answer = example["messages"]
    text = question["content"]
    if random.random() < 0.7 and not text.startswith("I "):
        text = text[0].lower() + text[1:]
    if random.random() < 0.7:
        text = text.rstrip(".?!") or text
    elif random.random() < 0.3:
        text = f"{random.choice(('please', 'hey,', 'ok,', 'now'))} {text}"
    return example | {"messages": [*before, question | {"content": text}, answer]}


def trained(data: Path, stage: str, number: int) -> list[Example]:
    """Return the shuffled examples of a stage's pass `number`. Stages are "long", "last" and "draft"."""
    random, examples = Random(f"{stage} {number}"), list[Example]()
    for example in shared.examples(data):
        share = SHARED.get(example["source"])
        if share and shared.clean(example) and not held_out(example):
            examples += [example] * _views(share.of(stage), random)
    for source, share in MADE.items():
        generated = generate(source, GENERATORS[source], random.getrandbits(32), int(share.of(stage)))
        for example in generated:
            if not held_out(example):
                examples.append(careless(random, example))
    random.shuffle(examples)
    return examples


def set_aside(data: Path) -> list[Example]:
    """Return at most SET_ASIDE held-out examples of each source. They are the same in every pass."""
    by_source: dict[str, list[Example]] = {source: [] for source in (*SHARED, *MADE)}
    for example in shared.examples(data):
        aside = by_source.get(example["source"])
        if aside is not None and len(aside) < SET_ASIDE and shared.clean(example) and held_out(example):
            aside.append(example)
    for source in MADE:
        for example in generate(source, GENERATORS[source], 0, 100 * SET_ASIDE):
            if len(by_source[source]) < SET_ASIDE and held_out(example):
                by_source[source].append(example)
    return [example for examples in by_source.values() for example in examples]


def vocabulary_texts(data: Path) -> list[str]:
    """Return the texts on which the tokenizer is trained: those of the long stage's first pass."""
    return [part for example in trained(data, "long", 0) for part in contents(example)]
