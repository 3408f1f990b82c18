"""Graphemes: what a reader sees as one character may be several code points, as in flags, families and accents."""

import unicodedata

JOINER = "\u200d"
# Variation selectors, skin tones and the tags of regional flags: each belongs to the code point before it.
_KEEP_TOGETHER = {"\ufe0e", "\ufe0f", *map(chr, range(0x1F3FB, 0x1F400)), *map(chr, range(0xE0020, 0xE0080))}
FARTHEST = 64  # most code points of a grapheme; a text may stack any number of accents


def before(text: str, at: int) -> int:
    """Return where the grapheme that ends at this place begins."""
    begin = max(at - FARTHEST, 0)
    found = begin
    while (end := after(text, found)) < at:
        found = end
    return found if at else 0


def after(text: str, at: int) -> int:
    """Return where the grapheme that begins at this place ends."""
    if at >= len(text):
        return at
    end = at + 1
    if _is_flag_letter(text[at]) and _is_flag_letter(text[end : end + 1]):
        end += 1
    while end < min(len(text), at + FARTHEST):
        if text[end] == JOINER:
            end += 2 if end + 1 < len(text) and not text[end + 1].isspace() else 1
        elif text[end] in _KEEP_TOGETHER or unicodedata.category(text[end]) in ("Mn", "Mc", "Me"):
            end += 1
        else:
            break
    return min(end, len(text))


def _is_flag_letter(character: str) -> bool:
    """Return whether a code point is a regional indicator; two of them make a flag."""
    return "\U0001f1e6" <= character <= "\U0001f1ff"
