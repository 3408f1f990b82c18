"""The program's own words: its documents as texts, its help as chats in many phrasings."""

import re
from collections import Counter
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
SAME: dict[str, tuple[str, ...]] = {  # words that users say in place of others
    "download": ("fetch", "get", "grab"), "fetch": ("download", "get"), "delete": ("remove", "erase", "wipe", "get rid of", "throw away"),
    "remove": ("delete", "erase", "get rid of"), "computer": ("machine", "PC", "laptop"), "machine": ("computer", "PC", "laptop"),
    "answer": ("reply", "response"), "reply": ("answer", "response"), "answers": ("replies", "responses"), "replies": ("answers", "responses"),
    "folder": ("directory",), "directory": ("folder",), "quicker": ("faster",), "faster": ("quicker", "speedier"), "slow": ("sluggish",),
    "choose": ("pick", "select"), "pick": ("choose", "select"), "switch off": ("turn off", "disable", "deactivate"),
    "turn off": ("switch off", "disable"), "switch on": ("turn on", "enable", "activate"), "turn on": ("switch on", "enable"),
    "see": ("look at", "view", "find out"), "show": ("display", "print"), "find": ("locate", "look for", "search for"), "shortcut": ("key", "hotkey", "key combination"),
    "Which key": ("What key", "Which shortcut", "Which button", "What hotkey", "Which key combination"), "which key": ("what key", "which button", "what shortcut"),
    "conversation": ("chat", "discussion", "talk"), "conversations": ("chats", "talks", "discussions"), "stop": ("abort", "interrupt", "halt", "cancel"),
    "cancel": ("abort", "stop", "interrupt"), "leave": ("quit", "exit", "close", "get out of"), "quit": ("leave", "exit", "close"), "exit": ("leave", "quit"),
    "start": ("begin", "launch"), "begin": ("start",), "memory": ("RAM",), "RAM": ("memory",), "graphics card": ("GPU", "video card"), "GPU": ("graphics card",),
    "a model": ("an LLM", "an AI model", "a language model"), "the model": ("the AI", "the LLM", "the bot"), "models": ("LLMs", "AI models", "language models"),
    "save": ("store", "keep"), "store": ("save", "keep"), "change": ("modify", "alter", "adjust", "edit"), "earlier": ("previous", "older", "past", "former"),
    "previous": ("earlier", "older", "past"), "old": ("earlier", "past"), "last": ("latest", "most recent"), "latest": ("last", "newest"), "new": ("fresh", "another"),
    "setting": ("option", "preference"), "settings": ("options", "preferences", "configuration"), "terminal": ("console", "shell", "command line"),
    "error": ("failure", "problem"), "internet": ("network", "web", "wifi"), "offline": ("without internet",), "explain": ("describe", "tell me about"),
    "big": ("large",), "large": ("big", "huge"), "small": ("little", "tiny"), "longer": ("lengthier",), "shorter": ("briefer",), "limit": ("cap", "restrict"),
    "make": ("create",), "create": ("make", "produce"), "again": ("once more",), "continue": ("go on with", "resume", "pick up"), "resume": ("continue", "go on with"),
    "go on with": ("continue", "resume"), "compare": ("contrast",), "installed": ("here", "downloaded"), "install": ("set up",), "update": ("upgrade",),
    "speed": ("pace",), "check": ("verify", "test"), "picture": ("image",), "list": ("overview",), "file": ("document",), "text": ("words",),
    "need": ("require",), "allowed": ("permitted",), "wrong": ("broken",), "quit the": ("close the",), "typed": ("written",), "type": ("write", "enter"),
}  # fmt: skip
LITTLE = {"the", "a", "an", "do", "does", "i", "is", "are", "to", "of", "it", "can", "my", "me", "there", "how", "what", "please", "in", "for"}  # fmt: skip
BEFORE = (
    "Hello.",
    "Hi!",
    "Hi,",
    "Hey,",
    "Please:",
    "A question:",
    "Quick question:",
    "In localspec:",
    "Sorry,",
    "ok,",
    "One more thing:",
    "Help!",
)
BEHIND = (
    "please",
    "in localspec",
    "with localspec",
    "here",
    "thanks",
    "in this program",
    "if at all",
    "then",
    "again",
    "on Linux",
)


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
    question = _other_words(random, question)
    how = random.random()
    if how < 0.1:
        question = _in_haste(random, question)
    elif how < 0.25:
        question = question.rstrip("?.").strip()
    elif how < 0.4 and not question.startswith("I "):
        question = question[0].lower() + question[1:]
    elif how < 0.48:
        question = f"{random.choice(BEFORE)} {question}"
    elif how < 0.54:
        words, mark = question.rstrip("?.!"), question[len(question.rstrip("?.!")) :]
        question = f"{words} {random.choice(BEHIND)}{mark}"
    return _mistyped(random, question) if random.random() < 0.06 else question


def _other_words(random: Random, question: str) -> str:
    """Up to three of its words become others that users take for them; what stands between backticks stays."""
    # `in` first: of some 85 expressions a question, it leaves the few that can be found
    there = [words for words in SAME if words in question and re.search(rf"(?<![-\w`/]){words}(?![-\w`])", question)]
    for words in random.sample(there, min(3, len(there))):
        if random.random() < 0.4:
            question = re.sub(rf"(?<![-\w`/]){words}(?![-\w`])", random.choice(SAME[words]), question, count=1)
    return question


def _in_haste(random: Random, question: str) -> str:
    """As a search term: most of the little words are left out, if something remains."""
    kept = [w for w in question.rstrip("?.!").split() if w.lower() not in LITTLE or random.random() < 0.3]
    return " ".join(kept).lower() if len(kept) > 1 and "`" not in question else question


def _mistyped(random: Random, question: str) -> str:
    """Two letters of a longer word change places, or one is missing."""
    words = question.split(" ")
    long = [i for i, word in enumerate(words) if re.fullmatch("[a-z]{5,}", word)]
    if long:
        i, at = random.choice(long), random.randint(1, 3)
        word = words[i]
        swapped = word[:at] + word[at + 1] + word[at] + word[at + 2 :]
        words[i] = random.choice((swapped, word[:at] + word[at + 1 :]))
    return " ".join(words)


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


def begun(random: Random) -> Iterator[dict[str, Any]]:
    """The help, its last answers cut one word behind where no other answer begins in the same way, and not ended.

    Of 43 tokens an answer has, 5 say which one it is; the rest takes most of the time of a training and teaches nothing.
    """
    entries = [entry for entry in load_help() if not entry.planned]
    shared = Counter(tuple(words[:n]) for words in (e.answer.split() for e in entries) for n in range(len(words)))
    for drawing in helped(random, entries):
        words = drawing.turns[-1].split(" ")
        decided = next((n for n in range(1, len(words)) if shared[tuple(" ".join(words[:n]).split())] < 2), len(words))
        start = " ".join(words[: decided + 1])
        open_end = len(start) < len(drawing.turns[-1])
        yield example("help-begun", Drawing(drawing.keys, (*drawing.turns[:-1], start))) | {"open": open_end}


def plain(question: str) -> str:
    """A question without what does not count."""
    return " ".join(re.findall(r"\w+", question.lower()))


def answered() -> set[str]:
    """What the help answers: nothing else may answer it in other words."""
    return {plain(question) for entry in load_help() if not entry.planned for question in entry.questions}
