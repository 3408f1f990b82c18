"""The figures of a running reply, from events and from the engine between them."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from each import each
from golden import wording
from scripted_conversation import statistics

from localspec.chat import figures
from localspec.chat.figures import ENOUGH, TOKENS, Figures, LiveStats, gain, saved_figures
from localspec.decoding.exactness import Exactness
from localspec.decoding.sampling import Sampling
from localspec.events import Memory, Prefill, Statistics, Text


@pytest.fixture(autouse=True)
def _free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "free_memory", lambda device: 7)


def engine(so_far: Statistics | None = None, **choice: Any) -> Any:
    return SimpleNamespace(
        choice=SimpleNamespace(
            **{"dtype": "fp32", "quantize": "none", "device": "cpu", "nodes": 4, "bits": 0.0, **choice}
        ),
        exactness=Exactness(choice.get("quantize") == "int8", 2),
        context=4096,
        session=SimpleNamespace(so_far=so_far, memory=Memory(1, 2, 3, 4)),
    )


def after(*events: Any, so_far: Statistics | None = None) -> Figures:
    live = LiveStats(engine(so_far))
    for event in events:
        live.take(event)
    return live.figures()


FIRST = Text("a", (1,), ("target",), 2.0, 0)
SECOND = Text("bcd", (2, 3, 4), ("phrases", "phrases", "target"), 2.5, 2)


def test_before_anything_was_said_there_is_the_model():
    found = after(so_far=statistics())  # of the previous reply
    assert (found.tokens, found.tokens_per_second, found.acceptance_length, found.used) == (0, None, None, 0)
    assert (found.context, found.precision, found.exactness) == (4096, "fp32", ""), (
        "no text yet, so none that could be the same"
    )
    assert (found.memory, found.free) == (Memory(1, 2, 3, 4), 7)
    assert LiveStats(engine(quantize="int8")).figures().precision == "int8"


def test_while_the_prompt_is_read():
    assert after(Prefill(5, 12)).reading == (5, 12)
    assert after(Prefill(5, 12), Prefill(12, 12)).reading is None


def test_tokens_are_counted_as_they_come():
    found = after(Prefill(1200, 1200), FIRST, SECOND, so_far=statistics())
    assert (found.tokens, found.used, found.seconds) == (4, 1204, 2.5)
    assert found.sources == {"target": 2, "phrases": 2}
    assert (found.tokens_per_second, found.acceptance_length) == (4.0, 1.0)  # as the engine counts them


def test_tokens_before_the_answer_are_counted_by_themselves():
    thought = Text("b", (2, 3, 4), ("target",) * 3, 2.5, 2, (), "hm", 2)
    found = after(FIRST, thought, so_far=replace(statistics(), reasoning_seconds=1.5))
    assert (found.tokens, found.reasoning_tokens, found.reasoning_seconds) == (4, 2, 1.5)
    assert after(FIRST, thought, Prefill(5, 5)).reasoning_tokens == 0


def test_a_reply_begins_afresh():
    found = after(Prefill(5, 5), SECOND, Prefill(0, 9), Prefill(9, 9), so_far=statistics())
    assert (found.tokens, found.used, found.sources, found.tokens_per_second) == (0, 9, {}, None)


def test_a_speedup_is_what_plain_decoding_would_have_taken():
    known = replace(statistics(TOKENS), steps=ENOUGH, decode_seconds=0.45, acceptance_length=2.5, plain_seconds=0.9)
    found = after(Prefill(5, 5), SECOND, so_far=known)
    assert found.speedup == pytest.approx(2.0) and found.saved_seconds == pytest.approx(0.45)
    slower = after(Prefill(5, 5), SECOND, so_far=replace(known, plain_seconds=0.36))
    assert slower.speedup == pytest.approx(0.8) and slower.saved_seconds == pytest.approx(-0.09)


def test_a_speedup_is_the_same_while_it_is_shown_and_where_it_is_saved():
    known = replace(statistics(TOKENS), steps=ENOUGH, decode_seconds=1.0, plain_seconds=0.91454)
    found, saved = after(Prefill(5, 5), SECOND, so_far=known), saved_figures(known, Sampling())
    assert gain(found.speedup) == gain(saved["speedup"]) == "8 % slower"


@each("unknown", [{"plain_seconds": None}, {"steps": ENOUGH - 1}, {"token_ids": (0,) * (TOKENS - 1)}])
def test_an_unknown_speedup_is_not_shown(unknown):
    known = replace(statistics(TOKENS), steps=ENOUGH, plain_seconds=0.9)
    found = after(Prefill(5, 5), SECOND, so_far=replace(known, **unknown))
    assert (found.speedup, found.saved_seconds) == (None, None)


def test_why_speculation_is_off_is_reported():
    assert after(Prefill(5, 5), SECOND, so_far=replace(statistics(), off_reason=wording("it_does_not_pay"))).off_reason


def test_free_memory_is_inspected_once_in_a_while(monkeypatch):
    now, looks = [50.0], []
    monkeypatch.setattr(figures.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(figures, "free_memory", looks.append)
    live = LiveStats(engine())
    for passed in (0.0, 0.5, 0.6, 0.7):
        now[0] += passed
        live.figures()
    assert looks == ["cpu", "cpu"]


def test_a_rule_that_does_not_keep_the_text_says_so():
    for rule, label in (("exact", "bitwise"), ("typical", "not lossless"), ("rejection", "same distribution")):
        live = LiveStats(engine(quantize="int8"), rule)
        live.take(Prefill(5, 5))
        live.take(FIRST)
        assert live.figures().exactness == label


def test_pieces_are_counted_if_a_server_reports_no_tokens():
    live = LiveStats(engine())
    live.take(Prefill(0, 0))
    for second in (2.0, 2.5, 3.0):
        live.take(Text("a", (), (), second, 0, (), "", 0))
    assert live.figures().pieces_per_second == pytest.approx(2.0)
    live.take(Text("a", (7,), ("target",), 3.5, 0, (), "", 0))
    assert live.figures().pieces_per_second is None
