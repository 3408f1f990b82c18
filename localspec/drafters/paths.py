"""Trees of a drafter whose candidates depend on the tokens above them, and what became of those candidates."""

from collections.abc import Callable, Sequence

from localspec.decoding.compute import Rows
from localspec.decoding.drafter import Context, Step
from localspec.decoding.logits import Candidate
from localspec.decoding.sampling import Ids
from localspec.decoding.tree import DraftTree, grow_tree
from localspec.drafters.trained import TrainedDrafter

BRANCHES = 8  # candidates of a node below the first depth
# (place of each node's parent among the nodes asked for before, their tokens, their depth) -> logits of each
LogitsOf = Callable[[Sequence[int], Sequence[int], int], Rows]


class PathTrees:
    """Builds a drafter's trees level by level, and calibrates its confidence along the text that was committed."""

    def __init__(self, drafter: TrainedDrafter) -> None:
        self._drafter = drafter
        self._candidates: dict[tuple[int, ...], Sequence[Candidate]] = {}  # of the last draft, by path
        self._greedy = True

    def forget(self) -> None:
        """Drops the last draft's candidates, so that nothing is calibrated by them."""
        self._candidates = {}

    def calibrate(self, step: Step) -> None:
        """Calibrates the confidence of the last draft at each node of the committed path."""
        path: tuple[int, ...] = ()
        for token in step.committed if step.tree is not None else ():
            if path not in self._candidates:
                break
            self._drafter.calibration.learn(self._candidates[path], len(path) + 1, self._greedy, token)
            path += (token,)
        self.forget()

    def grow(self, context: Context, logits_of: LogitsOf, depths: int, ids: Ids | None = None) -> DraftTree:
        """Returns the best tree of so many levels. `ids` are the tokens of the logits' columns, where not all are."""
        drafter, sampling = self._drafter, context.sampling
        self._candidates, self._greedy = {}, sampling.greedy
        paths: list[tuple[int, ...]] = [()]

        def expand(parents: Sequence[int], tokens: Sequence[int], depth: int) -> list[list[Candidate]]:
            """Returns the candidates after nodes at `depth`, whose parents are nodes of the call before."""
            nonlocal paths
            if depth:
                paths = [(*paths[parent], token) for parent, token in zip(parents, tokens, strict=True)]
            # Nodes of one depth have one position, and so meet the same noise.
            positions = [len(context.committed) + depth] * len(tokens)
            count = min(context.nodes, BRANCHES) if depth else context.nodes
            logits = drafter.compute.logits(logits_of(parents, tokens, depth))
            found = logits.candidates(positions, count, sampling, ids)
            self._candidates.update(zip(paths, found, strict=True))
            return [drafter.calibration.chances(candidates, depth + 1, self._greedy) for candidates in found]

        return grow_tree(context.root, expand, context.nodes, depths, drafter.kind)

    def sample(self, context: Context, logits_of: LogitsOf, depths: int) -> DraftTree:
        """Samples chains side by side for the rule `rejection`, each token given those above it.

        Nodes left over are children of the root. `logits_of` gives logits of the whole vocabulary. The shape does not
        depend on what is sampled, except that it ends at a depth where some logits are NaN or inf.
        """
        self.forget()
        compute, depths, position = self._drafter.compute, min(depths, context.nodes), len(context.committed)
        chains = context.nodes // depths
        widths = [chains + context.nodes % depths] + [chains] * (depths - 1)
        sampled: list[list[int]] = []
        rows: list[Rows] = []
        parents, tokens = [0], [context.root]
        for depth, width in enumerate(widths):
            logits = logits_of(parents, tokens, depth)
            if compute.logits(logits).finite_rows(context.sampling) < len(logits):
                break
            if depth == 0:
                logits = logits[[0] * width]
            handle = compute.logits(logits)
            sampled.append([handle.sample(chain, position + depth, chain, context.sampling) for chain in range(width)])
            rows.append(logits)
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
