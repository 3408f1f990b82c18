"""The live line: figures of the reply under way, from nothing but its events."""

from types import SimpleNamespace
from typing import Any

from scripted_conversation import statistics

from localspec.chat.live_stats import LiveStats
from localspec.decoding.exactness import Exactness
from localspec.events import Done, Prefill, Text


def engine(**choice: str) -> Any:
    return SimpleNamespace(
        choice=SimpleNamespace(**{"dtype": "fp32", "quantize": "none", **choice}),
        exactness=Exactness(choice.get("quantize") == "int8", 2),
        context=4096,
        peak_bytes=lambda: 3 * 2**29,
    )


def live(*events: Any, **choice: str) -> list[str]:
    line = LiveStats(engine(**choice))
    for event in events:
        line.take(event)
    return line.parts()


def test_before_anything_was_said():
    assert live() == ["1.50 GiB", "fp32, numerical"]  # how much was read is not known yet
    assert live(quantize="int8")[-1] == "int8, bitwise"


def test_while_text_comes():
    """The first token belongs to prefill: three more in two steps and half a second."""
    first, second = (
        Text("a", (1,), ("target",), 2.0, 0),
        Text("bcd", (2, 3, 4), ("phrases", "phrases", "target"), 2.5, 2),
    )
    assert live(Prefill(0, 1200), Prefill(1200, 1200), first)[:2] == ["1,201 of 4,096 tokens", "the model 100%"]
    assert live(Prefill(1200, 1200), first, second)[:4] == [
        "6.0 tokens/s", "1.50 tokens a step", "1,204 of 4,096 tokens", "the model 50%, seen before 50%"
    ]  # fmt: skip


def test_at_the_end_the_figures_are_the_engine_s_own():
    text = Text("a", (1, 2), ("target", "target"), 0.5, 1)
    ended = Done("stop", statistics())
    assert live(Prefill(5, 5), text, ended)[:2] == ["4.0 tokens/s", "1.00 tokens a step"]


def test_why_speculation_is_off_is_said():
    done = Done("stop", SimpleNamespace(tokens_per_second=4.0, acceptance_length=1.0, off_reason="it does not pay"))  # type: ignore[arg-type]
    assert live(Prefill(5, 5), done)[3] == "speculation off: it does not pay"


def test_a_reply_begins_afresh():
    text = Text("abc", (1, 2, 3), ("phrases",) * 3, 0.5, 1)
    assert live(Prefill(5, 5), text, Prefill(0, 9), Prefill(9, 9))[0] == "9 of 4,096 tokens"


def test_a_rule_that_does_not_keep_the_text_says_so():
    assert LiveStats(engine(quantize="int8"), "typical").parts()[-1] == "int8, not lossless"
    assert LiveStats(engine(quantize="int8"), "rejection").parts()[-1] == "int8, same distribution"
