"""Trains Medusa's heads (Cai et al. 2024, §3.2), alone or together with the target."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from localspec.drafters.medusa import JOINT, Drafter, MedusaOptions
from localspec.errors import UsageMistake
from localspec.nn.adapters import Adapters
from localspec.nn.losses import DepthLoss, cross_entropy
from localspec.nn.target import Target
from localspec.training.trainable import Batch, LossOutput, TrainableDrafter

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


class Trainable(TrainableDrafter):
    """The heads. Medusa-1 trains them alone, on states of the target as it is.

    In Medusa-2 `adapters` are trained with them, until `merge_adapters`; what is left are heads as of Medusa-1, for a
    changed target.
    """

    Drafter = Drafter
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

    @property
    def depth(self) -> int:
        """The number of heads."""
        return self.options.heads

    def _logits(self, x: torch.Tensor, heads: slice) -> torch.Tensor:
        """Returns these heads' logits [heads, rows, vocab_size] of states x [heads, rows, hidden_size]."""
        for blocks in self.blocks:
            x = blocks(x, heads)
        if self.linears is None:
            return self.target.head(x)
        # In this order a single row takes the path for vectors, which reads the matrices twice as fast.
        return torch.bmm(self.linears[heads].to(x.dtype), x.transpose(1, 2)).transpose(1, 2).contiguous()

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
