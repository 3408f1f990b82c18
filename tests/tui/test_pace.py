"""How often the screen follows a reply."""

import time

import pytest

from localspec_tui.messages import LONGEST_WAIT, SHARE, SHORTEST_WAIT, Pace


@pytest.fixture
def spend(monkeypatch):
    """spend(seconds): let this thread use this much CPU time."""
    now = {"spent": 0.0}
    monkeypatch.setattr(time, "thread_time", lambda: now["spent"])

    def forward(spent: float) -> None:
        now["spent"] += spent

    return forward


def test_ten_times_a_second_where_it_costs_little(spend):
    pace = Pace()
    for _ in range(20):
        spend(0.9 * SHARE * SHORTEST_WAIT)
        assert pace.next() == SHORTEST_WAIT


def test_as_often_as_makes_its_share_and_sooner_again_when_it_costs_less(spend):
    pace = Pace()
    for seconds in (2 * SHORTEST_WAIT, 4 * SHORTEST_WAIT, 3 * SHORTEST_WAIT):
        spend(SHARE * seconds)
        assert pace.next() == pytest.approx(seconds) == pace.period
    for spent in (0.2, 0.9):
        spend(spent)
        assert pace.next() == LONGEST_WAIT
    spend(0.0)
    assert pace.next() == SHORTEST_WAIT


def test_every_reply_begins_with_the_shortest_wait(spend):
    pace = Pace()
    spend(2 * SHARE * SHORTEST_WAIT)
    assert pace.next() == pytest.approx(2 * SHORTEST_WAIT)
    spend(50.0)  # until the next prompt
    pace.begin()
    assert pace.period == SHORTEST_WAIT
    spend(0.5 * SHARE * SHORTEST_WAIT)
    assert pace.next() == SHORTEST_WAIT
