"""Replies of `--plain` at a terminal are broken between words."""

import pytest
from each import each

from localspec.cli.console import HELD_BACK, WordWrap

CODE = "so:\n```py\nthis is code that is long\n```\nand this is text again\n"


def shown(text: str, columns: int | None, size: int) -> str:
    """Return the wrapped text of pieces of this size."""
    wrap = WordWrap(columns)
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    return "".join(wrap.add(piece) for piece in pieces) + wrap.flush()


@each("size", [1, 3, 100])
@each(
    "text, lines",
    [
        ("a dog called Rusty had a tail", ["a dog ", "called ", "Rusty had ", "a tail"]),
        ("0123456789 next", ["0123456789", "next"]),
        ("ab\n  indented line", ["ab", "  indented", "line"]),
        ("日本語日本語", ["日本語日本", "語"]),
        (CODE, ["so:", "```py", "this is code that is long", "```", "and this ", "is text ", "again", ""]),
        ("", [""]),
    ],
)
def test_lines_are_broken_between_words(text, lines, size):
    assert shown(text, 10, size).split("\n") == lines


@pytest.mark.parametrize("size", [1, 7])
def test_elsewhere_nothing_is_broken(size):
    assert shown(CODE * 3, None, size) == CODE * 3


def test_a_word_is_held_back_until_it_ends_and_not_forever():
    wrap = WordWrap(80)
    assert [wrap.add(piece) for piece in ("Hel", "lo ", "the", "re")] == ["", "Hello ", "", ""]
    assert wrap.flush() == "there"
    assert len(WordWrap(80).add("ก" * 100)) > 100 - 2 * HELD_BACK
