"""The phrase pool: what followed the last few tokens before, in this conversation or in earlier sessions.

The writers are those of Ouroboros (Zhao et al. 2024): committed text, phrases from verification (§3.3), and phrases
from history (§3.4), which a store keeps across sessions; a Jacobi window adds its own (§3.1). A wrong phrase costs
time, never text: the target checks it.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from localspec.decoding.drafter import Step
from localspec.store.store import Phrase, pack_key, pack_tokens, unpack_tokens

KEY = 2  # tokens a phrase is looked up by
BACK = 8  # tokens back that a match may reach, the key included
AHEAD = 8  # tokens of a stored phrase
RECENT = 12  # places of this conversation that are looked at for one key
KEYS = 20_000  # last tokens behind which phrases are held at once
ENTRIES = 16  # of those, a token

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


Won = tuple[int | None, tuple[int, ...]]  # the token before the one that a phrase is found by, and the phrase


class PhrasePool:
    """Phrases of this conversation and of earlier ones, by the two tokens before them.

    `special` are the ids no phrase may hold, `vocabulary` how many ids all models know that are given its phrases: a
    damaged store must cost no reply.
    Without a reader the pool starts empty and lives as long as the session. Without `text` nothing is looked up in the
    conversation itself, without `verification` nothing is learned from what the target said of a draft.
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
        self._places: dict[int, list[int]] = {}  # key -> where in `tokens` the next token stands
        self._singles: dict[int, list[int]] = {}  # the same for the last token alone
        self._won: OrderedDict[int, OrderedDict[Won, None]] = OrderedDict()  # by the last token, oldest first
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
            _pop(self._singles, token)
            if place >= KEY:
                _pop(self._places, pack_key(self.tokens[-1], token))

    def learn(self, step: Step) -> None:
        """Phrases from verification (Ouroboros §3.3): a rejected token, and what the target says behind it.

        While the draft goes on as the target would, the phrase goes on with it; one that agrees nowhere is no phrase.
        """
        tree, accepted = step.tree, set(step.path)
        if tree is None or not self._verification:
            return
        for node in range(1, tree.size):
            if node in accepted or (tree.probe and tree.probe[node]):
                continue
            phrase, at = [step.greedy_picks[node]], tree.children[node].get(step.greedy_picks[node])
            while at is not None:
                phrase.append(step.greedy_picks[at])
                at = tree.children[at].get(step.greedy_picks[at])
            if len(phrase) > 1:
                self._win(tree.tokens[tree.parents[node]], tree.tokens[node], phrase)

    def correct(self, before: int | None, token: int, tried: Sequence[int], said: Sequence[int]) -> None:
        """A phrase that was tried behind a draft gives way to what the target said in its place (Ouroboros §3.3)."""
        if self._verification:
            if token in self._won:
                for known in (before, None):
                    self._won[token].pop((known, tuple(tried)), None)
            self._win(before, token, said)

    def take(self, phrase: Sequence[int]) -> None:
        """A phrase that a Jacobi window came to: its first token, and what followed that."""
        self._win(None, phrase[0], phrase[1:])

    def _win(self, before: int | None, token: int, phrase: Sequence[int]) -> None:
        if any(map(self._refused, (token, *phrase))) or before in self._special:
            return
        entries, entry = self._won.setdefault(token, OrderedDict()), (before, tuple(phrase[:AHEAD]))
        entries[entry] = None
        entries.move_to_end(entry)
        self._won.move_to_end(token)
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
        won = []
        for token, entries in self._won.items():
            for first, phrase in list(entries):
                if first is not None:  # what a window won is not known to be anything the target says
                    del entries[first, phrase]
                    if private.isdisjoint(pairwise((first, token, *phrase))):
                        won.append((pack_key(first, token), b"", pack_tokens(phrase)))
        used = list(self._used)
        self._used.clear()
        self._fetched.clear()  # the store has changed
        return phrases + won, used

    # -- reading ------------------------------------------------------------------------------------------------------

    def continuations(self, tail: Sequence[int], ahead: int) -> list[Continuation]:
        """What followed the end of `tail` (at least the last BACK tokens of the text): up to `ahead` tokens each."""
        if len(tail) < KEY:
            return self._after_single(tail[-1], ahead)
        key, found = pack_key(tail[-2], tail[-1]), []
        for place in self._places.get(key, ())[-RECENT:] if self._text else ():
            if place < len(self.tokens):
                match = KEY
                while match < min(BACK, place, len(tail)) and tail[-match - 1] == self.tokens[place - match - 1]:
                    match += 1
                found.append(Continuation(self._ahead(place, ahead), match, "prompt"))
        found += [
            Continuation(phrase[:ahead], KEY, "phrases")
            for before, phrase in self._won.get(tail[-1], ())
            if before == tail[-2]
        ]
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
        if len(self._used) > KEYS:
            del self._used[next(iter(self._used))]

    def _after_single(self, token: int, ahead: int) -> list[Continuation]:
        places = self._singles.get(token, ())[-3:] if self._text else ()
        found = [Continuation(self._ahead(place, ahead), 1, "prompt") for place in places if place < len(self.tokens)]
        return found + [Continuation(phrase[:ahead], 1, "phrases") for _, phrase in self._won.get(token, ())]

    def _ahead(self, place: int, ahead: int) -> list[int]:
        tokens = self.tokens[place : place + ahead]
        return tokens[: next((i for i, token in enumerate(tokens) if self._refused(token)), len(tokens))]

    def _refused(self, token: int) -> bool:
        return token in self._special or token >= self._vocabulary

    def _stored(self, key: int) -> list[Phrase]:
        if self._reader is None:
            return []
        if key not in self._fetched:
            if len(self._fetched) >= KEYS:  # nothing clears it where nothing is kept
                self._fetched.clear()
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
            len(self._places) + len(self._singles) + sum(map(len, self._won.values())) + len(self._fetched)
        )


def _pop(places: dict[int, list[int]], key: int) -> None:
    """Forgets the last place of a key, and the key with its only one: a session reads many texts."""
    places[key].pop()
    if not places[key]:
        del places[key]
