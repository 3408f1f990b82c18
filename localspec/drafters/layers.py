"""S3D without training: the target drafts one token after another with some of its layers, which a probe chose."""

import time
from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import Any

from localspec.decoding.calibration import Calibration
from localspec.decoding.compute import DraftableModel
from localspec.decoding.drafter import Context, Step, Textless
from localspec.decoding.logits import Candidate
from localspec.decoding.tree import DraftTree, grow_tree
from localspec.models.drafter_cards import RANKS
from localspec.models.s3d_prediction import MeasuredLayers

KIND = "layers"
LONGEST = 16  # tokens of a draft
FIXED = 4  # tokens of a draft in a tree of a fixed size, if its ranks can fill it
REMEMBERED = 24  # drafts in the averages of accuracy and seconds


class Layers(Textless):
    """Self-speculative decoding (Zhang et al. 2023; S3D, §2.2) with the target's own keys and values of the text.

    Each draft forward reads one row through the kept layers and adds the likeliest next tokens to the tree. The next
    forward continues from the likeliest of them. Drafting ends where another forward costs more than its chance of an
    accepted token is worth:

        root ─ a ─ b ─ c      reads root, a, b       a, a', a'' are candidates after the root, a the likeliest
             ├ a'  └ b'
             └ a''

    Times are averages over recent drafts and verifications. With `fixed`, trees have a fixed size, and a draft has as
    many tokens as fill the tree. The drafter holds no weights and no text. `measured` lists the layers that it reads,
    and how often they were right.
    """

    def __init__(self, target: DraftableModel[Any], measured: MeasuredLayers, fixed: bool = False) -> None:
        self.target, self.compute = target, target.compute
        self.calibration = Calibration()
        self._fixed = fixed
        self.take(measured)
        self._step_seconds: deque[float] = deque(maxlen=REMEMBERED)  # per token of the text, at most a plain step
        self._levels: list[Sequence[Candidate]] = []  # of the last draft, by depth: (token, confidence)
        self._chain: list[Candidate] = []  # and (token, chance) of the likeliest of each
        self._greedy = True

    def take(self, measured: MeasuredLayers) -> None:
        """Use these layers from the next draft on."""
        self.kept, self._agreement = measured.layers, measured.agreement
        # The price of a draft forward, in tokens that could be committed in its time.
        self._price = len(self.kept) / self.compute.target.sizes.num_layers
        self._draft_seconds: deque[float] = deque(maxlen=REMEMBERED)  # of one draft forward

    def observe(self, step: Step) -> None:
        """Judge the last draft by the committed tokens, and update the measured cost of a draft forward."""
        if step.tree is None:
            return
        drafted = zip(self._levels, self._chain, step.committed, strict=False)
        for depth, (level, (likeliest, _), token) in enumerate(drafted, start=1):
            self.calibration.learn(level, depth, self._greedy, token)
            right = likeliest == token
            self._agreement += (right - self._agreement) / REMEMBERED
            if not right:  # the rest was drafted after another token
                break
        self._forget_draft()
        seconds = (step.draft_seconds + step.verify_seconds) / len(step.committed)
        self._step_seconds.append(min(seconds, step.verify_seconds))
        if self._draft_seconds and (worth := median(self._step_seconds)) > 0:
            self._price = median(self._draft_seconds) / worth

    def rewind(self, length: int) -> None:
        """Discard the last draft; the drafter holds no text."""
        self._forget_draft()

    def _forget_draft(self) -> None:
        self._levels, self._chain = [], []

    def draft(self, context: Context) -> DraftTree:
        """Return a tree along the likeliest chain. The cache stays unchanged: verification overwrites the rows of
        the draft."""
        cache, start, count = context.cache, context.cache.length, len(context.committed)
        longest = max(FIXED, -(-context.nodes // RANKS)) if self._fixed else LONGEST
        depth = min(context.nodes, longest, self.target.context - count)
        self._forget_draft()
        self._greedy = context.sampling.greedy
        if depth < 1:
            return DraftTree((context.root,), (-1,))
        reached = 1.0  # the chance that the target reaches the chain's end

        def expand(parents: Sequence[int], tokens: Sequence[int], level: int) -> Sequence[Sequence[Candidate]]:
            nonlocal reached
            found: list[Sequence[Candidate]] = [() for _ in tokens]
            if level:
                reached *= self._chain[-1][1]
                pays = self._fixed or reached * self._agreement > self._price
                if not pays or tokens[0] in self.target.stop_tokens:
                    return found
                cache.keep([0])  # for the length of this draft
            if candidates := self._next(context, tokens[0], level):
                self._levels.append(candidates)
                found[0] = self.calibration.chances(candidates, level + 1, self._greedy)
                self._chain.append(found[0][0])
            return found

        try:
            return grow_tree(context.root, expand, context.nodes, depth, KIND)
        finally:
            cache.truncate(start)

    def _next(self, context: Context, token: int, level: int) -> Sequence[Candidate]:
        """Read one row after the cache; return (token, confidence) of possible next tokens, the likeliest first.

        Return nothing if the logits are NaN or inf.
        """
        began, model = time.perf_counter(), self.compute.target
        states = model.read_rows(model.embed([token]), context.cache, self.kept)
        logits = self.compute.logits(model.head(states))
        if not logits.finite():
            model.forget_rows(context.cache, 1, self.kept)
            return ()
        position = len(context.committed) + level
        (found,) = logits.candidates([position], min(context.nodes, RANKS), context.sampling)
        self._draft_seconds.append(time.perf_counter() - began)
        return found
