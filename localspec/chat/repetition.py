"""Whether a reply has begun to go round: the same phrase again and again, as small models do. Pure arithmetic."""

import re

TAIL = 4096  # characters that are looked at
REPEATS, LEAST = 6, 200  # so often in a row, and so many characters of it: a refrain, or what was asked for, is less
REPEATS_IN_ROWS = 20  # in code and tables, where the same line may well stand several times
WORDS_IN_ROWS = 3  # different ones, of such a line: `0, 0, 0` goes on for good reasons
ENDING = 24  # characters by which an earlier place is found
PLACES = 4  # that are tried

_NUMBERED = re.compile(r"\n[ \t]*\d{1,4}[.)][ \t]")  # ten times as fast as with ^
_WORD = re.compile(r"[^\W\d_]+")


def goes_round(reply: str) -> bool:
    """Whether the end of it is one phrase so often that nobody means it. The numbers of a list do not tell lines apart.

    It looks at the end alone, so it costs the same for a long reply.
    """
    tail = _NUMBERED.sub("\n", reply[-TAIL:])
    period = _period(tail)
    if not period:
        return False
    phrase = tail[-period:]
    words = {word.lower() for word in _WORD.findall(phrase)}
    in_rows = "|" in phrase or reply.count("```") % 2 == 1
    repeats, least = (REPEATS_IN_ROWS, WORDS_IN_ROWS) if in_rows else (REPEATS, 1)
    return len(words) >= least and tail[-repeats * period : -period] == tail[-(repeats - 1) * period :]


def _period(tail: str) -> int:
    """The length of the phrase that the end repeats often enough to be one; 0 where there is none."""
    ending, place = tail[-ENDING:], len(tail) - 1
    for _ in range(PLACES):
        place = tail.rfind(ending, 0, place + ENDING - 1)
        period = len(tail) - ENDING - place
        length = max(REPEATS * period, LEAST)
        if place < 0 or length > len(tail):
            return 0
        if tail[-length:-period] == tail[period - length :]:
            return period
    return 0
