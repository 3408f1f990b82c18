"""Clients take turns, however many requests one of them has."""

import threading

import pytest
from each import each

from localspec.serving.room import ClientQueue, TooMany


def test_one_with_many_requests_does_not_hold_up_the_others():
    turns = ClientQueue[str](10, 100)
    for one in ("a1", "a2", "a3", "b1", "c1", "b2"):
        turns.put(one[0], one)
    assert len(turns) == 6
    assert [turns.next(0) for _ in range(7)] == ["a1", "b1", "c1", "a2", "b2", "a3", None]


@each("room, sizes", [(2, (0, 0, 0)), (9, (60, 40, 1))])
def test_more_requests_or_bytes_than_there_is_room_for_are_refused(room, sizes):
    turns = ClientQueue[int](room, 100)
    turns.put("a", 1, sizes[0])
    turns.put("b", 2, sizes[1])
    with pytest.raises(TooMany):
        turns.put("c", 3, sizes[2])
    assert turns.next(0) == 1
    turns.put("c", 3, sizes[0])


def test_a_client_that_waits_for_the_next_reply_is_notified_of_the_end():
    turns, found = ClientQueue[int](2, 100), []
    waiting = threading.Thread(target=lambda: found.append(turns.next(None)))
    waiting.start()
    assert turns.close() == []
    waiting.join(10)
    assert found == [None]
    with pytest.raises(TooMany):
        turns.put("a", 1)


def test_waiting_clients_are_notified_of_the_end():
    turns = ClientQueue[int](3, 100)
    turns.put("a", 1)
    turns.put("b", 2)
    assert turns.close() == [1, 2] and turns.next(0) is None and turns.closed
