"""Drafts from phrases, either by themselves or as continuations of another drafter's drafts (Ouroboros, §3.2)."""

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from localspec.decoding.calibration import Calibration
from localspec.decoding.drafter import Context, Drafter, DrafterState, Step
from localspec.decoding.logits import Candidate
from localspec.decoding.tree import DraftTree, depth_first
from localspec.drafters.autoregressive import Autoregressive
from localspec.drafters.ingredients import Ingredients
from localspec.drafters.pool import KEY_LENGTH, MATCH_LENGTH, Continuation, PhrasePool, StoredPhrase

CHANCE_MATCH = 0.1  # the chance that phrases propose a wrong drafted token, too
LEAST = 1e-3  # the least chance left to tokens that are not proposed, so that no logarithm is of zero
MOST = 4.0  # of the log odds, so that a change in the text shows within a few tokens


class JointChances:
    """A combination of two estimates of the next token's chances, from a drafter and from phrases.

    Two rules combine them. The committed tokens decide how much each rule counts:

    - Evidence: the estimates are independent evidence, so chances are multiplied. A token that both propose becomes
      likelier, and a token that only one proposes becomes less likely. Products of tokens that are not proposed by both
      are multiplied by CHANCE_MATCH, and all are divided by their sum:

              token        x     y     z    another
              drafter     0.4   0.1    -      0.5
              phrases     0.3    -    0.3     0.4
              product     0.12  0.004 0.015   0.02
              joint       0.75  0.03  0.09    0.13

    - Rest: the drafter has read the same text, as a draft model has. Its chances stay, and phrases get the rest.
    """

    def __init__(self) -> None:
        self._log_odds = 0.0  # of evidence against rest

    def combine(self, drafted: Mapping[int, float], phrases: Mapping[int, float]) -> dict[int, float]:
        """Return the combined probability of each token that either source proposes."""
        share = 1 / (1 + math.exp(-self._log_odds))
        evidence, rest = _as_evidence(drafted, phrases), _as_rest(drafted, phrases)
        return {token: share * chance + (1 - share) * rest[token] for token, chance in evidence.items()}

    def learn(self, drafted: Mapping[int, float], phrases: Mapping[int, float], token: int) -> None:
        """Record that the target continued with `token`."""
        likely, otherwise = (_of(rule(drafted, phrases), token) for rule in (_as_evidence, _as_rest))
        self._log_odds = max(-MOST, min(self._log_odds + math.log(likely / otherwise), MOST))


def _left(chances: Mapping[int, float]) -> float:
    return max(1 - sum(chances.values()), LEAST)


def _as_evidence(drafted: Mapping[int, float], phrases: Mapping[int, float]) -> dict[int, float]:
    left, phrases_left = _left(drafted), _left(phrases)
    products = {
        token: drafted.get(token, left)
        * phrases.get(token, phrases_left)
        * (1.0 if token in drafted and token in phrases else CHANCE_MATCH)
        for token in {**drafted, **phrases}
    }
    total = sum(products.values()) + CHANCE_MATCH * left * phrases_left
    return {token: product / total for token, product in products.items()}


def _as_rest(drafted: Mapping[int, float], phrases: Mapping[int, float]) -> dict[int, float]:
    rest = max(1 - sum(drafted.values()), 0.0)
    return {**{token: rest * chance for token, chance in phrases.items()}, **drafted}


def _of(joint: Mapping[int, float], token: int) -> float:
    return max(joint[token] if token in joint else 1 - sum(joint.values()), LEAST)


Followers = list[tuple[float, Continuation]]  # possible continuations of a text, with their weights
Path = tuple[int, ...]  # tokens from below the root to a node


class WithPhrases:
    """A drafter that adds phrases of a pool to the drafts of another drafter, `inner` (Ouroboros, §3.2, eqs. 7 to 9).

    If `inner` drafts nothing, phrases start at the root. Otherwise `inner` gets two thirds of the nodes, and phrases
    follow at the ends of its draft. If phrases need fewer nodes, `inner` gets the others. `anywhere` is for inner
    drafters that estimate the chances of their nodes, for example trained ones. Then the likeliest nodes of both stay,
    by `JointChances`, and phrases may branch off at any node.

    At most `max_phrases` phrases follow one end, each of at most `phrase_length` tokens (None: as many as there are
    nodes). If the pool is `read_only`, nothing is added to it here: the text of a draft model is not committed yet.
    """

    def __init__(
        self,
        inner: Drafter,
        pool: PhrasePool,
        max_phrases: int | None = None,
        phrase_length: int | None = None,
        read_only: bool = False,
        anywhere: bool = False,
    ) -> None:
        self.inner, self.pool = inner, pool
        self._anywhere, self._read_only = anywhere, read_only
        self._max_phrases, self._phrase_length = max_phrases, phrase_length
        self.calibration = Calibration()  # of phrases' shares of the weight, by the length of their match
        self._offered: dict[Path, tuple[list[Candidate], int]] = {}  # in the last draft: (token, share), match
        self._joint = JointChances()
        # In the last draft, by path: the chances of the drafter and of phrases, where both proposed tokens.
        self._both: dict[Path, tuple[dict[int, float], dict[int, float]]] = {}
        self._greedy = True
        self._draft = DraftTree((0,), (-1,))  # the last one, of which only part may have been verified
        self._stored: list[StoredPhrase | None] = []  # by node of the draft

    @property
    def target_layers(self) -> Sequence[int]:
        return self.inner.target_layers

    @property
    def nbytes(self) -> int:
        return self.inner.nbytes + (0 if self._read_only else self.pool.nbytes)

    def observe(self, step: Step) -> None:
        """Add the committed text to the pool, learn from rejected nodes, and mark stored phrases that were accepted."""
        self.inner.observe(step)
        for depth, token in enumerate(step.committed if step.tree else ()):
            level, match = self._offered.get(tuple(step.committed[:depth]), ((), 0))
            self.calibration.learn(level, match, self._greedy, token)
            if both := self._both.get(tuple(step.committed[:depth])):
                self._joint.learn(*both, token)
        self._offered, self._both = {}, {}
        if self._read_only:
            return
        if step.tree and step.tree.size > 1:
            self.pool.learn(step)
            self._correct(step)
        self.pool.extend(step.committed)
        node = 0
        for token in step.committed[: max(len(step.path) - 1, 0)]:
            if token not in self._draft.children[node]:  # it was below an equal sibling that the tree does not list
                break
            node = self._draft.children[node][token]
            if stored := self._stored[node]:
                self.pool.mark_used(stored)

    def rewind(self, length: int) -> None:
        self.inner.rewind(length)
        if not self._read_only:
            self.pool.rewind(length)

    def hand_over(self) -> DrafterState:
        """Return the inner drafter's state. The pool needs none: `resume` adds the text to it again."""
        state = self.inner.hand_over()
        self.rewind(0)
        return DrafterState(inner=[state])

    def resume(self, state: DrafterState, tokens: Sequence[int]) -> None:
        self.inner.resume(state.inner[0], tokens)
        if not self._read_only:
            self.pool.extend(tokens)

    def _correct(self, step: Step) -> None:
        """Replace the pool's phrases that were refused right after the accepted path by the target's picks (Ouroboros,
        §3.3)."""
        tree, path = step.tree, set(step.path)
        if tree is None or not tree.source or len(self.pool.tokens) < KEY_LENGTH:
            return
        for leaf in range(1, tree.size):
            if tree.siblings[leaf] or leaf in path or tree.source[leaf] not in PHRASES:
                continue
            tried, picks, node = [], [], leaf
            while node not in path and tree.source[node] in PHRASES:
                tried.append(tree.tokens[node])
                node = tree.parents[node]
                picks.append(step.greedy_picks[node])
            if node in path and len(picks) > 1:
                preceding = tree.tokens[tree.parents[node]] if node else self.pool.tokens[-2]
                self.pool.correct(preceding, tree.tokens[node], tried[::-1], picks[::-1])

    def draft(self, context: Context) -> DraftTree:
        """Return the inner tree, extended by the likeliest phrases, best first, as long as there are nodes."""
        self._greedy, self._offered, self._both = context.sampling.greedy, {}, {}
        nodes = context.nodes if self._anywhere else context.nodes - context.nodes // 3
        recent = list(context.committed[-MATCH_LENGTH:])
        known: dict[Path, Followers] = {}

        def followers_of(path: Path) -> Followers:
            """Return a path's continuations, looked up once: the root needs them before and after the inner draft."""
            if path not in known:
                known[path] = self._followers([*recent, *path], context.nodes) if context.nodes else []
            return known[path]

        covered = self._covered(followers_of(()), context.nodes) if self._anywhere else ()
        inner = self.inner.draft(replace(context, nodes=nodes, covered=covered))
        if inner.size == 1 and not followers_of(()):  # often, so checked first
            self._draft, self._stored = inner, [None]
            return inner
        builder = _TreeBuilder(inner)
        most = builder.size + context.nodes - 1 if self._anywhere else context.nodes
        heap: list[tuple[float, int, int, float, Followers, int]] = []
        order = 0

        def offer(node: int, followers: Followers, at: int) -> None:
            """Push the possible children of `node` on the heap: the tokens at index `at` of its `followers`."""
            nonlocal order
            path = tuple(builder.path_tokens(node))
            level = self._level(path, followers, at)
            if level and (drafted := builder.drafted(node)):
                phrases = {group[0][1].tokens[at]: chance for chance, group in level}
                self._both[path] = drafted, phrases
                joint = self._joint.combine(drafted, phrases)
                builder.weigh(node, joint)
                level = [(joint[group[0][1].tokens[at]], group) for _, group in level]
            for chance, group in level:
                heapq.heappush(heap, (-builder.worth[node] * chance, order, node, chance, group, at))
                order += 1

        ends = sorted({0, *builder.leaves}) if self._anywhere else builder.leaves
        for rank, end in enumerate(ends if context.nodes and builder.size <= most else ()):
            followers = followers_of(tuple(builder.path_tokens(end)))
            if not self._anywhere:
                builder.worth[end] = 1.0 / (1 + rank)
            offer(end, followers, 0)
        while heap and builder.size <= most:
            _, _, parent, chance, group, at = heapq.heappop(heap)
            longest = max(group, key=lambda follower: follower[0])[1]
            node = builder.add(parent, longest.tokens[at], longest, chance)
            offer(node, group, at + 1)
        while not self._anywhere and not inner.probe and (missing := context.nodes + 1 - builder.size) > 0:
            nodes += missing
            before, inner = inner.size, self.inner.draft(replace(context, nodes=nodes))
            if inner.probe or inner.size <= before:  # another request would return another window
                break
            builder.grow(inner)
        self._draft, self._stored = builder.build(context.nodes)
        return self._draft

    def _covered(self, followers: Followers, nodes: int) -> list[float]:
        """Return, by depth, the chance that phrases at the root propose all right tokens up to this depth."""
        covered: list[float] = []
        path: Path = ()
        chance = 1.0
        while len(covered) < nodes and (level := self._level(path, followers, len(path))):
            covered.append(chance * min(sum(likely for likely, _ in level), 1.0))
            likeliest, followers = level[0]
            chance *= likeliest
            path = (*path, followers[0][1].tokens[len(path)])
        return covered

    def _level(self, path: Path, followers: Followers, at: int) -> list[tuple[float, Followers]]:
        """Group continuations of `path` by their token at index `at`. Return each group with the chance of its token.

        The continuations have weights. The calibrated chance depends on the group's share of all weight, and on how
        many tokens before the continuations match.
        """
        total = sum(weight for weight, _ in followers) + _DOUBT
        groups: dict[int, Followers] = {}
        for weight, continuation in followers:
            if at < len(continuation.tokens):
                groups.setdefault(continuation.tokens[at], []).append((weight, continuation))
        if not groups:
            return []
        shares = [(token, sum(weight for weight, _ in group) / total) for token, group in groups.items()]
        shares.sort(key=lambda candidate: -candidate[1])
        match = max(continuation.match for _, continuation in followers) + at
        self._offered.setdefault(path, (shares, match))
        return [(chance, groups[token]) for token, chance in self.calibration.chances(shares, match, self._greedy)]

    def _followers(self, tail: Sequence[int], nodes: int) -> Followers:
        """Return the possible continuations of a text that ends in `tail`, with their weights."""
        continuations = self.pool.continuations(tail, min(nodes, self._phrase_length or nodes))
        followers = [(_weight(continuation), continuation) for continuation in continuations]
        if self._max_phrases is None or len(followers) <= self._max_phrases:
            return followers
        distinct: dict[tuple[int, ...], tuple[float, Continuation]] = {}
        for weight, continuation in followers:
            earlier, _ = distinct.get(tuple(continuation.tokens), (0.0, None))
            distinct[tuple(continuation.tokens)] = (earlier + weight, continuation)
        newest = list(distinct.values())[::-1]
        return sorted(newest, key=lambda follower: -follower[0])[
            : self._max_phrases
        ]  # stable: of equal ones, the newest comes first


class _TreeBuilder:
    """A builder of a tree: nodes come in any order, and `build` puts the likeliest chain first.

    `worth` [nodes] is the chance that a node and all nodes above it are accepted, if it is known.
    """

    def __init__(self, inner: DraftTree) -> None:
        self._inner = inner
        self._tokens, self._parents = list(inner.tokens), list(inner.parents)
        self._stored: list[StoredPhrase | None] = [None] * inner.size
        self._source = list(inner.source or ["drafter"] * inner.size)
        self.worth = [1.0] * inner.size
        self._chance = list(inner.chance or [None] * inner.size)
        self._children: list[list[int]] = [[] for _ in self._tokens]
        for node in range(1, inner.size):
            self._children[inner.parents[node]].append(node)
            self._update_worth(node)

    @property
    def size(self) -> int:
        return len(self._tokens)

    @property
    def leaves(self) -> list[int]:
        """The nodes without children. The end of the likeliest chain comes first; probes are not counted."""
        probe = self._inner.probe or [False] * self._inner.size
        real = [[child for child in children if not probe[child]] for children in self._children]
        return [node for node in range(self.size) if not real[node] and not probe[node]]

    def path_tokens(self, node: int) -> list[int]:
        """Return the tokens on the path from the root, which is left out, to `node`."""
        tokens = []
        while node:
            tokens.append(self._tokens[node])
            node = self._parents[node]
        return tokens[::-1]

    def add(self, parent: int, token: int, continuation: Continuation, chance: float) -> int:
        """Add a node, unless the parent has a child with this token. Return its number, which is valid until
        `build`."""
        for child in self._children[parent]:
            if self._tokens[child] == token and not (
                self._inner.probe and child < self._inner.size and self._inner.probe[child]
            ):
                return child
        node = self._add(parent, token, continuation.source, continuation.stored)
        self._chance[node] = chance
        self._update_worth(node)
        return node

    def drafted(self, parent: int) -> dict[int, float]:
        """Return the drafter's chances of the children of a node by token; empty if a chance is unknown."""
        chances = self._inner.chance
        if chances is None or parent >= self._inner.size:
            return {}
        below = self._inner.children[parent].items()
        known = {token: chance for token, child in below if (chance := chances[child]) is not None}
        return known if len(known) == len(below) else {}

    def weigh(self, parent: int, chances: Mapping[int, float]) -> None:
        """Set the chances of a node's drafted children, and the worth of all nodes below `parent`."""
        for token, child in self._inner.children[parent].items():
            self._chance[child] = chances[token]
            self._update_worth(child)

    def _update_worth(self, node: int) -> None:
        """Compute the worth of a node and of all nodes below it from its parent's worth."""
        chance = self._chance[node]
        self.worth[node] = self.worth[self._parents[node]] * (1.0 if chance is None else chance)
        for child in self._children[node]:
            self._update_worth(child)

    def grow(self, tree: DraftTree) -> None:
        """Add those nodes of `tree` that this tree lacks; `tree` is a longer draft of the same drafter."""
        nodes = [0]
        for node in range(1, tree.size):
            parent, token = nodes[tree.parents[node]], tree.tokens[node]
            same = [child for child in self._children[parent] if self._tokens[child] == token]
            nodes.append(same[0] if same else self._add(parent, token, tree.source[node] if tree.source else "drafter"))

    def _add(self, parent: int, token: int, source: str, stored: StoredPhrase | None = None) -> int:
        self._tokens.append(token)
        self._parents.append(parent)
        self._source.append(source)
        self._stored.append(stored)
        self._children.append([])
        self._children[parent].append(self.size - 1)
        self.worth.append(0.0)
        self._chance.append(None)
        return self.size - 1

    def build(self, nodes: int) -> tuple[DraftTree, list[StoredPhrase | None]]:
        """Return the likeliest `nodes` nodes in depth-first order, and the stored phrase of each."""
        order = depth_first(self._parents)
        if self.size > nodes + 1:  # a stable sort keeps parents before their children, which are worth no more
            likeliest = set(sorted(order, key=lambda node: -self.worth[node])[: nodes + 1])
            order = [node for node in order if node in likeliest]
        if inner_probe := self._inner.probe:  # after all nodes that can be accepted, in their own order
            probes = {node for node in range(self._inner.size) if inner_probe[node]}
            order = [node for node in order if node not in probes] + sorted(probes.intersection(order))
        if order == list(range(self._inner.size)) and self._chance == list(self._inner.chance or [None] * len(order)):
            return self._inner, self._stored
        number = {node: index for index, node in enumerate(order)}
        inner = self._inner
        return (
            DraftTree(
                tokens=[self._tokens[node] for node in order],
                parents=[number[self._parents[node]] if node else -1 for node in order],
                source=[self._source[node] for node in order],
                probe=[bool(inner.probe[node]) if node < inner.size else False for node in order]
                if inner.probe
                else None,
                chance=[self._chance[node] for node in order],
            ),
            [self._stored[node] for node in order],
        )


PHRASES = ("phrases", "prompt")  # the sources of a pool's phrases
_DOUBT = 3.0  # weight of "none of these": a single match of two tokens has a chance of one half


def _weight(continuation: Continuation) -> float:
    """Return the weight of a match, which doubles with every further token that agrees."""
    return 3.0 * 2.0 ** (continuation.match - KEY_LENGTH)


def build(ingredients: Ingredients) -> WithPhrases:
    """Build the phrases drafter: the empty draft, lengthened by the pool's phrases."""
    return WithPhrases(Autoregressive(), ingredients.pool)
