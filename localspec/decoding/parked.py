"""Parked texts: texts whose caches stay in memory while another is decoded, so that later prompts can continue them.

The live text is the one that the session decodes now. `Parked.choose` picks the text that a prompt continues, and
`Parked.fit` removes texts when memory is short.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from localspec.choosing.cost import ForwardCostModel
from localspec.choosing.fit import CHUNK
from localspec.decoding.drafter import DrafterState
from localspec.decoding.forward import ParkableCache, common_prefix

# The estimated chance that the rest of a text is needed again starts at 1 of SEEN.
SEEN = 4
REMEMBERED = 16  # copies, after which both counts of the estimate are halved, so that recent texts count more
MOST_TEXTS = 64  # limits the time for comparing each text with all others


@dataclass(eq=False)
class ParkedText:
    """A text that the target has read, the cache of its first `cache.length` tokens, and the drafter's state."""

    tokens: Sequence[int]
    cache: ParkableCache
    drafter_state: DrafterState
    since: float = 0.0  # the value of the text that was removed last before this one was parked
    branched: int | None = None  # tokens copied for another text; None once a later prompt shared more than these

    @property
    def nbytes(self) -> int:
        """Bytes of the cache and of the drafter's state."""
        return self.cache.nbytes + self.drafter_state.nbytes

    def copy(self, length: int, slots: int) -> Self:
        """Return a copy of the first `length` tokens, with room for `slots`. Raises like `ParkableCache.copy`."""
        return type(self)(self.tokens[:length], self.cache.copy(length, slots), self.drafter_state.copy(length))

    def reach(self, prompt: Sequence[int]) -> int:
        """Return how many tokens of a prompt need no prefill if it starts from this text.

        The last token always needs prefill.
        """
        same = common_prefix(self.tokens, prompt)
        return self.cache.reachable(min(same, self.cache.length, len(prompt) - 1))


@dataclass(frozen=True)
class Start:
    """A plan for the prefill of a prompt: the first `length` tokens of a text in memory are used and not read again.

    `text` is that text, or None for the live text. If `copied`, the tokens are copied and the text stays whole;
    otherwise the text is cut after them. If `leaves`, the live text is parked.

        live text     a b c d e      prompt  a b c x y
        copied        a b c d e stays, and the prompt starts from a copy of a b c
        not copied    a b c stays, and d e is lost
    """

    length: int
    text: ParkedText | None = None
    copied: bool = False
    leaves: bool = False


class Parked:
    """A store of earlier texts of one session, which later prompts may continue. The live text is not in it.

    The texts take at most `budget` bytes, which depends on the free memory at the time. The least valuable text is
    removed first. A text's value is the prefill time that only this text saves, divided by its bytes, plus an offset.
    The offset is the value of the text that was removed last when this one was parked. So older texts lose value
    relative to newer ones (GreedyDual, Cao and Irani 1997).

    A prompt continues the text with the longest common prefix. If that text differs from the prompt after the prefix,
    the cheapest of three ways is chosen:

    - cut: drop the rest of the text. The cost is the time to read the rest again, times the chance that it is needed.
    - copy: copy the prefix, and keep the whole text. The cost is the time of the copy.
    - read: keep the whole text, and read the prefix again.

    The chance is the share of recently copied texts whose rest was needed again. It is high for branches of a
    conversation. It is near zero for a model's thoughts, which the chat template leaves out of the next prompt.
    """

    def __init__(self, budget: Callable[[int], int], costs: ForwardCostModel, copying: float) -> None:
        """Begin without texts. `budget` maps the bytes in use to the bytes allowed, `costs` predict prefill, and
        `copying` is the copy bandwidth in bytes/s."""
        self._budget, self._costs, self._copying = budget, costs, copying
        self._texts: list[ParkedText] = []
        self._removed_value = 0.0  # the value of the text that was removed last
        self._copies = self._returns = 0.0  # recent copies of a prefix; those whose rest was needed again

    def __len__(self) -> int:
        return len(self._texts)

    @property
    def nbytes(self) -> int:
        """The bytes of all texts."""
        return sum(text.nbytes for text in self._texts)

    @property
    def budget(self) -> int:
        """The bytes that all texts together may take now."""
        return self._budget(self.nbytes)

    def choose(self, live: ParkedText, prompt: Sequence[int]) -> Start:
        """Return the cheapest start of the prefill of a prompt, from the live text or a parked one."""

        def rank(text: ParkedText) -> tuple[int, int, bool]:  # the longest prefix, the shortest rest, the live text
            reached = text.reach(prompt)
            return reached, reached - text.cache.length, text is live

        best = max([live, *self._texts], key=rank)
        start = self._start(best, live, best.reach(prompt))
        if best.branched is not None and start.length > best.branched:  # the rest of a copied text is needed again
            self._returns, best.branched = self._returns + 1, None
        if start.copied:
            if self._copies >= REMEMBERED:
                self._copies, self._returns = self._copies / 2, self._returns / 2
            self._copies, best.branched = self._copies + 1, start.length
        return start

    def _start(self, best: ParkedText, live: ParkedText, length: int) -> Start:
        """Return the cheapest start of a prompt: after the first `length` tokens of the text `best`, or after none."""
        whole = best.cache.length
        leaves = bool(live.cache.length) and live.nbytes <= self.budget
        chance = (self._returns + 1) / (self._copies + SEEN)
        # The cost of each way, in seconds.
        cutting = chance * self._prefill_seconds(length, whole)
        copying = best.nbytes * length / max(whole, 1) / self._copying
        reading = self._prefill_seconds(0, length)
        if best is live and (not leaves or cutting <= min(copying, reading)):
            return Start(length)
        if reading <= min(copying, cutting):
            return Start(0, leaves=leaves)
        copied = best is live or copying < cutting
        return Start(length, None if best is live else best, copied, leaves)

    def add(self, text: ParkedText, needed: ParkedText | None = None) -> None:
        """Park a text, then remove the least valuable texts beyond the budget, but never the text that is `needed`
        next."""
        text.since = self._removed_value
        self._texts.append(text)
        self.fit(needed)

    def remove(self, text: ParkedText) -> None:
        """Remove a text from the store, because it becomes the live text."""
        self._texts.remove(text)

    def fit(self, needed: ParkedText | None = None) -> None:
        """Remove the least valuable texts until the others are within the budget, but never the `needed` text."""
        budget = self.budget
        while self._texts and (self.nbytes > budget or len(self._texts) > MOST_TEXTS):
            least = min((text for text in self._texts if text is not needed), key=self._worth, default=None)
            if least is None:
                return
            self._removed_value = self._worth(least)
            self._texts.remove(least)

    def clear(self) -> bool:
        """Remove all texts, and return whether there were any."""
        had_texts = bool(self._texts)
        self._texts.clear()
        return had_texts

    def _worth(self, text: ParkedText) -> float:
        """Return the value of a text: seconds of prefill per byte that only this text saves, plus an offset for age."""
        others = (common_prefix(text.tokens, other.tokens) for other in self._texts if other is not text)
        shared = min(max(others, default=0), text.cache.length)
        return text.since + self._prefill_seconds(shared, text.cache.length) / max(text.nbytes, 1)

    def _prefill_seconds(self, start: int, end: int) -> float:
        return sum(self._costs.at(CHUNK, first) * min(CHUNK, end - first) / CHUNK for first in range(start, end, CHUNK))
