import pytest
from each import each
from golden import wording
from reply_statistics import said

from localspec import Done, Engine, Prefill, Sampling, Text
from localspec.bench import race as module
from localspec.bench.race import Lane, Moment, opponents, race, racers, result, sentences
from localspec.choosing.choose import choose
from localspec.config import Settings
from localspec.models.registry import resolve
from localspec.quantities import speedup


class Clock:
    """Time that passes only while a lane works."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module.time, "perf_counter", made)
    return made


def stream(clock: Clock, first: float, step: float, steps: int, tokens: int, closed: list[str], ids=(1, 2, 3)):
    """Yield a reply whose prompt takes `first` seconds, and each step of `tokens` tokens `step` seconds more."""
    try:
        clock.now += first
        yield Prefill(5, 5)
        yield Text("a", (1,), ("target",), clock.now, 0)  # the first token belongs to the prompt
        for at in range(steps):
            clock.now += step
            yield Text("b" * tokens, (1,) * tokens, ("target",) * tokens, clock.now, at + 1)
        yield Done("length", said(ids, drafted=1))
    finally:
        closed.append("closed")


def test_a_lane_shows_what_was_thought_before_the_answer():
    lane = Lane("plain")
    for reasoning, text in (("so", ""), (" it is", ""), ("", ""), ("", "Yes"), ("", "."), ("hm", "No")):
        lane.add(Text(text, (1,), ("target",), 0.0, 0, (), reasoning))
    assert lane.until() == (wording("yes_hm"), 6)


def test_the_lane_whose_clock_is_behind_works(clock):
    closed: list[str] = []
    lanes = [Lane("plain"), Lane("fast")]
    streams = [stream(clock, 1.0, 1.0, 18, 1, closed), stream(clock, 1.0, 1.5, 6, 3, closed)]
    gaps = []
    for worked in race(lanes, streams):
        assert worked in lanes
        if all(lane.statistics is None for lane in lanes):
            gaps.append(abs(lanes[0].seconds - lanes[1].seconds))
    assert max(gaps) <= 1.5, "never more than one step apart"
    plain, fast = lanes
    assert (plain.seconds, fast.seconds) == (19.0, 10.0), (
        "each run has its own clock: the seconds without the other run"
    )
    assert (plain.tokens_per_second, fast.tokens_per_second) == (1.0, 2.0) and result(plain, fast).speedup == 2.0
    assert closed == ["closed"] * 2
    assert plain.until(3.0) == ("abb", 3) and fast.until(3.0) == ("abbb", 4) and fast.until() == ("a" + "b" * 18, 19)


@each("one, other, parted", [((1, 2), (1, 2), None), ((1, 2), (1, 3), 2), ((1, 2), (1, 2, 9), 3), ((), (1,), 1)])
def test_where_texts_part(one, other, parted):
    moments = [Moment(1.0, "a", 1), Moment(2.0, "b", module.FEWEST)]
    lanes = [Lane("", moments, 2.0, said(ids, drafted=1)) for ids in (one, other)]
    found = result(*lanes)
    assert found.parted == parted and found.same is (parted is None) and found.speedup == 1.0


@each("fast", [0.5, 0.998, 1.002, 2.0])
def test_where_drafts_do_not_pay_it_is_reported_in_plain_words(fast):
    lanes = [
        Lane(name, [Moment(0.0, "a", 1), Moment(seconds, "b", module.FEWEST)], seconds, said((1, 2), drafted=1))
        for name, seconds in (("plain decoding", 1.0), ("with phrases", 1 / fast))
    ]
    told = list(sentences(lanes, result(*lanes)))
    assert told[0].startswith(f"{speedup(fast)} with phrases (") and told[-1] == wording("both_texts_are_the_same")
    assert any(wording("do_not_pay_here") in sentence for sentence in told) is (fast < 0.9)
    assert any(wording("cost_as_much_time") in sentence for sentence in told) is (0.9 < fast < 1.1)


def test_the_seconds_shown_are_those_that_the_speedup_compares(clock):
    lanes = [Lane("plain decoding"), Lane("with phrases")]
    for _ in race(lanes, [stream(clock, 4.0, 1.0, 16, 1, []), stream(clock, 4.0, 2.0, 4, 4, [])]):
        pass
    plain, fast = lanes
    assert (plain.decoding(), fast.decoding()) == (16.0, 8.0), "and not the 4 seconds in which both read the prompt"
    assert result(plain, fast).speedup == plain.decoding() / fast.decoding() == 2.0
    assert next(iter(sentences(lanes, result(*lanes)))).endswith(wording("n2_0_1_0_tokens_s_after_first"))
    assert (plain.decoding(3.9), plain.decoding(4.0), plain.decoding(5.5)) == (None, 0.0, 1.5)
    plain.seconds += 1.0  # the last event has no token
    assert plain.decoding() == plain.decoding(99.0) == 16.0 and Lane("", []).decoding() is None


def test_a_reply_of_one_token_has_no_speedup():
    lanes = [Lane("", [Moment(1.0, "a", 1)], 1.0, said((1,))) for _ in range(2)]
    assert result(*lanes).speedup is None and lanes[0].tokens_per_second == 0.0


@each(
    "tokens, drafted, why",
    [(16, 0, "no draft was checked"), (15, 9, "a reply has only 15 tokens after its first token, which is too few")],
)
def test_speeds_without_drafts_or_of_few_tokens_are_not_compared(tokens, drafted, why):
    lanes = [
        Lane(name, [Moment(0.0, "a", 1), Moment(seconds, "b", tokens)], seconds, said((1, 2), drafted=count))
        for name, seconds, count in (("plain decoding", 11.0, 0), ("with phrases", 1.0, drafted))
    ]
    found = result(*lanes)
    assert found.speedup is None
    first, same = sentences(lanes, found)
    speeds = f"{tokens}.0", f"{tokens / 11:.1f}"
    assert first == wording("speeds_are_no_comparison", fast=speeds[0], plain=speeds[1], why=why)
    assert same == wording("both_texts_are_the_same")


@pytest.mark.slow
def test_neither_lane_takes_the_others_turns_for_its_own_time(monkeypatch):
    engine = Engine(choose(resolve("demo"), Settings(drafter="phrases", draft_max=4, device="cpu")), phrases="off")
    lanes, streams = racers(engine, "Who are you?", None, Settings(max_tokens=12), Sampling())
    now = 0.0
    monkeypatch.setattr(module.time, "perf_counter", lambda: now)  # the clock stops while a lane works
    for _ in race(lanes, streams):
        now += 1.0
    for lane in lanes:
        assert lane.statistics is not None and len(lane.statistics.token_ids) == 12
        assert (lane.statistics.first_token_seconds, lane.statistics.decode_seconds) == (0.0, 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("system", [None, "Answer in verse."])
def test_opponents_answer_what_the_chat_would_with_its_system_prompt(monkeypatch, system):
    engine = Engine(choose(resolve("demo"), Settings(drafter="none", device="cpu")), phrases="off")
    asked = []
    monkeypatch.setattr(type(engine.target), "encode", lambda _, messages, think: asked.extend(messages) or [1, 2, 3])
    lanes, streams = opponents(engine, "Who are you?", system, Settings(max_tokens=2))
    for one in streams:
        one.close()
    said_first = [{"role": "system", "content": system}] if system else []
    assert asked == [*said_first, {"role": "user", "content": "Who are you?"}]
    assert [lane.name for lane in lanes] == ["plain decoding", "with phrases"]
