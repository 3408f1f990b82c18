"""Makes text from a model, a file or a file name safe for a terminal."""

LONGEST_LICENSE = 100  # characters of what others name theirs, of any length
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


def safe(text: str) -> str:
    """Removes all that a terminal would obey, character by character: safe(a) + safe(b) == safe(a + b)."""
    return text.translate(_TABLE)


def one_line(text: str) -> str:
    """Makes text safe and puts it on a single line, for messages and tables."""
    return " ".join(part for part in (line.strip() for line in safe(text).replace("\t", "\n").split("\n")) if part)
