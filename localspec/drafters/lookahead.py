"""Lookahead: the target also computes guesses for later tokens, which become phrases (Fu et al. 2024; Ouroboros, §3.1).

A window of guessed tokens follows the root. Each forward also computes the model's pick after every guess, and these
picks are the guesses of the next forward. So guesses come closer and closer to the text that the model would write.
"""

import random
from collections.abc import Collection, Sequence

from localspec.decoding.drafter import Context, Drafter, Step, Textless
from localspec.decoding.tree import DraftTree
from localspec.drafters.ingredients import Ingredients
from localspec.drafters.phrases import WithPhrases
from localspec.drafters.pool import PhrasePool

SOURCE = "window"
COLUMNS, PHRASE = 8, 4  # of the window of a target: most columns, tokens of a phrase


class Lookahead(Textless):
    """The window of lookahead decoding (Fu et al. 2024, §3.1). It gives a pool phrases of `phrase` tokens.

    Its nodes are probes: they are computed, but never accepted. The window has `columns` columns and `phrase` - 1
    levels, one below the other; level 0 is a chain below the root. With three columns and phrases of three tokens:

        level 0   root ─ a ─ b ─ c        position = depth: a is one position after the root, b and d two, …
        level 1          │   │   │        a d x is a phrase, where x is the model's pick at d.
                         d   e   f        Then level 1 becomes level 0, and the picks at d e f level 1.

    Until all levels exist, each forward adds a level and gives no phrase.
    """

    def __init__(self, pool: PhrasePool, special: Collection[int], columns: int, phrase: int) -> None:
        assert columns > 0 and phrase > 1, "a phrase has at least two tokens"
        self._pool, self._special, self._columns, self._depth = pool, special, columns, phrase - 1
        self._levels: list[list[int | None]] = [[]]  # None: to be filled
        self._placed = (0, 0)  # columns and nodes of the last draft
        self._random = random.Random(0)  # noqa: S311  # guesses change the speed, never the text

    def observe(self, step: Step) -> None:
        """Make phrases of the picks at the last level, add them to the pool, and move the window along with the
        text."""
        if step.tree is None:
            return
        advance = len(step.committed)
        probes = [node for node in range(step.tree.size) if step.tree.probe and step.tree.probe[node]]
        columns, nodes = self._placed
        if probes and len(probes) == nodes:  # all were verified
            picks = [step.greedy_picks[node] for node in probes[-columns:]]
            if len(self._levels) == self._depth:
                for guesses in zip(*self._levels, picks, strict=True):
                    self._pool.take([token for token in guesses if token is not None])  # no guess is None by now
                del self._levels[0]
                advance -= 1  # level 1 was one position ahead
            self._levels.append([None if token in self._special else token for token in picks])
        for level in self._levels:
            del level[:advance]
        self._placed = (0, 0)

    def rewind(self, length: int) -> None:
        """Keep the window: it holds guesses, which may be wrong anyway."""

    def draft(self, context: Context) -> DraftTree:
        """Return the root with the window below it. If there are too few nodes, the window has fewer columns."""
        columns = min(self._columns, context.nodes // self._depth)
        if not columns:
            return DraftTree((context.root,), (-1,))
        tokens, parents = [context.root], [-1]
        for number, level in enumerate(self._levels):
            del level[columns:]
            level += [None] * (columns - len(level))
            for column, token in enumerate(level):
                if token is None:
                    token = level[column] = self._guess(context.committed)
                parents.append(column if number == 0 else len(tokens) - columns)
                tokens.append(token)
        self._placed = (columns, len(tokens) - 1)
        return DraftTree(tokens, parents, [SOURCE] * len(tokens), [False] + [True] * (len(tokens) - 1))

    def _guess(self, text: Sequence[int]) -> int:
        """Return a random token of the text; a special token only if nearly all tokens are special."""
        tried = (self._random.choice(text) for _ in range(32))
        return next((token for token in tried if token not in self._special), text[-1])


def build(ingredients: Ingredients) -> Drafter:
    """Build the window, which adds phrases to the pool. Without a pool the window gets a private pool with only these
    phrases."""
    special = ingredients.target.special_tokens
    if ingredients.with_phrases:
        return Lookahead(ingredients.pool, special, COLUMNS, PHRASE)
    pool = PhrasePool(special, text=False, verification=False)
    return WithPhrases(Lookahead(pool, special, COLUMNS, PHRASE), pool)
