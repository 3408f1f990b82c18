"""How the target picks a token, and the acceptance rule that walks a draft tree along its picks."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from localspec.engine.tree import DraftTree
from localspec.errors import UsageMistake


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn. Temperature 0 is greedy; 0, 1.0 and 0.0 switch top-k, top-p and min-p off.

    The noise of a draw is a function of (seed, position, token id) alone, so a seed gives the same text with and
    without speculation, whatever the drafter. Raises UsageMistake for values that mean nothing.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value, fine, hint in (
            ("temperature", self.temperature, 0 <= self.temperature < float("inf"), "0 or more"),
            ("top-k", self.top_k, self.top_k >= 0, "0 or more"),
            ("top-p", self.top_p, 0 < self.top_p <= 1, "above 0 and at most 1"),
            ("min-p", self.min_p, 0 <= self.min_p <= 1, "between 0 and 1"),
        ):
            if not fine:
                raise UsageMistake(f"A {name} of {value} is not possible; give {hint}.")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    def pick(self, logits: torch.Tensor, position: int) -> int:
        """The token that comes at `position`, from the logits [vocabulary] before it.

        argmax(log p + Gumbel noise) is a draw from p; temperature, top-k, top-p and min-p shape p in that order.
        """
        if self.greedy:
            return int(logits.argmax())
        scores = logits.float() / self.temperature
        ids = torch.arange(len(scores), device=scores.device)
        if self.top_k and self.top_k < len(scores):
            kept = scores >= scores.topk(self.top_k).values[-1]
            scores, ids = scores[kept], ids[kept]
        if self.top_p < 1:
            kept = _nucleus(scores, self.top_p)
            scores, ids = scores[kept], ids[kept]
        if self.min_p:
            # p >= min_p * p_max, without the softmax both sides share.
            kept = scores.softmax(-1) >= self.min_p * scores.softmax(-1).amax()
            scores, ids = scores[kept], ids[kept]
        if len(scores) == 1:
            return int(ids[0])
        # On the processor, wherever the logits are: a logarithm is not the same to the last bit on every device.
        scores, ids = scores.cpu(), ids.cpu()
        return int(ids[(scores.double() + gumbel(self.seed, position, ids)).argmax()])


def _nucleus(scores: torch.Tensor, top_p: float) -> torch.Tensor:
    """Indices of the likeliest tokens that together reach `top_p`; the one that reaches it is in."""
    total = scores.logsumexp(0)
    for count in (1024, len(scores)):  # sorting a whole vocabulary takes longer than many a forward
        best, order = scores.topk(min(count, len(scores)))
        chances = (best - total).exp()
        kept = chances.cumsum(0) - chances < top_p
        if not kept[-1]:
            break
    return order[kept]


def gumbel(seed: int, position: int, ids: torch.Tensor) -> torch.Tensor:
    """Gumbel noise [ids] in float64: a hash of (seed, position, id), no generator state."""
    key = _mixed(_mixed(seed & _WORD) + position * _STEP & _WORD)
    bits = _mix(ids.long() * _signed(_STEP) + _signed(key))
    uniform = (((bits >> 11) & (1 << 53) - 1).double() + 0.5) * 2.0**-53
    return -(-uniform.log()).log()


# splitmix64 (Steele, Lea and Flood 2014), on Python integers for the key and on wrapping int64 tensors for the ids.
_WORD = (1 << 64) - 1
_STEP, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def _mixed(z: int) -> int:
    z = (z ^ (z >> 30)) * _FIRST & _WORD
    z = (z ^ (z >> 27)) * _SECOND & _WORD
    return z ^ (z >> 31)


def _mix(z: torch.Tensor) -> torch.Tensor:
    z = (z ^ _shifted(z, 30)) * _signed(_FIRST)
    z = (z ^ _shifted(z, 27)) * _signed(_SECOND)
    return z ^ _shifted(z, 31)


def _shifted(z: torch.Tensor, by: int) -> torch.Tensor:
    return (z >> by) & ((1 << (64 - by)) - 1)  # int64 shifts carry the sign down; the mask drops it


def _signed(z: int) -> int:
    return z - (1 << 64) if z >> 63 else z


def walk(tree: DraftTree, pick: Callable[[int], int]) -> tuple[list[int], int]:
    """The rule `exact`: the accepted path, root first, and the bonus token behind it.

    The target picks at each node it reaches, once; while a child carries the pick, the walk goes down. Every token
    that is emitted is a pick of the target, so the text is the target's own at every temperature, whatever was drafted.
    """
    path = [0]
    while True:
        token = pick(path[-1])
        child = tree.children[path[-1]].get(token)
        if child is None:
            return path, token
        path.append(child)
