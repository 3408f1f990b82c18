"""The division of a course's time, from given speeds."""

import re
from dataclasses import replace

import pytest

from localspec.errors import UsageMistake
from localspec.training.course_plan import LEAST, MOST_ANSWERING, REPLY, CourseState, TimeBudget

BUDGET = TimeBudget(
    hours=1.0, steps=None, batch=None, passes=3.0, at_once=4, idle_speed=80.0, uses_readings=True,
    state=CourseState("course", {}, token_seconds=0.001),
)  # fmt: skip


@pytest.mark.parametrize("reads", [True, False])
def test_the_parts_of_a_course_take_its_time(reads):
    budget = replace(BUDGET, uses_readings=reads)
    tokens, answering, training = budget.expected()
    assert tokens == pytest.approx(answering * budget.speed) and answering <= MOST_ANSWERING * budget.total
    assert answering + training + budget.tail == pytest.approx(budget.total)


def test_the_fewest_hours_are_enough():
    with pytest.raises(UsageMistake) as refused:
        replace(BUDGET, hours=0.001).check("tiny")
    found = re.search(r"take ([\d.]+) hours here;", str(refused.value))
    assert found
    replace(BUDGET, hours=float(found[1])).check("tiny")
    with pytest.raises(UsageMistake):
        replace(BUDGET, hours=0.9 * float(found[1])).check("tiny")


def test_slow_answers_slow_everything():
    slow = replace(BUDGET, state=replace(BUDGET.state, each=1.0))
    assert slow.speed == 1.0 and slow.tail > BUDGET.tail and slow.expected()[0] < BUDGET.expected()[0]


def test_only_other_programs_slow_the_training():
    """An estimate of the answers' speed that was too high does not."""
    alone = replace(BUDGET, state=replace(BUDGET.state, each=10 / BUDGET.idle_speed))
    busy = replace(alone, state=replace(alone.state, slowdown=10.0))
    replies, tokens, each, spent = 100, 2000, alone.state.each, 300.0
    assert alone.share(replies, tokens, each, spent) < busy.share(replies, tokens, each, spent)
    assert alone.batch_and_rate(9999, spent, 576, False)[0] > busy.batch_and_rate(9999, spent, 576, False)[0]


def test_answers_end_when_training_needs_the_time():
    budget, replies, each = BUDGET, 100, 1 / BUDGET.speed
    shares = [budget.share(replies, replies * REPLY, each, spent) for spent in (0.0, 600.0, MOST_ANSWERING * 3600)]
    assert shares == sorted(shares) and shares[0] < 1 and shares[-1] == 1
    assert budget.share(LEAST - 1, 0, each, budget.total) < 1, "nothing can be learned from fewer answers"


def test_few_steps_after_least_squares_have_a_lower_rate():
    (batch, rate), (_, fitted) = (BUDGET.batch_and_rate(100, 0.0, 576, starts) for starts in (False, True))
    assert batch == 128 and fitted < rate
    assert replace(BUDGET, batch=512).batch_and_rate(100, 0.0, 576, False)[0] == 512
