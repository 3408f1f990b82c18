"""Figures as a person reads them."""

import re
from dataclasses import replace
from typing import get_args

from each import each
from golden import wording

from localspec.chat.figures import SAMENESS, Figures, gain, in_words, shares, summary, tokens_a_step
from localspec.config import Rule
from localspec.decoding.exactness import Exactness
from localspec.events import Memory

KNOWN = Figures(
    tokens=4, seconds=2.5, tokens_per_second=61.34, speedup=2.41, saved_seconds=1.0, acceptance_length=3.12, used=1204,
    context=4096, sources={"target": 2, "phrases": 1, "prompt": 1}, exactness="bitwise", precision="int8",
    memory=Memory(0, 0, 0, 2**29),
)  # fmt: skip


def test_the_most_important_first():
    assert list(in_words(KNOWN)) == [
        "61 tok/s", "2.4× faster", "3.1 tokens/step", "context 29 %"
    ]  # fmt: skip
    off = replace(KNOWN, speedup=0.8, off_reason="drafts took 3.1× the time that they saved", reasoning_tokens=7)
    assert list(in_words(off))[1] == "20 % slower"
    assert list(in_words(off))[-2:] == [
        "thought for under 0.1 s, 7 tokens", wording("drafting_paused_cost_3_1_time"),
    ]  # fmt: skip
    assert list(in_words(replace(off, drafts=False)))[-1].startswith("no drafts: "), "nothing is paused"


def test_what_is_unknown_is_left_out():
    assert list(in_words(Figures(context=4096, precision="fp32", memory=Memory(0, 0, 0, 2**29)))) == []
    assert list(in_words(Figures(tokens_per_second=8.21, used=1, context=0))) == ["8.2 tok/s"]
    assert (gain(None), gain(1.004), tokens_a_step(None), tokens_a_step(1.0)) == ("", "", "", "")


@each("bitwise", [True, False])
@each("rule", get_args(Rule))
def test_every_exactness_has_words(bitwise, rule):
    """Only bitwise equality gets the tick."""
    words = SAMENESS[Exactness(bitwise, 2).label(rule)]
    assert ("✓" in words) is (bitwise and rule == "exact")
    assert not re.search("bitwise|numerical|lossless|target", words)


@each("speedup, words", [(2.449, "2.4× faster"), (1.04, "4 % faster"), (0.99, "1 % slower"), (0.804, "20 % slower")])
def test_what_drafts_bring(speedup, words):
    assert gain(speedup) == words


def test_shares_come_by_plain_names():
    assert shares({"target": 1, "prompt": 3, "medusa": 0}) == [("this chat", 0.75), ("the model", 0.25)]


KEPT = {"first_token_s": 0.4, "decode_s": 3.74, "completion_tokens": 248, "speedup": 2.41}


@each(
    "kept, words",
    [
        (KEPT, "4.1 s · 248 tokens · 2.4× faster"),
        (KEPT | {"speedup": 0.8, "completion_tokens": 16}, "4.1 s · 16 tokens · 20 % slower"),
        (KEPT | {"first_token_s": 0.0, "decode_s": 0.04, "completion_tokens": 1}, "under 0.1 s · 1 token"),
        (KEPT | {"completion_tokens": 15}, "4.1 s · 15 tokens"),
        (KEPT | {"speedup": None, "decode_s": 125.2}, "2 min 6 s · 248 tokens"),
        (KEPT | {"completion_tokens": 12_345, "decode_s": 40}, "40 s · 12,345 tokens · 2.4× faster"),
        ({}, ""),
        ({"first_token_s": "1", "decode_s": True, "completion_tokens": -1, "speedup": float("nan")}, ""),
        (KEPT | {"decode_s": float("inf"), "completion_tokens": [1], "speedup": 1e300}, ""),
    ],
)
def test_what_a_reply_took_is_one_short_line(kept, words):
    assert summary(kept) == words


def test_a_truth_is_no_figure():
    assert summary({"completion_tokens": 8, "speedup": True}) == "8 tokens"
