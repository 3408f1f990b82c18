"""Cross-entropy over a whole vocabulary, some rows at a time, so that training never holds all logits at once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from localspec.models.drafter_cards import RANKS

ROWS = 1024  # rows whose logits are in memory at once
HELD = 2**27  # bytes of logits and their logarithms kept for the gradient; beyond that they are computed twice
ABSENT = -100  # marks a label that a truncated vocabulary lacks

Head = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class DepthLoss:
    """The loss of the predictions at one depth of drafts (1: a draft's first token), and the ranks of the labels.

    `loss` is summed over `count` rows, and has a gradient. hits [RANKS] counts the rows whose label was the likeliest
    token, the second, …. first [rows] says for each row whether its label was the likeliest token.
    """

    loss: torch.Tensor
    hits: torch.Tensor
    count: int
    first: torch.Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.bool))


@dataclass(frozen=True)
class Guess:
    """The predictions at one depth of drafts: states [rows, hidden_size], and the head that computes their logits.

    `labels[i]` is the index of state i's label in the list of all labels of a batch. No index occurs twice.
    """

    states: torch.Tensor
    head: Head
    labels: torch.Tensor


@dataclass(frozen=True)
class Likeliest:
    """The target's likeliest tokens, as labels instead of its whole distribution: ids and chances, each [n, tokens].

    The likeliest comes first. Chances are relative to all tokens, so they sum to less than 1.
    """

    ids: torch.Tensor
    chances: torch.Tensor

    def __getitem__(self, rows: torch.Tensor) -> "Likeliest":
        return Likeliest(self.ids[rows], self.chances[rows])

    def __len__(self) -> int:
        return len(self.ids)


Labels = torch.Tensor | Likeliest


def cross_entropy(
    states: torch.Tensor,
    head: Head,
    labels: Labels,
    teacher: Head | None = None,
    vocabulary: torch.Tensor | None = None,
) -> DepthLoss:
    """Compare the logits that `head` computes from states [rows, hidden_size] with labels, one per row.

    Labels are as in `cross_entropies`.
    """
    return cross_entropies(
        [Guess(states, head, torch.arange(len(states), device=states.device))], labels, teacher, vocabulary
    )[0]


def cross_entropies(
    guesses: Sequence[Guess], labels: Labels, teacher: Head | None = None, vocabulary: torch.Tensor | None = None
) -> list[DepthLoss]:
    """Return the loss of the predictions at each depth, for one list of labels. The teacher's logits are computed once.

    Labels are token ids [n], states [n, hidden_size] or `Likeliest` tokens. For states, `teacher` is the target's head:
    the label is the distribution that it computes, and ranks are for the likeliest token. `Likeliest` tokens count as
    if there were no other tokens. `vocabulary` has the ids of a truncated vocabulary, in the order of the head's rows.
    Other ids add neither loss nor hits.
    """
    orders = [guess.labels.argsort() for guess in guesses]
    guesses = [
        Guess(guess.states[order], guess.head, guess.labels[order])
        for guess, order in zip(guesses, orders, strict=True)
    ]
    device = guesses[0].states.device
    used = torch.unique(torch.cat([guess.labels for guess in guesses]))
    width = max(guess.head(guess.states[:0]).shape[-1] for guess in guesses)
    losses = [guess.states.new_zeros((), dtype=torch.float32) for guess in guesses]
    hits = [torch.zeros(RANKS, dtype=torch.long, device=device) for _ in guesses]
    first = [torch.zeros(len(guess.states), dtype=torch.bool, device=device) for guess in guesses]
    rows = sum(len(guess.states) for guess in guesses)
    recompute = torch.is_grad_enabled() and 2 * 4 * rows * width > HELD * len(guesses)
    size = max(ROWS // len(guesses), 1)
    ends = torch.arange(size, len(used) + size, size, device=device).clamp(max=len(used)) - 1
    bounds = [torch.searchsorted(guess.labels, used[ends], right=True).tolist() for guess in guesses]
    for piece in range(len(ends)):
        label_rows = used[piece * size : (piece + 1) * size]
        some = [
            _rows(guess, slice(bound[piece - 1] if piece else 0, bound[piece]), label_rows)
            for guess, bound in zip(guesses, bounds, strict=True)
        ]
        if recompute:
            results = checkpoint(_piece, some, labels[label_rows], teacher, vocabulary, use_reentrant=False)
        else:
            results = _piece(some, labels[label_rows], teacher, vocabulary)
        losses = [total + loss for total, (loss, _, _) in zip(losses, results, strict=True)]
        hits = [total + correct for total, (_, correct, _) in zip(hits, results, strict=True)]
        for flags, order, bound, (_, _, likeliest) in zip(first, orders, bounds, results, strict=True):
            flags[order[bound[piece - 1] if piece else 0 : bound[piece]]] = likeliest
    return [
        DepthLoss(loss, hit, len(guess.states), correct)
        for loss, hit, guess, correct in zip(losses, hits, guesses, first, strict=True)
    ]


def _rows(guess: Guess, rows: slice, label_rows: torch.Tensor) -> Guess:
    """Return some rows of a guess. Its `labels` become positions in `label_rows`, a sorted list of label indices."""
    return Guess(guess.states[rows], guess.head, torch.searchsorted(label_rows, guess.labels[rows]))


def _piece(
    guesses: Sequence[Guess], labels: Labels, teacher: Head | None, vocabulary: torch.Tensor | None
) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Return (`loss`, `hits`, `first`) of each guess's `DepthLoss`, for a few of the labels."""
    chances: Labels | None = None
    if isinstance(labels, Likeliest):
        chances = Likeliest(labels.ids if vocabulary is None else _head_rows(labels.ids, vocabulary), labels.chances)
        labels = labels.ids[:, 0]
    elif teacher is not None:
        with torch.no_grad():
            logits = teacher(labels).float()
            labels = logits.argmax(-1)
            chances = (logits if vocabulary is None else logits[:, vocabulary]).softmax(-1)
    return [_part(guess, labels, chances, vocabulary) for guess in guesses]


def _part(
    guess: Guess, labels: torch.Tensor, chances: Labels | None, vocabulary: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    logits = guess.head(guess.states).float()
    if len(guess.labels) < len(labels):  # otherwise they cover all labels, and nothing is copied
        labels, chances = labels[guess.labels], None if chances is None else chances[guess.labels]
    rows = labels if vocabulary is None else _head_rows(labels, vocabulary)
    if chances is None:
        loss = F.cross_entropy(logits, rows, ignore_index=ABSENT, reduction="sum")
    elif isinstance(chances, Likeliest):
        weights = chances.chances * (chances.ids != ABSENT)
        token_logits = logits.gather(1, chances.ids.clamp_min(0))
        loss = (weights.sum(-1) * logits.logsumexp(-1) - (weights * token_logits).sum(-1)).sum()
    else:
        loss = -(chances * logits.log_softmax(-1)).sum()
    with torch.no_grad():
        present = rows != ABSENT
        label_logits = logits.gather(1, rows.clamp_min(0)[:, None])
        rank = (~(logits <= label_logits)).sum(-1)  # a comparison with NaN counts as a loss
        hits = torch.bincount(rank[present & (rank < RANKS)], minlength=RANKS)
    return loss, hits, present & (rank == 0)


def _head_rows(labels: torch.Tensor, vocabulary: torch.Tensor) -> torch.Tensor:
    """Return the indices of labels in a truncated vocabulary; `ABSENT` for those outside of it."""
    largest = torch.cat([vocabulary, labels.flatten()]).max()
    places = torch.full((1 + int(largest),), ABSENT, device=vocabulary.device)
    places[vocabulary] = torch.arange(len(vocabulary), device=vocabulary.device)
    return places[labels]
