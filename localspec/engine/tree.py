"""The draft tree: which tokens are proposed after the last committed one, and which hangs on which."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch


@dataclass(frozen=True)
class DraftTree:
    """Candidate tokens for one verification.

    Node 0 is the root, the last committed token, whose keys and values are not in the cache yet. Parents precede their
    children. The likeliest chain comes first, so that keeping it moves nothing in the cache:

        tokens   a b c d e        a─b─c      depth  0 1 2 1 2
        parents -1 0 1 0 3         └d─e

    `source` names who proposed each node. A `probe` node is never accepted: it is there for the target's pick at it.
    `draft_logits` ([size, vocabulary]) are the drafter's own distributions, for rules that need them.
    """

    tokens: Sequence[int]
    parents: Sequence[int]
    source: Sequence[str] | None = None
    probe: Sequence[bool] | None = None
    draft_logits: torch.Tensor | None = None

    def __post_init__(self) -> None:
        assert self.tokens and len(self.tokens) == len(self.parents), "a tree has a root, and a parent for every node"
        assert self.parents[0] == -1 and all(0 <= p < i for i, p in enumerate(self.parents) if i), "parents come first"

    @classmethod
    def chain(cls, tokens: Sequence[int], source: str | None = None) -> "DraftTree":
        """A tree of width one: the root, then each token below the one before it."""
        return cls(tokens, range(-1, len(tokens) - 1), None if source is None else [source] * len(tokens))

    def only(self, nodes: Sequence[int]) -> "DraftTree":
        """The tree of these nodes, which are in ascending order and hold the root and the parent of each."""
        number = {node: index for index, node in enumerate(nodes)}
        return DraftTree(
            tokens=[self.tokens[node] for node in nodes],
            parents=[number[self.parents[node]] if node else -1 for node in nodes],
            source=self.source and [self.source[node] for node in nodes],
            probe=self.probe and [self.probe[node] for node in nodes],
            draft_logits=None if self.draft_logits is None else self.draft_logits[list(nodes)],
        )

    def aligned(self, start: int, page: int) -> "DraftTree":
        """The part whose every node, behind `start` committed tokens, lies in the page of slots where its token goes.

        Its token goes as far behind `start` as the node is deep; the node's slot is its row. With pages of four slots:

            slots  · a b c│d e     a─b─c       d's token goes where b is, to the first page, and d lies in the
                                    └d─e       second: it is cut off, and e, which hangs below it, too
        """
        kept, number = [0], {0: 0}
        for node in range(1, self.size):
            slot, place = start + len(kept), start + self.depth[node]
            if self.parents[node] in number and slot // page == place // page:
                number[node] = len(kept)
                kept.append(node)
        return self if len(kept) == self.size else self.only(kept)

    @property
    def size(self) -> int:
        return len(self.tokens)

    @cached_property
    def depth(self) -> list[int]:
        """Distance from the root, by node."""
        depths = [0] * self.size
        for node in range(1, self.size):
            depths[node] = depths[self.parents[node]] + 1
        return depths

    @cached_property
    def mask(self) -> torch.Tensor:
        """bool [size, size]: True where the column is the row itself or one of its ancestors."""
        if all(parent == node - 1 for node, parent in enumerate(self.parents)):
            return torch.ones(self.size, self.size, dtype=torch.bool).tril_()
        seen: list[list[bool]] = []
        for node, parent in enumerate(self.parents):
            row = list(seen[parent]) if node else [False] * self.size
            row[node] = True
            seen.append(row)
        return torch.tensor(seen)

    @cached_property
    def children(self) -> list[dict[int, int]]:
        """token -> node, by parent; the first of two equal siblings, and no probes."""
        below: list[dict[int, int]] = [{} for _ in self.tokens]
        for node in range(1, self.size):
            if not (self.probe and self.probe[node]):
                below[self.parents[node]].setdefault(self.tokens[node], node)
        return below
