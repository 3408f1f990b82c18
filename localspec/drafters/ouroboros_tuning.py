"""Hyper-parameters of Ouroboros for one pair of models on one machine (Zhao et al. 2024, appendix B)."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F

from localspec.decoding.budget import Budget
from localspec.decoding.decode import decode_step, prefill_step
from localspec.decoding.drafter import Context, Drafter, Step
from localspec.decoding.forward import ForwardOutput
from localspec.decoding.sampling import Sampling
from localspec.decoding.tree import DraftTree
from localspec.drafters.draft_model import DraftModel
from localspec.drafters.ingredients import Hyperparameters
from localspec.nn.cache import KVCache
from localspec.nn.target import Target
from localspec.policy.forward_costs import ForwardCostModel

# What is tried, in this order, one after the other; the paper's W of 15 to 20 would be forwards of 200 rows.
RANGES = {"draft": (1, 2, 3, 4, 6, 8, 11), "window": (0, 1, 2, 3, 5), "phrase": (3, 4, 5, 7), "phrases": (1, 2, 3, 4)}
START = Hyperparameters()
CONTEXT = 256  # tokens behind which forwards are counted

Said = tuple[Sequence[int], Sequence[int]]  # a prompt, and what the target says to it
Build = Callable[[Hyperparameters], tuple[Drafter, DraftModel]]  # the drafter, and the draft model in it


class Replay(Target):
    """Says a text that is known: what the target says does not depend on the draft, so it need not be asked again."""

    def __init__(self, text: Sequence[int], vocabulary: int) -> None:
        self.exact, self.row_multiple, self._vocabulary = False, 1, vocabulary
        self._text = torch.tensor(text)

    def forward(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        mask: torch.Tensor,
        cache: KVCache | None = None,
        layers: Sequence[int] | None = None,
        last: bool = False,
    ) -> ForwardOutput:
        """All weight on the next token of the text, wherever a row stands."""
        rows = positions[-1:] if last else positions
        following = self._text[(rows + 1).clamp(max=len(self._text) - 1)]
        return ForwardOutput(F.one_hot(following, self._vocabulary).float(), torch.empty(len(positions), 0))

    def aligned(self, tree: DraftTree, start: int) -> DraftTree:
        """There is nothing to compute, so nothing that could be computed otherwise."""
        return tree

    def cache(self, slots: int) -> KVCache:
        """One that holds next to nothing."""
        return KVCache(1, 1, 1, slots, torch.float32, self.device)

    @property
    def device(self) -> torch.device:
        return self._text.device


class Predicted(Budget):
    """Cuts drafts as in use, and adds up the `seconds` that both models' forwards would take by their costs."""

    def __init__(self, nodes: int, costs: ForwardCostModel, small: DraftModel, own: ForwardCostModel) -> None:
        super().__init__(nodes, costs)
        self.seconds = 0.0
        self._target, self._small, self._own, self._before = costs, small, own, small.forwards.copy()

    def observe(self, step: Step) -> None:
        """As of `Budget`; drafting took what the small model's forwards cost, whatever else the machine did."""
        made, self._before = self._small.forwards - self._before, self._small.forwards.copy()
        drafting = sum(times * self._own.at(rows, CONTEXT) for rows, times in made.items())
        self.seconds += drafting + self._target.at(step.tree.size if step.tree else 1, CONTEXT)
        super().observe(replace(step, draft_seconds=drafting))


def predicted(
    drafter: Drafter,
    small: DraftModel,
    said: Sequence[Said],
    vocabulary: int,
    nodes: int,
    costs: ForwardCostModel,
    own: ForwardCostModel,
) -> float:
    """Seconds that these replies would take with trees of up to `nodes`, by the costs of both models' forwards."""
    seconds = 0.0
    for prompt, reply in said:
        text = [*prompt, *reply]
        target, tokens = Replay(text, vocabulary), list(prompt)
        cache = target.cache(len(text) + nodes + 1)
        drafter.rewind(0)
        tokens += prefill_step(target, cache, drafter, prompt, Sampling(), last=True).committed[-1:]
        small.draft(Context(tokens, cache, 1, Sampling()))  # reads the prompt, which takes the same time for all
        budget = Predicted(nodes, costs, small, own)
        while len(tokens) < len(text):
            cache.reserve(len(tokens) + nodes + 1)
            tokens += decode_step(target, cache, drafter, tokens, budget, Sampling()).committed
        seconds += budget.seconds
    return seconds


def search(
    build: Build,
    said: Sequence[Said],
    vocabulary: int,
    nodes: int,
    costs: ForwardCostModel,
    own: ForwardCostModel,
    names: Sequence[str],
) -> Hyperparameters:
    """The best of the ranges of those `names`, one after the other, each with the best found before (algorithm 1)."""
    best, least = START, float("inf")
    for name in names:
        for value in RANGES[name]:
            tried = replace(best, **{name: value})
            drafter, small = build(tried)
            seconds = predicted(drafter, small, said, vocabulary, nodes, costs, own)
            if seconds < least:
                best, least = tried, seconds
    return best
