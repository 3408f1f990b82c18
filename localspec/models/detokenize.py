"""Turns token ids into text as they arrive: never half a character, never part of a stop string."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import NamedTuple

from localspec.models.thinking import Parting, possible

_UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # decoded from bytes that are not a character, or not yet
_MOST_TORN, _LAST = 7, 3  # bytes of two characters less one, and of one character less one
_WINDOW = 16  # most tokens that are decoded again for each new one, unless no character ends among them


class Detokenizer:
    """A decoder that never splits a character.

    It decodes the last few tokens with and without the new tokens, and returns the difference. This is necessary
    because a sentencepiece tokenizer drops the space before a first word, and a byte-level tokenizer splits a character
    over several tokens.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._context: list[int] = []  # tokens whose text was returned
        self._recent: list[int] = []  # tokens after them
        self._returned = 0  # characters of their text that were returned
        self.pending = False  # whether the last token ends within a character

    def add(self, token: int) -> str:
        """Return the text that this token completes: often its own text, sometimes nothing."""
        self._recent.append(token)
        return self._next_text(final=False)

    def flush(self) -> str:
        """Return the remaining text, with the replacement character for bytes that never became a character."""
        return self._next_text(final=True) if self._recent else ""

    def _next_text(self, final: bool) -> str:
        before = len(self._decode(self._context))
        text = self._decode([*self._context, *self._recent])[before:]
        torn = 0 if final else len(text) - len(text.rstrip(_UNFINISHED))
        # Some decoders show a run of bytes as torn until its last one arrives; a longer run is not text.
        unfinished = torn if torn <= _MOST_TORN else _LAST
        self.pending = unfinished > 0
        whole = len(text) - unfinished
        new, self._returned = text[self._returned : whole], max(self._returned, whole)
        if text and not self.pending:
            self._context, self._recent, self._returned = self._recent, [], 0
        elif len(self._recent) >= _WINDOW:
            self._shorten(text, before)
        return new

    def _shorten(self, text: str, before: int) -> None:
        """Replace the context by the oldest recent tokens, whose text was returned and ends between two characters."""
        for split in range(len(self._recent) - 1, 0, -1):
            head = self._decode([*self._context, *self._recent[:split]])[before:]
            if len(head) <= self._returned and head + self._decode(self._recent[split:]) == text:
                self._context, self._recent = self._recent[:split], self._recent[split:]
                self._returned -= len(head)
                return


class Released(NamedTuple):
    """The newly released part of a reply (answer and thoughts), and the number of tokens released so far."""

    text: str
    tokens: int
    reasoning: str
    reasoning_tokens: int  # of the tokens, those before the answer; 0 without thoughts


class Transcript:
    """The text of one reply with its tokens, divided into thinking and answer, and cut at a stop string.

    Text that may be the beginning of a stop string or of a mark of thinking is held back with its tokens. Stop strings
    apply to the answer.
    """

    def __init__(
        self, decode: Callable[[Sequence[int]], str], stops: Sequence[str] = (), parting: Parting | None = None
    ) -> None:
        self._detokenizer = Detokenizer(decode)
        self._stops = stops
        self._parting = parting or Parting()
        self._released = 0  # characters that were released
        self._sought = 0  # no stop string begins before this place
        self.tokens = 0  # of the reply; those after a cut do not count
        # Places where a token ends and no character is torn: characters, and tokens, up to there.
        self._ends: list[int] = [0]
        self._counts: list[int] = [0]

    @property
    def text(self) -> str:
        """The whole text so far, including thoughts, without an incomplete character."""
        return self._parting.text

    def add(self, token: int) -> bool:
        """Add one token. Return whether the text now contains a stop string; the text is then cut before it."""
        self.tokens += 1
        return self._take(self._detokenizer.add(token))

    def finish(self, cut: bool = False) -> bool:
        """Release held-back text at the end of a reply. Return whether the text contains a stop string.

        With `cut`, a limit ended the reply within a character: the bytes of that character are dropped.
        """
        if not cut:
            return self._take(self._detokenizer.flush(), whole=True)
        self._detokenizer.pending = False  # its tokens belong to the text before
        return self._take("", whole=True)

    def release(self, final: bool = False) -> Released:
        """Return the new text that later tokens cannot change, and how many tokens of the reply are released so far."""
        parting = self._parting
        certain = parting.settled
        if not final and parting.answer is not None:
            certain = min(certain, len(parting.text) - possible(parting.text, self._stops, parting.answer))
        reasoning, text = parting.between(self._released, certain)
        self._released = certain
        tokens = self._count_tokens(certain)
        before = tokens if parting.answer is None else min(tokens, self._count_tokens(parting.answer))
        return Released(text, tokens, reasoning, before if parting.thinks else 0)

    def _take(self, added: str, whole: bool = False) -> bool:
        parting = self._parting
        parting.add(added)
        if not self._detokenizer.pending:
            self._ends.append(len(parting.text))
            self._counts.append(self.tokens)
        if whole:
            parting.finish()
        return self._cut_at_stop()

    def _count_tokens(self, length: int) -> int:
        """Count the tokens whose text is within the first `length` characters."""
        return self._counts[bisect_right(self._ends, length) - 1]

    def _cut_at_stop(self) -> bool:
        parting = self._parting
        if not self._stops or parting.answer is None:
            return False
        first = max(parting.answer, self._sought)
        starts = [start for stop in self._stops if (start := parting.text.find(stop, first)) >= 0]
        if not starts:
            self._sought = len(parting.text) - max(len(stop) for stop in self._stops) + 1
            return False
        parting.cut(min(starts))
        self.tokens = self._count_tokens(len(parting.text))
        return True
