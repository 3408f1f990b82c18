"""Check the prose of the repository for words that confuse a reader, in docstrings, comments, messages and pages.

    python tools/avoided_words.py            fails if a text has an avoided word, or an exempt file has none
    python tools/avoided_words.py --shrink   removes files that pass from the list of exempt files

The list, avoided_words.txt, may only shrink.
"""

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXEMPT = ROOT / "tools" / "avoided_words.txt"
# Translated idioms, each with plain words instead.
AVOIDED = {
    "told": "given, reported, or the fact itself", "beside": "next to, with, or in addition to",
    "alike": "the same, or equally", "anew": "again", "of its own": "its own, or separate",
    "of their own": "their own, or separate", "so many": "this many, or the number", "is none": "there is no …, or is not",
    "are none": "there are no …, or are not", "alone": "only, or by itself",
}  # fmt: skip
_AVOIDED = re.compile(rf"(?<!there )\b({'|'.join(AVOIDED)})\b", re.IGNORECASE)
_CODE = re.compile(r"`[^`\n]*`|\bis None\b")
# The same words anywhere in a source; two of them may be in adjacent literals.
_ANYWHERE = re.compile("|".join(AVOIDED).replace(" ", r"(\W+\w{0,2}\W)?\s*"), re.IGNORECASE)
# Not searched: data, messages that another check covers, the test of this tool, and pictures of the program.
_DATA = (
    "research/demo_data/",
    "tests/messages.toml",
    "tests/tools/test_avoided_words.py",
    "docs/figures/pictures/",
)


def avoided(path: Path) -> list[tuple[int, str]]:
    """Return the line and the word of each avoided word in a file; names and code in backquotes are not searched."""
    return [
        (line + text.count("\n", 0, match.start()), match[0].lower())
        for line, text in _prose(path)
        for match in _AVOIDED.finditer(_CODE.sub(lambda code: " " * len(code[0]), text))
    ]


def _prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each literal and comment of a Python file, and all of any other file."""
    source = path.read_text("utf-8")
    if path.suffix != ".py":
        yield 1, source
        return
    if not _ANYWHERE.search(_CODE.sub("", source)):
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
    if not any(_AVOIDED.search(line.partition("#")[2]) for line in source.splitlines()):
        return  # to read tokens takes longest
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def wordy() -> dict[str, list[tuple[int, str]]]:
    """Return the files of the repository that contain avoided words, with the line and the word of each."""
    command = ["git", "ls-files", "*.py", "*.md", "*.toml", "*.cpp", "*.h", "*.cu"]
    files = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    findings = {name: avoided(ROOT / name) for name in files if not name.startswith(_DATA) and (ROOT / name).is_file()}
    del findings[Path(__file__).relative_to(ROOT).as_posix()]  # it lists them
    return {name: words for name, words in findings.items() if words}


def main() -> int:
    """Report avoided words, or shrink the list of exempt files. Return the exit code: 1 if there are problems."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shrink", action="store_true", help="remove files that pass from the list")
    shrink, words = parser.parse_args().shrink, wordy()
    exempt = set(EXEMPT.read_text("utf-8").split())
    if shrink:
        EXEMPT.write_text("".join(f"{name}\n" for name in sorted(exempt & words.keys())), "utf-8")
        return 0
    problems = [
        f"{name}:{line}: instead of {word!r} write {AVOIDED[word]}"
        for name in sorted(words.keys() - exempt)
        for line, word in words[name]
    ]
    problems += [
        f"{name} passes. Run `python tools/avoided_words.py --shrink`." for name in sorted(exempt - words.keys())
    ]
    print(*problems, sep="\n", file=sys.stderr)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
