"""Logits and hidden states as tensors of torch, on the device where they were computed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from localspec.decoding.logits import Candidate, LogitsBase, candidates_shown, choose_candidates
from localspec.decoding.sampling import Ids, Sampling
from localspec.nn.transfer import brought, uploaded


@dataclass(frozen=True)
class TensorOutput:
    """The result of one forward as tensors: logits [..., rows, vocab_size], hidden [..., rows, hidden_size].

    `inner` [..., rows, n * hidden_size] joins the states of the n requested inner layers.
    """

    logits: torch.Tensor
    hidden: torch.Tensor
    inner: torch.Tensor | None = None


class TorchHidden:
    """Hidden states [rows, hidden_size] in the precision that the layers compute in."""

    def __init__(self, rows: torch.Tensor) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, rows: Sequence[int]) -> "TorchHidden":
        return TorchHidden(selected(self.rows, rows))

    def part(self, start: int, stop: int) -> "TorchHidden":
        return TorchHidden(self.rows[:, start:stop])

    def finite(self) -> bool:
        return bool(self.rows.isfinite().all())


class TorchLogits(LogitsBase):
    """Logits [rows, vocab_size], as `Logits` describes them. Only picks and candidates are copied to main memory."""

    def __init__(self, rows: torch.Tensor) -> None:
        self.rows = rows.detach()

    def take(self, rows: Sequence[int]) -> "TorchLogits":
        return TorchLogits(selected(self.rows, rows))

    def numpy(self) -> npt.NDArray[np.float32]:
        return _numpy(self.rows.float())

    def finite(self) -> bool:
        return bool(self.rows.isfinite().all())

    def finite_rows(self, sampling: Sampling) -> int:
        finite = (self.rows.float().amax(-1) / sampling.temperature).isfinite().tolist()
        return finite.index(False) if False in finite else len(finite)

    def candidates(
        self, positions: Sequence[int], count: int, sampling: Sampling, ids: Ids | None = None
    ) -> list[list[Candidate]]:
        scores = self.rows.float() if sampling.proposes_likeliest else self.rows.float() / sampling.temperature
        likely = scores.softmax(-1).topk(candidates_shown(sampling, count, scores.shape[-1]))
        tokens, confidence = brought(likely.indices, likely.values)
        return choose_candidates(tokens if ids is None else ids[tokens], confidence, positions, count, sampling)

    def probabilities(self, row: int, sampling: Sampling) -> npt.NDArray[np.float64]:
        scores, ids = (part.cpu() for part in survivors(self.rows[row], sampling))  # not every device has float64
        chances = torch.zeros(self.rows.shape[-1], dtype=torch.float64)
        return _numpy(chances.index_put_((ids,), scores.double().softmax(0)))

    def _survivors(self, row: int, sampling: Sampling) -> tuple[npt.NDArray[np.float32], Ids]:
        scores, ids = survivors(self.rows[row], sampling)
        return _numpy(scores), _numpy(ids)


def selected(tensor: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
    """Return a copy of these rows, in this order."""
    if all(row == index for index, row in enumerate(rows)):  # needs no indices on the device
        return tensor[: len(rows)].clone()
    return tensor.index_select(0, uploaded(rows, tensor.device))


def survivors(row: torch.Tensor, sampling: Sampling) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (scores at this temperature, ids) of the tokens that truncation leaves in a row of logits [vocab_size]."""
    scores = row.float() / sampling.temperature
    ids = torch.arange(len(scores), device=scores.device)
    if sampling.top_k and sampling.top_k < len(scores):
        chosen = scores >= scores.topk(sampling.top_k).values[-1]
        scores, ids = scores[chosen], ids[chosen]
    if sampling.top_p < 1:
        chosen = nucleus(scores, sampling.top_p)
        scores, ids = scores[chosen], ids[chosen]
    if sampling.min_p:
        # p >= min_p * p_max, without the softmax that both sides share
        chosen = scores >= scores.amax() + math.log(sampling.min_p)
        scores, ids = scores[chosen], ids[chosen]
    return scores, ids


def nucleus(scores: torch.Tensor, top_p: float) -> torch.Tensor:
    """Return the indices of the fewest tokens whose chances add up to `top_p` or more, the likeliest first."""
    total = scores.logsumexp(0)
    for count in (1024, len(scores)):  # sorting a whole vocabulary takes longer than many forwards
        best, order = scores.topk(min(count, len(scores)))
        chances = (best - total).exp()
        chosen = chances.cumsum(0) - chances < top_p
        if not chosen[-1]:
            break
    return order[chosen]


def _numpy(tensor: torch.Tensor) -> npt.NDArray[Any]:
    array: npt.NDArray[Any] = tensor.cpu().numpy()
    return array
