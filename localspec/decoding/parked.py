"""Texts that were read before, parked so that they are not read again: which one to go on from, and which one goes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from localspec.decoding.drafter import HeldText
from localspec.decoding.forward import ParkableCache, common_prefix
from localspec.policy.forward_costs import ForwardCostModel
from localspec.policy.prediction import CHUNK

SEEN = 4  # texts, of which one came again: what is believed before any was left
REMEMBERED = 16  # texts that were left, after which half of what was seen is forgotten
MOST_TEXTS = 64  # which are compared with each other


@dataclass(eq=False)
class ParkedText:
    """A text that was read: its tokens, their cache, which holds the first of them, and what a drafter holds of it."""

    tokens: Sequence[int]
    cache: ParkableCache
    held: HeldText
    since: float = 0.0  # what the last text that went was worth when this one was parked
    branched: int | None = None  # tokens of it that were copied for another text, until more of it comes again

    @property
    def nbytes(self) -> int:
        """Bytes that are held."""
        return self.cache.nbytes + self.held.nbytes

    def copy(self, length: int, slots: int) -> Self:
        """Returns a copy of its first `length` tokens, with room for `slots`. Raises what `TokenCache.copy` does."""
        return type(self)(self.tokens[:length], self.cache.copy(length, slots), self.held.copy(length))

    def reach(self, prompt: Sequence[int]) -> int:
        """Returns how many tokens of a prompt need not be read after it; the last one always is."""
        same = common_prefix(self.tokens, prompt)
        return self.cache.reachable(min(same, self.cache.length, len(prompt) - 1))


@dataclass(frozen=True)
class Start:
    """Where a prompt is read from: the first `length` tokens of a text, of the live one where `text` is None.

    With `copied` that text stays as it is, else it is cut there. Without `leaves` the live text is cut, too, or goes.
    """

    length: int
    text: ParkedText | None = None
    copied: bool = False
    leaves: bool = False


class Parked:
    """A store of the texts of one session that are not its live one, found by the longest common prefix with a prompt.

    They take at most `budget` bytes, which is looked up each time: free memory changes. The least valuable text goes
    first. Its value is the seconds of reading again what no other text holds, divided by its bytes. Added to it is the
    value of the last text that went before this one was parked, so that texts age (GreedyDual, Cao and Irani 1997).

    A text that shares only its beginning with a prompt is cut there, copied up to there, or left as it is. What costs
    least is done: reading the beginning, copying it, or reading what was cut off if it comes again. The chance of that
    is the share of such texts whose rest came again lately: of branches many do, of thoughts that a chat template
    leaves out none.
    """

    def __init__(self, budget: Callable[[int], int], costs: ForwardCostModel, copying: float) -> None:
        """`budget` is given the bytes that are held now; `copying` are the bytes copied in a second."""
        self._budget, self._costs, self._copying = budget, costs, copying
        self._texts: list[ParkedText] = []
        self._gone = 0.0  # what the last text that went was worth
        self._left = self._again = 0.0  # texts whose beginning was copied lately, and those whose rest came again

    def __len__(self) -> int:
        return len(self._texts)

    @property
    def nbytes(self) -> int:
        """Bytes of all texts."""
        return sum(text.nbytes for text in self._texts)

    @property
    def budget(self) -> int:
        """Bytes that they may take now."""
        return self._budget(self.nbytes)

    def choose(self, live: ParkedText, prompt: Sequence[int]) -> Start:
        """Returns where to read a prompt from."""

        def rank(text: ParkedText) -> tuple[int, int, bool]:
            reached = text.reach(prompt)
            return reached, reached - text.cache.length, text is live

        best = max([live, *self._texts], key=rank)
        start = self._start(best, live, best.reach(prompt))
        if best.branched is not None and start.length > best.branched:
            self._again, best.branched = self._again + 1, None
        if start.copied:
            if self._left >= REMEMBERED:
                self._left, self._again = self._left / 2, self._again / 2
            self._left, best.branched = self._left + 1, start.length
        return start

    def _start(self, best: ParkedText, live: ParkedText, length: int) -> Start:
        """Returns how to go on from the first `length` tokens of the best text."""
        parted = best.cache.length
        leaves = bool(live.cache.length) and live.nbytes <= self.budget
        chance = (self._again + 1) / (self._left + SEEN)
        cutting = chance * self._reading(length, parted)
        copying = best.nbytes * length / max(parted, 1) / self._copying
        reading = self._reading(0, length)
        if best is live and (not leaves or cutting <= min(copying, reading)):
            return Start(length)
        if reading <= min(copying, cutting):
            return Start(0, leaves=leaves)
        copied = best is live or copying < cutting
        return Start(length, None if best is live else best, copied, leaves)

    def add(self, text: ParkedText, needed: ParkedText | None = None) -> None:
        """Parks a text. Others go where there is no room for all, but for the one that is `needed` next."""
        text.since = self._gone
        self._texts.append(text)
        self.fit(needed)

    def remove(self, text: ParkedText) -> None:
        """Takes a text out, which becomes the live one."""
        self._texts.remove(text)

    def fit(self, needed: ParkedText | None = None) -> None:
        """Lets the least valuable texts go until the others are within the budget."""
        budget = self.budget
        while self._texts and (self.nbytes > budget or len(self._texts) > MOST_TEXTS):
            going = min((text for text in self._texts if text is not needed), key=self._worth, default=None)
            if going is None:
                return
            self._gone = self._worth(going)
            self._texts.remove(going)

    def clear(self) -> bool:
        """Lets all go; returns whether there were any."""
        found = bool(self._texts)
        self._texts.clear()
        return found

    def _worth(self, text: ParkedText) -> float:
        others = (common_prefix(text.tokens, other.tokens) for other in self._texts if other is not text)
        shared = min(max(others, default=0), text.cache.length)
        return text.since + self._reading(shared, text.cache.length) / max(text.nbytes, 1)

    def _reading(self, start: int, end: int) -> float:
        """Returns the seconds of reading the tokens of a text from `start` to `end`."""
        return sum(self._costs.at(CHUNK, first) * min(CHUNK, end - first) / CHUNK for first in range(start, end, CHUNK))
