"""What plain decoding would take, from the few plain steps among those of a reply."""

from collections.abc import Iterator

import pytest

from localspec.decoding import plain_time
from localspec.decoding.plain_time import ENOUGH, LATELY, OFTEN, SOON, WARM, PlainTime
from localspec.decoding.stats import Tally
from localspec.policy.forward_costs import ForwardCostModel


class Linear:
    """A forward costs 10 ms, and 1 ms more for each 100 tokens before it."""

    def at(self, rows: int, context: int) -> float:
        return 0.01 * rows + context * 1e-5


def warm(costs: ForwardCostModel | None) -> PlainTime:
    """One that has seen the first steps of its engine, which take longer than any later."""
    plain = PlainTime(costs)
    for _ in range(WARM):
        plain.observe(1, 0, 9.0)
    return plain


def test_too_few_plain_steps_tell_nothing():
    plain = warm(Linear())
    for _ in range(ENOUGH - 1):
        plain.observe(1, 0, 0.02)
    assert plain.seconds(0) is None
    plain.observe(8, 0, 1.0)
    assert plain.seconds(0) is None
    plain.observe(1, 0, 0.02)
    assert plain.seconds(0) == pytest.approx(0.02)


def test_longer_texts_cost_more():
    """Twice what was measured, on every text."""
    plain = warm(Linear())
    for context in (0, 1000, 2000):
        plain.observe(1, context, 2 * Linear().at(1, context))
    assert plain.seconds(4000) == pytest.approx(0.1)


def test_without_costs_every_step_is_alike_and_none_is_asked_for():
    plain = warm(None)
    for seconds in (0.02, 0.03, 0.5):
        plain.observe(1, 10, seconds)
    assert plain.seconds(5000) == 0.03
    for _ in range(2 * OFTEN):
        plain.observe(8, 10, 0.1)
        assert not plain.wanted


def test_one_step_that_took_long_is_not_believed():
    plain = warm(Linear())
    for seconds in (0.02, 5.0, 0.02, 0.02):
        plain.observe(1, 0, seconds)
    assert plain.seconds(0) == pytest.approx(0.02)


def test_what_is_long_ago_is_forgotten():
    plain = warm(Linear())
    for _ in range(ENOUGH):
        plain.observe(1, 0, 0.02)
    for _ in range(LATELY - 1):
        plain.observe(8, 0, 0.05)
        assert plain.seconds(0) is not None
    plain.observe(8, 0, 0.05)
    plain.observe(8, 0, 0.05)
    assert plain.seconds(0) is None and plain.wanted
    plain.observe(1, 0, 0.04)
    assert plain.seconds(0) is None, "the old ones do not come back"


def test_a_slower_machine_is_noticed():
    plain = warm(Linear())
    for seconds in [0.02] * 20 + [0.06] * plain_time.REMEMBERED:
        plain.observe(1, 0, seconds)
    assert plain.seconds(0) == pytest.approx(0.06)


def steps(plain: PlainTime) -> Iterator[int]:
    """The rows of one step after the other, where every draft pays."""
    while True:
        rows = 1 if plain.wanted else 8
        plain.observe(rows, 0, 0.02 * rows)
        yield rows


def test_plain_steps_are_asked_for_soon_and_then_seldom():
    plain, all_rows = warm(Linear()), []
    for rows, _ in zip(steps(plain), range(SOON * 4 + 10 * OFTEN), strict=False):
        all_rows.append(rows)
    assert all_rows[: ENOUGH * (SOON + 1)].count(1) == ENOUGH
    later = all_rows[ENOUGH * (SOON + 1) :]
    assert 8 <= later.count(1) <= 10 and later[0] == 8


def test_none_is_asked_for_where_they_come_by_themselves():
    plain = warm(Linear())
    for step in range(10 * OFTEN):
        plain.observe(1 if step % 3 == 0 else 4, 0, 0.02)
        assert not plain.wanted or step < SOON


def test_tokens_before_it_was_known_are_priced_later():
    tally = Tally()
    tally.step_seconds = 1.0
    tally.price(3, None, 0.5)
    assert tally.plain_seconds is None
    tally.price(2, 0.5, 0.5)
    assert tally.plain_seconds == 2.5
    tally.price(1, None, 0.0)
    assert tally.plain_seconds is None, "half a figure is none"


def test_what_interrupts_a_step_would_interrupt_plain_decoding_as_much():
    plain, tally = PlainTime(None), Tally()
    for seconds in [1.0] * 4 + [100.0] + [1.0] * 5:
        tally.step_seconds += seconds
        tally.price(2, 1.0, plain.steady(seconds))
    assert tally.plain_seconds is not None
    assert tally.plain_seconds / tally.step_seconds == pytest.approx(20 / (9 + plain_time.INTERRUPTED))


def test_steps_that_have_become_slower_are_counted_whole():
    plain = PlainTime(None)
    assert sum(map(plain.steady, [1.0] * 9 + [6.0] * 100)) == pytest.approx(609, abs=5 * 2)
