"""The draft tree: parents and children."""

import random

import numpy as np
import pytest
from each import each
from scripted_drafters import path_to, random_tree

from localspec.decoding.logits import NumpyLogits
from localspec.decoding.tree import DraftTree, best_first_tree, depth_first

#  10─11─12
#    └13─14     and 15 below 11
DRAWN = DraftTree([10, 11, 12, 13, 14, 15], [-1, 0, 1, 0, 3, 1])


def test_the_depth_of_random_trees_is_that_of_their_paths() -> None:
    for seed in range(50):
        tree = random_tree(1, nodes=random.Random(seed).randrange(20), seed=seed)
        for node in range(tree.size):
            assert tree.depth[node] == len(path_to(tree, node)) - 1


def test_a_chain_is_a_tree() -> None:
    chain = DraftTree.chain([7, 8, 9], "somebody")
    assert list(chain.parents) == [-1, 0, 1]
    assert chain.depth == [0, 1, 2]
    assert chain.source == ["somebody"] * 3
    assert DraftTree.chain([7]).source is None


def test_children_are_found_by_token_the_first_of_equal_siblings_and_no_probes() -> None:
    tree = DraftTree([1, 5, 5, 6, 7, 5], [-1, 0, 0, 0, 1, 2], probe=[False, False, False, True, False, False])
    assert tree.children == [{5: 1}, {7: 4}, {5: 5}, {}, {}, {}]


def test_a_part_of_a_tree_keeps_order_sources_probes_and_distributions() -> None:
    tree = DraftTree(
        DRAWN.tokens, DRAWN.parents, [*"rabcde"], [False] * 5 + [True],
        NumpyLogits(np.arange(12).reshape(6, 2)),
    )  # fmt: skip
    part = tree.subtree([0, 1, 3, 4, 5])
    assert list(part.tokens) == [10, 11, 13, 14, 15]
    assert list(part.parents) == [-1, 0, 0, 2, 1]
    assert list(part.source or ()) == [*"racde"]
    assert list(part.probe or ()) == [False] * 4 + [True]
    assert part.draft_logits is not None
    assert part.draft_logits.numpy().tolist() == [[0, 1], [2, 3], [6, 7], [8, 9], [10, 11]]
    bare = DRAWN.subtree([0])
    assert (bare.source, bare.probe, bare.draft_logits, bare.size) == (None, None, None, 1)
    for nodes in ([0, 2], [1, 2], [0, 2, 1], []):
        with pytest.raises((AssertionError, KeyError)):
            DRAWN.subtree(nodes)


@each(
    "tokens, parents",
    [([], []), ([1, 2], [-1]), ([1, 2], [-1, 1]), ([1, 2, 3], [-1, 2, 0]), ([1, 2], [0, 0]), ([1, 2], [-1, -1])],
)
def test_what_is_no_tree_is_refused(tokens: list[int], parents: list[int]) -> None:
    with pytest.raises(AssertionError):
        DraftTree(tokens, parents)


@each("start", range(12))
@each("page", [1, 4, 6])
def test_aligned_trees_lie_where_their_tokens_go(start: int, page: int) -> None:
    whole = DraftTree("rabcdefgh", (-1, 0, 1, 2, 1, 0, 5, 6, 0))
    tree = whole.aligned(start, page)
    for node in range(tree.size):
        assert (start + node) // page == (start + tree.depth[node]) // page
    # the first chain is never cut, and within a page nothing is
    assert "".join(tree.tokens).startswith("rabc")
    assert (start % page + whole.size > page) or tree is whole


def test_what_does_not_lie_in_the_page_of_its_token_goes_with_all_below_it() -> None:
    tree = DraftTree("abcdef", (-1, 0, 1, 0, 3, 0), source=list("uvwxyz"))
    cut = tree.aligned(1, 4)
    assert (cut.tokens, cut.parents, cut.source) == (["a", "b", "c"], [-1, 0, 1], ["u", "v", "w"])
    assert tree.aligned(0, 4).tokens == ["a", "b", "c", "d"]


def _worths(levels: list[list[tuple[int, float]]]) -> list[float]:
    """Return the product of the chances on the path to every possible node."""
    found, ends = [], [1.0]
    for level in levels:
        ends = [worth * chance for worth in ends for _, chance in level]
        found += ends
    return sorted(found, reverse=True)


@each("nodes", [0, 1, 2, 5, 12, 39, 100])
@each("seed", range(4))
def test_the_best_first_tree_has_the_most_worthy_nodes(nodes: int, seed: int) -> None:
    chance = random.Random(seed)
    levels = [
        sorted(((10 * depth + rank, chance.random()) for rank in range(3)), key=lambda c: -c[1]) for depth in range(3)
    ]
    tree = best_first_tree(99, levels, nodes, "medusa")
    assert tree.size == min(nodes, 39) + 1
    assert tree.tokens[0] == 99 and tree.parents[0] == -1
    assert tree.source == ["medusa"] * tree.size
    worth = [1.0] * tree.size
    for node in range(1, tree.size):
        assert (tree.tokens[node], tree.chance[node]) in levels[tree.depth[node] - 1]
        worth[node] = worth[tree.parents[node]] * tree.chance[node]
    assert sorted(worth[1:], reverse=True) == pytest.approx(_worths(levels)[:nodes])
    assert len({(tree.parents[node], tree.tokens[node]) for node in range(1, tree.size)}) == tree.size - 1
    chain = [node for node in range(tree.size) if tree.tokens[node] in (99, *(level[0][0] for level in levels))]
    likeliest = [
        node
        for node in chain
        if all(tree.parents[later] == earlier for earlier, later in zip(range(node), range(1, node + 1), strict=True))
    ]
    assert likeliest == list(range(len(likeliest))), "the likeliest chain comes first"


def test_a_level_without_candidates_ends_the_tree() -> None:
    tree = best_first_tree(1, [[(2, 0.9)], []], 5, "s3d")
    assert (list(tree.tokens), list(tree.parents)) == ([1, 2], [-1, 0])
    assert best_first_tree(1, [], 5, "s3d").size == 1


def test_depth_first_keeps_chains_together() -> None:
    assert depth_first([-1, 0, 0, 1, 2, 3]) == [0, 1, 3, 5, 2, 4]


def test_a_part_keeps_its_chances() -> None:
    tree = best_first_tree(1, [[(2, 0.9), (3, 0.05)], [(4, 0.5)]], 4, "s3d")
    assert list(tree.tokens) == [1, 2, 4, 3, 4]
    assert tree.subtree([0, 1, 3]).chance == [1.0, 0.9, 0.05]
