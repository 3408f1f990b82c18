"""Which of the measured layers draft, by what they bring and what forwards cost."""

import pytest
from machines import SEVEN, flat

from localspec.models.s3d_prediction import KeptLayers, share
from localspec.policy.own_layers import best_layers

HALF, FEW = KeptLayers(tuple(range(16)), (0.7, 0.1)), KeptLayers(tuple(range(8)), (0.6, 0.1))
HEAD = SEVEN.embedding / SEVEN.layer


def test_a_draft_brings_its_tree_and_costs_its_forwards() -> None:
    costs = flat(0.05)
    best = best_layers([HALF], SEVEN, costs, 64)
    beta = share(32, 16, HEAD)
    assert best.share == pytest.approx(beta)

    def speed(forwards: int) -> float:
        tokens = 1 + sum(0.7**level * (0.7 + 0.1) for level in range(forwards))
        return tokens / (0.05 * (1 + forwards * beta))

    assert best.speed == pytest.approx(max(map(speed, range(1, 9))))
    assert best.speed == pytest.approx(speed(best.forwards))
    assert best.draft_seconds(costs)(16) == pytest.approx(best.forwards * beta * 0.05)
    assert best.draft_seconds(costs)(1) == pytest.approx(beta * 0.05), "a tree of one node needs one forward"


def test_fewer_layers_are_taken_where_they_agree_almost_as_often() -> None:
    assert best_layers([HALF, FEW], SEVEN, flat(0.05), 64).measured is FEW
    rare = KeptLayers(FEW.layers, (0.2, 0.1))
    assert best_layers([HALF, rare], SEVEN, flat(0.05), 64).measured is HALF


def test_where_rows_are_dear_drafts_are_short() -> None:
    assert best_layers([FEW], SEVEN, flat(0.05), 64).forwards > 1
    assert best_layers([FEW], SEVEN, flat(0.05, slope=1.0), 64).forwards == 1
