"""Makes text from a model, a file, a file name or a paste safe: for terminals, and for programs that read keys from
it."""

import re

LONGEST_LICENSE = 100  # characters of a license's name, which others choose
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_TABLE: dict[int, str | None] = {
    **{code: chr(0x2400 + code) for code in range(0x20)},  # the visible symbol of each C0 control
    0x7F: "\N{SYMBOL FOR DELETE}",
    **dict.fromkeys(range(0x80, 0xA0), _REPLACEMENT),  # C1: some terminals obey these too
    **dict.fromkeys(range(0xD800, 0xE000), _REPLACEMENT),  # lone surrogates cannot be written at all
    **dict.fromkeys((0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))),  # would reorder a line
    0x2028: "\n",
    0x2029: "\n",
    ord("\r"): None,  # would overwrite the line
}
del _TABLE[ord("\n")], _TABLE[ord("\t")]

PASTE_BEGIN, PASTE_END = "\x1b[200~", "\x1b[201~"  # sent by a terminal around a paste
ALT_ENTER = "\x1b[13;3u"  # as terminals with kitty's protocol send it; most others send Escape and Enter
LETTERS = 16  # letters that arrive at once: nobody types this many, so they are a paste without marks
LONGEST_SEQUENCE = 32  # characters of a key or an answer that may arrive in two pieces
# An escape sequence, or a run of letters.
_KEYS = re.compile(
    rf"\x1b(?:\[[0-?]*[ -/]*[@-~]?|[\]P^_X][^\x07\x1b]*|O.?|.?)|([^\x00-\x1f\x7f-\x9f]{{{LETTERS},}})", re.DOTALL
)


def safe(text: str) -> str:
    """Remove every control sequence that a terminal would execute, character by character: safe(a) + safe(b) ==
    safe(a + b)."""
    return text.translate(_TABLE)


def shortened(text: str, most: int) -> str:
    """Return a text of at most `most` characters. A longer text is cut and ends in an ellipsis."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def one_line(text: str) -> str:
    """Make a text safe and put it on a single line, for messages and tables."""
    return " ".join(part for part in (line.strip() for line in safe(text).replace("\t", "\n").split("\n")) if part)


class PasteFilter:
    """A filter between a terminal and Textual that makes pastes safe.

    Textual would read an escape character in a paste as the beginning of a key, so the filter replaces it by a visible
    character. If many letters arrive together without the marks of a bracketed paste, the filter adds the marks.
    """

    def __init__(self) -> None:
        self._inside = False
        self._pending = ""  # inside a paste, a possible beginning of its end; outside, the last characters passed on

    def read(self, data: str) -> str:
        """Return the next piece of the terminal's input.

        Characters that may begin the mark at the end of a paste are held back.
        """
        passed = []
        while data:
            text, pending, self._pending = self._pending + data, self._pending, ""
            if self._inside:
                pasted, end, data = text.partition(PASTE_END)
                if not end:
                    size = next((size for size in range(len(PASTE_END), 0, -1) if text.endswith(PASTE_END[:size])), 0)
                    pasted, self._pending = text[: len(text) - size], text[len(text) - size :]
                passed.append(pasted.replace("\x1b", "\N{SYMBOL FOR ESCAPE}") + end)
                self._inside = not end
            else:
                begin, mark, data = text.partition(PASTE_BEGIN)
                keys = (begin + mark)[len(pending) :]
                passed.append(keys if "\x1b" in pending else _KEYS.sub(_marked, keys))
                self._inside = bool(mark)
                self._pending = "" if mark else text[-LONGEST_SEQUENCE:]
        return "".join(passed)


def _marked(match: re.Match[str]) -> str:
    """Return the replacement of a match of _KEYS. Letters get the marks of a paste; Alt+Enter gets Textual's form."""
    if match[1]:
        return f"{PASTE_BEGIN}{match[1]}{PASTE_END}"
    return ALT_ENTER if match[0] in ("\x1b\r", "\x1b\n") else match[0]
