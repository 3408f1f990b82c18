"""Symbols next to text, on terminals that have only ASCII."""

import io
import locale
from types import SimpleNamespace

from each import each
from rich.cells import cell_len

from localspec import marks


def stream(encoding):
    return io.TextIOWrapper(io.BytesIO(), encoding=encoding)


@each("encoding, shown", [("utf-8", "██▌ × 2"), ("ascii", "### x 2"), ("latin-1", "### x 2")])
def test_a_terminal_without_blocks_gets_ascii(monkeypatch, encoding, shown):
    monkeypatch.setattr(marks, "sys", SimpleNamespace(flags=SimpleNamespace(utf8_mode=0)))
    assert marks.drawable("██▌ × 2", stream(encoding)) == shown


def test_every_mark_is_ascii_and_as_wide_as_what_it_stands_for():
    for mark in [*"".join(marks._MARKS), *marks._WIDE]:
        drawn = marks.in_ascii(mark)
        assert drawn.isascii() and drawn.isprintable() and cell_len(mark) == len(drawn), mark
    assert marks.in_ascii(marks.EIGHTHS + marks.PARTS).isascii()


def test_letters_stay():
    assert marks.in_ascii("größer · 梨 …") == "größer . 梨 ."


@each(
    "utf8_mode, of_the_locale, of_the_stream, only",
    [
        (1, "ANSI_X3.4-1968", "utf-8", True),  # LC_ALL=C, where Python writes UTF-8 by itself
        (1, "UTF-8", "utf-8", False),
        (0, "UTF-8", "utf-8", False),
        (0, "UTF-8", "ascii", True),
        (0, "cp1252", "utf-8", False),  # a console of Windows
        (0, "cp1252", "cp1252", True),
    ],
)
def test_what_the_locale_says_counts(monkeypatch, utf8_mode, of_the_locale, of_the_stream, only):
    monkeypatch.setattr(marks, "sys", SimpleNamespace(flags=SimpleNamespace(utf8_mode=utf8_mode)))
    monkeypatch.setattr(locale, "getencoding", lambda: of_the_locale)
    assert marks.ascii_only(stream(of_the_stream)) is only
