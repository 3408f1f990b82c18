"""Scripted texts decoded under a node budget, with the cost curves of two machines and no model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from localspec.choosing.cost import ForwardCostModel
from localspec.decoding.acceptance import walk
from localspec.decoding.budget import Budget
from localspec.decoding.drafter import Step
from localspec.decoding.logits import NumpyHidden
from localspec.decoding.tree import DraftTree

MOST = 8
RIGHT, WRONG = 0, -1  # a text is, by position, the rank of the right token among the guesses; -1: not among them

Draft = Callable[[int], DraftTree]  # from the nodes it may have


@dataclass(frozen=True)
class Curve:
    """A table of relative seconds of a forward by its rows, at any context; linear between the points."""

    seconds: dict[int, float]

    def at(self, rows: int, context: int) -> float:
        """Return the seconds of one forward of 1 to 64 rows."""
        for below, above in pairwise(self.seconds):
            if rows <= above:
                share = (rows - below) / (above - below)
                return self.seconds[below] + share * (self.seconds[above] - self.seconds[below])
        raise ValueError(rows)


PROCESSOR = Curve({1: 1.0, 2: 1.05, 4: 1.25, 8: 1.73, 16: 2.6, 32: 4.4, 64: 7.5})
CARD = Curve({1: 1.0, 2: 1.0, 4: 1.01, 8: 1.03, 16: 1.07, 32: 1.2, 64: 1.5})


@dataclass(frozen=True)
class Verified:
    """A step: its position in the text, the number of nodes that it verified, and the clock after it."""

    position: int
    nodes: int
    clock: float


def chain(nodes: int) -> DraftTree:
    """Return the first guess at every depth."""
    return DraftTree.chain([RIGHT] * (nodes + 1), "chain")


def simulate(budget: Budget, text: Sequence[int], costs: ForwardCostModel, draft: Draft = chain) -> list[Verified]:
    """Decode a scripted text with real trees and the real acceptance rule; only the target is missing."""
    steps: list[Verified] = []
    position, clock = 0, 0.0
    while position < len(text):
        tree = budget.prune(draft(budget.nodes), position)
        coming = [*text[position : position + tree.size], *[WRONG] * tree.size]
        path, bonus = walk(tree, [coming[depth] for depth in tree.depth])
        budget.observe(
            Step([*(tree.tokens[node] for node in path[1:]), bonus], NumpyHidden(np.empty((0, 0))), tree, path)
        )
        clock += costs.at(tree.size, position)
        steps.append(Verified(position, tree.size - 1, clock))
        position += len(path)
    return steps


def throughput(steps: Sequence[Verified], text: Sequence[int]) -> float:
    """Return the tokens in the time that plain decoding takes for one."""
    return len(text) / steps[-1].clock


def best_fixed(
    text: Sequence[int], costs: ForwardCostModel, draft: Draft = chain, most: int = MOST
) -> tuple[float, int]:
    """Return the highest throughput of any fixed size, 0 included, and minus that size."""
    return max((throughput(simulate(Budget(nodes), text, costs, draft), text), -nodes) for nodes in range(most + 1))
