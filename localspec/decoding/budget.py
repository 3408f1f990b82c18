"""Decides how many nodes a tree may have: as many as pay on this machine, for this drafter and this text, or none."""

from collections import deque
from statistics import median

from localspec.decoding.drafter import Step
from localspec.decoding.observed_costs import ObservedCosts
from localspec.decoding.plain_time import PlainTime
from localspec.decoding.tree import DraftTree
from localspec.policy.forward_costs import ForwardCostModel

DECAY = 0.85  # of the counts of a guess, each time one like it is judged: about seven are remembered
PRIOR = 0.5  # how many guesses the first estimate counts for
PATIENCE = 16  # drafts in a row that do not pay before speculation is switched off,
LOSS = 1.5  # or plain steps that they cost together: a draft model costs much more than a look at phrases
RECENT = 0.9  # of the tokens and seconds that a token's worth is taken from, kept at each step
HARDLY = 0.05  # plain steps that a draft saves
NOTHING = 10.0  # times as much as a draft saves is what it takes: how many times tells nobody more
REMEMBERED = 9  # drafts and steps, whose median is what the next should take
SOONEST, LATEST = 16, 512  # plain steps until it is tried again: twice as many each time it still does not pay


class Budget:
    """Decides what part of a draft is verified: the size with the most expected tokens a second, 0 included.

    The chance of a node, given its parent, is the drafter's own estimate where it has one. Otherwise it is estimated
    from who proposed the node, its depth, and its rank among its siblings. Only the target's answers are learned from:
    every draft is walked along the committed tokens, so one level more is judged than was verified, and a draft that
    was cut to nothing is still judged by its first guess. That costs no row, and an old estimate never hides a source
    that has become right again.

    Costs are corrected by what forwards take now (`ObservedCosts`). Without `branches` the target reads chains alone:
    of each draft the path that promises most is all there is.
    Without costs it is a fixed experiment: trees of `most` nodes, no resizing, no switching off as long as they fit.
    `off_reason` is the reason if `most` is 0.
    """

    def __init__(
        self, most: int, costs: ForwardCostModel | None = None, branches: bool = True, off_reason: str | None = None
    ) -> None:
        self._branches, self._always_off = branches, off_reason
        self.most, self._costs = most, None if costs is None else ObservedCosts(costs)
        self._seen: dict[tuple[str | None, int, int], tuple[float, float]] = {}  # (hits, tries); None means all sources
        self._draft_seconds = deque([0.0], maxlen=REMEMBERED)  # seconds that the last drafts took
        # What the last steps took beside draft and forward, with trees and without.
        self._beside_trees, self._beside_plain = (deque[float](maxlen=REMEMBERED) for _ in range(2))
        self._lately = (0.0, 0.0)  # tokens, and the seconds that they took by the costs
        self.plain = PlainTime(costs if most else None)
        self.begin()

    def token_seconds(self, context: int) -> float | None:
        """Returns the seconds that a token takes at present, which one more from a draft saves; None without costs.

        They are those of a machine as quiet as it was when costs were measured, a draft model's costs too.
        """
        if self._costs is None:
            return None
        plain = (self._costs.at(1, context) + self._beside(False)) / self._costs.slowness
        tokens, seconds = self._lately
        return (seconds + plain) / (tokens + 1)

    def take_costs(self, costs: ForwardCostModel) -> None:
        """Use these costs from now on. Earlier observations of real costs are discarded."""
        self._costs = ObservedCosts(costs)

    def begin(self) -> None:
        """Begins a new reply: what did not pay in the last one may pay in this one."""
        self._draft, self._context = DraftTree((0,), (-1,)), 0  # the last one, before pruning, and the text before it
        self.nodes = self.most  # what the drafter may propose next: `most`, or 0 while speculation is off
        self.off_reason = self._always_off  # a sentence for the user, from switching off until drafts pay again
        self._catches_up = True  # the next draft also reads the text before it, so its time is not typical
        self._losing_drafts = self._wait = 0  # drafts in a row that did not pay; plain steps until the next try
        self._lost_steps = 0.0  # plain steps that those drafts cost
        self._interval = SOONEST
        self.plain.begin()

    def stop(self, reason: str) -> None:
        """Allows no tree for the rest of this reply, whatever it would save, not even in a fixed experiment."""
        self.nodes, self._wait = 0, 0  # so that no wait ends
        self.off_reason = reason if self.most else self._always_off

    def take_whole(self, tree: DraftTree, context: int) -> DraftTree:
        """Returns a tree that may not be cut, and that `observe` will judge, after `context` committed tokens."""
        if self._costs is not None:
            self._draft, self._context = tree, context
        return tree

    def prune(self, tree: DraftTree, context: int) -> DraftTree:
        """Returns the part of a tree that is worth its rows after `context` committed tokens; the root always is.

        Probes have no chance of their own: they stay with the node that they belong to, at the price of their rows, and
        go where nothing else pays. A tree of probes alone is returned as it is, and is a draft that does not pay.
        """
        if self._costs is None:
            return self._computable(tree)
        self.take_whole(tree, context)
        if not self.nodes:
            self._wait -= 1
            if self._wait == 0:
                self.nodes, self._losing_drafts, self._lost_steps = self.most, 0, 0.0
                self._catches_up = True
        tree = self._computable(tree)
        if tree.size == 1:
            return tree
        chances = self._chances(tree)
        plain_seconds, draft_seconds = self._costs.at(1, context) + self._beside(False), median(self._draft_seconds)
        if len(chances) == 1:
            # All others are probes.
            price = (draft_seconds + self._costs.at(tree.size, context) + self._beside(True)) / plain_seconds - 1
            self._note_loss(0.0, price, price)
            return tree
        if self._costs.wants_plain or self.plain.wanted:
            return tree.subtree([0])
        hosts = _hosts(tree, chances)
        order = sorted(chances, key=chances.__getitem__, reverse=True)  # a stable sort: parents before their children
        tokens, rows, sizes = 1.0, 1 + hosts.count(0), []  # the root stands for the bonus token
        before = draft_seconds + self._beside(True)
        for node in order[1:]:
            tokens += chances[node]
            rows += 1 + hosts.count(node)
            sizes.append((tokens, before + self._costs.at(rows, context)))
        best = max(range(len(sizes)), key=lambda size: sizes[size][0] / sizes[size][1])
        expected, seconds = sizes[best]
        if expected * plain_seconds <= seconds:
            worth_its_rows = expected * (draft_seconds + plain_seconds) > seconds  # now that the draft is there
            lost = seconds / plain_seconds - expected if worth_its_rows else draft_seconds / plain_seconds
            self._note_loss(expected - 1, seconds / plain_seconds - 1, lost)
            if not worth_its_rows:
                return tree.subtree([0])
        else:
            self._losing_drafts, self._lost_steps, self._interval, self.off_reason = 0, 0.0, SOONEST, None
        kept = set(order[: best + 2])
        nodes = [node for node in range(tree.size) if node in kept or hosts[node] in kept]
        return tree if len(nodes) == tree.size else tree.subtree(nodes)

    def observe(self, step: Step, beside: float = 0.0) -> None:
        """Judges the last draft, pruned nodes too, by the committed tokens, as far down as it agreed with them.

        `beside` is what the step took beside draft and forward, in seconds.
        """
        if self._costs and step.tree:
            tokens, seconds = self._lately
            self._costs.observe(step.tree.size, self._context, step.verify_seconds)
            (self._beside_trees if step.tree.size > 1 else self._beside_plain).append(beside)
            took = step.draft_seconds + self._costs.at(step.tree.size, self._context) + beside
            self._lately = RECENT * tokens + len(step.committed), RECENT * seconds + took / self._costs.slowness
        if self._draft.size > 1:
            if not self._catches_up:
                self._draft_seconds.append(step.draft_seconds)
            self._catches_up = False
        node: int | None = 0
        for token in step.committed:
            if node is None:
                break
            children = self._draft.children[node]
            for rank, (drafted, child) in enumerate(children.items()):
                for key in self._keys(self._draft, child, rank):
                    hits, tries = self._seen.get(key, (0.0, 0.0))
                    self._seen[key] = DECAY * hits + (drafted == token), DECAY * tries + 1
            node = children.get(token)

    def _beside(self, tree: bool) -> float:
        """Returns what a step should take beside draft and forward, with a tree or without one.

        Where only the other was seen: on a CPU, Python takes twice as long with a tree as without.
        """
        known, other = self._beside_trees, self._beside_plain
        if not tree:
            known, other = other, known
        return median(known) if known else median(other or (0.0,)) * (2.0 if tree else 0.5)

    def _computable(self, tree: DraftTree) -> DraftTree:
        """Returns the tree, or the path of it that promises most tokens where the target computes no branches."""
        if self._branches:
            return tree
        chances = self._chances(tree)
        tokens: dict[int, float] = {}  # that the path to a node promises
        for node in sorted(chances):
            tokens[node] = tokens.get(tree.parents[node], 0.0) + chances[node]
        return tree.chain_to(max(tokens, key=tokens.__getitem__))

    def _chances(self, tree: DraftTree) -> dict[int, float]:
        """Returns the chance that a node and all above it are accepted, by node, without probes and what is below."""
        given, path = {0: 0.0}, {0: 1.0}  # chances, `given` that the parent was accepted, and of the whole `path`
        for parent, children in enumerate(tree.children):
            if parent not in path:
                continue
            # A drafter that was right once tends to go on being right; the other siblings share what is left.
            rest = max(1 - given[parent], 0.2) / 2  # a source that was never tried has a chance of 0.9 at most
            for rank, node in enumerate(children.values()):
                if tree.chance and (own := tree.chance[node]) is not None:
                    given[node], path[node] = own, path[parent] * own
                    continue
                chance = rest * 0.5**rank if rank else 1 - rest
                for key in self._keys(tree, node, rank):  # an unseen source is estimated from all
                    hits, tries = self._seen.get(key, (0.0, 0.0))
                    chance = (hits + PRIOR * chance) / (tries + PRIOR)
                given[node], path[node] = chance, path[parent] * chance
        return path

    @staticmethod
    def _keys(tree: DraftTree, node: int, rank: int) -> tuple[tuple[str | None, int, int], ...]:
        source = tree.source[node] if tree.source else "drafter"
        return (None, tree.depth[node], rank), (source, tree.depth[node], rank)

    def _note_loss(self, saved: float, price: float, lost: float) -> None:
        """Counts a draft that does not pay even at its best size, and what it cost; all in units of a plain step."""
        self._losing_drafts += 1
        self._lost_steps += lost
        if self._losing_drafts >= PATIENCE or self._lost_steps >= LOSS:
            self.nodes, self._wait = 0, self._interval
            self._interval = min(2 * self._interval, LATEST)
            ratio = price / max(saved, 1e-9)
            self.off_reason = (
                "drafts are hardly ever right for this text"
                if saved < HARDLY
                else "drafts save almost no time here"
                if ratio >= NOTHING
                else f"it cost {ratio:.{1 if ratio > 1.1 else 3}f}× the time it saved"
            )


def _hosts(tree: DraftTree, chances: dict[int, float]) -> list[int]:
    """Returns by node the one that a probe belongs to, directly or through other probes; -1 for all that are none."""
    hosts = [-1] * tree.size
    for node in range(1, tree.size):
        if tree.probe and tree.probe[node]:
            parent = tree.parents[node]
            hosts[node] = parent if parent in chances else hosts[parent]
    return hosts
