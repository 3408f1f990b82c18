"""Token ids into text as they come: never half a character, never a piece of a stop string."""

from bisect import bisect_left
from collections.abc import Callable, Sequence

_LONGEST = 6  # tokens one character may be split over; an id that never completes is shown as it is after that


class Detokenizer:
    """Text increments that never split a character.

    Decodes the last few tokens with and without the new ones and gives the difference: a sentencepiece tokenizer drops
    the blank before a first word, and a byte-level one splits a character over tokens.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._shown: list[int] = []  # tokens whose text was given last
        self._held: list[int] = []  # tokens behind them

    def add(self, token: int) -> str:
        """The text that this token completes, often all of its own, sometimes none."""
        self._held.append(token)
        return self._give(final=False)

    def flush(self) -> str:
        """What is still held: the replacement character for bytes that never became one."""
        return self._give(final=True) if self._held else ""

    def _give(self, final: bool) -> str:
        before = self._decode(self._shown)
        text = self._decode([*self._shown, *self._held])[len(before) :]
        incomplete = not text or text.endswith("\ufffd")
        if incomplete and not final and len(self._held) < _LONGEST:
            return ""
        self._shown, self._held = self._held, []
        return text


class Transcript:
    """The text of one reply with its tokens, cut where a stop string begins.

    Text that may yet turn out to be the beginning of a stop string is held back, and its tokens with it.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], stops: Sequence[str] = ()) -> None:
        self._detokenizer = Detokenizer(decode)
        self._stops = stops
        self._text = ""
        self._ends: list[int] = []  # by token: how much text is complete with it
        self._given_text = 0
        self._given_tokens = 0

    def add(self, token: int) -> bool:
        """Takes one more token; True when the text now holds a stop string and has been cut before it."""
        self._text += (added := self._detokenizer.add(token))
        self._ends.append(len(self._text))
        return self._cut(len(added))

    def finish(self) -> bool:
        """No more tokens come: nothing is held back any longer. True as in `add`."""
        self._text += (added := self._detokenizer.flush())
        if self._ends:
            self._ends[-1] = len(self._text)
        return self._cut(len(added))

    def release(self, final: bool = False) -> tuple[str, int]:
        """Text that is certain and was not given yet, and how many tokens of the reply are out with it in all."""
        safe = len(self._text) - (0 if final else self._doubtful())
        text = self._text[self._given_text : safe]
        self._given_text = safe
        self._given_tokens = len(self._ends) if safe == len(self._text) else self._tokens_within(safe)
        return text, self._given_tokens

    @property
    def tokens(self) -> int:
        """How many tokens of the reply are out, or still within the text that was cut."""
        return len(self._ends)

    def _cut(self, added: int) -> bool:
        if not self._stops or not added:
            return False
        window = max(len(stop) for stop in self._stops) + added - 1
        first = max(0, len(self._text) - window)
        found = [at for stop in self._stops if (at := self._text.find(stop, first)) >= 0]
        if not found:
            return False
        self._text = self._text[: min(found)]
        self._ends = self._ends[: self._tokens_within(len(self._text))]
        return True

    def _tokens_within(self, length: int) -> int:
        """Tokens whose text ends within `length` characters; one that waits for the rest of its character does not."""
        inside = max((end for end in self._ends if end <= length), default=0)
        return bisect_left(self._ends, inside) + 1 if inside else 0

    def _doubtful(self) -> int:
        """Length of the longest end of the text that begins a stop string."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for length in range(min(longest, len(self._text)), 0, -1):
            if any(stop.startswith(self._text[-length:]) for stop in self._stops):
                return length
        return 0
