"""Figures as a person reads them."""

import re
from typing import get_args

import pytest
from golden import wording

from localspec.chat.figures import Figures, HeldMemory
from localspec.chat.wording import in_words, shares, summary, times
from localspec.config import Rule
from localspec.decoding.exactness import Exactness

KNOWN = Figures(
    tokens=4, seconds=2.5, tokens_per_second=61.34, speedup=2.41, saved_seconds=1.0, acceptance_length=3.12, used=1204,
    context=4096, sources={"target": 2, "phrases": 1, "prompt": 1}, exactness="bitwise", precision="int8",
    memory=HeldMemory(peak=2**29),
)  # fmt: skip


def test_the_most_important_first():
    assert list(in_words(KNOWN)) == [
        "61.3 tokens/s", wording("n2_4_fast_without_drafts"), "3.1 a step", "1,204 of 4,096 tokens", "same text ✓",
        "the model 50%, past replies 25%, this chat 25%", "0.50 GiB", "int8",
    ]  # fmt: skip


def test_before_anything_was_said_only_the_model_is_told_of():
    words = list(in_words(Figures(context=4096, precision="fp32", memory=HeldMemory(peak=2**29))))
    assert words == ["0.50 GiB", "fp32"]


@pytest.mark.parametrize("bitwise", [True, False])
@pytest.mark.parametrize("rule", get_args(Rule))
def test_every_exactness_has_words(bitwise, rule):
    """The tick is for the same bits alone."""
    words = list(in_words(Figures(exactness=Exactness(bitwise, 2).label(rule))))
    assert ("same text ✓" in words) is (bitwise and rule == "exact")
    assert not re.search("bitwise|numerical|lossless|target", " ".join(words))


@pytest.mark.parametrize(
    ("speedup", "words"), [(2.449, "×2.4"), (11.0, "×11.0"), (1.0, "×1.0"), (0.999, "×0.99"), (0.804, "×0.80")]
)
def test_what_is_slower_is_never_rounded_to_as_fast(speedup, words):
    assert times(speedup) == words


def test_shares_come_by_plain_names():
    assert shares({"target": 1, "prompt": 3, "medusa": 0}) == [("this chat", 0.75), ("the model", 0.25)]


KEPT = {"first_token_s": 0.4, "decode_s": 3.74, "completion_tokens": 248, "speedup": 2.41}


@pytest.mark.parametrize(
    ("kept", "words"),
    [
        (KEPT, "4.1 s · 248 tokens · ×2.4"),
        (KEPT | {"speedup": 0.8, "completion_tokens": 16}, wording("n4_1_s_16_tokens_0_80_fast_without")),
        (KEPT | {"first_token_s": 0.0, "decode_s": 0.04, "completion_tokens": 1}, "under 0.1 s · 1 token"),
        (KEPT | {"completion_tokens": 15}, "4.1 s · 15 tokens"),
        (KEPT | {"speedup": None, "decode_s": 125.2}, "2 min 6 s · 248 tokens"),
        (KEPT | {"completion_tokens": 12_345, "decode_s": 40}, "40 s · 12,345 tokens · ×2.4"),
        ({}, ""),
        ({"first_token_s": "1", "decode_s": True, "completion_tokens": -1, "speedup": float("nan")}, ""),
        (KEPT | {"decode_s": float("inf"), "completion_tokens": [1], "speedup": 1e300}, ""),
    ],
)
def test_what_a_reply_took_is_one_short_line(kept, words):
    assert summary(kept) == words


def test_a_truth_is_no_figure():
    assert summary({"completion_tokens": 8, "speedup": True}) == "8 tokens"
