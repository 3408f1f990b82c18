"""What a target makes of a tree."""

import random

import torch
from scripted_drafters import path_to, random_tree

from localspec.nn.target import ancestor_mask


def test_a_node_sees_itself_and_its_ancestors_and_never_a_sibling() -> None:
    #  0─1─2
    #  │ └5
    #  └3─4
    assert ancestor_mask([-1, 0, 1, 0, 3, 1]).tolist() == [
        [True, False, False, False, False, False],
        [True, True, False, False, False, False],
        [True, True, True, False, False, False],
        [True, False, False, True, False, False],
        [True, False, False, True, True, False],
        [True, True, False, False, False, True],
    ]


def test_the_mask_of_random_trees_is_that_of_their_paths() -> None:
    for seed in range(50):
        tree = random_tree(1, nodes=random.Random(seed).randrange(20), seed=seed)
        mask = ancestor_mask(tree.parents)
        for node in range(tree.size):
            assert mask[node].nonzero().flatten().tolist() == path_to(tree, node)


def test_in_a_chain_each_row_sees_all_before_it() -> None:
    assert torch.equal(ancestor_mask(range(-1, 2)), torch.ones(3, 3, dtype=torch.bool).tril())
