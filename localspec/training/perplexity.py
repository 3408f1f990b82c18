"""The target's perplexity on held-out text, which a training that changes the target must not increase."""

import math

import torch

from localspec.nn.losses import cross_entropy
from localspec.nn.target import Target
from localspec.training.corpus import PaddedRows, Row, split_rows


@torch.no_grad()
def perplexity(target: Target, rows: list[Row], at_once: int) -> float:
    """Return the target's perplexity on the rows' tokens that are in the loss."""
    total, count = 0.0, 0
    for group in split_rows(rows, at_once):
        padded = PaddedRows.of(group, target.device)
        positions = torch.arange(padded.tokens.shape[1], device=target.device)
        states = target.transformer(padded.tokens, positions, padded.causal)
        where = padded.loss_mask[:, 1:]
        found = cross_entropy(states[:, :-1][where], target.head, padded.tokens[:, 1:][where])
        total, count = total + float(found.loss), count + found.count
    return math.exp(total / count)
