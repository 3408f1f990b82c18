"""The rule `typical`, on distributions small enough to compute by hand."""

import pytest
import torch
from golden import matching

from localspec.decoding.acceptance import walk_by_typicality
from localspec.decoding.logits import NumpyLogits
from localspec.decoding.sampling import Sampling
from localspec.decoding.tree import DraftTree
from localspec.errors import UsageMistake

ONE = Sampling(1.0, rule="typical")


def logits(*rows: list[float]) -> torch.Tensor:
    """Return logits from probabilities by node; one more token, which is never drafted, gets the rest of a row."""
    return torch.tensor([[*row, 1 - sum(row)] for row in rows]).clamp_min(1e-30).log()


def accepted(tree: DraftTree, rows: torch.Tensor, sampling: Sampling = ONE) -> tuple[list[int], int]:
    return walk_by_typicality(tree, NumpyLogits(rows.numpy()), sampling)


def test_where_the_target_is_sure_a_token_needs_nine_hundredths() -> None:
    # H = 0.99, δ exp(-H) = 0.111: the threshold is ε = 0.09.
    row = [0.5, 0.4, 0.08]
    for token, path in ((0, [0, 1]), (1, [0, 1]), (2, [0])):
        assert accepted(DraftTree([9, token], [-1, 0]), logits(row, row))[0] == path
    row = [0.5, 0.38, 0.1]  # H = 1.02, δ exp(-H) = 0.108: the threshold is still 0.09
    assert accepted(DraftTree([9, 2], [-1, 0]), logits(row, row))[0] == [0, 1]


def test_where_the_target_is_unsure_less_will_do() -> None:
    # 0.04 twenty-four times, 0.03 and 0.01: H = 3.24, δ exp(-H) = 0.0118.
    row = [0.04] * 24 + [0.03]
    for token, path in ((1, [0, 1]), (24, [0, 1]), (25, [0])):
        assert accepted(DraftTree([99, token], [-1, 0]), logits(row, row))[0] == path


def test_epsilon_and_delta_are_settings() -> None:
    # H = 0.99, exp(-H) = 0.371: the threshold is the smaller of ε and 0.371 δ.
    row = logits([0.5, 0.4, 0.08])
    tree = DraftTree([9, 2], [-1, 0])
    for epsilon, delta, path in ((0.07, 0.3, [0, 1]), (0.09, 0.3, [0]), (0.09, 0.2, [0, 1]), (0.09, 0.23, [0])):
        sampling = Sampling(1.0, rule="typical", epsilon=epsilon, delta=delta)
        assert accepted(tree, row.expand(2, -1), sampling)[0] == path
    for wrong in ({"epsilon": 0.0}, {"epsilon": 1.5}, {"delta": -1.0}, {"delta": float("nan")}):
        with pytest.raises(UsageMistake, match=matching("possible_give_above_0")):
            Sampling(1.0, rule="typical", **wrong)


def test_the_likeliest_token_is_the_bonus_token() -> None:
    tree = DraftTree([9, 1], [-1, 0])
    assert accepted(tree, logits([0.6, 0.3, 0.05], [0.1, 0.2, 0.6])) == ([0, 1], 2)
    assert accepted(DraftTree([9, 2], [-1, 0]), logits([0.6, 0.3, 0.05], [0.1, 0.2, 0.6])) == ([0], 0)


def test_the_temperature_counts() -> None:
    # 0.08 is too little at 1; at 2 it is 0.16, and ε is still 0.09.
    row = logits([0.5, 0.4, 0.08])
    tree = DraftTree([9, 2], [-1, 0])
    assert accepted(tree, row.expand(2, -1))[0] == [0]
    assert accepted(tree, row.expand(2, -1), Sampling(2.0, rule="typical"))[0] == [0, 1]


def test_the_longest_path_wins_and_of_equal_ones_the_likelier() -> None:
    even, certain = [0.3, 0.3, 0.3], [0.0, 0.96, 0.02]
    #            0 ─ 1(0)           a short one that is likelier
    #              ├ 2(1) ─ 3(0)    a long one
    #              └ 4(2) ─ 5(1)    a long one that is likelier, for what comes below
    tree = DraftTree([9, 0, 1, 0, 2, 1], [-1, 0, 0, 2, 0, 4])
    rows = logits([0.4, 0.25, 0.25], even, even, even, certain, even)
    assert accepted(tree, rows)[0] == [0, 4, 5]
    rows = logits([0.4, 0.25, 0.25], even, certain, even, [0.0, 0.01, 0.96], even)  # both below are improbable
    assert accepted(tree, rows)[0] == [0, 1]
    rows = logits([0.4, 0.25, 0.25], even, [0.9, 0.05, 0.03], even, even, even)
    assert accepted(tree, rows)[0] == [0, 2, 3]


def test_nothing_below_what_was_refused_and_no_probe_is_accepted() -> None:
    row = [0.9, 0.05, 0.03]
    assert accepted(DraftTree([9, 1, 0], [-1, 0, 1]), logits(row, row, row)) == ([0], 0)
    assert accepted(DraftTree([9, 0, 0], [-1, 0, 1], probe=[False, True, True]), logits(row, row, row)) == ([0], 0)


def test_near_temperature_zero_it_is_greedy_decoding() -> None:
    cold, random = Sampling(1e-6, rule="typical"), torch.Generator().manual_seed(0)
    lengths = set()
    for _ in range(200):
        parents = [-1, *(int(torch.randint(node, (1,), generator=random)) for node in range(1, 9))]
        rows = torch.randn(9, 5, generator=random) * 2
        order = rows.argsort(-1, descending=True)
        tokens = [0, *(int(order[parents[node], min(node % 3, 4)]) for node in range(1, 9))]
        tree, greedy = DraftTree(tokens, parents), [0]  # nodes that are the target's own picks, from the root down
        for node in range(1, 9):
            if parents[node] in greedy and tokens[node] == int(order[parents[node], 0]):
                greedy.append(node)
        found, bonus = walk_by_typicality(tree, NumpyLogits(rows.numpy()), cold)
        assert {*found} <= {*greedy}
        assert tree.depth[found[-1]] == max(tree.depth[node] for node in greedy) == len(found) - 1
        assert bonus == int(order[found[-1], 0])
        lengths.add(len(found))
    assert len(lengths) > 2


def test_the_targets_likeliest_token_is_accepted_at_every_temperature() -> None:
    random = torch.Generator().manual_seed(1)
    for temperature in (1e-3, 0.3, 1.0, 10.0, 100.0):
        for _ in range(20):
            rows = torch.randn(2, 50, generator=random)
            tree = DraftTree([0, int(rows[0].argmax())], [-1, 0])
            assert accepted(tree, rows, Sampling(temperature, rule="typical"))[0] == [0, 1]


def test_the_likeliest_token_is_typical_where_it_is_no_likelier_than_the_others() -> None:
    tree, sampling = DraftTree.chain([3, 0]), Sampling(1.0, rule="typical", epsilon=1.0, delta=1.0)
    assert accepted(tree, torch.zeros(2, 4), sampling) == ([0, 1], 0)
