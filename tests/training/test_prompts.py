"""The shipped prompts: many, of all kinds, always the same ones, and none that is held out."""

from collections import Counter

from localspec.bench.prompts import BUILT_IN
from localspec.training.examples import SLOT, held_out_prompts, shipped_questions


def texts() -> list[str]:
    return [text for one in shipped_questions() for text in (one.messages[0]["content"], *one.following)]


def test_there_are_many_and_of_all_kinds_in_turn():
    asked = shipped_questions()
    assert len(asked) > 600 and len({one.id for one in asked}) == len({one.messages[0]["content"] for one in asked})
    kinds = Counter(one.id.rpartition("-")[0] for one in asked)
    assert len(kinds) >= 12 and min(kinds.values()) >= 20
    assert {one.id.rpartition("-")[0] for one in asked[: len(kinds)]} == set(kinds), "whoever stops early has them all"
    assert sum(len(one.following) > 0 for one in asked) >= 20
    assert shipped_questions() == asked


def test_every_template_is_filled():
    assert not [text for text in texts() if SLOT.search(text) or "«" in text or not text.strip()]


def test_what_is_held_out_is_asked_nowhere_else():
    held_out = [prompt.text for prompt in held_out_prompts()]
    assert len(held_out) >= 24 and len({*held_out}) == len(held_out)
    asked = " ".join(texts()).lower()
    assert not [text for text in (*held_out, *(prompt.text for prompt in BUILT_IN)) if text.lower() in asked]
