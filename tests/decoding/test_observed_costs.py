"""Costs follow the machine: the time of trees when it is busy, and when it is quiet again."""

import random
from collections.abc import Sequence

import numpy as np
import pytest
from budget_simulation import RIGHT, WRONG, Curve, chain
from each import each

from localspec.choosing.cost import ForwardCostModel
from localspec.decoding.acceptance import walk
from localspec.decoding.budget import CHANGE, ENOUGH, FRESH, Budget, ObservedCosts
from localspec.decoding.drafter import Step
from localspec.decoding.logits import NumpyHidden

QUIET = Curve({1: 1.0, 2: 1.0, 4: 1.0, 8: 1.05, 16: 1.8})
TREES_ALONE = Curve({1: 1.1, 2: 2.0, 4: 3.0, 8: 5.0, 16: 9.0})  # a job keeps the other core busy
EVERYTHING = Curve({rows: 3 * seconds for rows, seconds in ((1, 1.0), (2, 1.0), (4, 1.0), (8, 1.05), (16, 1.8))})


def decode(budget: Budget, steps: int, machine: ForwardCostModel, right: float, noise: random.Random) -> float:
    """Decode `steps` steps of a text in which a guess is right with this chance. Return tokens a second."""
    tokens, clock = 0, 0.0
    for _ in range(steps):
        tree = budget.prune(chain(budget.nodes), 100)
        coming = [RIGHT if noise.random() < right else WRONG for _ in range(tree.size)]
        path, bonus = walk(tree, [coming[depth] for depth in tree.depth])
        seconds = machine.at(tree.size, 100) * noise.uniform(0.93, 1.07)
        committed = [*(tree.tokens[node] for node in path[1:]), bonus]
        budget.observe(Step(committed, NumpyHidden(np.empty((0, 0))), tree, path, verify_seconds=seconds))
        tokens, clock = tokens + len(committed), clock + seconds
    return tokens / clock


def best_fixed(machine: ForwardCostModel, right: float, sizes: Sequence[int] = (0, 4, 5, 7, 8)) -> float:
    return max(decode(Budget(nodes), 1500, machine, right, random.Random(1)) for nodes in sizes)


@pytest.mark.slow
@each("busy, right", [(TREES_ALONE, 0.7), (EVERYTHING, 0.5)])
def test_a_machine_that_becomes_busy_and_quiet_again_is_followed(busy: Curve, right: float) -> None:
    budget, noise = Budget(8, QUIET), random.Random(3)
    decode(budget, 100, QUIET, right, noise)
    decode(budget, 60, busy, right, noise)
    assert decode(budget, 1500, busy, right, noise) > 0.93 * best_fixed(busy, right)
    decode(budget, 60, QUIET, right, noise)
    budget.begin()  # the next reply; within a reply, drafts are tried again at growing intervals
    decode(budget, 60, QUIET, right, noise)
    assert decode(budget, 1500, QUIET, right, noise) > 0.94 * best_fixed(QUIET, right)


@pytest.mark.slow
def test_without_correction_the_busy_machine_would_lose() -> None:
    budget, noise = Budget(8, QUIET), random.Random(3)
    budget._costs.observe = lambda *_: None  # type: ignore[union-attr, method-assign]
    decode(budget, 60, TREES_ALONE, 0.6, noise)
    assert decode(budget, 300, TREES_ALONE, 0.6, noise) < 0.7 * best_fixed(TREES_ALONE, 0.6)


def test_a_forward_is_corrected_by_forwards_of_its_size_and_others_by_the_last_ones() -> None:
    costs = ObservedCosts(QUIET)
    for _ in range(ENOUGH):
        costs.observe(8, 100, 3 * QUIET.at(8, 100))
    assert costs.at(8, 100) == pytest.approx(3 * QUIET.at(8, 100))
    assert costs.at(1, 100) == pytest.approx(3 * QUIET.at(1, 100)), "all that is known is that forwards take longer"
    for _ in range(ENOUGH):
        costs.observe(1, 100, QUIET.at(1, 100))
    assert costs.at(1, 100) == pytest.approx(QUIET.at(1, 100))
    assert costs.at(8, 100) == pytest.approx(3 * QUIET.at(8, 100))
    for _ in range(FRESH):
        costs.observe(1, 100, QUIET.at(1, 100))
    assert costs.at(8, 100) == pytest.approx(QUIET.at(8, 100)), "what was seen long ago is tried again"


def test_plain_steps_are_wanted_where_trees_changed_until_they_were_seen() -> None:
    costs = ObservedCosts(QUIET)
    for _ in range(ENOUGH):
        costs.observe(8, 100, QUIET.at(8, 100))
    assert not costs.wants_plain
    for _ in range(ENOUGH * 3):
        costs.observe(8, 100, CHANGE * 1.1 * QUIET.at(8, 100))
    assert costs.wants_plain
    for _ in range(ENOUGH):
        assert costs.wants_plain
        costs.observe(1, 100, QUIET.at(1, 100))
    assert not costs.wants_plain
    costs.observe(8, 100, CHANGE * 1.1 * QUIET.at(8, 100))
    assert not costs.wants_plain, "nothing has changed since"


def test_costs_that_were_wrong_from_the_first_are_no_change() -> None:
    """These costs are predictions for the first reply on a machine, whose steps continue to draft."""
    costs = ObservedCosts(QUIET)
    for _ in range(20):
        costs.observe(8, 100, 0.5 * QUIET.at(8, 100))
        assert not costs.wants_plain


def test_what_a_busy_moment_took_is_forgotten_though_few_forwards_of_its_size_follow() -> None:
    costs = ObservedCosts(QUIET)
    for _ in range(9):
        costs.observe(1, 100, 3.0)
    assert costs.at(1, 100) == pytest.approx(3.0)
    for _ in range(FRESH - ENOUGH):
        costs.observe(8, 100, QUIET.at(8, 100))
    for _ in range(ENOUGH):
        costs.observe(1, 100, 1.0)
    assert costs.at(1, 100) == pytest.approx(1.0)


def test_where_nobody_looks_at_the_clock_costs_are_as_measured() -> None:
    costs = ObservedCosts(QUIET)
    for _ in range(20):
        costs.observe(8, 100, 0.0)
    assert costs.at(8, 100) == QUIET.at(8, 100)
