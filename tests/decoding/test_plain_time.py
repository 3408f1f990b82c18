"""The speedup of a reply over plain decoding, measured with its few steps without a draft."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
from each import each
from scripted_conversation import statistics

from localspec.choosing.cost import ForwardCostModel
from localspec.decoding.budget import ENOUGH, INTERRUPTED, OFTEN, SOON, WARM, PlainTime


class Linear:
    """Costs of forwards: 10 ms, and 1 ms more for each 100 tokens of context."""

    def at(self, rows: int, context: int) -> float:
        return 0.01 * rows + context * 1e-5


def warm(costs: ForwardCostModel | None) -> PlainTime:
    """Return a plain time after the first steps of its engine, which take longer than later ones."""
    plain = PlainTime(costs)
    for _ in range(WARM):
        plain.observe(1, 0, 1, 9.0, 0.0)
    plain.begin()
    return plain


def test_too_few_plain_steps_give_no_speedup():
    plain = warm(Linear())
    for _ in range(ENOUGH - 1):
        plain.observe(1, 0, 1, 0.02, 0.0)
        plain.observe(8, 0, 3, 0.03, 0.01)
    assert plain.speedup is None
    plain.observe(1, 0, 1, 0.02, 0.0)
    assert plain.speedup == pytest.approx((3 * 0.02 + 2 * 3 * 0.02) / (3 * 0.02 + 2 * 0.03))


def test_a_step_without_a_draft_costs_what_looking_for_one_took():
    plain = warm(Linear())
    for seconds in (0.05, 0.02, 0.1):
        plain.observe(1, 0, 1, seconds, seconds / 10)
    assert plain.speedup == pytest.approx(0.9)


def test_longer_texts_cost_more():
    """Every cost doubles: the tokens of a late draft save more than those of an early one."""
    plain, spent = warm(Linear()), 0.0
    for context in (0, 1000, 2000):
        plain.observe(1, context, 1, 2 * Linear().at(1, context), 0.0)
        spent += 2 * Linear().at(1, context)
    plain.observe(8, 4000, 2, 0.1, 0.0)
    assert plain.speedup == pytest.approx((spent + 0.2) / (spent + 0.1))


def test_without_costs_all_steps_are_equal_and_no_plain_step_is_requested():
    plain = warm(None)
    for seconds in (0.02, 0.03, 0.04):
        plain.observe(1, 10, 1, seconds, 0.0)
    plain.observe(8, 5000, 3, 0.03, 0.0)
    assert plain.speedup == pytest.approx((0.09 + 0.09) / (0.09 + 0.03))
    for _ in range(2 * OFTEN):
        plain.observe(8, 10, 3, 0.1, 0.0)
        assert not plain.wanted


@each("every", [2, 8, 10_000])
def test_on_a_busy_machine_it_is_what_both_would_take_altogether(every: int):
    """Most steps take a millisecond, and a few take several while other programs run. A median of the steps would see
    one side only: half of the true speedup was shown, also where hardly anything was drafted."""
    chance, plain = Random(1), warm(None)
    drafted = plainly = 0.0
    for step in range(6000):
        busy = chance.choice([1.0] * 6 + [3.5] * 4) / 1000
        if step % every:
            plain.observe(1, 0, 1, 1.02 * busy, 0.02 * busy)
            drafted, plainly = drafted + 1.02 * busy, plainly + busy
        else:
            plain.observe(8, 0, 2, 1.5 * busy, 0.1 * busy)
            drafted, plainly = drafted + 1.5 * busy, plainly + 2 * busy
    assert plain.speedup == pytest.approx(plainly / drafted, rel=0.05)


def test_a_machine_that_became_busy_between_two_replies_is_measured_again():
    plain = warm(Linear())
    for _ in range(20):
        plain.observe(1, 0, 1, 0.02, 0.0)
    plain.begin()
    for _ in range(20):
        plain.observe(8, 0, 2, 0.06, 0.0)
    assert plain.speedup is None and plain.wanted
    for _ in range(ENOUGH):
        plain.observe(1, 0, 1, 0.06, 0.0)
    assert plain.speedup == pytest.approx(43 / 23)


def test_the_first_steps_of_an_engine_do_not_count():
    plain = PlainTime(None)
    for _ in range(WARM):
        plain.observe(8, 0, 2, 9.0, 0.0)
    for _ in range(ENOUGH):
        plain.observe(1, 0, 1, 0.02, 0.0)
    assert plain.speedup == 1.0


def steps(plain: PlainTime) -> Iterator[int]:
    """Yield the rows of each step, while every draft pays."""
    while True:
        rows = 1 if plain.wanted else 8
        plain.observe(rows, 0, rows, 0.02 * rows, 0.0)
        yield rows


def test_plain_steps_are_requested_soon_and_then_seldom():
    """The interval doubles each time; a reply of a hundred steps has four."""
    plain = warm(Linear())
    rows = [rows for rows, _ in zip(steps(plain), range(1000), strict=False)]
    at = [number for number, one in enumerate(rows) if one == 1]
    assert at[:4] == [SOON, 3 * SOON + 1, 7 * SOON + 2, 15 * SOON + 3]
    assert rows[:100].count(1) == 4
    assert {after - before for before, after in pairwise(at[4:])} == {OFTEN + 1}
    plain.begin()
    again = steps(plain)
    assert [next(again) for _ in range(SOON + 1)][-1] == 1, "a new reply is looked at as soon"


def test_no_plain_step_is_requested_if_they_come_by_themselves():
    plain = warm(Linear())
    for step in range(10 * OFTEN):
        plain.observe(1 if step % 3 == 0 else 4, 0, 1, 0.02, 0.0)
        assert not plain.wanted


@each("rows", [1, 8])
def test_what_interrupts_a_step_would_interrupt_plain_decoding_as_much(rows: int):
    plain = warm(None)
    for _ in range(10):
        plain.observe(1, 0, 1, 1.0, 0.0)
    plain.observe(rows, 0, 1, 1000.0, 0.0)
    took = 10.0 + INTERRUPTED
    assert plain.speedup == pytest.approx((took if rows == 1 else 11.0) / took)


def test_steps_that_have_become_slower_are_counted_whole():
    plain = warm(None)
    for _ in range(9):
        plain.observe(1, 0, 1, 1.0, 0.0)
    for _ in range(100):
        plain.observe(8, 0, 3, 6.0, 0.0)
    assert plain.speedup == pytest.approx(309 / 609, rel=0.02)


def test_more_than_tokens_a_step_can_bring_is_not_known():
    """Plain steps were interrupted, and drafted ones were not."""
    found = replace(statistics(32), decode_seconds=2.0, acceptance_length=1.5, plain_seconds=3.1)
    assert found.speedup == pytest.approx(1.55)
    assert replace(found, plain_seconds=3.6).speedup is None
