"""Drafting from phrases: what followed the last few tokens before, in this conversation or in earlier sessions.

The writers are those of Ouroboros (Zhao et al. 2024): committed text, phrases from verification (§3.3), and phrases
from history (§3.4), which a store keeps across sessions. A wrong phrase costs time, never text: the target checks it.
"""

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol

from localspec.drafters.base import Context, Drafter, Step, TrainedDrafter
from localspec.engine.tree import DraftTree, depth_first
from localspec.store import Phrase, pack_key, pack_tokens, unpack_key, unpack_tokens

KEY = 2  # tokens a phrase is looked up by
BACK = 8  # tokens back that a match may reach, the key included
AHEAD = 8  # tokens of a stored phrase
RECENT = 12  # places of this conversation that are looked at for one key
KEYS = 20_000  # of phrases won from verification that are held at once
ENTRIES = 8  # of those, a key

StoredPhrase = tuple[int, bytes, bytes]  # key, before, after: as the store writes them


class PhraseReader(Protocol):
    """Where the phrases of earlier sessions are read from, a few keys at a time."""

    def __call__(self, keys: Sequence[int]) -> Sequence[Phrase]: ...


@dataclass(frozen=True)
class Continuation:
    """What may follow: tokens, how many tokens back the match reaches, and where it was seen."""

    tokens: Sequence[int]
    match: int
    source: str
    stored: StoredPhrase | None = None


class PhrasePool:
    """Phrases of this conversation and of earlier ones, by the two tokens before them.

    `special` are the ids no phrase may hold, `vocabulary` how many ids there are: a damaged store must cost no reply.
    Without a reader the pool starts empty and lives as long as the session.
    """

    def __init__(
        self, special: Iterable[int] = (), reader: PhraseReader | None = None, vocabulary: int = 1 << 31
    ) -> None:
        self._special, self._reader, self._vocabulary = frozenset(special), reader, vocabulary
        self.tokens: list[int] = []
        self._places: dict[int, list[int]] = {}  # key -> where in `tokens` the next token stands
        self._singles: dict[int, list[int]] = {}  # the same for the last token alone
        self._won: OrderedDict[int, OrderedDict[tuple[int, ...], None]] = OrderedDict()
        self._fetched: dict[int, list[Phrase]] = {}  # keys that were looked up in the store, found or not
        self._used: dict[StoredPhrase, None] = {}

    # -- writing ------------------------------------------------------------------------------------------------------

    def extend(self, tokens: Sequence[int]) -> None:
        """Takes committed text."""
        for token in tokens:
            self.tokens.append(token)
            place = len(self.tokens)
            self._singles.setdefault(token, []).append(place)
            if place >= KEY:
                self._places.setdefault(pack_key(self.tokens[-2], token), []).append(place)

    def rewind(self, length: int) -> None:
        """Forgets committed text behind `length`; phrases won from it stay, they are only guesses."""
        while len(self.tokens) > length:
            place = len(self.tokens)
            token = self.tokens.pop()
            self._singles[token].pop()
            if place >= KEY:
                self._places[pack_key(self.tokens[-1], token)].pop()

    def learn(self, step: Step) -> None:
        """Phrases from verification (Ouroboros §3.3): a rejected token, and what the target says behind it.

        While the draft goes on as the target would, the phrase goes on with it; one that agrees nowhere is no phrase.
        """
        tree, accepted = step.tree, set(step.path)
        if tree is None:
            return
        for node in range(1, tree.size):
            if node in accepted or (tree.probe and tree.probe[node]):
                continue
            phrase, at = [step.best[node]], tree.children[node].get(step.best[node])
            while at is not None:
                phrase.append(step.best[at])
                at = tree.children[at].get(step.best[at])
            key = (tree.tokens[tree.parents[node]], tree.tokens[node])
            if len(phrase) > 1 and not self._special.intersection((*key, *phrase)):
                self._win(pack_key(*key), tuple(phrase[:AHEAD]))

    def _win(self, key: int, phrase: tuple[int, ...]) -> None:
        entries = self._won.setdefault(key, OrderedDict())
        entries[phrase] = None
        entries.move_to_end(phrase)
        self._won.move_to_end(key)
        if len(entries) > ENTRIES:
            entries.popitem(last=False)
        if len(self._won) > KEYS:
            self._won.popitem(last=False)

    def harvest(self, start: int) -> tuple[list[StoredPhrase], list[StoredPhrase]]:
        """What the reply `tokens[start:]` leaves for later sessions: (its own and verified phrases, those used).

        The prompt before `start` is the user's own text and is not kept, nor is a phrase won from verification that
        holds two neighbouring tokens of it: drafts are copied from the prompt too. Each phrase is handed over once.
        """
        tokens, phrases = self.tokens, []
        for place in range(start + KEY, len(tokens)):
            after = tokens[place : place + AHEAD]
            key, before = tokens[place - KEY : place], tokens[max(place - BACK, start) : place - KEY]
            if self._special.intersection(key):
                continue
            after = after[: next((i for i, token in enumerate(after) if token in self._special), len(after))]
            before = before[max((i + 1 for i, token in enumerate(before) if token in self._special), default=0) :]
            if after:
                phrases.append((pack_key(*key), pack_tokens(before), pack_tokens(after)))
        private = {*pairwise(tokens[:start])} - {*pairwise(tokens[start:])}
        won = [
            (key, b"", pack_tokens(phrase))
            for key, entries in self._won.items()
            for phrase in entries
            if private.isdisjoint(pairwise((*unpack_key(key), *phrase)))
        ]
        used = list(self._used)
        self._won.clear()
        self._used.clear()
        self._fetched.clear()  # the store has changed
        return phrases + won, used

    # -- reading ------------------------------------------------------------------------------------------------------

    def continuations(self, tail: Sequence[int], ahead: int) -> list[Continuation]:
        """What followed the end of `tail` (at least the last BACK tokens of the text): up to `ahead` tokens each."""
        if len(tail) < KEY:
            return self._after_single(tail[-1], ahead)
        key, found = pack_key(tail[-2], tail[-1]), []
        for place in self._places.get(key, ())[-RECENT:]:
            if place < len(self.tokens):
                match = KEY
                while match < min(BACK, place, len(tail)) and tail[-match - 1] == self.tokens[place - match - 1]:
                    match += 1
                found.append(Continuation(self._ahead(place, ahead), match, "prompt"))
        found += [Continuation(phrase[:ahead], KEY, "phrases") for phrase in self._won.get(key, ())]
        for phrase in self._stored(key):
            before, match = unpack_tokens(phrase.before), KEY
            while match - KEY < len(before) and match < len(tail) and tail[-match - 1] == before[KEY - match - 1]:
                match += 1
            found.append(
                Continuation(
                    unpack_tokens(phrase.after)[:ahead], match, "phrases", (phrase.key, phrase.before, phrase.after)
                )
            )
        return found or self._after_single(tail[-1], ahead)

    def mark_used(self, stored: StoredPhrase) -> None:
        """A phrase of the store that was accepted: it is the last to be dropped."""
        self._used[stored] = None

    def _after_single(self, token: int, ahead: int) -> list[Continuation]:
        places = [place for place in self._singles.get(token, ())[-3:] if place < len(self.tokens)]
        return [Continuation(self._ahead(place, ahead), 1, "prompt") for place in places]

    def _ahead(self, place: int, ahead: int) -> list[int]:
        tokens = self.tokens[place : place + ahead]
        return tokens[: next((i for i, token in enumerate(tokens) if token in self._special), len(tokens))]

    def _stored(self, key: int) -> list[Phrase]:
        if self._reader is None:
            return []
        if key not in self._fetched:
            self._fetched[key] = [phrase for phrase in self._reader([key]) if self._sound(phrase)]
        return self._fetched[key]

    def _sound(self, phrase: Phrase) -> bool:
        if not phrase.after or len(phrase.before) % 4 or len(phrase.after) % 4:
            return False
        after = unpack_tokens(phrase.after)
        return max(after) < self._vocabulary and self._special.isdisjoint(after)

    @property
    def nbytes(self) -> int:
        """A rough count: eight bytes a token and a place, a hundred an entry of a dictionary."""
        return 24 * len(self.tokens) + 100 * (
            len(self._places) + len(self._singles) + len(self._won) + len(self._fetched)
        )


class Lengthened:
    """Any drafter, its drafts lengthened by phrases from the pool (Ouroboros §3.2), as one merged tree.

    Over the empty draft it is the drafter `phrases`: what the root's phrases propose. Over a trained one, which knows
    what its nodes are worth, the best nodes of both are taken, be they phrases at the root or at its ends. To another
    drafter it leaves two thirds of the nodes, and puts phrases at the ends of what that one proposed.
    """

    def __init__(self, inner: Drafter, pool: PhrasePool) -> None:
        self.inner, self.pool = inner, pool
        self._draft = DraftTree((0,), (-1,))  # the last one, of which only a part may have been verified
        self._stored: list[StoredPhrase | None] = []  # by its nodes

    @property
    def nbytes(self) -> int:
        return self.inner.nbytes + self.pool.nbytes

    def observe(self, step: Step) -> None:
        """Commits the text, learns from what was rejected, remembers which stored phrases were right."""
        self.inner.observe(step)
        self.pool.learn(step)
        self.pool.extend(step.committed)
        node = 0
        for token in step.committed[: max(len(step.path) - 1, 0)]:
            if token not in self._draft.children[node]:  # below the second of two equal siblings, the first cut off
                break
            node = self._draft.children[node][token]
            if stored := self._stored[node]:
                self.pool.mark_used(stored)

    def rewind(self, length: int) -> None:
        """Forgets what was committed behind `length`."""
        self.inner.rewind(length)
        self.pool.rewind(length)

    def draft(self, context: Context) -> DraftTree:
        """The inner tree, and below it the likeliest phrases, best first, until the nodes are spent."""
        confident = isinstance(self.inner, TrainedDrafter)
        share = context.nodes if confident else context.nodes - context.nodes // 3
        inner = self.inner.draft(replace(context, nodes=share))
        builder = _Builder(inner)
        most = builder.size + context.nodes - 1 if confident else context.nodes
        heap: list[tuple[float, int, int, list[tuple[float, Continuation]], int]] = []
        order = 0

        def offer(node: int, chance: float, followers: list[tuple[float, Continuation]], at: int) -> None:
            """Puts the children that `followers` give `node` on the heap; their chance is their share of the weight."""
            nonlocal order
            total = sum(weight for weight, _ in followers) + _DOUBT
            by_token: dict[int, list[tuple[float, Continuation]]] = {}
            for weight, continuation in followers:
                if at < len(continuation.tokens):
                    by_token.setdefault(continuation.tokens[at], []).append((weight, continuation))
            for group in by_token.values():
                share = sum(weight for weight, _ in group) / total
                heapq.heappush(heap, (-chance * share, order, node, group, at))
                order += 1

        recent = list(context.committed[-BACK:])
        ends = sorted({0, *builder.leaves}) if confident else builder.leaves
        for rank, end in enumerate(ends if context.nodes and builder.size <= most else ()):
            tail = recent + builder.path_tokens(end)
            followers = [(_weight(c), c) for c in self.pool.continuations(tail, context.nodes)]
            offer(end, builder.worth[end] if confident else 1.0 / (1 + rank), followers, 0)
        while heap and builder.size <= most:
            chance, _, parent, group, at = heapq.heappop(heap)
            longest = max(group, key=lambda follower: follower[0])[1]
            node = builder.add(parent, longest.tokens[at], longest, -chance)
            offer(node, builder.worth[node], group, at + 1)
        self._draft, self._stored = builder.build(context.nodes)
        return self._draft


class _Builder:
    """A tree that grows in any order and is handed out with its likeliest chain first. `worth` is by node the chance
    that it and all above it are accepted.
    """

    def __init__(self, inner: DraftTree) -> None:
        self._inner = inner
        self._tokens, self._parents = list(inner.tokens), list(inner.parents)
        self._stored: list[StoredPhrase | None] = [None] * inner.size
        self._source = list(inner.source or ["drafter"] * inner.size)
        self.worth = [1.0] * inner.size
        for node in range(1, inner.size):
            chance = inner.chance[node] if inner.chance else None
            self.worth[node] = self.worth[inner.parents[node]] * (1.0 if chance is None else chance)
        self._children: list[list[int]] = [[] for _ in self._tokens]
        for node in range(1, inner.size):
            self._children[inner.parents[node]].append(node)

    @property
    def size(self) -> int:
        return len(self._tokens)

    @property
    def leaves(self) -> list[int]:
        """Nodes without children, the likeliest chain's first; a probe is no end of a draft."""
        probe = self._inner.probe or [False] * self._inner.size
        real = [[child for child in children if not probe[child]] for children in self._children]
        return [node for node in range(self.size) if not real[node] and not probe[node]]

    def path_tokens(self, node: int) -> list[int]:
        """The tokens from below the root to `node`."""
        tokens = []
        while node:
            tokens.append(self._tokens[node])
            node = self._parents[node]
        return tokens[::-1]

    def add(self, parent: int, token: int, continuation: Continuation, worth: float) -> int:
        """One more node, or the one that says this already; its number until `build`."""
        for child in self._children[parent]:
            if self._tokens[child] == token and not (
                self._inner.probe and child < self._inner.size and self._inner.probe[child]
            ):
                self.worth[child] = max(self.worth[child], worth)  # never worth less than what hangs below it
                return child
        node = self.size
        self.worth.append(worth)
        self._tokens.append(token)
        self._parents.append(parent)
        self._source.append(continuation.source)
        self._stored.append(continuation.stored)
        self._children.append([])
        self._children[parent].append(node)
        return node

    def build(self, nodes: int) -> tuple[DraftTree, list[StoredPhrase | None]]:
        """The most worthy nodes, so many, in depth-first order, and the stored phrase behind each."""
        order = depth_first(self._parents)
        if self.size > nodes + 1:  # a stable sort keeps parents before their children, which are worth no more
            kept = set(sorted(order, key=lambda node: -self.worth[node])[: nodes + 1])
            order = [node for node in order if node in kept]
        if order == list(range(self._inner.size)):
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
                chance=[inner.chance[node] if node < inner.size else None for node in order] if inner.chance else None,
            ),
            [self._stored[node] for node in order],
        )


_DOUBT = 3.0  # weight of "none of these": a match of two tokens alone is believed half


def _weight(continuation: Continuation) -> float:
    """How much a match is believed: twice as much for every token more that agrees."""
    return 3.0 * 2.0 ** (continuation.match - KEY)
