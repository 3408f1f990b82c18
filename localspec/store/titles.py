"""Makes the title of a conversation that the user did not name: the first words of its first prompt, without filler."""

import re

from localspec.text import one_line

LONGEST = 60
SHORTEST = 3  # letters of a title, at least: "please" by itself is a title, too

# If only these remain, the whole prompt is the better title.
_EMPTY = frozenset(
    """
    a again all an and any are be can do everybody everyone for friend friends guys here i in is it lot me much my
    of on or please so some that the them then there these this those to today up very was we what with you your
    """.split()  # noqa: SIM905 (a list of words is read as text)
)
# Beginnings of prompts that do not matter; each may follow another.
_FILLER = re.compile(
    r"""(hi|hello|hey)(\ (there|again|all|everyone|everybody|folks|guys|you))?\b[\s,.!?:]*
    | (please|ok|okay|so|now|well|thanks|thank\ you)\b[\s,.!?:]*
    | (can|could|would|will)\ you\b[\s,]*
    | i(\ would|'d|\ )?\ ?(like|want|need)\ (you\ )?to\ (know\ )?
    | (help|show|tell|give|teach|explain\ to)\ me\b\ *(with|about|how\ to|to|on)?\ +
    | (i\ have\ a\ question\b[\s:,]*(about\ )?)
    | (what(\ is|\ are|'s)|who(\ is|'s)|explain|describe|define)\ +((?=a\ |an\ |the\ )|)
    | (the|an|a)\ (?=\S+\ \S)""",
    re.IGNORECASE | re.VERBOSE,
)


def title_of(prompt: str) -> str:
    """Return a title: the first words of a prompt, without greetings and filler, on one safe line."""
    whole = title = one_line(prompt)
    asked = False
    while found := _FILLER.match(title):
        asked = asked or found[0].lower().startswith(("what", "who"))
        title = title[found.end() :]
        if len(title) < SHORTEST:
            return cut(whole)
    if _EMPTY.issuperset(re.findall(r"[\w']+", title.lower())):
        return cut(whole)
    if asked:  # the rest of “What is …?” is not a question
        title = title.rstrip("?! .")
    title = title[:1].upper() + title[1:] if title != whole else whole
    return cut(title.removesuffix(".") if title[-2:] != ".." else title)


def cut(line: str) -> str:
    """Return at most 60 characters of a line.

    A line that was cut ends in an ellipsis, after a whole word if possible.
    """
    if len(line) <= LONGEST:
        return line
    kept = line[: LONGEST - 1]
    word = kept.rpartition(" ")[0]
    return f"{word if len(word) > LONGEST // 2 else kept}…".replace(" …", "…")
