"""Several drafters at once: their trees merged into one, by the calibrated chance of each node."""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from localspec.decoding.calibration import Calibration
from localspec.decoding.drafter import Context, Drafter, DrafterState, Step
from localspec.decoding.tree import DraftTree, likeliest_tree

REMEMBERED = 24  # drafts in the average of each drafter's own gain, and in the median of its seconds
PATIENCE = 16  # drafts of a drafter before it is judged
SOONEST, LATEST = 16, 512  # steps until a drafter that did not pay drafts again; doubled each time


@dataclass
class _Share:
    """One drafter among the merged ones, with its recent gain and cost."""

    drafts: int  # since it was last judged
    gain: float  # tokens per draft that no other proposed
    seconds: deque[float]
    rest: int = 0  # steps for which it does not draft
    interval: int = SOONEST


class Merged:
    """A combination of several drafters, whose trees are merged into one for the target to verify in one forward.

    Equal tokens below one parent become one node. The node's confidence is the chance that at least one of the drafters
    that proposed it is right, if they were independent. Calibration turns that confidence into a chance, separately for
    each set of proposing drafters and each rank among siblings. For example, a token that two drafters propose is right
    more often. The `nodes` likeliest nodes stay.

        a: root ─ x ─ y      b: root ─ x ─ z      merged: root ─ x (a+b) ─ y (a)
                                     └ w                       │        └ z (b)
                                                               └ w (b)

    A drafter that costs more time than it gains is paused for some steps. Every drafter observes every step, whether or
    not it drafted. Drafters with probe nodes cannot be merged, nor can sampled drafts (the rule `rejection`).
    """

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        self.drafters = drafters
        self.calibration = Calibration()
        self._shares = [_Share(0, 0.0, deque(maxlen=REMEMBERED)) for _ in drafters]
        self._token_seconds: deque[float] = deque(maxlen=REMEMBERED)
        self._proposed = _Proposals(0)
        self._greedy = True

    @property
    def nbytes(self) -> int:
        return sum(drafter.nbytes for drafter in self.drafters)

    @property
    def target_layers(self) -> Sequence[int]:
        """The states that all drafters read, in the order of the drafters."""
        return [layer for drafter in self.drafters for layer in drafter.target_layers]

    def observe(self, step: Step) -> None:
        """Let each drafter observe the step. Judge all proposals, and update each drafter's gain."""
        start = 0
        for drafter in self.drafters:
            inner = step.inner
            if inner is not None:
                stop = start + step.hidden.rows.shape[1] * len(drafter.target_layers)
                inner, start = inner.part(start, stop), stop
            drafter.observe(replace(step, inner=inner))
        if step.tree is None:
            return
        self._token_seconds.append((step.draft_seconds + step.verify_seconds) / len(step.committed))
        proposed, self._proposed = self._proposed, _Proposals(0)
        proposed.judge(step.committed, self.calibration, self._greedy)
        all_of_them = (1 << len(self.drafters)) - 1
        reached = proposed.reached(step.committed, all_of_them)
        for number, share in enumerate(self._shares):
            if proposed.drafted >> number & 1:
                gain = reached - proposed.reached(step.committed, all_of_them ^ 1 << number)
                share.drafts += 1
                share.gain += (gain - share.gain) / min(share.drafts, REMEMBERED)

    def rewind(self, length: int) -> None:
        """Let each drafter discard everything after the first `length` tokens."""
        self._proposed = _Proposals(0)
        for drafter in self.drafters:
            drafter.rewind(length)

    def hand_over(self) -> DrafterState:
        self._proposed = _Proposals(0)
        return DrafterState(inner=[drafter.hand_over() for drafter in self.drafters])

    def resume(self, state: DrafterState, tokens: Sequence[int]) -> None:
        for drafter, part in zip(self.drafters, state.inner, strict=True):
            drafter.resume(part, tokens)

    def draft(self, context: Context) -> DraftTree:
        """Return the likeliest nodes of all drafters' trees."""
        assert context.sampling.rule != "rejection", "merged drafts have no distribution to sample from"
        self._proposed, self._greedy = _Proposals(context.root), context.sampling.greedy
        if context.nodes and context.token_seconds is not None:
            self._let_one_rest()
        for number, (drafter, share) in enumerate(zip(self.drafters, self._shares, strict=True)):
            if not context.nodes or share.rest:
                drafter.draft(replace(context, nodes=0))
                continue
            began = time.perf_counter()
            tree = drafter.draft(context)
            share.seconds.append(time.perf_counter() - began)
            self._proposed.add(number, tree)
        return self._proposed.tree(context.nodes, self.calibration, self._greedy)

    def _let_one_rest(self) -> None:
        """Pause the drafter that gains least for its time, if it gains less than it costs. Count down other pauses.

        After each change, the gains of all drafters are measured again. For example, of two drafters that always agree,
        neither seems to gain anything until the other is paused.
        """
        rests = [share.rest for share in self._shares]
        for share in self._shares:
            share.rest = max(share.rest - 1, 0)
        judged = [
            (share.gain * median(self._token_seconds) - median(share.seconds), share)
            for share in self._shares
            if not share.rest and share.drafts >= PATIENCE
        ]
        for saved, share in judged:
            if saved >= 0:
                share.interval = SOONEST
        for saved, share in sorted(judged, key=lambda pair: pair[0])[:1]:
            if saved < 0:
                share.rest, share.interval = share.interval, min(2 * share.interval, LATEST)
        if any((was > 0) != (share.rest > 0) for was, share in zip(rests, self._shares, strict=True)):
            for share in self._shares:
                share.drafts = 0


class _Proposals:
    """The nodes that the drafters proposed for one draft, by number: the root first, and parents before children.

    Sets of drafters are bit masks: `_by` has those that proposed each node, and `drafted` all that drafted.
    """

    def __init__(self, root: int) -> None:
        self._tokens, self._parents = [root], [-1]
        self._children: list[dict[int, int]] = [{}]  # token -> node
        self._by, self.drafted = [0], 0
        self._wrong = [0.0]  # the chance that all its proposers are wrong, if they were independent
        self._names: list[list[str]] = [[""]]

    def add(self, number: int, tree: DraftTree) -> None:
        """Add the tree of one drafter. Of equal siblings only the first is added."""
        assert not any(tree.probe or ()), "drafters with probe nodes cannot be merged"
        self.drafted |= 1 << number
        indices = {0: 0}
        for parent, below in enumerate(tree.children):
            if parent not in indices:
                continue
            for rank, (token, node) in enumerate(below.items()):
                estimate = tree.chance[node] if tree.chance else None
                chance = 0.5 ** (rank + 1) if estimate is None else estimate
                index = indices[node] = self._find_or_add(indices[parent], token)
                self._by[index] |= 1 << number
                self._wrong[index] *= 1 - chance
                name = tree.source[node] if tree.source else "drafter"
                if name not in self._names[index]:
                    self._names[index].append(name)

    def _find_or_add(self, parent: int, token: int) -> int:
        index = self._children[parent].setdefault(token, len(self._tokens))
        if index == len(self._tokens):
            self._tokens.append(token)
            self._parents.append(parent)
            self._children.append({})
            self._by.append(0)
            self._wrong.append(1.0)
            self._names.append([])
        return index

    def tree(self, nodes: int, calibration: Calibration, greedy: bool) -> DraftTree:
        """Return the likeliest `nodes` nodes with calibrated chances."""
        chances, worths = [1.0] * len(self._tokens), [1.0] * len(self._tokens)
        for parent in range(len(self._tokens)):
            for rank, node in enumerate(self._ranked(parent)):
                chances[node] = calibration.chance(1 - self._wrong[node], self._by[node], rank, greedy)
                worths[node] = worths[parent] * chances[node]
        entries = list(zip(worths, self._parents, self._tokens, chances, strict=True))
        return likeliest_tree(entries, nodes, ["+".join(names) for names in self._names])

    def judge(self, committed: Sequence[int], calibration: Calibration, greedy: bool) -> None:
        """Calibrate chances along the committed tokens, up to the first token that no drafter proposed."""
        node: int | None = 0
        for token in committed:
            if node is None:
                break
            for rank, child in enumerate(self._ranked(node)):
                right = self._tokens[child] == token
                calibration.judge(1 - self._wrong[child], self._by[child], rank, greedy, right)
            node = self._children[node].get(token)

    def reached(self, committed: Sequence[int], drafters: int) -> int:
        """Return how many committed tokens precede the first token that none of these drafters proposed."""
        node = count = 0
        for token in committed:
            below = self._children[node].get(token)
            if below is None or not self._by[below] & drafters:
                break
            node, count = below, count + 1
        return count

    def _ranked(self, parent: int) -> list[int]:
        return sorted(self._children[parent].values(), key=self._wrong.__getitem__)
