"""The draft tree: tokens proposed after the last committed one, and their parents."""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from localspec.decoding.logits import Candidate, Logits
from localspec.decoding.sampling import Sampling


@dataclass(frozen=True)
class DraftTree:
    """Candidate tokens for one verification. Each node is a token that follows its parent's token.

    Node 0 is the root, the last committed token, whose keys and values are not in the cache yet. Parents precede their
    children. The likeliest chain comes first, so that committing it moves nothing in the cache:

        tokens   a b c d e        a─b─c      depth  0 1 2 1 2
        parents -1 0 1 0 3         └d─e

    `source` names the drafter that proposed each node. A `probe` node is never accepted; it is computed only to learn
    the target's pick after it. `chance` is each node's chance of acceptance after its parent, if the drafter estimates
    it. `draft_logits`, a row per node, are the logits from which nodes were sampled, for the rule `rejection`.
    `declined` is the drafter's reason for not drafting, in words for the user; otherwise it is empty.
    """

    tokens: Sequence[int]
    parents: Sequence[int]
    source: Sequence[str] | None = None
    probe: Sequence[bool] | None = None
    draft_logits: Logits | None = None
    chance: Sequence[float | None] | None = None
    declined: str = ""

    def __post_init__(self) -> None:
        assert self.tokens and len(self.tokens) == len(self.parents), (
            "a tree needs a root, and as many parents as tokens"
        )
        assert self.parents[0] == -1 and all(0 <= p < i for i, p in enumerate(self.parents) if i), (
            "in a tree each parent comes before its children"
        )

    @classmethod
    def chain(cls, tokens: Sequence[int], source: str | None = None) -> "DraftTree":
        """Return a tree of width one: the root, then each token below the one before it."""
        return cls(tokens, range(-1, len(tokens) - 1), None if source is None else [source] * len(tokens))

    def subtree(self, nodes: Sequence[int]) -> "DraftTree":
        """Return the tree of these nodes in this order: the root first, and each node after its parent."""
        number = {node: index for index, node in enumerate(nodes)}
        return DraftTree(
            tokens=[self.tokens[node] for node in nodes],
            parents=[number[self.parents[node]] if node else -1 for node in nodes],
            source=self.source and [self.source[node] for node in nodes],
            probe=self.probe and [self.probe[node] for node in nodes],
            chance=self.chance and [self.chance[node] for node in nodes],
            draft_logits=None if self.draft_logits is None else self.draft_logits.take(nodes),
        )

    def aligned(self, start: int, page: int) -> "DraftTree":
        """Return the tree without nodes whose cache slot is in another page than it would be in a chain.

        A page is a group of `page` slots. With `start` committed tokens a node's slot is `start` plus its index in the
        tree. In a chain it would be `start` plus its depth. With pages of four slots:

            slots  · a b c│d e     a─b─c       d is in the second page. In a chain d would have the slot of b, in the
                                    └d─e       first page. So d is removed, and also its child e.
        """
        nodes, number = [0], {0: 0}
        for node in range(1, self.size):
            slot, chain_slot = start + len(nodes), start + self.depth[node]
            if self.parents[node] in number and slot // page == chain_slot // page:
                number[node] = len(nodes)
                nodes.append(node)
        return self if len(nodes) == self.size else self.subtree(nodes)

    def chain_to(self, node: int) -> "DraftTree":
        """Return the chain from the root to a node."""
        nodes = [node]
        while nodes[-1]:
            nodes.append(self.parents[nodes[-1]])
        return self if len(nodes) == self.size else self.subtree(nodes[::-1])

    def first_chain(self) -> "DraftTree":
        """Return the chain of first children, whatever their tokens. A probe ends the chain."""
        node = 0
        while below := self.siblings[node]:
            if self.probe and self.probe[below[0]]:
                break
            node = below[0]
        return self.chain_to(node)

    @property
    def size(self) -> int:
        return len(self.tokens)

    @cached_property
    def depth(self) -> list[int]:
        """The distance from the root, by node."""
        depths = [0] * self.size
        for node in range(1, self.size):
            depths[node] = depths[self.parents[node]] + 1
        return depths

    @cached_property
    def siblings(self) -> list[list[int]]:
        """The children of each node, in order, including probes and equal tokens."""
        below: list[list[int]] = [[] for _ in self.tokens]
        for node in range(1, self.size):
            below[self.parents[node]].append(node)
        return below

    @cached_property
    def children(self) -> list[dict[int, int]]:
        """The children of each node by token, without probes. Of equal children only the first is included."""
        below: list[dict[int, int]] = [{} for _ in self.tokens]
        for node in range(1, self.size):
            if not (self.probe and self.probe[node]):
                below[self.parents[node]].setdefault(self.tokens[node], node)
        return below


def best_first_tree(root: int, levels: Sequence[Sequence[Candidate]], nodes: int, source: str) -> DraftTree:
    """Build the tree of `nodes` nodes with the highest expected acceptance, if candidates depend only on depth.

    levels[d] are the candidates at depth d + 1, likeliest first. A node's worth is the product of the chances on its
    path. The best node is always added next (Medusa, §3.3.3, but with the chances of this step).
    """
    tokens, parents, chances = [root], [-1], [1.0]
    heap: list[tuple[float, int, int, int, int]] = []  # (-worth, order, parent, depth, rank)

    def offer(parent: int, worth: float, depth: int, rank: int) -> None:
        if depth < len(levels) and rank < len(levels[depth]):
            heapq.heappush(heap, (-worth * levels[depth][rank][1], len(heap) + len(tokens), parent, depth, rank))

    worths = [1.0]
    offer(0, 1.0, 0, 0)
    while heap and len(tokens) <= nodes:
        worth, _, parent, depth, rank = heapq.heappop(heap)
        token, chance = levels[depth][rank]
        tokens.append(token)
        parents.append(parent)
        chances.append(chance)
        worths.append(-worth)
        offer(parent, worths[parent], depth, rank + 1)
        offer(len(tokens) - 1, -worth, depth + 1, 0)
    order = depth_first(parents)
    tree = DraftTree(tokens, parents, [source] * len(tokens), chance=chances)
    return tree if order == list(range(len(tokens))) else tree.subtree(order)


def caterpillar(
    root: int, picks: Sequence[int], levels: Sequence[Sequence[Candidate]], nodes: int, source: str
) -> DraftTree:
    """Build a tree from a chain of picks and their siblings, of which the `nodes` likeliest nodes stay.

    levels[d] are the candidates at depth d + 1, including the pick. All of them follow the pick of the depth above.
    """
    entries: list[tuple[float, int, int, float]] = [(1.0, -1, root, 1.0)]  # worth, parent, token, chance
    parent = 0
    for pick, level in zip(picks, levels, strict=True):
        below = parent
        for token, chance in level:
            if token == pick:
                parent = len(entries)
            entries.append((entries[below][0] * chance, below, token, chance))
    return likeliest_tree(entries, nodes, [source] * len(entries))


# (index of each node's parent among the nodes expanded before, their tokens, their depth) -> candidates of each
Expand = Callable[[Sequence[int], Sequence[int], int], Sequence[Sequence[Candidate]]]


def grow_tree(root: int, expand: Expand, nodes: int, depth: int, source: str) -> DraftTree:
    """Build the tree with the highest expected acceptance if a node's candidates depend on the path to it.

    `expand` is called once per level. It returns the candidates below each of the level's nodes, the likeliest first.
    Only nodes that are among the `nodes` best so far are expanded, and at most `nodes` / 2 of a level. A child is worth
    less than its parent, so other nodes have no descendants among the best.
    """
    entries: list[tuple[float, int, int, float]] = [(1.0, -1, root, 1.0)]  # worth, parent, token, chance
    parents, level, least = [0], [0], 0.0
    for level_depth in range(depth):
        tokens = [entries[node][2] for node in level]
        children: list[int] = []
        for node, candidates in zip(level, expand(parents, tokens, level_depth), strict=True):
            for token, chance in candidates:
                if (worth := entries[node][0] * chance) <= least:
                    break
                children.append(len(entries))
                entries.append((worth, node, token, chance))
        worths = sorted((node[0] for node in entries), reverse=True)
        least = worths[nodes] if len(worths) > nodes else 0.0
        children = sorted((node for node in children if entries[node][0] >= least), key=lambda node: -entries[node][0])
        children = children[: max(nodes // 2, 1)]
        number = {node: index for index, node in enumerate(level)}
        parents, level = [number[entries[node][1]] for node in children], children
        if not level:
            break
    return likeliest_tree(entries, nodes, [source] * len(entries))


def likeliest_tree(entries: Sequence[tuple[float, int, int, float]], nodes: int, sources: Sequence[str]) -> DraftTree:
    """Build the tree of the root and the `nodes` most valuable other nodes of `entries`.

    `entries` has (worth, parent, token, chance) of each node: the root first, and parents before their children. No
    child is worth more than its parent. `sources` has the source of each node.
    """
    best = sorted(range(len(entries)), key=lambda node: -entries[node][0])[: nodes + 1]  # stable: parents come first
    number = {node: index for index, node in enumerate(best)}
    tree = DraftTree(
        [entries[node][2] for node in best],
        [number[entries[node][1]] if node else -1 for node in best],
        [sources[node] for node in best],
        chance=[entries[node][3] for node in best],
    )
    return tree.subtree(depth_first(tree.parents))


def sampled_tree(root: int, logits: Logits, nodes: int, sampling: Sampling, position: int, source: str) -> DraftTree:
    """Build a tree for the rule `rejection`: several chains from the root, with every token sampled independently.

    logits have one row per depth, the first for `position`. There are as many chains of full depth as the nodes allow.
    The remaining nodes become samples for the first depth. The shape does not depend on the samples. The tree ends at a
    depth whose logits have NaN or inf.
    """
    depths = min(logits.finite_rows(sampling), nodes)
    if not depths:
        return DraftTree((root,), (-1,))
    tokens, parents, level = [root], [-1], [0]
    for chain in range(nodes):
        for depth in range(depths if len(tokens) + depths <= nodes + 1 else 1):
            if len(tokens) > nodes:
                break
            parents.append(len(tokens) - 1 if depth else 0)
            tokens.append(logits.sample(depth, position + depth, chain, sampling))
            level.append(depth)
    return DraftTree(tokens, parents, [source] * len(tokens), draft_logits=logits.take(level))


def depth_first(parents: Sequence[int]) -> list[int]:
    """Return an order of nodes in which each node is followed by its first child and all nodes below that child."""
    below: list[list[int]] = [[] for _ in parents]
    for node in range(1, len(parents)):
        below[parents[node]].append(node)
    order, stack = [], [0]
    while stack:
        order.append(node := stack.pop())
        stack += reversed(below[node])
    return order
