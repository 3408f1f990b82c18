"""Joint chances: the docstring's table, sums, and how the rule is learned."""

import random

import pytest

from localspec.drafters.phrases import JointChances

DRAFTED, PHRASES = {1: 0.4, 2: 0.1}, {1: 0.3, 3: 0.3}


def learned(drafted: dict[int, float], phrases: dict[int, float], tokens: list[int]) -> JointChances:
    joint = JointChances()
    for token in tokens:
        joint.learn(drafted, phrases, token)
    return joint


def test_products_are_those_of_the_table() -> None:
    """Where tokens that both propose are right far more often than the drafter says, chances are multiplied."""
    joint = learned(DRAFTED, PHRASES, [1] * 50)
    assert joint.combine(DRAFTED, PHRASES) == pytest.approx({1: 0.755, 2: 0.025, 3: 0.094}, abs=0.01)


def test_a_drafter_that_phrases_contradict_in_vain_keeps_its_chances() -> None:
    joint = learned({1: 0.8}, {2: 0.8}, [1] * 50)
    assert joint.combine({1: 0.8}, {2: 0.5}) == pytest.approx({1: 0.8, 2: 0.1}, abs=0.02)


def test_another_kind_of_text_is_noticed_within_a_few_tokens() -> None:
    joint = learned({1: 0.8}, {2: 0.8}, [1] * 1000)
    for _ in range(8):
        joint.learn({1: 0.5}, {2: 0.9}, 2)
    assert joint.combine({1: 0.5}, {2: 0.9})[2] > 0.7


def test_at_first_both_rules_count_half() -> None:
    found = JointChances().combine({1: 0.5}, {1: 0.5})[1]
    assert found == pytest.approx((0.5 + 0.25 / (0.25 + 0.1 * 0.25)) / 2)


def test_chances_stay_chances_whatever_is_combined_and_learned() -> None:
    """Calibrated chances of one level may sum to more than 1."""
    rng, joint = random.Random(1), JointChances()
    for _ in range(500):
        drafted, phrases = ({rng.randrange(6): rng.random() for _ in range(rng.randrange(1, 4))} for _ in range(2))
        found = joint.combine(drafted, phrases)
        assert found.keys() == drafted.keys() | phrases.keys()
        assert all(0 <= chance <= 1 for chance in found.values())
        joint.learn(drafted, phrases, rng.randrange(6))
