"""Whether a reply has begun to go round: the same phrase again and again, as small models do. Pure arithmetic."""

import re

TAIL = 4096  # characters that are looked at
REPEATS, LEAST = 6, 200  # so often in a row, and so many characters of it: a refrain, or what was asked for, is less
REPEATS_IN_ROWS = 20  # in code and tables, where the same line may well stand several times
WORDS_IN_ROWS = 3  # different ones, of such a line: `0, 0, 0` goes on for good reasons
ENDING = 24  # characters by which an earlier place is found
PLACES = 4  # that are tried

LOOP = 1000  # characters of one phrase in a row, at least REPEATS times: a reply is stopped there
PATIENCE = 5  # times as many, and times as often, where a phrase may be meant to stand there so often
LOOP_TAIL = 32_768  # characters that are looked at then
EVERY = 16  # tokens of a reply between two looks, counted from its beginning whatever a step brings

_NUMBERED = re.compile(r"\n[ \t]*\d{1,4}[.)][ \t]")  # ten times as fast as with ^
_WORD = re.compile(r"[^\W\d_]+")
_CODE = re.compile(r"[|{}\[\];=<>]")


def goes_round(reply: str) -> bool:
    """Whether the end of it is one phrase so often that nobody means it. The numbers of a list do not tell lines apart.

    It looks at the end alone, so it costs the same for a long reply.
    """
    tail = _NUMBERED.sub("\n", reply[-TAIL:])
    period = _period(tail, LEAST)
    if not period:
        return False
    phrase = tail[-period:]
    in_rows = "|" in phrase or _in_code(reply)
    repeats, least = (REPEATS_IN_ROWS, WORDS_IN_ROWS) if in_rows else (REPEATS, 1)
    return len(_words(phrase)) >= least and tail[-repeats * period : -period] == tail[-(repeats - 1) * period :]


def is_loop(reply: str, prompt: str) -> bool:
    """Return whether a reply repeats one phrase for so long that it is to be stopped.

    Code, tables, what holds no word, and a phrase of words that `prompt` asked for may go on `PATIENCE` times as long.
    """
    if len(reply) < LOOP:
        return False
    tail = _NUMBERED.sub("\n", reply[-LOOP_TAIL:])
    period = _period(tail, LOOP)
    if not period:
        return False
    several = _WORD.findall(tail[-3 * period :].lower())
    words = {*(several[1:-1] or several)}  # the first and the last may be cut
    meant = not words or words <= _words(prompt) or _CODE.search(tail[-period:]) or _in_code(reply)
    length = max(REPEATS * period, LOOP) * (PATIENCE if meant else 1)
    return length <= len(tail) and tail[-length:-period] == tail[period - length :]


def _words(text: str) -> set[str]:
    return {word.lower() for word in _WORD.findall(text)}


def _in_code(reply: str) -> bool:
    return reply.count("```") % 2 == 1


def _period(tail: str, least: int) -> int:
    """The length of the phrase that the end repeats often enough to be one; 0 where there is none."""
    ending, place = tail[-ENDING:], len(tail) - 1
    for _ in range(PLACES):
        place = tail.rfind(ending, 0, place + ENDING - 1)
        period = len(tail) - ENDING - place
        length = max(REPEATS * period, least)
        if place < 0 or length > len(tail):
            return 0
        if tail[-length:-period] == tail[period - length :]:
            return period
    return 0
