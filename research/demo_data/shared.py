"""Reads the shared training data, and finds the examples that are clean enough to be learned."""

import json
import lzma
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LONGEST = 1500  # characters of an assistant's reply: longer ones lose their subject


def examples(data: Path) -> Iterator[dict[str, Any]]:
    """Yield every example of both files in order: texts as {"source", "text"}, chats as {"source", "messages"}."""
    for name in ("chat", "text"):
        with lzma.open(data / f"{name}.jsonl.xz", "rt", encoding="utf-8") as lines:
            for line in lines:
                yield json.loads(line)


def repeats(text: str) -> bool:
    """Return whether a text repeats a sentence or line of four or more words, or repeats three words many times."""
    parts = [" ".join(re.findall(r"\w+", part.lower())) for part in re.split(r"(?<=[.!?])\s+|\n", text)]
    long = [part for part in parts if part.count(" ") >= 3]
    if len(long) != len(set(long)):
        return True
    words = re.findall(r"\w+", text.lower())
    threes = Counter(zip(words, words[1:], words[2:], strict=False))
    return bool(threes) and max(threes.values()) > 3 + len(words) // 150


def clean(example: dict[str, Any]) -> bool:
    """Return whether an example may be trained on: it does not repeat itself, and replies are short and without links."""
    if "text" in example:
        return not repeats(example["text"])
    replies = [m["content"] for m in example["messages"] if m["role"] == "assistant"]
    if any(len(text) > LONGEST or repeats(text) for text in replies):
        return False
    if len(replies) > 2 and len(set(replies)) < len(replies) - 1:
        return False  # the same answer again and again
    return not any(re.search(r"https?://|www\.|\w@\w|[^\x00-\x7f–—’éèüöäñçá°²×÷£€ß]", text) for text in replies)
