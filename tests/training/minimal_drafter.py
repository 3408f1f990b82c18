"""A minimal drafter for tests of the training loop: the trained part, without the part that drafts."""

from dataclasses import dataclass

import torch
from torch import nn

from localspec.nn.losses import cross_entropy
from localspec.nn.target import Target
from localspec.training.trainable import Batch, LossOutput, TrainableDrafter


@dataclass(frozen=True)
class Options:
    depth: int = 2
    offset: int = 0  # offset of the labels; any value except 0 is wrong


class Linears(TrainableDrafter):
    """A drafter with one matrix a depth between the target's state and its head. It records its calls."""

    kind = "linears"

    def __init__(self, target: Target, options: Options | None = None) -> None:
        super().__init__(target, options or Options())
        width = target.transformer.config.hidden_size
        self.matrices = nn.ParameterList(torch.eye(width) for _ in range(self.options.depth))
        self.bias = nn.Parameter(torch.zeros(width))
        self.progress = -1.0
        self.told: list[float] = []
        self.frequencies: torch.Tensor | None = None

    @property
    def depth(self) -> int:
        return self.options.depth

    def begin_training(self, frequencies: torch.Tensor) -> None:
        self.frequencies = frequencies

    def loss(self, batch: Batch) -> LossOutput:
        if torch.is_grad_enabled():
            self.told.append(self.progress)
        found = []
        for ahead, matrix in enumerate(self.matrices, start=1):
            shift = 1 + ahead + self.options.offset
            where = batch.loss_mask[:, shift:]
            states = batch.hidden[:, : where.shape[1]][where] @ matrix + self.bias
            labels = (
                batch.hidden[:, shift - 1 : shift - 1 + where.shape[1]] if batch.distill else batch.tokens[:, shift:]
            )
            teacher = self.target.head if batch.distill else None
            found.append(cross_entropy(states, self.target.head, labels[where], teacher))
        # Something random, so that a wrong place in the stream of random numbers after a restart would show.
        noise = 0.01 * torch.rand((), generator=batch.generator) * self.bias.square().sum()
        loss = torch.stack([seen.loss / max(seen.count, 1) for seen in found]).sum() + noise
        return LossOutput(loss, found)
