"""Medusa (Cai et al. 2024): K heads on the target's last hidden state, each for one token further ahead.

The heads read the state that predicted the root. Head k predicts the token k positions after the root, independently of
the tokens between. In localspec the heads also read the root, which is known when they draft (as in Hydra, Ankner et
al. 2024).
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from localspec.decoding.compute import Array, DraftableModel, HeadWeights, Rows
from localspec.decoding.drafter import Context, Step
from localspec.decoding.logits import Logits
from localspec.decoding.tree import DraftTree, best_first_tree
from localspec.drafters.tensors import TensorSpec
from localspec.drafters.trained import (
    DraftVocabulary,
    ParallelDrafter,
    check_options,
    draft_vocabulary,
    refuse_without_joint,
)
from localspec.models.drafter_cards import RANKS
from localspec.models.stored_names import MOST_RANK

# Options that only joint training has.
JOINT = ("rank", "alpha", "dropout", "lm_head", "balance", "schedule", "warmup", "rate")
SCHEDULES = ("sine", "constant")
SOFT_BALANCE, TEXT_BALANCE = 0.01, 0.2  # λ₀ by labels
ADAPTERS_RATE = 0.25  # the learning rate of the target's adapters, as a share of the heads' (§4.0.1)
TREES = ("confident", "static", "dense", "chain")
EVERY = 16  # one draft in this many computes all heads
UNMEASURED = [0.5 ** (rank + 1) for rank in range(RANKS)]  # accuracies by rank if none were measured


@dataclass(frozen=True)
class MedusaOptions:
    """Options of Medusa's heads. Raises UsageMistake for impossible values.

    With `private` each head has its own vocabulary matrix, as in the paper. Otherwise all heads share the target's
    matrix, and each adds a change of rank `private_rank` to it (0: no change). The heads propose the `vocabulary` most
    frequent tokens of the training text (0: all; -1: 8,192 if the model has more than 32,768, otherwise all).

    With `linear` the first block reads the state and the root's embedding, and its residual connection is a linear map
    of both. Without it the first block reads only the state. Least squares find the map before training begins.

    `tree`: "confident" builds each tree from the step's probabilities. "static" (the sparse tree, §3.3.3) and "dense"
    (all products of each head's first candidates, §3.1.2) are built once from measured accuracies. "chain" has one
    candidate per depth. `decay` is λ: the loss of head k is weighted by λᵏ.

    `joint` is Medusa-2 (§3.2.2), which changes the target. The target gets adapters of `rank`, `alpha` and `dropout` on
    all layers and, with `lm_head`, on its head. During the first share `warmup` of the training only the heads are
    trained. After that the adapters are trained too, at `rate` times the heads' learning rate. `balance` is λ₀, the
    weight of the heads' loss in the adapters' training (0: 0.01 if labels are the target's distribution, 0.2 if they
    are the text). By `schedule` the weight rises from 0 to λ₀ as a "sine", or is "constant".
    """

    heads: int = 4
    layers: int = 1
    private: bool = False
    tree: str = "confident"
    decay: float = 0.8
    joint: bool = False
    rank: int = 32
    alpha: float = 16.0
    dropout: float = 0.05
    lm_head: bool = True
    balance: float = 0.0
    schedule: str = "sine"
    warmup: float = 0.25
    private_rank: int = 32
    rate: float = ADAPTERS_RATE
    linear: bool = True
    vocabulary: int = -1

    def __post_init__(self) -> None:
        checks = (
            ("heads", 1 <= self.heads <= 16, "1 to 16"),
            ("layers", 1 <= self.layers <= 8, "1 to 8"),
            ("tree", self.tree in TREES, f"one of {', '.join(TREES)}"),
            ("private_rank", 0 <= self.private_rank <= 1024, "0 for none, or up to 1024"),
            ("decay", 0 < self.decay <= 1, "above 0 and at most 1"),
            ("rank", 1 <= self.rank <= MOST_RANK, f"1 to {MOST_RANK}"),
            ("alpha", 0 < self.alpha < float("inf"), "above 0"),
            ("dropout", 0 <= self.dropout < 1, "0 or more and below 1"),
            ("balance", 0 <= self.balance < float("inf"), "0 or more"),
            ("rate", 0 < self.rate <= 1, "above 0 and at most 1"),
            ("schedule", self.schedule in SCHEDULES, f"one of {', '.join(SCHEDULES)}"),
            ("warmup", 0 <= self.warmup < 1, "0 or more and below 1"),
            ("vocabulary", self.vocabulary >= -1, "0 for all tokens, -1 for automatic, or a number"),
        )
        check_options("medusa", self, checks)
        if not self.joint and self.balance == SOFT_BALANCE:  # the default as earlier versions wrote it
            object.__setattr__(self, "balance", 0.0)
        refuse_without_joint("medusa", self, JOINT)

    @property
    def change_rank(self) -> int:
        """The rank of each head's change of the shared matrix."""
        return 0 if self.private else self.private_rank


class Drafter(ParallelDrafter):
    """Medusa's heads (Cai et al. 2024, §3.1): p_k = softmax(W_k (h + SiLU(V_k h + b_k))) at depth k.

    h [hidden_size] is the target's state that predicted the root. From it head k computes logits [draft vocabulary] of
    the token k positions after the root. Several blocks, h + SiLU(…), may follow one another. W_k is either the head's
    own matrix, or the target's W plus a change of low rank, W + U_k D_k. With `linear` the first block is A_k [h; e] +
    SiLU(V_k [h; e] + b_k), where e is the root's embedding. h and e are first divided by their root mean square.
    """

    kind = "medusa"
    Options = MedusaOptions
    BEFORE: ClassVar[Mapping[str, Any]] = {"private_rank": 0, "linear": False, "vocabulary": 0}
    options: MedusaOptions

    def __init__(self, target: DraftableModel[Any], options: MedusaOptions, tensors: Mapping[str, Array]) -> None:
        super().__init__(target, options, tensors)
        self._vocabulary = DraftVocabulary(target, tensors, shared=not options.private)
        pairs = ((f"blocks.{index}.weight", f"blocks.{index}.bias") for index in range(options.layers))
        down, up = ("own.down", "own.up") if options.change_rank else (None, None)
        weights = HeadWeights(
            blocks=[(tensors[weight], tensors[bias]) for weight, bias in pairs],
            path=(tensors["path.weight"], tensors["path.bias"]) if options.linear else None,
            vocabulary=tensors["linears"] if options.private else None,
            down=tensors[down] if down else None,
            up=tensors[up] if up else None,
        )
        self._draft_heads = self.compute.draft_heads(weights, self._vocabulary.rows)
        self._state: Rows = None  # the target's, which predicted the root
        self._reached: deque[int] = deque(maxlen=EVERY)  # depth of our deepest node in each recently verified tree
        self._drafts = 0

    @classmethod
    def tensor_specs(cls, target: DraftableModel[Any], options: MedusaOptions) -> dict[str, TensorSpec]:
        """List the tensors: blocks by layer, vocabulary matrices or their changes, and the ids of a draft
        vocabulary."""
        heads, sizes = options.heads, target.compute.target.sizes
        vocabulary = draft_vocabulary(options.vocabulary, sizes.vocab_size)
        specs = {"kept": TensorSpec((vocabulary,), "int64")} if vocabulary else {}
        if options.private:
            specs["linears"] = TensorSpec((heads, vocabulary or sizes.vocab_size, sizes.hidden_size))
        if rank := options.change_rank:
            specs["own.down"] = TensorSpec((heads, rank, sizes.hidden_size))
            specs["own.up"] = TensorSpec((heads, vocabulary or sizes.vocab_size, rank))
        if options.linear:
            specs["path.weight"] = TensorSpec((heads, sizes.hidden_size, 2 * sizes.hidden_size))
            specs["path.bias"] = TensorSpec((heads, sizes.hidden_size))
        for index in range(options.layers):
            read = 2 * sizes.hidden_size if options.linear and not index else sizes.hidden_size
            specs[f"blocks.{index}.weight"] = TensorSpec((heads, sizes.hidden_size, read))
            specs[f"blocks.{index}.bias"] = TensorSpec((heads, sizes.hidden_size))
        return specs

    @property
    def depth(self) -> int:
        """The number of heads."""
        return self.options.heads

    @property
    def nbytes(self) -> int:
        return self._draft_heads.nbytes + self._vocabulary.nbytes

    def observe(self, step: Step) -> None:
        """Calibrate the heads' confidence, and store the last row's state, which predicted the new root."""
        if step.tree is not None and step.tree.source and self._candidates:
            nodes = zip(step.tree.depth, step.tree.source, strict=True)
            self._reached.append(max(depth for depth, source in nodes if depth == 0 or source == self.kind))
        self.calibrate(step)
        self._state = step.hidden.take([len(step.hidden) - 1]).rows  # a copy: a view would keep a whole chunk in memory

    def rewind(self, length: int) -> None:
        """Discard the state; the session reads at least one token before the next draft."""
        self._state = None
        self.forget_draft()

    def draft(self, context: Context) -> DraftTree:
        """Return the draft tree. All heads that recent trees needed are computed at once."""
        if self._state is None or not context.nodes:
            return DraftTree((context.root,), (-1,))
        rows = self._draft_heads(self._state, context.root, self._heads_needed(context))
        if context.sampling.rule == "rejection":
            return self.build_tree(context, self.compute.logits(self._vocabulary.whole(rows)))
        logits = self.compute.logits(rows)
        if self.options.tree in ("static", "dense"):
            return self._static(context, logits)
        return self.build_tree(context, logits, 1 if self.options.tree == "chain" else RANKS, self._vocabulary.ids)

    def _heads_needed(self, context: Context) -> int:
        """Return the number of heads to compute: the depth that the heads reached in recently verified trees.

        One draft in EVERY computes all heads, so that trees can become deeper again.
        """
        heads = min(context.nodes, self.depth)
        self._drafts += 1
        always_all = self.options.tree in ("static", "dense") or context.sampling.rule == "rejection"
        if always_all or self._drafts % EVERY == 1 or len(self._reached) < EVERY:
            return heads
        return min(heads, max(1, *self._reached))

    def _static(self, context: Context, logits: Logits) -> DraftTree:
        """Return the tree whose shape was chosen from measured accuracies, filled with this step's tokens.

        It has no chances, so the budget estimates them.
        """
        nodes = context.nodes
        positions, count = self.positions(context, logits), min(nodes, RANKS)
        levels = logits.candidates(positions, count, context.sampling, self._vocabulary.ids)
        accuracies = self.accuracies or [UNMEASURED] * len(levels)
        shape = dense_tree if self.options.tree == "dense" else sparse_tree
        ranks = shape(
            tuple(tuple(by_rank[: len(level)]) for by_rank, level in zip(accuracies, levels, strict=False)), nodes
        )
        tokens = [levels[depth - 1][rank][0] for depth, rank in zip(ranks.depth[1:], ranks.tokens[1:], strict=True)]
        return DraftTree([context.root, *tokens], ranks.parents, ranks.source)


@lru_cache(maxsize=256)
def sparse_tree(accuracies: Sequence[Sequence[float]], nodes: int) -> DraftTree:
    """Return Medusa's static tree (§3.3.3), built greedily: the node with the most accurate path comes next.

    accuracies [depth][rank] is how often the candidate of that rank is right. The returned tree has ranks in place of
    tokens.
    """
    levels = [sorted(enumerate(ranks), key=lambda candidate: -candidate[1]) for ranks in accuracies]
    return best_first_tree(0, levels, nodes, Drafter.kind)


@lru_cache(maxsize=256)
def dense_tree(accuracies: Sequence[Sequence[float]], nodes: int) -> DraftTree:
    """Return Medusa's dense tree (§3.1.2): every product of the first s_k candidates of each head k.

    The numbers s_k have the highest expected acceptance among trees of at most this many nodes. The returned tree has
    ranks in place of tokens.
    """
    best: float = 0.0
    widths: tuple[int, ...] = ()
    waiting: list[tuple[float, int, float, int, tuple[int, ...]]] = [(0.0, 0, 1.0, 1, ())]
    while waiting:  # (accepted so far, nodes so far, the chance and the number of all paths to the last depth, widths)
        accepted, size, chance, paths, some = waiting.pop()
        if accepted > best:
            best, widths = accepted, some
        if len(some) < len(accuracies):
            right = 0.0
            for width, accuracy in enumerate(accuracies[len(some)], start=1):
                right += accuracy
                if size + paths * width > nodes:
                    break
                reached = chance * right
                waiting.append((accepted + reached, size + paths * width, reached, paths * width, (*some, width)))
    levels = [[(rank, 1.0) for rank in range(width)] for width in widths]
    return best_first_tree(0, levels, nodes, Drafter.kind)
