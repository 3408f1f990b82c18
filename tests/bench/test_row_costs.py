from collections import deque

import pytest

from localspec.bench import figures
from localspec.bench.figures import RowTimer, most_rows


class Target:
    """A target on a simulated clock: a forward takes one second a row, and four times that on a busy machine."""

    vocab_size = 100

    def __init__(self, context: int = 4096) -> None:
        self.context, self.now, self.asked, self.slots = context, 0.0, [], []
        self.slowdown: deque[float] = deque()

    def cache(self, slots: int) -> "Target":
        self.slots.append(slots)
        return self

    def assume(self, context: int) -> None:
        self.assumed = context

    def run(self, target: object, cache: object, tokens: list[int]) -> list[int]:
        self.asked.append(len(tokens))
        self.now += (1.0 + 0.1 * (len(tokens) - 1)) * (self.slowdown.popleft() if self.slowdown else 1.0)
        return tokens


@pytest.fixture
def target(monkeypatch) -> Target:
    made = Target()
    monkeypatch.setattr(figures, "picks_after", made.run)
    monkeypatch.setattr(figures.time, "perf_counter", lambda: made.now)
    return made


def test_rows_take_turns_up_to_what_was_verified(target):
    timer = RowTimer(target)
    assert timer.costs() is None
    timer.time_forwards(5)
    assert target.asked == [1, 2, 4, 8] * figures.ROUNDS and target.slots == [256 + 8] and target.assumed == 256
    costs = timer.costs()
    assert costs.rows == (1, 2, 4, 8) and costs.costs == pytest.approx((1.0, 1.1, 1.3, 1.7)) and costs.unit == 1.0
    assert costs.mean({1: 3, 8: 1}) == pytest.approx((3 + 1.7) / 4) and costs.mean({6: 2}) == pytest.approx(1.5)
    timer.time_forwards(1)
    assert target.asked[-figures.ROUNDS :] == [1] * figures.ROUNDS and timer.costs().rows == (1, 2, 4, 8)


def test_a_busy_time_changes_no_ratio(target):
    target.slowdown.extend([4.0] * 4 * figures.ROUNDS)
    timer = RowTimer(target)
    timer.time_forwards(8)
    assert timer.costs().costs == pytest.approx((1.0, 1.1, 1.3, 1.7)) and timer.costs().unit == 4.0


def test_more_rows_are_never_cheaper(target):
    target.slowdown.extend([2.0, 1.0, 1.0, 1.0] * figures.ROUNDS)  # something disturbs one row in each round
    timer = RowTimer(target)
    timer.time_forwards(8)
    assert timer.costs().costs == (1.0, 1.0, 1.0, 1.0)


def test_a_short_context_is_kept(monkeypatch):
    small = Target(context=40)
    monkeypatch.setattr(figures, "picks_after", small.run)
    RowTimer(small).time_forwards(17)
    assert max(small.slots) <= 40 and small.assumed == 8


def test_the_most_rows_of_several_replies():
    assert most_rows([{1: 3, 9: 1}, {4: 2}]) == 9 and most_rows([{}, {}]) == 1
