"""Detects a reply that repeats one phrase again and again, as small models do."""

import re
from collections.abc import Sequence

# A warning: `goes_round`.
TAIL = 4096  # last characters that are examined
REPEATS, LEAST = 6, 200  # least repetitions, and least characters of all repetitions: a refrain is shorter
REPEATS_IN_ROWS = 20  # least repetitions in code and tables, where a line often appears several times
WORDS_IN_ROWS = 3  # least different words of such a line: a long row of `0, 0, 0` is normal
ENDING = 24  # last characters that are searched for to find an earlier repetition
PLACES = 4  # most earlier places that are tried

# The end of a reply: `is_loop`.
LOOP = 1000  # least characters of all repetitions
PATIENCE = 5  # factor on the least characters and repetitions of text in which repetition may be intended
LOOP_TAIL = 32_768  # last characters that are examined
EVERY = 16  # tokens between two checks, counted from the first token, so that drafts do not change where a reply ends

_NUMBERED = re.compile(r"\n[ \t]*\d{1,4}[.)][ \t]")  # 10× faster than with ^
_WORD = re.compile(r"[^\W\d_]+")
_CODE = re.compile(r"[|{}\[\];=<>]")


def goes_round(reply: str) -> bool:
    """Return whether the end of a reply repeats one phrase too often to be intended. List numbers are ignored.

    Only the end is examined, so the cost does not grow with the reply. This function is for warnings, so its limits are
    lower than those of `is_loop`, which ends a reply.
    """
    tail = _NUMBERED.sub("\n", reply[-TAIL:])
    period = _period(tail, LEAST)
    if not period:
        return False
    phrase = tail[-period:]
    in_rows = "|" in phrase or _ends_in_code(reply)
    repeats, least = (REPEATS_IN_ROWS, WORDS_IN_ROWS) if in_rows else (REPEATS, 1)
    return len(_words(phrase)) >= least and tail[-repeats * period : -period] == tail[-(repeats - 1) * period :]


def is_loop(reply: str, prompt: str) -> bool:
    """Return whether a reply repeats one phrase for so long that it must be stopped.

    The limit is `PATIENCE` times as high for code, for tables, for text without words, and for a phrase whose words
    all come from `prompt`.
    """
    if len(reply) < LOOP:
        return False
    tail = _NUMBERED.sub("\n", reply[-LOOP_TAIL:])
    period = _period(tail, LOOP)
    if not period:
        return False
    recent = _WORD.findall(tail[-3 * period :].lower())
    words = {*(recent[1:-1] or recent)}  # the first and the last may be incomplete
    intended = not words or words <= _words(prompt) or _CODE.search(tail[-period:]) or _ends_in_code(reply)
    length = max(REPEATS * period, LOOP) * (PATIENCE if intended else 1)
    return length <= len(tail) and tail[-length:-period] == tail[period - length :]


def _words(text: str) -> set[str]:
    return {word.lower() for word in _WORD.findall(text)}


def _ends_in_code(reply: str) -> bool:
    return reply.count("```") % 2 == 1


def _period(tail: str, least: int) -> int:
    """Return the length of the phrase that `tail` repeats at its end, or 0. The phrase must come REPEATS times, and its
    copies must have at least `least` characters together."""
    ending, start = tail[-ENDING:], len(tail) - 1
    for _ in range(PLACES):
        start = tail.rfind(ending, 0, start + ENDING - 1)
        period = len(tail) - ENDING - start
        length = max(REPEATS * period, least)
        if start < 0 or length > len(tail):
            return 0
        if tail[-length:-period] == tail[period - length :]:
            return period
    return 0


# A text repeats itself if the same part of at most PERIOD tokens comes REPEATED times in a row.
REPEATED, PERIOD = 3, 24


def until_it_goes_round(tokens: Sequence[int]) -> int:
    """Return the number of tokens up to the end of the first phrase that comes at least REPEATED times in a row.

    Use it for measurements: even a short repetition distorts them. The other functions in this file take text.
    """
    for end in range(len(tokens)):
        for period in range(1, PERIOD + 1):
            length = max(REPEATED * period, 2 * REPEATED)  # a word repeated three times is not a loop yet
            part = tokens[end : end + length]
            if len(part) == length and part[period:] == part[:-period]:
                return end + period
    return len(tokens)
