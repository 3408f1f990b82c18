"""Searches Ouroboros' hyperparameters for one pair of models on one machine (Zhao et al. 2024, appendix B)."""

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from localspec.choosing.cost import ForwardCostModel
from localspec.decoding.budget import Budget
from localspec.decoding.decode import decode_step, prefill_step
from localspec.decoding.drafter import Context, Drafter, Step
from localspec.decoding.forward import ForwardOutput
from localspec.decoding.logits import NumpyHidden, NumpyLogits
from localspec.decoding.measuring import Measuring, MeasuringProgress
from localspec.decoding.sampling import Sampling
from localspec.decoding.tree import DraftTree
from localspec.drafters.draft_model import DraftModel
from localspec.drafters.ingredients import Hyperparameters

# The values that are tried, one parameter after the other. The paper's are among them (table 11): γ 2 to 14, β 5 to 7,
# K 3 to 5, and W to 20 where rows are cheap.
RANGES = {
    "draft": (2, 4, 7, 10, 14), "window": (0, 3, 6, 10, 15, 20), "phrase": (4, 5, 6, 7, 8), "phrases": (1, 3, 5)
}  # fmt: skip
CONTEXT = 256  # tokens of text at which forwards are priced
# Times the cost of one row. With the paper's recipe a window saves 12 to 18 % of a small model's forwards, measured on
# Qwen2.5-Coder 1.5B and 0.5B. So a search begins with a window whose rows cost less, and tries some that cost more.
NEARLY_FREE, CHEAP = 1.15, 1.5
BETTER = 0.99  # of the best time so far: a smaller gain is no reason to leave a good start

Exchange = tuple[Sequence[int], Sequence[int]]  # a prompt, and the target's reply to it
Build = Callable[[Hyperparameters], tuple[Drafter, DraftModel]]  # returns the drafter, and the draft model in it


@dataclass(frozen=True)
class Workload:
    """Replies to decode again, with trees of up to `nodes` nodes, and the costs of both models' forwards.

    The target has `vocabulary` token ids.
    """

    exchanges: Sequence[Exchange]
    vocabulary: int
    nodes: int
    target_costs: ForwardCostModel
    draft_costs: ForwardCostModel
    branches: bool = True  # whether the target computes trees


@dataclass(frozen=True)
class Replay:
    """The result of decoding replies again: numbers of `tokens`, `steps` and drafted `nodes`, and the predicted
    seconds."""

    tokens: int
    steps: int
    nodes: int
    drafting: float
    verifying: float

    @property
    def seconds(self) -> float:
        """The sum of all predicted seconds."""
        return self.drafting + self.verifying


class ReplayCache:
    """A cache that holds only the length of the text."""

    nbytes = 0

    def __init__(self) -> None:
        self.length = self.capacity = 0

    def reserve(self, slots: int, spare: bool = True) -> None:
        """Do nothing: this cache stores no tokens."""
        self.capacity = max(self.capacity, slots)

    def keep(self, path: Sequence[int]) -> None:
        """Commit as many tokens as the path has."""
        self.length += len(path)

    def truncate(self, length: int) -> None:
        """Discard everything after the first `length` tokens."""
        self.length = length

    assume = truncate


class ReplayTarget:
    """A target that repeats a known text without computing anything, because its text does not depend on drafts.

    Its pick after a token that is not in the text is `unknown`, an id beyond the vocabulary, which pools reject. So a
    replay learns no phrases from refused drafts, and slightly underestimates what such phrases gain. With the text's
    own tokens as picks, it would overestimate their gain.
    """

    row_multiple, branches, nbytes, device, precision = 1, True, 0, "cpu", "fp32"
    stop_tokens = special_tokens = frozenset[int]()
    file: Path | None = None

    def __init__(self, text: Sequence[int], vocabulary: int) -> None:
        self.context, self.vocab_size, self._text = len(text), vocabulary, text
        self.unknown = vocabulary

    def forward(
        self, tree: DraftTree, cache: ReplayCache, *, last: bool = False, inner: Sequence[int] = ()
    ) -> ForwardOutput:
        """Return logits that are 1 for the pick after each row, else 0. There are no inner states.

        After the end of the text, the pick is its last token.
        """
        picks: list[int] = []
        for token, parent, depth in zip(tree.tokens, tree.parents, tree.depth, strict=True):
            agrees = token == self._at(cache.length + depth) if parent < 0 else token == picks[parent]
            picks.append(self._at(cache.length + depth + 1) if agrees else self.unknown)
        rows = picks[-1:] if last else picks
        logits = np.zeros((len(rows), self.vocab_size + 1), np.float32)
        logits[np.arange(len(rows)), rows] = 1
        return ForwardOutput(NumpyLogits(logits), NumpyHidden(np.empty((tree.size, 0), np.float32)))

    def _at(self, index: int) -> int:
        return self._text[min(index, len(self._text) - 1)]

    def aligned(self, tree: DraftTree, start: int) -> DraftTree:
        """Return the tree itself: nothing is computed, so the number of rows does not matter."""
        return tree

    def cache(self, slots: int) -> ReplayCache:
        """Return a cache that holds nothing."""
        return ReplayCache()

    def encode(self, messages: Sequence[dict[str, str]], think: bool | None = None) -> list[int]:
        """Return nothing: this target has no tokenizer."""
        return []

    def decode(self, tokens: Sequence[int]) -> str:
        """Return nothing: this target has no tokenizer."""
        return ""


class SimulatedBudget(Budget):
    """A budget that prunes drafts as usual, and adds up nodes, steps, and the predicted seconds of both models'
    forwards."""

    def __init__(self, workload: Workload, small: DraftModel | None) -> None:
        super().__init__(workload.nodes, workload.target_costs, workload.branches)
        self.steps = self.drafted = 0
        self.drafting = self.verifying = 0.0
        self._workload, self._small, self._forwards = workload, small, small.forwards.copy() if small else Counter()

    def observe(self, step: Step, overhead: float = 0.0) -> None:
        """Observe a step. Its drafting time is predicted from the small model's forwards, since measured times vary."""
        previous, self._forwards = self._forwards, self._small.forwards.copy() if self._small else Counter()
        new = self._forwards - previous
        drafting = sum(times * self._workload.draft_costs.at(rows, CONTEXT) for rows, times in new.items())
        rows = step.tree.size if step.tree else 1
        self.steps, self.drafted = self.steps + 1, self.drafted + rows - 1
        self.drafting += drafting
        self.verifying += self._workload.target_costs.at(rows, CONTEXT)
        super().observe(replace(step, draft_seconds=drafting, verify_seconds=0.0))  # a replay takes no time


def replaying(drafter: Drafter, small: DraftModel | None, workload: Workload) -> Generator[float, None, Replay]:
    """Decode the workload with a drafter; return counts and times. `small` is the drafter's draft model, if any.

    After each step, yield the share of the work that is done.
    """
    tokens, budgets, nodes = 0, [], workload.nodes
    everything = sum(len(reply) for _, reply in workload.exchanges)
    for prompt, reply in workload.exchanges:
        text = [*prompt, *reply]
        target, known = ReplayTarget(text, workload.vocabulary), list(prompt)
        cache = target.cache(len(text) + nodes + 1)
        drafter.rewind(0)
        known += prefill_step(target, cache, drafter, prompt, Sampling(), last=True).committed[-1:]
        if small is not None:
            small.draft(Context(known, cache, 1, Sampling()))  # reads the prompt, which takes the same time for all
        budgets.append(budget := SimulatedBudget(workload, small))
        while len(known) < len(text):
            cache.reserve(len(known) + nodes + 1)
            known += decode_step(target, cache, drafter, known, budget, Sampling()).committed
            yield min(tokens + len(known) - len(prompt), everything) / everything
        tokens += len(reply) - 1  # the first one belongs to prefill, and tokens beyond the text do not count
    return Replay(
        tokens,
        sum(budget.steps for budget in budgets),
        sum(budget.drafted for budget in budgets),
        sum(budget.drafting for budget in budgets),
        sum(budget.verifying for budget in budgets),
    )


def starting(costs: ForwardCostModel) -> Hyperparameters:
    """Return the paper's hyperparameters with the widest window that hardly slows down the small model's forwards."""
    usual = Hyperparameters()
    widest = max(
        width for width in RANGES["window"] if _window_price(replace(usual, window=width), costs) <= NEARLY_FREE
    )
    return replace(usual, window=widest)


def variants(name: str, best: Hyperparameters, costs: ForwardCostModel) -> list[Hyperparameters]:
    """Return copies of `best` with each other value of the parameter `name`, without windows that cost too much."""
    tried = [replace(best, **{name: value}) for value in RANGES[name]]
    return [
        variant
        for variant in tried
        if variant != best and (not variant.window or _window_price(variant, costs) <= CHEAP)
    ]


def _window_price(chosen: Hyperparameters, costs: ForwardCostModel) -> float:
    """Return how many times as long the small model's forward takes with lookahead's window as with one row."""
    return costs.at(1 + chosen.window * (chosen.phrase - 1), CONTEXT) / costs.at(1, CONTEXT)


def searching(build: Build, workload: Workload, names: Sequence[str]) -> Measuring[Hyperparameters]:
    """Search for the best values of the parameters `names` (appendix B.2, algorithm 1), and return all parameters.

    The search starts from `starting`. It changes one parameter at a time and keeps the best value. After each step of a
    replay, yield the number of values tried and the expected total.
    """
    costs, remaining = workload.draft_costs, [*names]
    best, least, done = starting(costs), float("inf"), 0
    waiting = [best]
    while waiting or remaining:
        if not waiting:
            waiting = variants(remaining.pop(0), best, costs)
            continue
        tried = waiting.pop(0)
        total = done + 1 + len(waiting) + sum(len(variants(name, best, costs)) for name in remaining)
        replay = replaying(*build(tried), workload)
        while True:
            try:
                share = next(replay)
            except StopIteration as end:
                seconds = end.value.seconds
                break
            yield MeasuringProgress(done, total, (done + share) / total)
        done += 1
        if seconds < BETTER * least:
            best, least = tried, seconds
    return best
