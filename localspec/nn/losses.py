"""Cross-entropy over a whole vocabulary, some rows at a time, so that training never holds all logits at once."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from localspec.models.drafter_cards import RANKS

ROWS = 1024  # whose logits are in memory at once
HELD = 2**27  # bytes of logits and their logarithms that are kept for the gradient; more are computed a second time
ABSENT = -100  # stands for a label that a truncated vocabulary lacks

Head = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class DepthLoss:
    """How well tokens were predicted: the loss summed over `count` rows, and how often the right one had which rank.

    `loss` carries the gradient; hits [RANKS] counts the rows whose label was the likeliest, the second, …
    """

    loss: torch.Tensor
    hits: torch.Tensor
    count: int


def cross_entropy(
    states: torch.Tensor,
    head: Head,
    labels: torch.Tensor,
    teacher: Head | None = None,
    kept: torch.Tensor | None = None,
) -> DepthLoss:
    """Compares the logits that `head` makes of states [rows, hidden_size] with labels.

    Labels are token ids [rows], or the target's own states [rows, hidden_size]. Then `teacher` is the target's head,
    its whole distribution is the label, and ranks are those of its likeliest token. `kept` are the ids of a truncated
    vocabulary, in the order of the head's rows: the rest of the label's distribution is left out, and a label that is
    not among them teaches nothing and is never hit.
    """
    total, hits = states.new_zeros((), dtype=torch.float32), torch.zeros(RANKS, dtype=torch.long, device=states.device)
    vocabulary = head(states[:0]).shape[-1]
    recompute = torch.is_grad_enabled() and 2 * 4 * len(states) * vocabulary > HELD
    for start in range(0, len(states), ROWS):
        part = slice(start, start + ROWS)
        if recompute:
            loss, found = checkpoint(_part, states[part], head, labels[part], teacher, kept, use_reentrant=False)
        else:
            loss, found = _part(states[part], head, labels[part], teacher, kept)
        total, hits = total + loss, hits + found
    return DepthLoss(total, hits, len(states))


def _part(
    states: torch.Tensor, head: Head, labels: torch.Tensor, teacher: Head | None, kept: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    logits = head(states).float()
    if teacher is not None:
        with torch.no_grad():
            teacher_logits = teacher(labels).float()
            labels = teacher_logits.argmax(-1)
            chances = (teacher_logits if kept is None else teacher_logits[:, kept]).softmax(-1)
        loss = -(chances * logits.log_softmax(-1)).sum()
    rows = labels if kept is None else _head_rows(labels, kept)
    if teacher is None:
        loss = F.cross_entropy(logits, rows, ignore_index=ABSENT, reduction="sum")
    with torch.no_grad():
        known = rows != ABSENT
        own = logits.gather(1, rows.clamp_min(0)[:, None])
        rank = (~(logits <= own)).sum(-1)[known]  # a comparison with NaN counts as a loss
        hits = torch.bincount(rank[rank < RANKS], minlength=RANKS)
    return loss, hits


def _head_rows(labels: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    """Returns the places of labels in a truncated vocabulary, [rows]; `ABSENT` for those that are not in it."""
    places = torch.full((1 + max(int(kept.max()), int(labels.max())),), ABSENT, device=kept.device)
    places[kept] = torch.arange(len(kept), device=kept.device)
    return places[labels]
