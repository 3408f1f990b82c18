"""Turns token ids into text as they come: never half a character, never a piece of a stop string."""

from bisect import bisect_right
from collections.abc import Callable, Sequence

_UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # decoded from bytes that are not a character, or not yet
_MOST_TORN, _LAST = 7, 3  # bytes of two characters less one, and of one character less one
_WINDOW = 16  # tokens that are decoded again for each new one at the most, unless no character ends among them


class Detokenizer:
    """Gives text in pieces that never split a character.

    It decodes the last few tokens with and without the new ones and gives the difference, because a sentencepiece
    tokenizer drops the blank before a first word, and a byte-level one splits a character over tokens.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._context: list[int] = []  # tokens whose text was given
        self._held: list[int] = []  # tokens after them
        self._given = 0  # characters of their text that were given
        self.pending = False  # whether the last token ends within a character

    def add(self, token: int) -> str:
        """Returns the text that this token completes: often all of its own, sometimes none."""
        self._held.append(token)
        return self._give(final=False)

    def flush(self) -> str:
        """Returns what is still held, with the replacement character for bytes that never became a character."""
        return self._give(final=True) if self._held else ""

    def _give(self, final: bool) -> str:
        before = len(self._decode(self._context))
        text = self._decode([*self._context, *self._held])[before:]
        torn = 0 if final else len(text) - len(text.rstrip(_UNFINISHED))
        # Some decoders show a whole run of bytes as torn until its last one is there; a longer run is no text.
        held = torn if torn <= _MOST_TORN else _LAST
        self.pending = held > 0
        whole = len(text) - held
        new, self._given = text[self._given : whole], max(self._given, whole)
        if text and not self.pending:
            self._context, self._held, self._given = self._held, [], 0
        elif len(self._held) >= _WINDOW:
            self._shorten(text, before)
        return new

    def _shorten(self, text: str, before: int) -> None:
        """Moves the start of the window to a later place where no character is torn."""
        for place in range(len(self._held) - 1, 0, -1):
            head = self._decode([*self._context, *self._held[:place]])[before:]
            if len(head) <= self._given and head + self._decode(self._held[place:]) == text:
                self._context, self._held = self._held[:place], self._held[place:]
                self._given -= len(head)
                return


class Transcript:
    """The text of one reply with its tokens, cut where a stop string begins.

    Text that may yet turn out to be the beginning of a stop string is held back, and its tokens with it.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], stops: Sequence[str] = ()) -> None:
        self._detokenizer = Detokenizer(decode)
        self._stops = stops
        self._text = ""
        self._given = 0  # characters that were released
        self.tokens = 0  # of the reply; those after a cut do not count
        # Places where a token ends and no character is torn: characters, and tokens, up to there.
        self._ends: list[int] = [0]
        self._counts: list[int] = [0]

    def add(self, token: int) -> bool:
        """Takes one more token. Returns whether the text now holds a stop string and was cut before it."""
        self.tokens += 1
        return self._take(self._detokenizer.add(token))

    def finish(self) -> bool:
        """Takes what was held back, for no more tokens come. Returns what `add` does."""
        return self._take(self._detokenizer.flush())

    def release(self, final: bool = False) -> tuple[str, int]:
        """Returns the text that is certain and new, and how many tokens of the reply are released with it in all."""
        certain = len(self._text) - (0 if final else self._possible_stop())
        text, self._given = self._text[self._given : certain], certain
        return text, self._count_tokens(certain)

    def _take(self, added: str) -> bool:
        self._text += added
        if not self._detokenizer.pending:
            self._ends.append(len(self._text))
            self._counts.append(self.tokens)
        return self._cut_at_stop(len(added))

    def _count_tokens(self, length: int) -> int:
        """Counts the tokens whose text lies within the first `length` characters."""
        return self._counts[bisect_right(self._ends, length) - 1]

    def _cut_at_stop(self, added: int) -> bool:
        if not self._stops or not added:
            return False
        window = max(len(stop) for stop in self._stops) + added - 1
        first = max(0, len(self._text) - window)
        found = [at for stop in self._stops if (at := self._text.find(stop, first)) >= 0]
        if not found:
            return False
        self._text = self._text[: min(found)]
        self.tokens = self._count_tokens(len(self._text))
        return True

    def _possible_stop(self) -> int:
        """Returns the length of the longest end of the text that begins a stop string."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for length in range(min(longest, len(self._text)), 0, -1):
            if any(stop.startswith(self._text[-length:]) for stop in self._stops):
                return length
        return 0
