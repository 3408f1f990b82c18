"""How often the screen follows a reply."""

import time

import pytest

from localspec_tui.pace import LONGEST, SHORTEST, Pace


@pytest.fixture
def clocks(monkeypatch):
    """clocks(spent, passed): so much processor time of this thread, in so many seconds."""
    now = {"thread_time": 0.0, "monotonic": 0.0}
    monkeypatch.setattr(time, "thread_time", lambda: now["thread_time"])
    monkeypatch.setattr(time, "monotonic", lambda: now["monotonic"])

    def forward(spent: float, passed: float) -> None:
        now["thread_time"] += spent
        now["monotonic"] += passed

    return forward


def test_ten_times_a_second_where_it_costs_little(clocks):
    pace = Pace()
    for _ in range(20):
        clocks(0.005, 0.1)
        assert pace.next() == SHORTEST


def test_half_as_often_whenever_it_costs_more_than_its_share(clocks):
    pace = Pace()
    periods = []
    for spent in (0.02, 0.01, 0.03, 0.2, 0.9):
        clocks(spent, pace.period)
        periods.append(pace.next())
    assert periods == [0.2, 0.2, 0.4, LONGEST, LONGEST]


def test_every_reply_begins_anew(clocks):
    pace = Pace()
    clocks(0.09, 0.1)
    assert pace.next() == 0.2
    clocks(50.0, 100.0)  # until the next prompt
    pace.begin()
    assert pace.period == SHORTEST
    clocks(0.005, 0.1)
    assert pace.next() == SHORTEST
