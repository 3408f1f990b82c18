"""What a person takes for one character, which may be several in a text: flags, families, accents."""

import unicodedata

JOINER = "\u200d"
_KEEP_TOGETHER = {"\ufe0e", "\ufe0f", *map(chr, range(0x1F3FB, 0x1F400)), *map(chr, range(0xE0020, 0xE0080))}
FARTHEST = 64  # characters that are looked at: a text may have any number of accents


def before(text: str, at: int) -> int:
    """Return where the character begins that ends at this place."""
    begin = max(at - FARTHEST, 0)
    found = begin
    while (end := after(text, found)) < at:
        found = end
    return found if at else 0


def after(text: str, at: int) -> int:
    """Return where the character ends that begins at this place."""
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
    return "\U0001f1e6" <= character <= "\U0001f1ff"
