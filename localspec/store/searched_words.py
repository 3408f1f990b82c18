"""Words that are searched for: what the index is asked for them, and a line of text around one."""

import re
from collections.abc import Sequence

from localspec.text import one_line

EXCERPT = 100
BEFORE_HIT = 30
TRIGRAMS = 60


def patterns(words: str) -> list[re.Pattern[str]]:
    """What finds each of the words: parts of text between white space, in which case does not count."""
    return [re.compile(re.escape(word), re.IGNORECASE) for word in words.split()]


def hold(wanted: Sequence[re.Pattern[str]], *texts: str) -> bool:
    """Whether each of the words stands in one of the texts."""
    return all(any(word.search(text) for text in texts) for word in wanted)


def trigram_query(words: Sequence[str]) -> str:
    """The query for turns that hold the trigrams of these words; empty where none is long enough to have one."""
    # Quoted, so that nothing in them is syntax; bounded, since a query may not grow without end.
    trigrams = dict.fromkeys(word[start : start + 3] for word in words for start in range(len(word) - 2))
    return " ".join('"' + trigram.replace('"', '""') + '"' for trigram in list(trigrams)[:TRIGRAMS])


def excerpt(word: re.Pattern[str], prompt: str, reply: str) -> str:
    """One line of text around the word."""
    text, hit = next(((text, hit) for text in (prompt, reply) if (hit := word.search(text))), (prompt, None))
    start = max(0, hit.start() - BEFORE_HIT) if hit else 0
    line = one_line(text[start : start + EXCERPT])
    return f"{'…' if start else ''}{line}{'…' if start + EXCERPT < len(text) else ''}"
