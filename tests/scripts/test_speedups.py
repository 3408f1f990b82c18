"""The page of what drafters are worth: sums of seconds, and what is said of predictions and of `auto`."""

from typing import Any

import pytest
import speedups


def reply(seconds: float, tokens: int = 20, steps: int = 10, held: int = 100, off: str | None = None) -> dict[str, Any]:
    return {
        "ids": list(range(tokens)), "tokens": tokens, "steps": steps, "seconds": seconds, "draft": seconds / 10,
        "verify": seconds / 2, "bytes": held, "off": off,
    }  # fmt: skip


def run(**rows: list[float]) -> dict[str, Any]:
    """Seconds of each drafter's replies; two of each kind of text in turn."""
    kinds = ("chat", *speedups.KINDS)
    turns = [
        {
            "category": kinds[turn // 2 % len(kinds)],
            "load": 0.5,
            "replies": {n: reply(s[turn]) for n, s in rows.items()},
        }
        for turn in range(len(rows["none"]))
    ]
    return {
        "precision": "int8", "device": "cpu", "threads": 2, "auto": "phrases", "turns": turns,
        "predicted": {"none": 1.0, "phrases": 1.5, "s3d": 2.0},
    }  # fmt: skip


def test_long_replies_count_for_more_and_every_prompt_has_its_own_plain_reply() -> None:
    turns = run(none=[10.0, 1.0], phrases=[5.0, 2.0])["turns"]
    assert speedups.speedup(turns, "phrases") == pytest.approx(11 / 7)
    low, high = speedups.interval(turns, "phrases")
    assert low == pytest.approx(0.5) and high == pytest.approx(2.0), "either prompt alone may be drawn"


def test_memory_is_held_against_the_time_that_was_saved() -> None:
    turns = run(none=[10.0], s3d=[5.0])["turns"]
    turns[0]["replies"]["s3d"]["bytes"] = 125
    assert speedups.worth(turns, "s3d") == pytest.approx(2 / 1.25)


def test_predictions_and_the_choice_are_judged() -> None:
    found = run(none=[1.5] * 8, phrases=[1.0] * 8, s3d=[1.0] * 6 + [0.5] * 2, auto=[1.0] * 8)
    page = speedups.section(found)
    assert "Predicted within 10 % of what was measured: 1 of 2" in page, "1.50 as foreseen, and 1.71 for 2.00"
    assert "`auto` was the best or within 5 % of it in 3 of 4 kinds of text." in page
    assert "After these replies" not in page
    assert "Replies that differ from plain decoding: 0" in page
    found["auto_then"] = "s3d"
    said = "After these replies it takes `s3d`, which was the best or within 5 % of it in 4 of 4 kinds of text."
    assert said in speedups.section(found)
    found["turns"][3]["replies"]["s3d"]["ids"][5] = 99
    assert "Replies that differ from plain decoding: 1" in speedups.section(found)


def test_kinds_of_text_follow_from_the_files() -> None:
    asked = [speedups.prompts.Prompt("1", name, "?") for name in ("mbpp_test", "gsm8k_test", "xquad_en", "anything")]
    assert [speedups.category(one) for one in asked] == ["code", "sums", "from the prompt", "chat"]
