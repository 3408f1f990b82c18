"""How a token is picked or sampled: truncation, and noise that is a function of (seed, position, token id) alone."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from localspec.config import Rule
from localspec.decoding.tree import Candidate, DraftTree
from localspec.errors import UsageMistake

LIKELY = 128  # the likeliest ids, which a drafter's candidates are taken from


@dataclass(frozen=True)
class Sampling:
    """How the next token is sampled. Temperature 0 is greedy; 0, 1.0 and 0.0 switch top-k, top-p and min-p off.

    The noise of a sample is a function of (seed, position, token id) alone, so a seed gives the same text with and
    without speculation, whatever the drafter. `rule` says how a draft is accepted. Raises UsageMistake for values that
    are not possible.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    rule: Rule = "exact"

    def __post_init__(self) -> None:
        for name, value, fine, hint in (
            ("temperature", self.temperature, 0 <= self.temperature < float("inf"), "0 or more"),
            ("top-k", self.top_k, self.top_k >= 0, "0 or more"),
            ("top-p", self.top_p, 0 < self.top_p <= 1, "above 0 and at most 1"),
            ("min-p", self.min_p, 0 <= self.min_p <= 1, "between 0 and 1"),
        ):
            if not fine:
                raise UsageMistake(f"A {name} of {value} is not possible; give {hint}.")

        if self.rule != "exact" and self.greedy:
            raise UsageMistake(f"--accept {self.rule} has no effect at temperature 0; leave it out, or give a --temp.")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    def pick(self, logits: torch.Tensor, position: int) -> int:
        """Picks the token at `position` from the target's logits [vocab_size] for it.

        argmax(log p + Gumbel noise) is a sample from p; temperature, top-k, top-p and min-p shape p in that order.
        """
        if self.greedy:
            return int(logits.argmax())
        scores, ids = self._survivors(logits)
        if len(scores) == 1:
            return int(ids[0])
        # On the CPU, wherever the logits are: a logarithm is not the same to the last bit on every device.
        scores, ids = scores.cpu(), ids.cpu()
        return int(ids[(scores.double() + gumbel(self.seed, position, ids)).argmax()])

    def probabilities(self, logits: torch.Tensor) -> torch.Tensor:
        """Returns what a token is sampled from, [vocab_size] in float64: zero for all that truncation removes."""
        scores, ids = self._survivors(logits)
        return torch.zeros(len(logits), dtype=torch.float64, device=logits.device).index_put_(
            (ids,), scores.double().softmax(0)
        )

    def candidates(
        self, logits: torch.Tensor, positions: Sequence[int], count: int, ids: torch.Tensor | None = None
    ) -> list[list[Candidate]]:
        """Returns the tokens to propose for the position of each row of a drafter's logits [rows, vocab_size].

        They are (token, confidence) by row, the most confident first. Greedily they are the likeliest. Otherwise they
        have the highest log q + noise, the noise of the target's own pick at this position, so that a drafter whose q
        is the target's p proposes that pick, and sampled text is accepted almost as well as greedy text. `ids` are the
        tokens that the columns stand for, where a drafter knows only some. Logits that are NaN propose nothing: damaged
        weights cost speed and never the text.
        """
        likeliest = self.greedy or self.rule == "typical"  # which accepts what is likely, whatever would be sampled
        scores = logits.float() if likeliest else logits.float() / self.temperature
        likely = scores.softmax(-1).topk(min(count if likeliest else self.top_k or LIKELY, LIKELY, logits.shape[-1]))
        confidence = likely.values.cpu()
        tokens = (likely.indices if ids is None else ids[likely.indices]).cpu()
        if not likeliest:
            noisy = confidence.double().log() + gumbel(self.seed, positions, tokens)
            best = noisy.topk(min(count, tokens.shape[-1]))
            confidence, tokens = best.values.softmax(-1), tokens.gather(-1, best.indices)
        rows = [zip(*row, strict=True) for row in zip(tokens.tolist(), confidence.tolist(), strict=True)]
        return [[(token, chance) for token, chance in row if not math.isnan(chance)] for row in rows]

    def finite_rows(self, logits: torch.Tensor) -> int:
        """Counts the rows of a drafter's logits [rows, vocab_size] before the first with NaN or inf."""
        finite = (logits.float().amax(-1) / self.temperature).isfinite().tolist()
        return finite.index(False) if False in finite else len(finite)

    def sample(self, logits: torch.Tensor, position: int, stream: int) -> int:
        """Samples a token from logits [vocab_size], with noise that no pick of the target has."""
        scores, ids = self._survivors(logits)
        scores, ids = scores.cpu(), ids.cpu()
        return int(
            ids[(scores.double() + gumbel(_mixed(self.seed + (1 + stream) * _FIRST & _WORD), position, ids)).argmax()]
        )

    def uniform(self, position: int, stream: int) -> float:
        """Returns a number between 0 and 1 for one decision at `position`; streams are independent of each other."""
        return uniform(self.seed, position, torch.tensor([-1 - stream])).item()

    def _survivors(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns scores at this temperature, and ids, of the tokens that truncation leaves."""
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
        return scores, ids


def _nucleus(scores: torch.Tensor, top_p: float) -> torch.Tensor:
    """Returns the indices of the likeliest tokens that together reach `top_p`, with the one that reaches it."""
    total = scores.logsumexp(0)
    for count in (1024, len(scores)):  # sorting a whole vocabulary takes longer than many a forward
        best, order = scores.topk(min(count, len(scores)))
        chances = (best - total).exp()
        kept = chances.cumsum(0) - chances < top_p
        if not kept[-1]:
            break
    return order[kept]


def gumbel(seed: int, position: int | Sequence[int], ids: torch.Tensor) -> torch.Tensor:
    """Returns Gumbel noise [ids] in float64, a hash of (seed, position, id) without generator state.

    ids [rows, n] need a position for each row.
    """
    return -(-uniform(seed, position, ids).log()).log()


def uniform(seed: int, position: int | Sequence[int], ids: torch.Tensor) -> torch.Tensor:
    """Returns numbers between 0 and 1, as many as ids, in float64, by the same hash."""
    start = _mixed(seed & _WORD)
    places = [position] if isinstance(position, int) else position
    keys = torch.tensor([_signed(_mixed(start + place * _STEP & _WORD)) for place in places], device=ids.device)
    bits = _mix(ids.long() * _signed(_STEP) + (keys if isinstance(position, int) else keys[:, None]))
    return (((bits >> 11) & (1 << 53) - 1).double() + 0.5) * 2.0**-53


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


def sampled_tree(
    root: int, logits: torch.Tensor, nodes: int, sampling: Sampling, position: int, source: str
) -> DraftTree:
    """Returns a tree for the rule `rejection`: chains side by side, every token sampled independently.

    logits [depths, vocab_size], the first for `position`. There are as many chains of all depths as the nodes allow;
    nodes that are left over become samples for the first depth alone. The shape does not depend on what is sampled.
    Nothing is sampled at a depth whose logits are NaN or inf, nor after it.
    """
    depths = min(sampling.finite_rows(logits), nodes)
    if not depths:
        return DraftTree((root,), (-1,))
    tokens, parents, level = [root], [-1], [0]
    for chain in range(nodes):
        for depth in range(depths if len(tokens) + depths <= nodes + 1 else 1):
            if len(tokens) > nodes:
                break
            parents.append(len(tokens) - 1 if depth else 0)
            tokens.append(sampling.sample(logits[depth], position + depth, chain))
            level.append(depth)
    return DraftTree(tokens, parents, [source] * len(tokens), draft_logits=logits[level])
