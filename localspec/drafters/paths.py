"""Builds draft trees if a drafter's candidates depend on the tokens drafted before, and calibrates their chances."""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from localspec.decoding.compute import Array, DraftableModel, Rows
from localspec.decoding.drafter import Context, Step
from localspec.decoding.logits import Candidate
from localspec.decoding.sampling import Ids
from localspec.decoding.tree import DraftTree, grow_tree
from localspec.drafters.trained import TrainedDrafter

BRANCHES = 8  # candidates of a node below the first depth
PRIOR = 0.7  # assumed chance at first that a level has the next token, given all above it was right
# Recent levels of a depth whose seconds are averaged, and how many of them make a reliable average.
REMEMBERED, ENOUGH = 9, 3
JUDGED = 24  # drafts in the average of how often a level was right
UNTRIED = 256  # drafts that end before a depth, after which its average may be out of date
# (index of each node's parent among the nodes expanded before, their tokens, their depth) -> logits of each
LogitsOf = Callable[[Sequence[int], Sequence[int], int], Rows]
OverlapsOf = Callable[[Sequence[int], int], Sequence[float]]  # (nodes' tokens, their depth) -> 1 - the total variation


class Levels:
    """A policy that decides from earlier results whether another level of a draft tree is expected to save time."""

    def __init__(self) -> None:
        self._right: list[float] = []  # by depth, how often the next token was among those proposed
        self._seconds: list[deque[float]] = []
        self._left_out: list[int] = []  # by depth, how many drafts in a row ended before it

    def pays(self, context: Context, depth: int, chance: float, remaining: int = 1) -> bool:
        """Return whether drafting and verifying a level is expected to save time.

        `chance` is the chance that the draft is right up to this level. Up to `remaining` levels are considered
        together, because row cost rises in steps: the first row of a block costs as much as the whole block.
        """
        self._know(depth)
        if context.token_seconds is None:
            return True
        times = self._seconds[depth]
        if self._left_out[depth] >= UNTRIED:
            self._right[depth] = max(self._right[depth], PRIOR)
            times.clear()
        # A busy machine makes a level slower, but a token's worth assumes an idle one.
        seconds = min(times) if len(times) >= ENOUGH else 0.0
        verified, tokens, paying = context.verify_seconds(depth + 1), 0.0, False
        for further in range(1, remaining + 1):
            chance *= self._right[depth]
            tokens += chance
            rows = context.verify_seconds(depth + further + 1) - verified
            paying = paying or tokens * context.token_seconds > further * seconds + rows
        self._left_out[depth] = 0 if paying else self._left_out[depth] + 1
        return paying

    def record_time(self, depth: int, seconds: float) -> None:
        """Record how many seconds the drafting of a level took."""
        self._know(depth)
        self._seconds[depth].append(seconds)

    def judge(self, depth: int, right: bool) -> None:
        """Record whether the level at `depth` proposed the committed token, if all levels above it did."""
        self._know(depth)
        self._right[depth] += (float(right) - self._right[depth]) / JUDGED

    def _know(self, depth: int) -> None:
        while len(self._right) <= depth:
            self._right.append(PRIOR)
            self._seconds.append(deque(maxlen=REMEMBERED))
            self._left_out.append(0)


class PathTrees:
    """A builder of draft trees, level by level. It also calibrates the drafter's confidence along the committed text.

    A tree ends if another level would take longer than it is expected to save. With `chain`, or for a target that reads
    only chains, trees are chains.
    """

    def __init__(self, drafter: TrainedDrafter, chain: bool = False) -> None:
        self._drafter, self.levels = drafter, Levels()
        self._chain = chain or not drafter.target.branches
        self._candidates: dict[tuple[int, ...], Sequence[Candidate]] = {}  # of the last draft, by path
        self._proposed: set[tuple[int, ...]] = set()  # the paths of its tree
        self._greedy = True

    def forget(self) -> None:
        """Discard the last draft's candidates without learning from them."""
        self._candidates, self._proposed = {}, set()

    def calibrate(self, step: Step) -> None:
        """Calibrate the confidence of the last draft at each node of the committed path."""
        path: tuple[int, ...] = ()
        for token in step.committed if step.tree is not None else ():
            if path not in self._candidates:
                break
            self._drafter.calibration.learn(self._candidates[path], len(path) + 1, self._greedy, token)
            self.levels.judge(len(path), (*path, token) in self._proposed)
            path += (token,)
        self.forget()

    def grow(
        self,
        context: Context,
        logits_of: LogitsOf,
        depths: int,
        ids: Ids | None = None,
        overlaps: OverlapsOf | None = None,
    ) -> DraftTree:
        """Return the best tree of at most `depths` levels, or sampled chains for the rule `rejection`.

        `ids` are the tokens of the logits' columns (None: all tokens). `rejection` needs logits of all tokens.
        `overlaps` returns for each node how much the drafter's distribution is expected to overlap with the target's.
        Chances of the node's children are multiplied by it.
        """
        drafter, sampling = self._drafter, context.sampling
        self.forget()
        if sampling.rule == "rejection":
            return self._sample(context, logits_of, depths)
        self._greedy = sampling.greedy
        paths: list[tuple[int, ...]] = [()]
        # Of nodes, and of their candidates.
        worths, chances = [1.0 - sum(context.covered[:1])], list[dict[int, float]]()

        def expand(parents: Sequence[int], tokens: Sequence[int], depth: int) -> list[list[Candidate]]:
            """Return the candidates below the nodes of a level; `parents` are indices of the nodes one level above."""
            nonlocal paths, worths, chances
            if depth:
                paths = [(*paths[parent], token) for parent, token in zip(parents, tokens, strict=True)]
                worths = [
                    worths[parent] * chances[parent][token] for parent, token in zip(parents, tokens, strict=True)
                ]
            if not self.levels.pays(context, depth, sum(worths), min(depths, context.nodes) - depth):
                return [[] for _ in tokens]
            began = time.perf_counter()
            # Nodes of one depth have one position, and so meet the same noise.
            positions = [len(context.committed) + depth] * len(tokens)
            count = 1 if self._chain else min(context.nodes, BRANCHES) if depth else context.nodes
            logits = drafter.compute.logits(logits_of(parents, tokens, depth))
            proposals = logits.candidates(positions, count, sampling, ids)
            if overlaps is not None:
                shares = overlaps(tokens, depth)
                proposals = [
                    [(token, chance * share) for token, chance in candidates]
                    for candidates, share in zip(proposals, shares, strict=True)
                ]
            self.levels.record_time(depth, time.perf_counter() - began)
            self._candidates.update(zip(paths, proposals, strict=True))
            likely = [drafter.calibration.chances(candidates, depth + 1, self._greedy) for candidates in proposals]
            chances = [dict(candidates) for candidates in likely]
            return likely

        tree = grow_tree(context.root, expand, context.nodes, depths, drafter.kind)
        above: list[tuple[int, ...]] = [()]
        for node in range(1, tree.size):
            above.append((*above[tree.parents[node]], tree.tokens[node]))
        self._proposed = {*above[1:]}
        return tree

    def _sample(self, context: Context, logits_of: LogitsOf, depths: int) -> DraftTree:
        """Sample several chains below one root for the rule `rejection`, each token given those above it.

        Remaining nodes become children of the root, unless only one chain is wanted. `logits_of` gives logits of the
        whole vocabulary. The tree's shape does not depend on the samples, except that the tree ends at a depth whose
        logits have NaN or inf.
        """
        compute, depths, position = self._drafter.compute, min(depths, context.nodes), len(context.committed)
        count = depths if self._chain else context.nodes
        chains = count // depths
        widths = [chains + count % depths] + [chains] * (depths - 1)
        sampled: list[list[int]] = []
        rows: list[Rows] = []
        parents, tokens = [0], [context.root]
        for depth, width in enumerate(widths):
            logits = logits_of(parents, tokens, depth)
            if compute.logits(logits).finite_rows(context.sampling) < len(logits):
                break
            if depth == 0:
                logits = compute.repeated(logits, width)
            handle = compute.logits(logits)
            sampled.append([handle.sample(chain, position + depth, chain, context.sampling) for chain in range(width)])
            rows.append(compute.concat([logits]))  # a copy: if levels are recorded, another draft overwrites them
            parents, tokens = [0] * chains if depth == 0 else list(range(chains)), sampled[-1][:chains]
        if not sampled:
            return DraftTree((context.root,), (-1,))
        depths = len(sampled)
        nodes = [(depth, chain) for chain in range(widths[0]) for depth in range(depths if chain < chains else 1)]
        number = {node: index for index, node in enumerate(nodes, start=1)}
        return DraftTree(
            [context.root, *(sampled[depth][chain] for depth, chain in nodes)],
            [-1, *(number[depth - 1, chain] if depth else 0 for depth, chain in nodes)],
            [self._drafter.kind] * (len(nodes) + 1),
            draft_logits=compute.logits(
                compute.concat([rows[0][:1], *(rows[depth][chain : chain + 1] for depth, chain in nodes)])
            ),
        )


class PathDrafter(TrainedDrafter):
    """A trained drafter whose candidates depend on the tokens above them. Its `_trees` grow the drafts."""

    CHAIN: ClassVar[bool] = False  # whether it drafts only chains

    def __init__(self, target: DraftableModel[Any], options: Any, tensors: Mapping[str, Array]) -> None:
        super().__init__(target, options, tensors)
        self._trees = PathTrees(self, self.CHAIN)

    def calibrate(self, step: Step) -> None:
        self._trees.calibrate(step)

    def forget_draft(self) -> None:
        self._trees.forget()
