"""Decides how many nodes (drafted tokens) of each draft tree are verified, so that verification saves time."""

from collections import deque
from collections.abc import Callable
from statistics import median

from localspec.choosing.cost import ForwardCostModel
from localspec.decoding.drafter import Step
from localspec.decoding.tree import DraftTree

REMEMBERED = 9  # recent forwards or steps; the median of their times counts
ENOUGH = 3  # forwards that a median needs, or plain steps that a mean needs
FRESH = 64  # a deviation expires after this many forwards, since the machine may have become quiet again
# If the time of trees changes by this factor, plain steps are timed again, and speculation that was off is tried again.
CHANGE = 1.25


class ObservedCosts:
    """A `ForwardCostModel` that corrects measured costs of forwards by the present load of the machine.

    A measured cost is multiplied by the median of (observed time ÷ measured time) of recent forwards with about as many
    rows. If there are none, the nearest number of rows counts. Numbers of rows are separate, because a busy machine
    slows down forwards of many rows most. When the times of trees change, `wants_plain` requests a few steps without a
    draft.
    """

    def __init__(self, measured: ForwardCostModel) -> None:
        self._measured = measured
        self._forwards = 0
        self._recent: deque[float] = deque(maxlen=REMEMBERED)  # deviations of the last forwards
        # The same by the size of their rows (1, 2 to 4, 5 to 8, 9 to 16, …), with the number of each forward.
        self._by_size: dict[int, deque[tuple[int, float]]] = {}
        self._baseline: dict[int, float] = {}  # the deviation by size at first, or when plain steps were last looked at
        self._plain = 0  # plain steps since they were requested
        self._factors: dict[int, float] = {}  # by size; a tree needs one for each node, so each is computed once

    def at(self, rows: int, context: int) -> float:
        """Return the seconds of one forward of `rows` rows after `context` committed tokens."""
        size = _size(rows)
        factor = self._factors.get(size)
        if factor is None:
            nearest = min(filter(self._fresh, self._by_size), key=lambda other: abs(other - size), default=None)
            factor = self._factors[size] = 1.0 if nearest is None else self._deviation(nearest)
        return self._measured.at(rows, context) * factor

    @property
    def slowness(self) -> float:
        """The median of (observed time ÷ measured time) of recent forwards; 1 until enough forwards were observed."""
        return median(self._recent) if len(self._recent) >= ENOUGH else 1.0

    @property
    def wants_plain(self) -> bool:
        """Whether forwards of trees became so much slower or faster that plain steps should be timed again."""
        return any(
            max(self._deviation(size), then) >= CHANGE * min(self._deviation(size), then)
            for size, then in self._baseline.items()
            if size and self._fresh(size)
        )

    def observe(self, rows: int, context: int, seconds: float) -> None:
        """Learn how many seconds a forward took. Zero means that it was not timed."""
        if seconds <= 0:
            return
        size, deviation = _size(rows), seconds / self._measured.at(rows, context)
        self._forwards += 1
        self._factors.clear()
        self._recent.append(deviation)
        self._by_size.setdefault(size, deque(maxlen=REMEMBERED)).append((self._forwards, deviation))
        if self._fresh(size):
            self._baseline.setdefault(size, self._deviation(size))
        self._plain += rows == 1
        if self._plain >= ENOUGH or not self.wants_plain:
            if self._plain >= ENOUGH:
                self._baseline |= {size: self._deviation(size) for size in self._by_size if self._fresh(size)}
            self._plain = 0

    def _deviation(self, size: int) -> float:
        return median(deviation for _, deviation in self._by_size[size])

    def _fresh(self, size: int) -> bool:
        """Return whether enough forwards of this size class were timed lately. Discard older times."""
        times = self._by_size[size]
        while times and self._forwards - times[0][0] >= FRESH:
            times.popleft()
        return len(times) >= ENOUGH


def _size(rows: int) -> int:
    """Return the size class of a forward: 0 for 1 row, 2 for 2 to 4, 3 for 5 to 8 (kernels compute 4 or 8 at once)."""
    return max((rows - 1).bit_length(), 2) if rows > 1 else 0


WARM = 3  # steps of an engine, after which memory and caches are warm
INTERRUPTED = 4  # times the usual seconds of a step: the machine was busy with something else
# Steps between two without a draft: at first, and at most. The interval doubles within a reply.
SOON, OFTEN = 4, 64


class PlainTime:
    """A clock that estimates how long plain decoding (without drafts) would have taken for the latest reply.

    It uses the mean time of the reply's steps without a draft, less the time that they spent on drafting and learning.
    The mean is used, not the median, because on a busy machine a few steps take very long. `costs` say how the time of
    a step grows with the text. Without `costs` all steps count as equally expensive, and `wanted` is always false.
    """

    def __init__(self, costs: ForwardCostModel | None) -> None:
        self._costs = costs
        self._warming = WARM
        self.begin()

    def begin(self) -> None:
        """Begin a new reply, and discard the times of the last one: the load of the machine may have changed."""
        self._steps = self._last = 0  # of this reply, and the last of them without a draft
        self._wait = SOON
        self._lately: deque[float] = deque(maxlen=REMEMBERED)  # seconds of the last steps, whole
        self._spent = 0.0  # seconds of all steps
        self._plain, self._plain_seconds, self._plain_cost = 0, 0.0, 0.0  # steps without a draft, and what they cost
        self._drafted_cost = 0.0  # of the tokens of all others, had each been a step without a draft

    @property
    def wanted(self) -> bool:
        """Whether the next step should have no draft, so that plain decoding is timed again.

        A reply's first plain step is due after `SOON` steps. Each plain step doubles this wait, up to `OFTEN` steps.
        """
        return self._costs is not None and self._steps - self._last >= self._wait

    def observe(self, rows: int, context: int, tokens: int, seconds: float, drafting: float) -> None:
        """Record that a step of `rows` rows after `context` tokens committed this many `tokens`.

        `seconds` run from the end of the previous step to the end of this one. `drafting` is the part of these seconds
        that plain decoding would not need.
        """
        self._steps += 1
        if rows == 1:
            self._last, self._wait = self._steps, min(2 * self._wait, OFTEN)
        if self._warming:
            self._warming -= 1
            return
        self._lately.append(seconds)
        # Cut off interruptions, which would distort only one side of the comparison.
        steady = min(seconds, INTERRUPTED * median(self._lately))
        cost = 1.0 if self._costs is None else self._costs.at(1, context)
        self._spent += steady
        if rows == 1:
            self._plain += 1
            self._plain_seconds += min(steady, max(seconds - drafting, 0.0))
            self._plain_cost += cost
        else:
            self._drafted_cost += tokens * cost

    @property
    def speedup(self) -> float | None:
        """Speedup over plain decoding; None until enough steps without a draft were timed."""
        if self._plain < ENOUGH or self._spent <= 0:
            return None
        return self._plain_seconds * (1 + self._drafted_cost / self._plain_cost) / self._spent


DECAY = 0.85  # of the counts of a guess when a similar one is judged: about seven are remembered
PRIOR = 0.5  # guesses that the first estimate counts for
LOSS = 4.0  # plain steps that drafts may cost more than they save, until speculation is switched off
RETRY = 1.0  # the same after it was switched off, until drafts pay again
RECENT = 0.9  # share of the tokens and seconds kept at each step, from which a token's worth is computed
HARDLY = 0.05  # tokens per draft
NOTHING = 10.0  # above this ratio of a draft's cost to its gain, the number is not shown
READING = 0.25  # plain steps: a draft that takes longer may have read the text before it
DECLINED = 8  # steps in a row without a draft, after which the drafter's reason is shown
SOONEST, LATEST = 16, 512  # plain steps until it is tried again: twice as many each time it still does not pay
DOUBTED = 64  # the first wait of drafts that did not pay in earlier replies


class Budget:
    """A policy that verifies only those nodes of a draft whose expected tokens save more time than their rows cost.

    An accepted token saves the time that one token takes at present. The chance that a node is accepted after its
    parent is the drafter's estimate, if it gives one. Otherwise the budget estimates it from earlier results for the
    node's source, its depth, and its rank among its siblings.

    The budget compares each draft with the committed tokens. This includes pruned nodes, which were not verified. So a
    source is judged even if its drafts are pruned completely, and it is used again once its tokens are right.

    Speculation is switched off if the steps took longer than plain steps would have for the same tokens. Drafts that
    take no time are never switched off.

    If `branches` is false, the target reads only chains, so a draft's most promising path is verified. If `costs` is
    None, up to `most` nodes are always verified, unless memory runs out. If `most` is 0, `off_reason` says why. If
    drafts are `doubted`, because they did not pay in earlier replies, they are switched off sooner, until they pay.
    """

    def __init__(
        self,
        most: int,
        costs: ForwardCostModel | None = None,
        branches: bool = True,
        off_reason: str | None = None,
        doubted: bool = False,
    ) -> None:
        self._branches, self._always_off = branches, off_reason
        self.most, self._costs = most, None if costs is None else ObservedCosts(costs)
        self._hits: dict[tuple[str | None, int, int], tuple[float, float]] = {}  # (hits, tries); None means all sources
        # Seconds of recent steps outside of draft and forward, with trees and without.
        self._tree_overheads, self._plain_overheads = (deque[float](maxlen=REMEMBERED) for _ in range(2))
        self._lately = (0.0, 0.0)  # recent tokens, and their seconds by the costs
        self._allowed, self._soonest = (RETRY, DOUBTED) if doubted else (LOSS, SOONEST)
        self.plain = PlainTime(costs if most else None)
        self.begin()

    @property
    def nodes(self) -> int:
        """The number of nodes that the drafter may propose next: 0 while speculation is off, or if a plain step is
        wanted."""
        if self._off or self.plain.wanted or (self._costs is not None and self._costs.wants_plain):
            return 0
        return self.most

    def token_seconds(self, context: int) -> float | None:
        """Return the present seconds per token, which each accepted draft token saves; None without costs.

        They are divided by `slowness` (how many times longer forwards take now than when they were measured), because
        they are compared with measured costs of drafting.
        """
        if self._costs is None:
            return None
        plain = (self._costs.at(1, context) + self._overhead(False)) / self._costs.slowness
        tokens, seconds = self._lately
        return (seconds + plain) / (tokens + 1)

    def verify_seconds(self, context: int) -> Callable[[int], float]:
        """Return a function from a number of rows to the seconds of verifying them, without the present `slowness`."""
        costs = self._costs
        return (lambda rows: 0.0) if costs is None else lambda rows: costs.at(rows, context) / costs.slowness

    def take_costs(self, costs: ForwardCostModel) -> None:
        """Replace the costs of forwards. Discard earlier observations of how much longer forwards take."""
        self._costs = ObservedCosts(costs)

    def begin(self) -> None:
        """Start a new reply with drafts allowed: drafts that did not pay in the last reply may pay now."""
        # The last draft before pruning, and the length of the text before that draft.
        self._draft, self._context = DraftTree((0,), (-1,)), 0
        self._off, self._declined = False, 0  # the latter: steps in a row for which the drafter declined to draft
        self.off_reason = self._always_off  # a sentence for the user, from switching off until drafts pay again
        self._catches_up = True  # the first long draft also reads the text before it, so its time is not typical
        self._lost = self._gained = self._paid = (
            0.0  # in plain steps: lost since drafts last paid, and the two sums behind this number
        )
        # Plain steps left until the next try, the length of the wait after it, and the slowness when switched off.
        self._wait, self._interval, self._slowness = 0, self._soonest, 1.0
        self.plain.begin()

    def stop(self, reason: str) -> None:
        """Switch speculation off for the rest of this reply. `reason` is a sentence for the user."""
        self._off, self._wait = True, 0  # so that the wait never ends
        self.off_reason = reason if self.most else self._always_off

    def take_whole(self, tree: DraftTree, context: int) -> DraftTree:
        """Return a tree of sampled chains unchanged, because pruning would change the distribution of the text."""
        if self._costs is not None:
            self._draft, self._context = tree, context
        return tree

    def prune(self, tree: DraftTree, context: int) -> DraftTree:
        """Return the tree without the nodes that cost more time than they save after `context` committed tokens.

        The root always stays. A probe node (`DraftTree.probe`) is never accepted. It is kept or removed with the
        nearest node above it that is not a probe, and its row adds to that node's cost. A tree with only probes below
        the root stays as it is.
        """
        if self._costs is None:
            return self._computable(tree)
        self.take_whole(tree, context)
        tree = self._computable(tree)
        chances = self._chances(tree)
        if len(chances) == 1:
            return tree
        worth = self.token_seconds(context)
        assert worth is not None
        worth *= self._costs.slowness
        hosts = _hosts(tree, chances)
        order = sorted(chances, key=chances.__getitem__, reverse=True)  # a stable sort: parents before their children
        best_size, most_saved = 0, -self._costs.at(1, context) - self._overhead(False)
        tokens, rows = 0.0, 1 + hosts.count(0)
        for size, node in enumerate(order[1:], start=1):
            tokens += chances[node]
            rows += 1 + hosts.count(node)
            saved = tokens * worth - self._costs.at(rows, context) - self._overhead(True)
            if saved > most_saved:
                best_size, most_saved = size, saved
        if not best_size:
            return tree.subtree([0])
        best = set(order[: best_size + 1])
        nodes = [node for node in range(tree.size) if node in best or hosts[node] in best]
        return tree if len(nodes) == tree.size else tree.subtree(nodes)

    def observe(self, step: Step, overhead: float = 0.0) -> None:
        """Learn from a step: its times, and which nodes of the last draft agree with the committed tokens.

        The comparison includes pruned nodes, and ends at the first committed token that was not drafted. `overhead` is
        the part of the step's seconds outside of drafting and the forward.
        """
        if self._costs and step.tree:
            rows, drafted = step.tree.size, self._draft.size > 1
            self._costs.observe(rows, self._context, step.verify_seconds)
            (self._tree_overheads if rows > 1 else self._plain_overheads).append(overhead)
            plain = self._costs.at(1, self._context) + self._overhead(False)
            drafting = step.draft_seconds
            if drafted and self._catches_up and drafting > READING * plain:
                drafting, self._catches_up = 0.0, False
            took = drafting + self._costs.at(rows, self._context) + overhead
            tokens, seconds = self._lately
            self._lately = RECENT * tokens + len(step.committed), RECENT * seconds + took / self._costs.slowness
            self._weigh(len(step.committed) - 1, took / plain - 1, self._costs.slowness)
            self._note_declined()
        node: int | None = 0
        for token in step.committed:
            if node is None:
                break
            children = self._draft.children[node]
            for rank, (drafted_token, child) in enumerate(children.items()):
                for key in self._keys(self._draft, child, rank):
                    hits, tries = self._hits.get(key, (0.0, 0.0))
                    self._hits[key] = DECAY * hits + (drafted_token == token), DECAY * tries + 1
            node = children.get(token)

    def _note_declined(self) -> None:
        """Set `off_reason` to the drafter's reason for drafting nothing, after `DECLINED` empty drafts.

        Clear `off_reason` when the drafter drafts again.
        """
        if self._draft.size > 1:
            if self._declined >= DECLINED and not self._off:
                self.off_reason = None
            self._declined = 0
        elif self._draft.declined:
            self._declined += 1
            if self._declined >= DECLINED:
                self.off_reason = self._draft.declined

    def _weigh(self, gained: float, paid: float, slowness: float) -> None:
        """Add what a step gained and paid, in plain steps. Switch speculation off after large losses, and later on
        again."""
        if self._off:
            self._wait -= 1
            changed = max(slowness, self._slowness) > CHANGE * min(slowness, self._slowness)
            if self._wait == 0 or (self._wait > 0 and changed):
                self._off, self._catches_up = False, True
            return
        self._gained, self._paid = self._gained + gained, self._paid + paid
        self._lost = self._lost + paid - gained
        if self._lost <= 0:
            self._lost = self._gained = self._paid = 0.0
            if gained:
                self._allowed, self._interval, self.off_reason = LOSS, SOONEST, None
                self._soonest = SOONEST
        elif self._lost > self._allowed:
            self._off, self._wait, self._slowness = True, self._interval, slowness
            self._interval, self._allowed = min(2 * self._interval, LATEST), RETRY
            ratio = self._paid / max(self._gained, 1e-9)
            self.off_reason = (
                "recent drafts were hardly ever right"
                if self._gained < HARDLY
                else "drafts save almost no time here"
                if ratio >= NOTHING
                else f"drafts took {ratio:.{1 if ratio > 1.1 else 3}f}× the time that they saved"
            )
            self._lost = self._gained = self._paid = 0.0

    def _overhead(self, tree: bool) -> float:
        """Return the expected seconds of a step outside of draft and forward. `tree` says whether the step has a tree.

        If only one kind of step was measured, the other is estimated: on a CPU, Python takes twice as long with a tree.
        """
        known, other = self._tree_overheads, self._plain_overheads
        if not tree:
            known, other = other, known
        return median(known) if known else median(other or (0.0,)) * (2.0 if tree else 0.5)

    def _computable(self, tree: DraftTree) -> DraftTree:
        """Return the tree. If the target cannot read branches, return only the path with the most expected tokens."""
        if self._branches:
            return tree
        chances = self._chances(tree)
        tokens: dict[int, float] = {}  # that the path to a node promises
        for node in sorted(chances):
            tokens[node] = tokens.get(tree.parents[node], 0.0) + chances[node]
        return tree.chain_to(max(tokens, key=tokens.__getitem__))

    def _chances(self, tree: DraftTree) -> dict[int, float]:
        """Return by node the chance that it and all its ancestors are accepted.

        Probes and the nodes below them are left out.
        """
        chances, path = {0: 0.0}, {0: 1.0}  # of each node after its parent, and of the whole path to it
        for parent, children in enumerate(tree.children):
            if parent not in path:
                continue
            # A drafter that was right once tends to stay right; the other siblings share the rest.
            rest = max(1 - chances[parent], 0.2) / 2  # an untried source has a chance of at most 0.9
            for rank, node in enumerate(children.values()):
                if tree.chance and (estimate := tree.chance[node]) is not None:
                    chances[node], path[node] = estimate, path[parent] * estimate
                    continue
                chance = rest * 0.5**rank if rank else 1 - rest
                for key in self._keys(tree, node, rank):  # an unseen source is estimated from all
                    hits, tries = self._hits.get(key, (0.0, 0.0))
                    chance = (hits + PRIOR * chance) / (tries + PRIOR)
                chances[node], path[node] = chance, path[parent] * chance
        return path

    @staticmethod
    def _keys(tree: DraftTree, node: int, rank: int) -> tuple[tuple[str | None, int, int], ...]:
        source = tree.source[node] if tree.source else "drafter"
        return (None, tree.depth[node], rank), (source, tree.depth[node], rank)


def _hosts(tree: DraftTree, chances: dict[int, float]) -> list[int]:
    """Return for each probe node the nearest node above it that is not a probe, and -1 for all other nodes."""
    hosts = [-1] * tree.size
    for node in range(1, tree.size):
        if tree.probe and tree.probe[node]:
            parent = tree.parents[node]
            hosts[node] = parent if parent in chances else hosts[parent]
    return hosts
