"""The program's own words: its documents as texts, its help as chats in many phrasings."""

import re
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from demo_data import smalltalk
from demo_data.drawing import Drawing, example
from demo_data.help_corpus import HelpEntry, load_help

PIECE = 1200  # characters of a document in one example
REPHRASED: tuple[tuple[str, tuple[str, ...]], ...] = (  # {} is what the brackets hold
    (r"How (?:do|can) I (.+)\?", ("How can I {}?", "How do I {}?", "How to {}?", "Tell me how to {}.", "I want to {}.", "I want to {}. How?", "Is there a way to {}?", "What must I do to {}?", "Can you tell me how to {}?", "I would like to {}.", "What do I type to {}?")),
    (r"(?:What is|What's|What are) (.+)\?", ("Explain {}.", "Tell me about {}.", "What's {}?", "What is meant by {}?", "{}?", "Can you explain {}?", "I want to know about {}.")),
    (r"What does (.+) do\?", ("Explain {}.", "What is {} for?", "Tell me what {} does.", "What is the use of {}?", "{}?", "When do I use {}?")),
    (r"What does (.+) mean\?", ("What is {}?", "Explain {}.", "What is the meaning of {}?", "What is meant by {}?")),
    (r"Where (?:is|are) (.+)\?", ("Where do I find {}?", "I am looking for {}.", "Where can I find {}?", "In which place is {}?")),
    (r"Which (.+)\?", ("What {}?", "Tell me which {}.", "Can you tell me which {}?")),
    (r"Can I (.+)\?", ("Is it possible to {}?", "Could I {}?", "Am I able to {}?", "Is there a way to {}?", "May I {}?")),
    (r"Why (.+)\?", ("What is the reason that {}?", "Can you tell me why {}?")),
)  # fmt: skip
SAME = (  # words that users take for each other
    ("download", "fetch", "get"), ("delete", "remove"), ("computer", "machine", "PC"), ("answer", "reply", "response"),
    ("folder", "directory"), ("quicker", "faster"), ("installed", "here"), ("choose", "pick", "select"),
    ("switch off", "turn off", "disable"), ("switch on", "turn on", "enable"), ("see", "show", "look at"),
)  # fmt: skip


def documents(root: Path) -> list[Path]:
    """README and docs, the source of every word that the help needs."""
    return [root / "README.md", *sorted((root / "docs").glob("*.md"))]


def texts(files: list[Path]) -> Iterator[dict[str, Any]]:
    """Pieces of whole paragraphs, tables left out: they are rows of figures."""
    for file in files:
        paragraphs = [p for p in file.read_text("utf-8").split("\n\n") if not re.search(r"^\s*\|", p, re.MULTILINE)]
        piece = ""
        for paragraph in [*paragraphs, None]:
            if piece and (paragraph is None or len(piece) + len(paragraph) > PIECE):
                yield {"source": "docs", "text": piece}
                piece = ""
            piece = f"{piece}\n\n{paragraph}".strip()


def rephrased(random: Random, question: str) -> str:
    """The same question as others might put it: other words, less care, more courtesy."""
    for pattern, others in REPHRASED:
        found = re.fullmatch(pattern, question)
        if found and random.random() < 0.5:
            question = random.choice(others).format(found[1])
            question = question[0].upper() + question[1:] if question[0].islower() and question[-1] != "?" else question
            break
    for words in SAME:
        there = next((w for w in words if re.search(rf"\b{w}\b", question)), None)
        if there and random.random() < 0.3:
            question = re.sub(rf"\b{there}\b", random.choice(words), question, count=1)
    how = random.random()
    if how < 0.15:
        question = question.rstrip("?.").strip()
    elif how < 0.3 and not question.startswith("I "):
        question = question[0].lower() + question[1:]
    elif how < 0.37:
        question = f"{random.choice(('Hello.', 'Hi!', 'Please:', 'A question:', 'In localspec:'))} {question}"
    return question


def helped(random: Random, entries: list[HelpEntry]) -> Iterator[Drawing]:
    """Every phrasing of every entry once, most of them varied, some after small talk or another question."""
    pairs = [(question, entry.answer) for entry in entries if not entry.planned for question in entry.questions]
    for question, answer in pairs:
        turns = [rephrased(random, question) if random.random() < 0.6 else question, answer]
        keys = [f"help {question}"]
        how = random.random()
        if how < 0.08:
            turns = [*smalltalk.talk(random).turns[:2], *turns]
        elif how < 0.2:
            before, told = random.choice(pairs)
            turns, keys = [before, told, *turns], [f"help {before}", *keys]
        yield Drawing(tuple(keys), tuple(turns))


def help_chats(random: Random) -> Iterator[dict[str, Any]]:
    """The help in the form of the shared data."""
    for drawing in helped(random, load_help()):
        yield example("help", drawing)


def plain(question: str) -> str:
    """A question without what does not count."""
    return " ".join(re.findall(r"\w+", question.lower()))


def answered() -> set[str]:
    """What the help answers: nothing else may answer it in other words."""
    return {plain(question) for entry in load_help() if not entry.planned for question in entry.questions}
