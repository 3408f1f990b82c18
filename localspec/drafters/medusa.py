"""Medusa (Cai et al. 2024): K heads on the target's last hidden state, each for one token further ahead.

The heads read the state that predicted the root; head k predicts the token k positions after the root, independently of
the tokens between.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from localspec.decoding.drafter import Context, Step
from localspec.decoding.tree import DraftTree, best_first_tree
from localspec.drafters.trained import Batch, LossOutput, ParallelDrafter, refuse_without_joint
from localspec.errors import UsageMistake
from localspec.nn.adapters import MOST_RANK, Adapters
from localspec.nn.logits import TorchLogits
from localspec.nn.losses import RANKS, DepthLoss, cross_entropy
from localspec.nn.target import Target

JOINT = ("rank", "alpha", "balance", "warmup")  # options that only joint training has
TREES = ("confident", "static", "chain")
ADAPTERS_LR_SCALE = 0.25  # the learning rate of the target's adapters, as a multiple of the heads' (§4.0.1)
UNMEASURED = [0.5 ** (rank + 1) for rank in range(RANKS)]  # accuracies by rank, where none were measured


@dataclass(frozen=True)
class MedusaOptions:
    """`private` gives each head a vocabulary matrix of its own, as in the paper; else all heads share the target's.

    `tree` is built from this step's confidence, or once from measured accuracies (§3.3.3), or is a chain. `decay` is λ:
    the loss of head k is weighted by λᵏ. `joint` is Medusa-2 (§3.2.2), which changes the target: adapters of this rank
    and alpha are trained with the heads, after the heads alone for the share `warmup` of the training. The heads' loss
    is then weighted by `balance` (λ₀: 0.01 with the target's distribution as the label, 0.2 with the text). Raises
    UsageMistake for impossible values.
    """

    heads: int = 4
    layers: int = 1
    private: bool = False
    tree: str = "confident"
    decay: float = 0.8
    joint: bool = False
    rank: int = 32
    alpha: float = 16.0
    balance: float = 0.01
    warmup: float = 0.25

    def __post_init__(self) -> None:
        for name, fine, hint in (
            ("heads", 1 <= self.heads <= 16, "1 to 16"),
            ("layers", 1 <= self.layers <= 8, "1 to 8"),
            ("tree", self.tree in TREES, f"one of {', '.join(TREES)}"),
            ("decay", 0 < self.decay <= 1, "above 0 and at most 1"),
            ("rank", 1 <= self.rank <= MOST_RANK, f"1 to {MOST_RANK}"),
            ("alpha", 0 < self.alpha < float("inf"), "above 0"),
            ("balance", 0 < self.balance < float("inf"), "above 0"),
            ("warmup", 0 <= self.warmup < 1, "0 or more and below 1"),
        ):
            if not fine:
                raise UsageMistake(f"{name} = {getattr(self, name)!r} of medusa is not possible; give {hint}.")
        refuse_without_joint("medusa", self, JOINT)


class ResidualBlocks(nn.Module):
    """One residual block of every head, x + SiLU(W x + b) (§3.1.1); zeros at first, which change nothing.

    weight [heads, hidden_size, hidden_size], bias [heads, hidden_size].
    """

    def __init__(self, heads: int, width: int, device: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(heads, width, width, device=device))
        self.bias = nn.Parameter(torch.zeros(heads, width, device=device))

    def forward(self, x: torch.Tensor, heads: slice) -> torch.Tensor:
        """Applies the blocks of these heads to x [heads, rows, hidden_size], whose shape stays."""
        weight, bias = self.weight[heads].to(x.dtype), self.bias[heads].to(x.dtype)
        return x + F.silu(torch.baddbmm(bias[:, None], x, weight.transpose(1, 2)))


class Drafter(ParallelDrafter):
    """Medusa's heads (Cai et al. 2024, §3.1 and §3.2): p_k = softmax(W_k (h + SiLU(V_k h + b_k))) at depth k.

    From the target's state h [hidden_size] that predicted the root, head k makes logits [vocab_size] of the token k
    positions after it. Medusa-1 trains the heads alone. In Medusa-2 `adapters` are trained with them, until
    `merge_adapters`; what is left are heads as of Medusa-1, for a changed target.
    """

    kind = "medusa"
    Options = MedusaOptions
    options: MedusaOptions
    JOINT = JOINT
    linears: nn.Parameter | None

    def __init__(self, target: Target, options: MedusaOptions) -> None:
        """Raises UsageMistake for joint training of a quantized target."""
        super().__init__(target, options)
        transformer = target.transformer
        self.blocks = nn.ModuleList(
            ResidualBlocks(options.heads, transformer.config.hidden_size, target.device) for _ in range(options.layers)
        )
        self.linears = None
        if options.private:
            self.linears = nn.Parameter(transformer.lm_head.weight.detach().float().repeat(options.heads, 1, 1))
        if options.joint:
            if transformer.packed:
                raise UsageMistake(
                    "Joint training changes the target's weights, which int8 rounds; use --quantize none."
                )
            self.adapters = Adapters(transformer, range(len(transformer.layers)), options.rank, options.alpha)
        self._state: torch.Tensor | None = None  # the target's, which predicted the root

    @property
    def depth(self) -> int:
        return self.options.heads

    # -- drafting -----------------------------------------------------------------------------------------------------

    def observe(self, step: Step) -> None:
        """Calibrates the last draft; keeps the state that predicted the new root, which is that of the last row."""
        self.calibrate(step)
        self._state = step.hidden.take([len(step.hidden) - 1]).rows  # a copy: a view would keep a whole chunk

    def rewind(self, length: int) -> None:
        """Forgets the state; the session reads at least one token before the next draft."""
        self._state = None
        self.forget_draft()

    @torch.inference_mode()
    def draft(self, context: Context) -> DraftTree:
        """Returns the tree of all heads, computed at once; heads that no node would be left for are not computed."""
        if self._state is None or not context.nodes:
            return DraftTree((context.root,), (-1,))
        depths = min(context.nodes, self.depth)
        logits = self._logits(self._state.expand(depths, 1, -1), slice(depths))[:, 0]
        if self.options.tree == "static" and context.sampling.rule != "rejection":
            return self._static(context, logits)
        return self.build_tree(context, logits, 1 if self.options.tree == "chain" else RANKS)

    def _logits(self, x: torch.Tensor, heads: slice) -> torch.Tensor:
        """Returns these heads' logits [heads, rows, vocab_size] of states x [heads, rows, hidden_size]."""
        for blocks in self.blocks:
            x = blocks(x, heads)
        if self.linears is None:
            return self.target.head(x)
        # In this order a single row takes the path for vectors, which reads the matrices twice as fast.
        return torch.bmm(self.linears[heads].to(x.dtype), x.transpose(1, 2)).transpose(1, 2).contiguous()

    def _static(self, context: Context, logits: torch.Tensor) -> DraftTree:
        """Returns the sparse tree (§3.3.3) with this step's tokens. It has no chances: the budget observes them."""
        nodes = context.nodes
        levels = TorchLogits(logits).candidates(self.positions(context, logits), min(nodes, RANKS), context.sampling)
        accuracies = self.accuracies or [UNMEASURED] * len(levels)
        ranks = sparse_tree(
            tuple(tuple(known[: len(level)]) for known, level in zip(accuracies, levels, strict=False)), nodes
        )
        tokens = [levels[depth - 1][rank][0] for depth, rank in zip(ranks.depth[1:], ranks.tokens[1:], strict=True)]
        return DraftTree([context.root, *tokens], ranks.parents, ranks.source)

    # -- training -----------------------------------------------------------------------------------------------------

    def loss(self, batch: Batch) -> LossOutput:
        """Returns the loss of Medusa-1 (§3.2.1, eq. 1), or of Medusa-2 (§3.2.2, eq. 2) where training is joint.

        Head k reads the state at t and predicts the token at t + 1 + k. Joint training is Medusa-1 during the heads'
        warm-up. After it the heads read the states of the target with its adapters, and the teacher is the target
        without them (§3.3.2), from which the batch's states come.
        """
        adapted = self.adapters is not None and self.progress >= self.options.warmup
        states = self.adapted_states(batch.tokens) if adapted else batch.hidden
        depth_losses = [self._depth_loss(states, batch, ahead) for ahead in range(1, self.depth + 1)]
        loss = torch.stack(
            [_mean(seen) * self.options.decay**ahead for ahead, seen in enumerate(depth_losses, start=1)]
        ).sum()
        if adapted:
            loss = _mean(self._depth_loss(states, batch, 0)) + self.options.balance * loss
        return LossOutput(loss, depth_losses)

    def _depth_loss(self, states: torch.Tensor, batch: Batch, ahead: int) -> DepthLoss:
        """Returns the loss of the head for the token `ahead` positions after the next; 0 is the target's own head."""
        count = max(batch.tokens.shape[1] - 1 - ahead, 0)
        where = batch.loss_mask[:, 1 + ahead :]
        labels = batch.hidden[:, ahead : ahead + count] if batch.distill else batch.tokens[:, 1 + ahead :]

        def head(rows: torch.Tensor) -> torch.Tensor:
            return self._logits(rows[None], slice(ahead - 1, ahead))[0] if ahead else self.target.head(rows)

        return cross_entropy(states[:, :count][where], head, labels[where], self.target.head if batch.distill else None)

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Returns the heads' group and the adapters', which have no gradient during the warm-up."""
        adapters = [] if self.adapters is None else list(self.adapters.parameters())
        theirs = {id(parameter) for parameter in adapters}
        heads = [parameter for parameter in self.parameters() if id(parameter) not in theirs]
        groups = [{"params": heads, "lr_scale": 1.0}, {"params": adapters, "lr_scale": ADAPTERS_LR_SCALE}]
        return [group for group in groups if group["params"]]


def _mean(seen: DepthLoss) -> torch.Tensor:
    return seen.loss / max(seen.count, 1)


@lru_cache(maxsize=256)
def sparse_tree(accuracies: Sequence[Sequence[float]], nodes: int) -> DraftTree:
    """Returns Medusa's static tree (§3.3.3), built greedily: the node with the most accurate path comes next.

    accuracies [depth][rank] is how often the candidate of that rank is right. The tree's tokens are ranks.
    """
    levels = [sorted(enumerate(ranks), key=lambda candidate: -candidate[1]) for ranks in accuracies]
    return best_first_tree(0, levels, nodes, Drafter.kind)
