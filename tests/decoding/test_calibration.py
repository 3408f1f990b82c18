"""Calibration of a drafter's confidence by the outcomes of similar candidates."""

import random

import pytest
from each import each

from localspec.decoding.calibration import PRIOR, REMEMBERED, Calibration


def test_what_was_never_judged_is_worth_its_own_confidence() -> None:
    candidates = [(7, 0.6), (3, 0.25), (9, 0.01)]
    assert Calibration().chances(candidates, 0, greedy=True) == candidates


@each("true", [0.05, 0.5, 0.95])
def test_a_chance_becomes_what_happens(true: float) -> None:
    calibration, chance = Calibration(), random.Random(0)
    for _ in range(2000):
        calibration.learn([(1, 0.7)], 2, True, 1 if chance.random() < true else 5)
    ((token, found),) = calibration.chances([(1, 0.7)], 2, greedy=True)
    assert token == 1
    assert found == pytest.approx(true, abs=0.06)


def test_depths_ranks_confidences_and_kinds_of_text_are_judged_apart() -> None:
    calibration = Calibration()
    for _ in range(200):
        calibration.learn([(1, 0.7), (2, 0.2)], 1, True, 2)  # the second is always right
    assert [token for token, _ in calibration.chances([(1, 0.7), (2, 0.2)], 1, greedy=True)] == [2, 1]
    same = [(1, 0.7), (2, 0.2)]
    assert calibration.chances(same, 0, greedy=True) == same
    assert calibration.chances(same, 1, greedy=False) == same
    assert calibration.chances([(1, 0.55)], 1, greedy=True) == [(1, 0.55)]
    assert calibration.chances([(1, 0.2)], 1, greedy=True) == [(1, 0.2)]  # first, and so unsure


def test_old_judgements_fade() -> None:
    calibration = Calibration()
    for _ in range(5000):
        calibration.learn([(1, 0.7)], 0, True, 1)
    for _ in range(int(3 * REMEMBERED)):
        calibration.learn([(1, 0.7)], 0, True, 2)
    ((_, found),) = calibration.chances([(1, 0.7)], 0, greedy=True)
    assert found < 0.07


def test_it_comes_back_from_the_store_as_it_was() -> None:
    calibration = Calibration()
    for depth in range(12):
        calibration.learn([(1, 0.9), (2, 0.05)], depth, depth % 2 == 0, depth % 3)
    again = Calibration.from_json(calibration.as_json())
    for depth in range(12):
        for greedy in (True, False):
            wanted = calibration.chances([(1, 0.9), (2, 0.05)], depth, greedy)
            assert again.chances([(1, 0.9), (2, 0.05)], depth, greedy) == wanted


@each("stored", [None, 3, "x", [1], [[True, 0, 0, 0, 5, 1]], [["a"] * 6], {"a": 1}])
def test_what_is_no_calibration_is_one_that_knows_nothing(stored: object) -> None:
    calibration = Calibration.from_json(stored)
    assert calibration.chances([(1, 0.9)], 0, greedy=True) == [(1, 0.9)]
    calibration.learn([(1, 0.9)], 0, True, 1)
    ((_, chance),) = calibration.chances([(1, 0.9)], 0, greedy=True)
    assert chance == pytest.approx((1 + PRIOR * 0.9) / (1 + PRIOR))
