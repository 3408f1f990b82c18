"""The arithmetic of S3D's predictor, against the paper's numbers and against measurements."""

import pytest
from each import each
from golden import wording

from localspec.models.s3d_prediction import (
    Constants,
    MeasuredAcceptance,
    MeasuredLayers,
    Timing,
    acceptance,
    acceptance_at,
    acceptance_length,
    compared,
    fit,
    improvement,
    propose,
    share,
    symmetric,
)

PAPER = Constants()


def test_symmetric_skipping_is_that_of_the_paper() -> None:
    """Of 32 layers, 5 -> 26 skips the middle 20, and 7 -> 24 half of them."""
    assert symmetric(32, 12) == (*range(6), *range(26, 32))
    assert symmetric(32, 16) == (*range(8), *range(24, 32))
    assert symmetric(8, 4) == (0, 1, 6, 7)
    assert symmetric(3, 1) == (0,)
    assert symmetric(5, 3) == (0, 1, 4)
    assert symmetric(2, 2) == (0, 1)


def test_the_first_token_is_accepted_as_equation_10_says() -> None:
    assert acceptance(1.0, 0.01) == pytest.approx(1.0)
    assert acceptance(0.0, 0.01) == 0.0
    assert acceptance(0.5, 0.01) == pytest.approx(0.9 / 0.99)  # 0.01 ** 0.5 is 0.1
    assert acceptance(0.3, 1.0) == 0.3
    assert acceptance(0.3, 1.0 + 1e-7) == pytest.approx(0.3, abs=1e-6)


@each("place", range(1, 6))
def test_later_tokens_are_discounted_as_equation_14_says(place: int) -> None:
    assert acceptance_at(place, 0.5, PAPER) == pytest.approx((1.22 - 0.22 * place) * acceptance(0.5, 0.01))


def test_no_chance_is_below_0_or_above_1() -> None:
    assert acceptance_at(7, 0.5, PAPER) == 0.0
    assert acceptance_at(4, 0.9, Constants(discount=-0.5)) == 1.0


def test_the_acceptance_length_is_the_expected_number_of_tokens() -> None:
    """Equation 11 against the sum of the chances that each token is reached, and against a known series."""
    for gamma in range(1, 6):
        expected, reached = 1.0, 1.0
        for place in range(1, gamma + 1):
            reached *= acceptance_at(place, 0.4, PAPER)
            expected += reached
        assert acceptance_length(gamma, 0.4, PAPER) == pytest.approx(expected)
    rate = acceptance(0.4, 0.01)  # Leviathan et al. 2023: (1 - a^(gamma + 1)) / (1 - a)
    assert acceptance_length(4, 0.4, Constants(discount=0.0)) == pytest.approx((1 - rate**5) / (1 - rate))


def test_the_improvement_is_tokens_by_the_cost_of_an_iteration() -> None:
    assert improvement(3, 0.5, PAPER) == pytest.approx(acceptance_length(3, 0.5, PAPER) / 1.54)


def test_half_the_layers_and_four_tokens_are_best_for_the_paper() -> None:
    """Figure 5, for a model of 32 layers; a fifth token brings almost nothing."""
    best = propose(32, 0.0, PAPER)
    assert (len(best.layers), best.gamma) == (16, 4)
    assert best.layers == (*range(8), *range(24, 32))
    assert best.speedup == best.table[16, 4] == pytest.approx(improvement(4, 0.5, PAPER))
    assert 1 < best.table[16, 5] / best.table[16, 4] < 1.01
    assert len(best.table) == 32 * 5
    with_its_head = propose(32, 0.65, PAPER)  # Llama 7B
    assert with_its_head.gamma == 4
    assert 14 <= len(with_its_head.layers) <= 16


def test_what_costs_more_is_drafted_otherwise() -> None:
    dear, sure = propose(32, 0.0, Constants(delta=2.0)), propose(32, 0.0, Constants(u=1e-9))
    assert len(dear.layers) > 16, "an iteration that costs much must bring many tokens"
    assert len(sure.layers) < 16, "where a few layers agree with all of them, a few will do"
    assert propose(32, 0.0, Constants(discount=0.9)).gamma < 3
    assert propose(1, 4.0, PAPER).layers == (0,)


def test_a_draft_reads_the_head_whatever_it_skips() -> None:
    assert share(32, 16, 0.0) == 0.5
    assert share(8, 4, 8.0) == 0.75
    assert share(8, 8, 3.0) == 1.0


@each("true", [PAPER, Constants(0.3, 0.05, 0.5), Constants(5.0, 0.4, 0.1), Constants(1e-6, 0.3, 2.0)])
def test_constants_are_found_again_in_what_follows_from_them(true: Constants) -> None:
    measured = [
        MeasuredAcceptance(beta, [acceptance_at(place, beta, true) for place in range(1, gamma + 1)])
        for beta, gamma in ((0.3, 3), (0.5, 2), (0.7, 3))
    ]
    timings = [Timing(beta, beta * 0.2, 0.2 * (1 + true.delta), 0.2) for beta in (0.4, 0.6)]
    found = fit(measured, timings)
    assert found.u == pytest.approx(true.u, rel=1e-3)
    assert found.discount == pytest.approx(true.discount, abs=1e-4)
    assert found.delta == pytest.approx(true.delta)
    one = fit(measured[:1], [])  # two unknowns and three numbers
    assert one.u == pytest.approx(true.u, rel=1e-3)
    assert one.delta == PAPER.delta


def test_what_was_not_measured_stays_as_it_was() -> None:
    assert fit([], []) == PAPER
    start = Constants(0.5, 0.1, 0.9)
    assert fit([], [], start) == start
    found = fit([MeasuredAcceptance(0.5, [0.8])], [], start)  # one token a draft says nothing of a second one
    assert found.discount == 0.1
    assert acceptance(0.5, found.u) == pytest.approx(0.8)


def test_prediction_and_measurement_stand_side_by_side() -> None:
    """By hand: 1 + 0.8 + 0.8 · 0.5 tokens; generated tokens over a draft and its verification; 2.55 / 1.54."""
    known = MeasuredAcceptance(0.5, [0.8, 0.5])
    text = compared(PAPER, known, Timing(0.5, 1.2, 2.8, 2.0), 2.4)
    assert text == (wording("token_draft_where_all_before"))
    assert wording("should_1_10_times_fast") in compared(PAPER, known, Timing(0.5, 1.2, 2.8, 2.0))


def test_where_acceptance_was_measured_the_proposal_goes_by_it_and_by_the_tree() -> None:
    """τ is that of the tree that is verified: here a chain of the first two ranks side by side, summed by hand."""
    half, few = MeasuredLayers((0, 2, 4, 6), (0.8, 0.1)), MeasuredLayers((0, 4), (0.3, 0.1))
    constants = Constants(discount=0.1, delta=0.2)

    def length(levels: list[list[float]]) -> float:
        tokens, reached = 1.0, 1.0
        for level in levels:
            reached *= sum(level)
            tokens += reached
        return tokens

    best = propose(8, 0.5, constants, [half, few], length)
    assert set(best.table) == {(kept, gamma) for kept in (2, 4) for gamma in range(1, 17)}
    assert best.layers == (0, 2, 4, 6)
    assert best.gamma > 5, "no cap where more pays"
    beta = share(8, 4, 0.5)
    assert best.table[4, 2] == pytest.approx((1 + 0.9 + 0.9 * 0.81) / (0.2 + beta + 1))
