"""Clients take turns, however many requests one of them has."""

import threading

import pytest

from localspec.serving.room import TooMany, Turns


def test_one_with_many_requests_does_not_hold_up_the_others():
    turns = Turns[str](10, 100)
    for one in ("a1", "a2", "a3", "b1", "c1", "b2"):
        turns.put(one[0], one)
    assert len(turns) == 6
    assert [turns.next(0) for _ in range(7)] == ["a1", "b1", "c1", "a2", "b2", "a3", None]


def test_more_than_there_is_room_for_are_refused():
    turns = Turns[int](2, 100)
    turns.put("a", 1)
    turns.put("b", 2)
    with pytest.raises(TooMany):
        turns.put("c", 3)
    assert turns.next(0) == 1
    turns.put("c", 3)


def test_so_are_more_bytes():
    turns = Turns[int](9, 100)
    turns.put("a", 1, 60)
    with pytest.raises(TooMany):
        turns.put("b", 2, 41)
    turns.put("b", 3, 40)
    assert turns.next(0) == 1
    turns.put("c", 4, 60)


def test_who_waits_for_the_next_one_is_told_of_the_end():
    turns, found = Turns[int](2, 100), []
    waiting = threading.Thread(target=lambda: found.append(turns.next(None)))
    waiting.start()
    assert turns.close() == []
    waiting.join(10)
    assert found == [None]
    with pytest.raises(TooMany):
        turns.put("a", 1)


def test_those_that_wait_at_the_end_are_told():
    turns = Turns[int](3, 100)
    turns.put("a", 1)
    turns.put("b", 2)
    assert turns.close() == [1, 2] and turns.next(0) is None and turns.closed
