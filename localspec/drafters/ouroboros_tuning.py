"""Searches Ouroboros' hyper-parameters for one pair of models on one machine (Zhao et al. 2024, appendix B)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from localspec.decoding.budget import Budget
from localspec.decoding.decode import decode_step, prefill_step
from localspec.decoding.drafter import Context, Drafter, Step
from localspec.decoding.forward import ForwardOutput
from localspec.decoding.numpy_logits import NumpyHidden, NumpyLogits
from localspec.decoding.sampling import Sampling
from localspec.decoding.tree import DraftTree
from localspec.drafters.draft_model import DraftModel
from localspec.drafters.ingredients import Hyperparameters
from localspec.policy.forward_costs import ForwardCostModel

# The values that are tried, one parameter after the other; the paper's W of 15 to 20 would need forwards of 200 rows.
RANGES = {"draft": (1, 2, 3, 4, 6, 8, 11), "window": (0, 1, 2, 3, 5), "phrase": (3, 4, 5, 7), "phrases": (1, 2, 3, 4)}
START = Hyperparameters()
CONTEXT = 256  # tokens of text at which forwards are priced

Exchange = tuple[Sequence[int], Sequence[int]]  # a prompt, and the target's reply to it
Build = Callable[[Hyperparameters], tuple[Drafter, DraftModel]]  # returns the drafter, and the draft model in it


@dataclass(frozen=True)
class Workload:
    """Replies that are decoded again, with trees of up to `nodes`, and what the forwards of both models cost.

    The target has a `vocabulary` of so many tokens.
    """

    exchanges: Sequence[Exchange]
    vocabulary: int
    nodes: int
    target_costs: ForwardCostModel
    draft_costs: ForwardCostModel


class ReplayCache:
    """A cache that holds nothing and knows how long the text is."""

    nbytes = 0

    def __init__(self) -> None:
        self.length = self.capacity = 0

    def reserve(self, slots: int, spare: bool = True) -> None:
        """Nothing takes room."""
        self.capacity = max(self.capacity, slots)

    def keep(self, path: Sequence[int]) -> None:
        """Commits as many tokens."""
        self.length += len(path)

    def truncate(self, length: int) -> None:
        """Forgets everything after the first `length` tokens."""
        self.length = length

    assume = truncate


class ReplayTarget:
    """A target that repeats a known text: its text does not depend on the draft, so no forward is needed."""

    row_multiple, nbytes, device, precision = 1, 0, "cpu", "fp32"
    stop_tokens = special_tokens = frozenset[int]()

    def __init__(self, text: Sequence[int], vocabulary: int) -> None:
        self.context, self.vocab_size, self._text = len(text), vocabulary, text

    def forward(
        self, tree: DraftTree, cache: ReplayCache, *, last: bool = False, inner: Sequence[int] = ()
    ) -> ForwardOutput:
        """Returns logits that are 1 for the text's next token at each row's position, else 0; it has no layers."""
        nodes = range(tree.size - 1 if last else 0, tree.size)
        after = [min(cache.length + tree.depth[node] + 1, len(self._text) - 1) for node in nodes]
        logits = np.zeros((len(nodes), self.vocab_size), np.float32)
        logits[np.arange(len(nodes)), [self._text[place] for place in after]] = 1
        return ForwardOutput(NumpyLogits(logits), NumpyHidden(np.empty((tree.size, 0), np.float32)))

    def aligned(self, tree: DraftTree, start: int) -> DraftTree:
        """Returns the tree itself: where nothing is computed, its number of rows does not matter."""
        return tree

    def cache(self, slots: int) -> ReplayCache:
        """Returns a cache that holds nothing."""
        return ReplayCache()

    def encode(self, messages: Sequence[dict[str, str]], think: bool | None = None) -> list[int]:
        """Returns nothing: it has no words."""
        return []

    def decode(self, tokens: Sequence[int]) -> str:
        """Returns nothing: it has no words."""
        return ""


class SimulatedBudget(Budget):
    """Cuts drafts as in use, and adds up the `seconds` that both models' forwards would take by their costs."""

    def __init__(self, workload: Workload, small: DraftModel) -> None:
        super().__init__(workload.nodes, workload.target_costs)
        self.seconds = 0.0
        self._workload, self._small, self._forwards = workload, small, small.forwards.copy()

    def observe(self, step: Step, beside: float = 0.0) -> None:
        """Observes a step as if drafting had taken what the small model's forwards cost, on a busy machine too."""
        new, self._forwards = self._small.forwards - self._forwards, self._small.forwards.copy()
        drafting = sum(times * self._workload.draft_costs.at(rows, CONTEXT) for rows, times in new.items())
        self.seconds += drafting + self._workload.target_costs.at(step.tree.size if step.tree else 1, CONTEXT)
        super().observe(replace(step, draft_seconds=drafting, verify_seconds=0.0))  # a replay takes no time


def simulated_seconds(drafter: Drafter, small: DraftModel, workload: Workload) -> float:
    """Returns the seconds that the workload would take with this drafter, whose draft model is `small`."""
    seconds, nodes = 0.0, workload.nodes
    for prompt, reply in workload.exchanges:
        text = [*prompt, *reply]
        target, tokens = ReplayTarget(text, workload.vocabulary), list(prompt)
        cache = target.cache(len(text) + nodes + 1)
        drafter.rewind(0)
        tokens += prefill_step(target, cache, drafter, prompt, Sampling(), last=True).committed[-1:]
        small.draft(Context(tokens, cache, 1, Sampling()))  # reads the prompt, which takes the same time for all
        budget = SimulatedBudget(workload, small)
        while len(tokens) < len(text):
            cache.reserve(len(tokens) + nodes + 1)
            tokens += decode_step(target, cache, drafter, tokens, budget, Sampling()).committed
        seconds += budget.seconds
    return seconds


def search(build: Build, workload: Workload, names: Sequence[str]) -> Hyperparameters:
    """Returns the best values of the parameters `names`: one after the other, each with the best found before it
    (appendix B.2, algorithm 1).
    """
    best, least = START, float("inf")
    for name in names:
        for value in RANGES[name]:
            tried = replace(best, **{name: value})
            drafter, small = build(tried)
            seconds = simulated_seconds(drafter, small, workload)
            if seconds < least:
                best, least = tried, seconds
    return best
