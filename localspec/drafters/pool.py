"""The phrase pool: earlier continuations of the last few tokens, from this conversation or from earlier sessions.

Its phrases are those of Ouroboros (Zhao et al. 2024): committed text, phrases from verification (§3.3), phrases from
history (§3.4) and phrases of a Jacobi window (§3.1). A store saves the phrases from history across sessions. A wrong
phrase costs time but never changes the text, because the target verifies it.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Protocol

from localspec.decoding.drafter import Step
from localspec.decoding.forward import common_prefix
from localspec.store.phrases import Phrase, pack_key, pack_tokens, unpack_tokens

KEY_LENGTH = 2  # tokens by which a phrase is looked up
MATCH_LENGTH = 8  # most tokens of a match, including the key
PHRASE_LENGTH = 8  # tokens of a stored phrase
RECENT_PLACES = 12  # of this conversation, considered for one key
MAX_KEYS = 20_000  # keys whose phrases are in memory at once
PHRASES_PER_TOKEN = 16  # of learned phrases

StoredPhrase = tuple[int, bytes, bytes]  # key, before, after, as in the store


class PhraseReader(Protocol):
    """A function that returns the saved phrases of earlier sessions for some keys, each of which is a pair of
    tokens."""

    def __call__(self, keys: Sequence[int]) -> Sequence[Phrase]: ...


@dataclass(frozen=True)
class Continuation:
    """A possible continuation: its tokens, the length of the match before them, and where it was seen."""

    tokens: Sequence[int]
    match: int
    source: str
    stored: StoredPhrase | None = None


class Harvest(NamedTuple):
    """The phrases of a reply that help later sessions: phrases of its text, used phrases of the store, and the
    target's continuations after refused drafts, which are not part of any text."""

    phrases: list[StoredPhrase]
    used: list[StoredPhrase]
    refused: list[StoredPhrase]


LearnedPhrase = tuple[int | None, tuple[int, ...]]  # the token before the phrase's key; the phrase


class PhrasePool:
    """A pool of phrases from this and earlier conversations, which are looked up by the two tokens before them.

    Phrases contain only ids below `vocabulary`, the number of ids that all models of the pool know, and no id in
    `special`. So a damaged store cannot break a reply. Without a `reader` of stored phrases the pool starts empty.
    Without `text` nothing is looked up in the conversation itself. Without `verification` nothing is learned from the
    target's picks after refused tokens.
    """

    def __init__(
        self,
        special: Iterable[int] = (),
        reader: PhraseReader | None = None,
        vocabulary: int = 1 << 31,
        *,
        text: bool = True,
        verification: bool = True,
    ) -> None:
        self._special, self._reader, self._vocabulary = frozenset(special), reader, vocabulary
        self._text, self._verification = text, verification
        self.tokens: list[int] = []
        self._by_key: dict[int, list[int]] = {}  # key -> positions in `tokens` of the token after it
        self._by_token: dict[int, list[int]] = {}  # the same, by only the last token
        # By the last token before the phrase, the oldest first.
        self._learned: OrderedDict[int, OrderedDict[LearnedPhrase, None]] = OrderedDict()
        self._from_store: dict[int, list[Phrase]] = {}  # keys that were looked up in the store, found or not
        self._used: dict[StoredPhrase, None] = {}

    # -- writing ------------------------------------------------------------------------------------------------------

    def extend(self, tokens: Sequence[int]) -> None:
        """Add committed text."""
        for token in tokens:
            self.tokens.append(token)
            place = len(self.tokens)
            self._by_token.setdefault(token, []).append(place)
            if place >= KEY_LENGTH:
                self._by_key.setdefault(pack_key(self.tokens[-2], token), []).append(place)

    def rewind(self, length: int) -> None:
        """Discard committed text after the first `length` tokens. Phrases learned from this text stay, because phrases
        are only guesses."""
        while len(self.tokens) > length:
            place = len(self.tokens)
            token = self.tokens.pop()
            _pop(self._by_token, token)
            if place >= KEY_LENGTH:
                _pop(self._by_key, pack_key(self.tokens[-1], token))

    def learn(self, step: Step) -> None:
        """Learn phrases from verification (Ouroboros, §3.3, eq. 10): a rejected token and the target's picks after it.

        A phrase continues along the draft as long as the draft agrees with the target's picks. If nothing agrees, no
        phrase is learned.
        """
        tree, accepted = step.tree, set(step.path)
        if tree is None or not self._verification:
            return
        for node in range(1, tree.size):
            if node in accepted or (tree.probe and tree.probe[node]):
                continue
            phrase, child = [step.greedy_picks[node]], tree.children[node].get(step.greedy_picks[node])
            while child is not None:
                phrase.append(step.greedy_picks[child])
                child = tree.children[child].get(step.greedy_picks[child])
            if len(phrase) > 1:
                self._add(tree.tokens[tree.parents[node]], tree.tokens[node], phrase)

    def correct(self, preceding: int | None, token: int, tried: Sequence[int], picks: Sequence[int]) -> None:
        """Replace learned phrases that the target refused (Ouroboros, §3.3).

        Phrases after the token `preceding` are removed if they are `token`, followed by the refused tokens `tried`.
        Then the phrase `token`, followed by the target's `picks`, is added.
        """
        if self._verification:
            for first, phrase in list(self._learned.get(token, ())):
                if first in (preceding, None) and phrase[: len(tried)] == tuple(tried):
                    del self._learned[token][first, phrase]
            self._add(preceding, token, picks)

    def take(self, phrase: Sequence[int]) -> None:
        """Add a phrase from a Jacobi window to the pool: its first token, and the tokens that follow it."""
        self._add(None, phrase[0], phrase[1:])

    def _add(self, before: int | None, token: int, phrase: Sequence[int]) -> None:
        if any(map(self._refused, (token, *phrase))) or before in self._special:
            return
        entries, entry = self._learned.setdefault(token, OrderedDict()), (before, tuple(phrase[:PHRASE_LENGTH]))
        entries[entry] = None
        entries.move_to_end(entry)
        self._learned.move_to_end(token)
        if len(entries) > PHRASES_PER_TOKEN:
            entries.popitem(last=False)
        if len(self._learned) > MAX_KEYS:
            self._learned.popitem(last=False)

    def harvest(self, start: int) -> Harvest:
        """Return the phrases of the reply `tokens[start:]` for later sessions, each once.

        The prompt before `start` is the user's text and is not saved. Drafts are copied from the prompt too. So a
        phrase from verification is left out if it has a pair of tokens that only the prompt has.
        """
        tokens, phrases = self.tokens, []
        for place in range(start + KEY_LENGTH, len(tokens)):
            after = tokens[place : place + PHRASE_LENGTH]
            key = tokens[place - KEY_LENGTH : place]
            before = tokens[max(place - MATCH_LENGTH, start) : place - KEY_LENGTH]
            if self._special.intersection(key):
                continue
            after = after[: next((i for i, token in enumerate(after) if token in self._special), len(after))]
            before = before[max((i + 1 for i, token in enumerate(before) if token in self._special), default=0) :]
            if after:
                phrases.append((pack_key(*key), pack_tokens(before), pack_tokens(after)))
        private = {*pairwise(tokens[:start])} - {*pairwise(tokens[start:])}
        refused = []
        for token, entries in self._learned.items():
            for first, phrase in list(entries):
                if first is not None:  # a window's phrase may be something that the target would never write
                    del entries[first, phrase]
                    if private.isdisjoint(pairwise((first, token, *phrase))):
                        refused.append((pack_key(first, token), b"", pack_tokens(phrase)))
        used = list(self._used)
        self._used.clear()
        self._from_store.clear()  # the store has changed
        return Harvest(phrases, used, refused)

    # -- reading ------------------------------------------------------------------------------------------------------

    def continuations(self, tail: Sequence[int], ahead: int) -> list[Continuation]:
        """Return earlier continuations of the end of `tail`, of up to `ahead` tokens each.

        `tail` has at least the last MATCH_LENGTH tokens of the text.
        """
        if len(tail) < KEY_LENGTH:
            return self._after_single(tail[-1], ahead)
        key, continuations = pack_key(tail[-2], tail[-1]), []
        for place in self._by_key.get(key, ())[-RECENT_PLACES:] if self._text else ():
            if place < len(self.tokens):
                before = self.tokens[max(place - MATCH_LENGTH, 0) : place]
                match = common_prefix(tail[::-1], before[::-1])
                continuations.append(Continuation(self._ahead(place, ahead), match, "prompt"))
        continuations += [
            Continuation(phrase[:ahead], KEY_LENGTH, "phrases")
            for first, phrase in self._learned.get(tail[-1], ())
            if first == tail[-2]
        ]
        for phrase in self._stored(key):
            match = KEY_LENGTH + common_prefix(tail[-KEY_LENGTH - 1 :: -1], unpack_tokens(phrase.before)[::-1])
            stored = phrase.key, phrase.before, phrase.after
            continuations.append(Continuation(unpack_tokens(phrase.after)[:ahead], match, "phrases", stored))
        return continuations or self._after_single(tail[-1], ahead)

    def mark_used(self, stored: StoredPhrase) -> None:
        """Record that a phrase from the store was accepted. The store removes such phrases last."""
        self._used[stored] = None
        if len(self._used) > MAX_KEYS:
            del self._used[next(iter(self._used))]

    def _after_single(self, token: int, ahead: int) -> list[Continuation]:
        places = self._by_token.get(token, ())[-3:] if self._text else ()
        hits = [Continuation(self._ahead(place, ahead), 1, "prompt") for place in places if place < len(self.tokens)]
        return hits + [Continuation(phrase[:ahead], 1, "phrases") for _, phrase in self._learned.get(token, ())]

    def _ahead(self, place: int, ahead: int) -> list[int]:
        tokens = self.tokens[place : place + ahead]
        return tokens[: next((i for i, token in enumerate(tokens) if self._refused(token)), len(tokens))]

    def _refused(self, token: int) -> bool:
        return token in self._special or token >= self._vocabulary

    def _stored(self, key: int) -> list[Phrase]:
        if self._reader is None:
            return []
        if key not in self._from_store:
            if len(self._from_store) >= MAX_KEYS:  # without a store nothing else clears it
                self._from_store.clear()
            self._from_store[key] = [phrase for phrase in self._reader([key]) if self._sound(phrase)]
        return self._from_store[key]

    def _sound(self, phrase: Phrase) -> bool:
        if not phrase.after or len(phrase.before) % 4 or len(phrase.after) % 4:
            return False
        after = unpack_tokens(phrase.after)
        return max(after) < self._vocabulary and self._special.isdisjoint(after)

    @property
    def nbytes(self) -> int:
        """Estimated bytes: 24 per token, and 100 per entry of a dictionary."""
        return 24 * len(self.tokens) + 100 * (
            len(self._by_key) + len(self._by_token) + sum(map(len, self._learned.values())) + len(self._from_store)
        )


def _pop(places: dict[int, list[int]], key: int) -> None:
    """Discard the last position of a key.

    Delete the key if no position is left, so that the dictionary does not grow forever.
    """
    places[key].pop()
    if not places[key]:
        del places[key]
