"""Trains Medusa's heads (Cai et al. 2024, §3.2), alone or together with the target."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from localspec.drafters.medusa import JOINT, SOFT_BALANCE, TEXT_BALANCE, Drafter, MedusaOptions
from localspec.engine.backends import Target as DecodingTarget
from localspec.machine.memory import free_memory
from localspec.nn.adapters import Adapters
from localspec.nn.linear import Linear, QuantizedLinear
from localspec.nn.losses import DepthLoss, Guess, Head, cross_entropies
from localspec.nn.target import Target
from localspec.training.trainable import Batch, LossOutput, PreviousRun, TrainableDrafter

SHARE = 0.1  # of the model's weights: what vocabulary matrices of the heads' own may take
TRAINED_BYTES = 16  # of a number that is trained: itself, its gradient and two moments
ADAPTERS_LR_SCALE = 0.25  # the learning rate of the target's adapters, as a multiple of the heads' (§4.0.1)


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


class OwnChange(nn.Module):
    """What each head changes of the vocabulary matrix that all share, U D; nothing at first.

    down [heads, rank, hidden_size], up [heads, vocab_size, rank].
    """

    def __init__(self, heads: int, rank: int, width: int, vocabulary: int, device: str) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.randn(heads, rank, width, device=device) * width**-0.5)
        self.up = nn.Parameter(torch.zeros(heads, vocabulary, rank, device=device))

    def forward(self, x: torch.Tensor, heads: slice, logits: torch.Tensor) -> torch.Tensor:
        """Returns logits [heads, rows, vocab_size] of x [heads, rows, hidden_size] with what these heads change."""
        down, up = (part[heads].to(x.dtype).transpose(1, 2) for part in (self.down, self.up))
        return torch.baddbmm(logits, torch.bmm(x, down), up)


class Trainable(TrainableDrafter):
    """The heads. Medusa-1 trains them alone, on states of the target as it is.

    In Medusa-2 `adapters` of the target are trained with them, and become part of it in the end; what is left are heads
    as of Medusa-1, for a changed target.
    """

    Drafter = Drafter
    options: MedusaOptions
    JOINT = ("joint", *JOINT)
    linears: nn.Parameter | None

    def __init__(self, target: Target, options: MedusaOptions) -> None:
        super().__init__(target, options)
        transformer = target.transformer
        self.blocks = nn.ModuleList(
            ResidualBlocks(options.heads, transformer.config.hidden_size, target.device) for _ in range(options.layers)
        )
        self.linears = None
        if options.private:
            head = transformer.lm_head.weight.detach().float() * transformer.config.logit_scale
            self.linears = nn.Parameter(head.repeat(options.heads, 1, 1))
        if rank := options.rank_of_own:
            shape = transformer.config
            self.own = OwnChange(options.heads, rank, shape.hidden_size, shape.vocab_size, target.device)
        if options.joint:
            layers = range(len(transformer.layers))
            self.adapters = Adapters(
                transformer, layers, options.rank, options.alpha, head=options.lm_head, dropout=options.dropout
            )

    @classmethod
    def propose(
        cls, target: Target, previous: Sequence[PreviousRun] = (), decoding: Callable[[], DecodingTarget] | None = None
    ) -> tuple[dict[str, Any], str] | None:
        """Proposes matrices of the heads' own, as in the paper, where they are little beside model and memory."""
        shape, defaults = target.transformer.config, MedusaOptions()
        own = defaults.heads * shape.vocab_size * shape.hidden_size
        matrices = (one for one in target.transformer.layers.modules() if isinstance(one, Linear | QuantizedLinear))
        weights = sum(math.prod(one.shape) for one in matrices)
        if own > SHARE * weights or TRAINED_BYTES * own > free_memory(str(target.device)) / 2:
            return None
        return {"private": True}, (
            f"each head gets a vocabulary matrix of its own, {100 * own / weights:.0f} % of the model's weights "
            "together; give -O private=false for a change of low rank."
        )

    @property
    def depth(self) -> int:
        """The number of heads."""
        return self.options.heads

    def _logits(self, x: torch.Tensor, heads: slice, shared: Head | None = None) -> torch.Tensor:
        """Returns these heads' logits [heads, rows, vocab_size] of states x [heads, rows, hidden_size].

        The head that they share is the target's, or `shared`.
        """
        for blocks in self.blocks:
            x = blocks(x, heads)
        if self.linears is None:
            logits = (shared or self.target.head)(x)
            return self.own(x, heads, logits) if self.options.rank_of_own else logits
        # In this order a single row takes the path for vectors, which reads the matrices twice as fast.
        return torch.bmm(self.linears[heads].to(x.dtype), x.transpose(1, 2)).transpose(1, 2).contiguous()

    def loss(self, batch: Batch) -> LossOutput:
        """Returns the loss of Medusa-1 (§3.2.1, eq. 1), or of Medusa-2 (§3.2.2, eq. 2) where training is joint.

        Head k reads the state at t and predicts the token at t + 1 + k. Joint training is Medusa-1 during the heads'
        warm-up. After it the heads read the states of the target with its adapters, and share its head with them; the
        teacher is the target without them (§3.3.2), from which the batch's states come.
        """
        adapted = self.adapters is not None and self.progress >= self.options.warmup
        states = self.adapted_states(batch.tokens) if adapted else batch.hidden
        own = self.adapted_head if adapted else self.target.head
        guesses = [self._guess(states, batch, ahead, own) for ahead in range(0 if adapted else 1, self.depth + 1)]
        labels = batch.hidden if batch.distill else batch.tokens.roll(-1, 1)  # of each place, what follows it
        losses = cross_entropies(guesses, labels.flatten(0, 1), self.target.head if batch.distill else None)
        depth_losses = losses[-self.depth :]
        loss = torch.stack(
            [_mean(seen) * self.options.decay**ahead for ahead, seen in enumerate(depth_losses, start=1)]
        ).sum()
        if adapted:
            loss = _mean(losses[0]) + self._balance(batch.distill) * loss
        return LossOutput(loss, depth_losses)

    def _balance(self, distill: bool) -> float:
        """Returns λ₀ at this point of the joint training (§3.2.2)."""
        options = self.options
        highest = options.balance if distill or options.balance != SOFT_BALANCE else TEXT_BALANCE
        if options.schedule == "constant":
            return highest
        return highest * math.sin(math.pi / 2 * (self.progress - options.warmup) / (1 - options.warmup))

    def _guess(self, states: torch.Tensor, batch: Batch, ahead: int, own: Head) -> Guess:
        """Returns what a head foresees of the token `ahead` positions after the next; 0 is the target's `own` head."""
        n = batch.tokens.shape[1]
        text, place = batch.loss_mask[:, 1 + ahead :].nonzero(as_tuple=True)

        def head(rows: torch.Tensor) -> torch.Tensor:
            return self._logits(rows[None], slice(ahead - 1, ahead), own)[0] if ahead else own(rows)

        return Guess(states[text, place], head, text * n + place + ahead)

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Returns the heads' group and the adapters', which have no gradient during the warm-up."""
        adapters = [] if self.adapters is None else list(self.adapters.parameters())
        theirs = {id(parameter) for parameter in adapters}
        heads = [parameter for parameter in self.parameters() if id(parameter) not in theirs]
        groups = [{"params": heads, "lr_scale": 1.0}, {"params": adapters, "lr_scale": ADAPTERS_LR_SCALE}]
        return [group for group in groups if group["params"]]


def _mean(seen: DepthLoss) -> torch.Tensor:
    return seen.loss / max(seen.count, 1)
