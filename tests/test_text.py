import random
import unicodedata

import pytest
from each import each

from localspec.text import one_line, safe


def test_newline_and_tab_stay_and_carriage_return_goes():
    assert safe("one\r\ntwo\tthree\n") == "one\ntwo\tthree\n"


@each("code", [*range(0x20), *range(0x7F, 0xA0)])
def test_every_control_character_becomes_visible_or_goes(code):
    shown = safe(chr(code))
    if chr(code) in "\n\t":
        assert shown == chr(code)
    elif chr(code) == "\r":
        assert shown == ""
    elif code < 0x20:
        assert shown == chr(0x2400 + code)
    else:
        assert shown == ("\u2421" if code == 0x7F else "\ufffd")


@each("code", [0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)])
def test_every_bidirectional_control_goes(code):
    assert safe(f"a{chr(code)}b") == "ab"


@pytest.mark.slow
def test_nothing_of_any_plane_is_left_that_could_steer_a_terminal():
    kept = [chr(c) for c in range(0x110000) if safe(chr(c)) == chr(c)]
    assert {c for c in kept if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp")} == {"\n", "\t"}
    assert not [
        c
        for c in kept
        if unicodedata.bidirectional(c) in ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
    ]


def test_ordinary_text_stays():
    text = "Grüße, 世界 — 👩\u200d🚀 שלום 1\u00a0000"
    assert safe(text) == text


@pytest.mark.slow
def test_surrogates_and_separators():
    assert safe("a\ud800b\udfffc\u2028d\u2029e") == "a\ufffdb\ufffdc\nd\ne"
    safe("".join(chr(c) for c in range(0x110000))).encode()


def test_any_split_gives_the_same():
    pieces = ["\r", "\n", "\x1b[31m", "\x1b", "[0m", "a", "é", "\u202e", "\ud83d", "\ude00", "\x9b", "\t", "\u2028"]
    chosen = random.Random(7)
    for _ in range(300):
        text = "".join(chosen.choices(pieces, k=8))
        for cut in range(len(text) + 1):
            assert safe(text[:cut]) + safe(text[cut:]) == safe(text)


def test_one_line():
    assert one_line("  a\n\n\tb\r\nc\x1b[2J ") == "a b c␛[2J"
    assert one_line("a  b") == "a  b"
