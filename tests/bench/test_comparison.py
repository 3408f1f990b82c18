from typing import ClassVar

from reply_statistics import said

from localspec import Done, Limits, Sampling
from localspec.bench import comparison


class Speaker:
    """A stand-in for an engine: it records who answered which prompt, and the number of engines."""

    def __init__(self, name: str, notes: list[tuple[str, str]]) -> None:
        self.name, self.notes = name, notes

    def __call__(self) -> "Speaker":
        self.notes.append((self.name, "new"))
        return self

    def chat(self, messages, sampling, limits):
        assert limits.max_tokens == 9 and sampling.seed == 3
        (message,) = messages
        self.notes.append((self.name, message["content"]))
        yield Done("length", said([len(self.notes)] * 3))


def test_every_row_answers_every_prompt_in_turn_and_who_begins_changes():
    notes: list[tuple[str, str]] = []
    speakers = [Speaker(name, notes) for name in "abc"]
    replies = comparison.run_rows(
        speakers, ["p", "q"], [Sampling(seed=3)] * len(speakers), Limits(9), 2, lambda _: None
    )
    asked = [(name, prompt) for name, prompt in notes if prompt != "new"]
    assert asked[:3] == [("a", "p"), ("b", "p"), ("c", "p")]  # the warm-up
    assert ["".join(name for name, _ in asked[turn : turn + 3]) for turn in range(3, 15, 3)] == [
        "abc",
        "bca",
        "cab",
        "abc",
    ]
    assert [prompt for _, prompt in asked[3:]] == ["p"] * 3 + ["q"] * 3 + ["p"] * 3 + ["q"] * 3
    # A reply is in the row of its engine, in the order of the prompts; the warm-up is in no row.
    places = [
        [index + 1 for index, note in enumerate(notes) if note[0] == name and note[1] != "new"][1:] for name in "abc"
    ]
    assert [[reply.token_ids[0] for reply in row] for row in replies] == places
    assert notes.count(("b", "new")) == 5, "what an engine learned in one reply would help it in the next"


class Clock:
    """Time that passes only when a contender works."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_after_each_turn_somebody_looks_at_what_rows_cost():
    class Timer:
        looks: ClassVar[list[tuple[int, int]]] = []

        def time_forwards(self, largest: int) -> None:
            self.looks.append((len(notes), largest))

    class Drafting(Speaker):
        def chat(self, messages, sampling, limits):
            self.notes.append((self.name, ""))
            yield Done("length", said(rows={1: 2, len(self.notes): 1}))

    notes: list[tuple[str, str]] = []
    rows = [Drafting(name, notes) for name in "ab"]
    begun: list[int] = []
    begin = lambda: begun.append(len(notes))  # noqa: E731
    comparison.run_rows(rows, ["p", "q"], [Sampling()] * 2, Limits(9), 1, lambda _: None, Timer(), begin)
    assert Timer.looks == [(8, 8), (12, 12)], "not after the warm-up, and for the most rows of the turn"
    assert begun == [4, 8], "once a turn, before anybody answers"


def test_the_remaining_time_is_shown(monkeypatch):
    clock, told = Clock(), []
    monkeypatch.setattr(comparison.time, "monotonic", clock)

    class Slow(Speaker):
        def chat(self, messages, sampling, limits):
            clock.now += 30.0
            yield Done("length", said())

    comparison.run_rows([Slow(name, []) for name in "ab"], ["p", "q"], [Sampling()] * 2, Limits(9), 1, told.append)
    assert told[2:] == [
        f"prompt {turn} of 2, {left} left" for turn, left in ((1, "2 min"), (1, "90 s"), (2, "60 s"), (2, "30 s"))
    ]
    del told[:]
    engines, end = [Slow(name, []) for name in "ab"], clock.now + 130.0
    comparison.run_rows(
        engines, ["p", "q"], [Sampling()] * 2, Limits(9), 1, told.append, at_most=lambda: end - clock.now
    )
    assert told[2:] == [
        f"prompt {turn} of 2, {left} left" for turn, left in ((1, "70 s"), (1, "40 s"), (2, "30 s"), (2, "30 s"))
    ], "no more than is left, nor less than a reply takes"
