"""A line of `chat --plain`: completion with Tab, and its greatest length."""

import io
import sys

import pytest
from golden import matching

from localspec.chat.commands import Suggestion
from localspec.cli import texts
from localspec.cli.texts import Completer, read_line
from localspec.errors import UsageMistake


def test_matches_are_given_one_after_the_other():
    asked = []

    def look_up(need):
        asked.append(need)
        return [Suggestion("demo", "the demo"), Suggestion("dream", "another")]

    completer = Completer(look_up)
    assert [completer("/model d", number) for number in range(3)] == ["/model demo", "/model dream", None]
    assert [completer("/ti", number) for number in range(2)] == ["/title ", None]
    assert completer("hello", 0) is None
    assert asked == ["model"]


def test_a_line_without_end(monkeypatch):
    """Otherwise a pipe of zeros would be read until memory is exhausted."""
    monkeypatch.setattr(texts, "LONGEST", 10)
    monkeypatch.setattr(sys, "stdin", io.StringIO("012345678\n" + "x" * 11))
    assert read_line("> ", lambda need: []) == "012345678"
    with pytest.raises(UsageMistake, match=matching("longer_than_64_mib")):
        read_line("> ", lambda need: [])
