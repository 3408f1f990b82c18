"""Text that comes in pieces, broken between words at the edge of a terminal, which itself breaks within them."""

import re

from rich.cells import cell_len

LONGEST = 24  # characters that are held back until their word ends; Thai has no blanks
_PARTS = re.compile(r"\n| +|[^\n ]+")
_FENCES = ("```", "~~~")


class WordWrap:
    """For lines of so many `columns`; None leaves all as it is. Code between fences stays whole, for whoever copies."""

    def __init__(self, columns: int | None) -> None:
        self._columns = columns
        self._at = 0  # columns of the line so far
        self._line = self._word = ""
        self._code = False

    def add(self, text: str) -> str:
        """What can be shown by now; a word is held back until it has ended."""
        if self._columns is None:
            return text
        return "".join(map(self._take, _PARTS.findall(text)))

    def flush(self) -> str:
        """The word that was held back."""
        word, self._word = self._word, ""
        if self._columns is None or not word:
            return word
        wide, self._line = cell_len(word), self._line + word
        broken = not self._code and self._at > 0 and self._at + wide > self._columns
        self._at = (0 if broken else self._at) + wide
        return f"\n{word}" if broken else word

    def _take(self, part: str) -> str:
        if part == "\n":
            shown = self.flush() + part
            self._code ^= self._line.lstrip().startswith(_FENCES)
            self._at, self._line = 0, ""
            return shown
        if part[0] == " ":
            before = self.flush()
            blanks = part if self._code else part[: max((self._columns or 0) - self._at, 0)]
            self._at, self._line = self._at + len(blanks), self._line + part
            return before + blanks
        if self._code:
            self._word += part
            return self.flush()
        shown = ""
        for character in part:
            self._word += character
            if cell_len(character) > 1 or len(self._word) > LONGEST:  # Chinese is broken anywhere
                shown += self.flush()
        return shown
