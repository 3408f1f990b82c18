"""Fifty kinds of replies that are expensive to draw, from a seeded generator."""

import random
from collections.abc import Callable
from itertools import count

SIZE = 64 * 1024  # bytes

WORDS = "the quick brown fox jumps over a lazy dog while `code` and **bold** or *thin* [links](http://e.org/x) stay"
FLAGS = "\U0001f1e9\U0001f1ea\U0001f1eb\U0001f1f7"
FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466"


def _words(chance: random.Random, least: int = 2, most: int = 12) -> str:
    return " ".join(chance.choices(WORDS.split(), k=chance.randint(least, most)))


def _table(chance: random.Random, columns: int, cell: Callable[[], str]) -> str:
    def row(cells: list[str]) -> str:
        return f"| {' | '.join(cells)} |\n"

    rows, size = [row([cell() for _ in range(columns)]), "|" + "---|" * columns + "\n"], 0
    while size < SIZE:
        rows.append(row([cell() for _ in range(columns)]))
        size += len(rows[-1].encode())
    return "".join(rows)


def _depths(chance: random.Random, mark: str) -> str:
    lines, size, depth = [], 0, 0
    while size < SIZE:
        lines.append("  " * depth + f"{mark} {_words(chance)}\n")
        size += len(lines[-1])
        depth = max(0, min(40, depth + chance.choice((-3, -1, 0, 1, 1))))
    return "".join(lines)


def _mixed(chance: random.Random) -> str:
    kinds = [
        lambda: f"{'#' * chance.randint(1, 6)} {_words(chance)}\n\n",
        lambda: f"{_words(chance, 20, 60)}\n\n",
        lambda: "".join(f"{n}. {_words(chance)}\n   - {_words(chance)}\n" for n in range(1, 9)) + "\n",
        lambda: f"```python\ndef f(x):\n    return {_words(chance)!r}\n```\n\n",
        lambda: f"> {_words(chance)}\n> > {_words(chance)}\n\n",
        lambda: "| a | b |\n|---|---|\n" + "".join(f"| {_words(chance)} | {n} |\n" for n in range(6)) + "\n",
        lambda: "---\n\n",
        lambda: f"\\[ {_words(chance)} \\]\n\n",
    ]
    return _fill(lambda _: chance.choice(kinds)())


def _fill(piece: Callable[[int], str]) -> str:
    parts, size, number = [], 0, count()
    while size < SIZE:
        parts.append(piece(next(number)))
        size += len(parts[-1].encode())
    return "".join(parts)


def _noise(chance: random.Random, alphabet: str) -> str:
    return "".join(chance.choices(alphabet, k=SIZE))


def hostile_replies(seed: int = 46) -> dict[str, str]:
    """Return a reply of each kind, by name: at most 64 KiB of text in UTF-8."""
    chance = random.Random(seed)
    few = "".join(map(chr, range(0x20)))
    kinds: dict[str, str] = {
        "bullets": _fill(lambda n: f"- item {n}\n"),
        "empty bullets": _fill(lambda _: "-\n"),
        "loose list": _fill(lambda n: f"- item {n}\n\n"),
        "numbers": _fill(lambda n: f"{n + 1}. item {n}\n"),
        "nested bullets": _depths(chance, "-"),
        "nested numbers": _depths(chance, "1.").replace("  ", "   "),
        "very deep bullets": "".join("  " * depth + "- x\n" for depth in range(250)),
        "bullets in one line": "- " * (SIZE // 2),
        "tasks": _fill(lambda n: f"- [{' x'[n % 2]}] {_words(chance)}\n"),
        "wide table": _table(chance, 200, lambda: _words(chance, 1, 2)),
        "long table": _table(chance, 2, lambda: _words(chance, 1, 3)),
        "table of 20": _table(chance, 20, lambda: "x"),
        "table of long cells": _table(chance, 3, lambda: _words(chance, 60, 90)),
        "tables": _fill(lambda _: "|a|b|\n|-|-|\n|1|2|\n\n"),
        "table marks": _fill(lambda _: "a|\n-|\n"),
        "short headings": _fill(lambda _: "# a\n"),
        "underlined headings": _fill(lambda _: "a\n=\n"),
        "paragraphs": _fill(lambda _: "a\n\n"),
        "rules": _fill(lambda _: "---\n\n"),
        "one paragraph": _fill(lambda _: f"{_words(chance)}\n"),
        "long word": "x" * SIZE,
        "long wide word": "漢" * (SIZE // 3),
        "blanks": " x" + " " * SIZE + "x",
        "tabs": _fill(lambda _: "\ta\t\n"),
        "newlines": "a" + "\n" * SIZE + "a",
        "newlines in a fence": "```\na" + "\n" * (SIZE - 11) + "b\n```\n",
        "fence without a language": "```\n" + _fill(lambda n: f"if x[{n}] == 'a' and not b: # c\n") + "```\n",
        "fence of python": "```python\n" + _fill(lambda n: f"x_{n} = f(y, 'a\\'b') + {n}  # c\n") + "```\n",
        "fence of one line": "```json\n" + "[" * (SIZE - 12) + "\n```\n",
        "unclosed fence": "```c\n" + _fill(lambda n: f"/* {n} \" '\n"),
        "fences": _fill(lambda n: f"```{('', 'python', 'c', 'html', 'no such')[n % 5]}\na = 1\n```\n"),
        "empty fences": _fill(lambda _: "```\n```\n"),
        "indented code": _fill(lambda n: f"    a[{n}]\n\n"),
        "emphasis": _fill(lambda n: f"*a* **b** ***c*** ~~d~~ `e{n}` "),
        "nested emphasis": "*a **b " * (SIZE // 14) + "c* d** " * (SIZE // 14),
        "emphasis marks": _noise(chance, "*_~ a"),
        "backticks": _fill(lambda n: "`" * (n % 300 + 1) + "a"),
        "links": _fill(lambda n: f"[a](http://e.org/{n}) "),
        "bare links": _fill(lambda n: f"http://e.org/{n} w.e.de a@b.org "),
        "reference links": _fill(lambda n: f"[a{n}]\n\n[a{n}]: /b\n\n"),
        "brackets": "[" * (SIZE // 2) + "]" * (SIZE // 2),
        "images": _fill(lambda _: "![a](b) !["),
        "open images": _fill(lambda _: "![[]("),
        "quotes": _fill(lambda n: "> " * (n % 30 + 1) + "a\n"),
        "deep quote": _fill(lambda _: ">" * 500 + " a\n"),
        "html": _fill(lambda n: f"<div><b>{n}</b>&lt;&#{n};<br>\n"),
        "entities": _fill(lambda _: "&amp;&#27;&nope;"),
        "backslashes": _noise(chance, "\\[]()$a\n"),
        "formulas": _fill(lambda n: f"\\( a_{n} \\) $$ \\[ b\n"),
        "control characters": _noise(chance, few + "\x7f\x85\x9b ab"),
        "zero width": _fill(lambda _: "a\u200b\u200c\u200d\ufeff\u2060"),
        "right to left": _fill(lambda _: "שלום \u202eעולם\u2066 مرحبا "),
        "combining marks": "a" + "\u0301" * (SIZE // 2 - 1),
        "emoji": _fill(lambda _: f"{FAMILY}{FLAGS}"),
        "all marks": _noise(chance, "*_`~[]()<>#->|\\!&:. \n\na1"),
        "mixed": _mixed(chance),
    }
    return {name: text.encode()[:SIZE].decode(errors="ignore") for name, text in kinds.items()}
