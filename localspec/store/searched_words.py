"""Finds searched words: the query of the search index for these words, and a line of text around a found word."""

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple
from unicodedata import is_normalized, normalize

from localspec.text import one_line

EXCERPT = 100
BEFORE_HIT = 30
TRIGRAMS = 60


def fold(text: str) -> str:
    """Return a text in lower case, with the same encoding for characters that look the same (NFC).

    So É becomes é, with an accent that is part of the character, and ß becomes ss. As in earlier versions, İ and ı
    become i. Characters that look different stay different: ² does not become 2, nor … three dots.
    """
    if text.isascii():
        return text.lower()
    return normalize("NFC", normalize("NFC", text).casefold()).replace("i\u0307", "i").replace("ı", "i")


def folded_words(words: str) -> list[str]:
    """Return the parts of text between white space, folded for the search."""
    return [fold(word) for word in words.split()]


def all_in(terms: Sequence[str], *texts: str) -> bool:
    """Return whether each of the `terms` occurs in at least one of the texts."""
    folded = [fold(text) for text in texts]
    return all(any(word in text for text in folded) for word in terms)


def span(word: str, text: str) -> tuple[int, int] | None:
    """Return the start and end in `text` of the folded word's first occurrence; None if the word does not occur."""
    folded = fold(text)
    begin = folded.find(word)
    if begin < 0:
        return None
    end = begin + len(word)
    if len(text) == len(text.casefold()) == len(folded) and is_normalized("NFC", text):  # character by character
        return begin, end

    def unfolded(length: int) -> int:
        """Return how many characters at the beginning of `text` have at most `length` characters after folding."""
        return bisect_right(range(len(text) + 1), length, key=lambda count: len(fold(text[:count]))) - 1

    last = unfolded(end)
    return unfolded(begin), last + (len(fold(text[:last])) < end)  # half of an ß is all of it


def index_query(words: Sequence[str]) -> str:
    """Return the index query for turns that may contain these words; empty if all words are too short for the index.

    The index has the texts' own spelling, so the query has several spellings of a word. A word with both ss and ß is
    searched as typed, with only ss, and with only ß.
    """
    parts, limit = [], max(TRIGRAMS // max(len(words), 1), 1)
    for word in words[:TRIGRAMS]:
        folded = fold(word)
        forms = dict.fromkeys((word, folded, normalize("NFD", folded), folded.replace("ss", "ß")))
        queries = [trigram_query([form], limit) for form in forms]
        if all(queries):
            parts.append(" OR ".join(f"({query})" for query in queries))
    return " AND ".join(f"({queries})" for queries in parts)


def trigram_query(words: Sequence[str], limit: int = TRIGRAMS) -> str:
    """Return the index query for turns with the trigrams of these words; empty if no word has three characters."""
    # Quoted, so that nothing in them is syntax; limited, since a query must not grow without end.
    trigrams = dict.fromkeys(word[start : start + 3] for word in words for start in range(len(word) - 2))
    return " ".join('"' + trigram.replace('"', '""') + '"' for trigram in list(trigrams)[:limit])


def excerpt(word: str, prompt: str, reply: str) -> str:
    """Return one line of text around the word in a prompt or its reply."""
    text, hit = next(((text, hit) for text in (prompt, reply) if (hit := span(word, text))), (prompt, None))
    start = max(0, hit[0] - BEFORE_HIT) if hit else 0
    line = one_line(text[start : start + EXCERPT])
    return f"{'…' if start else ''}{line}{'…' if start + EXCERPT < len(text) else ''}"


class Hit(NamedTuple):
    """A place where the first searched word occurs: in the reply or the prompt of the turn with the number `turn`.

    `at` is the number of the occurrence in this message. The first occurrence has the number 0.
    """

    turn: int
    reply: bool
    at: int = 0


def hits(messages: Sequence[tuple[str, str]], words: str) -> list[Hit]:
    """Return a hit in each message with all the words, the newest first.

    As in the search of conversations, some words may be in a prompt and the others in its reply. Then the message with
    the first word has the hit.
    """
    terms = folded_words(words)
    matches: list[Hit] = []
    for turn in reversed(range(len(messages) if terms else 0)):
        prompt, reply = messages[turn]
        if exact := [Hit(turn, is_reply) for is_reply in (True, False) if all_in(terms, reply if is_reply else prompt)]:
            matches += exact
        elif all_in(terms, prompt, reply):
            matches.append(Hit(turn, not all_in(terms[:1], prompt)))
    return matches


def places(messages: Sequence[tuple[str, str]], words: str) -> list[Hit]:
    """Return each occurrence of the first word in the messages that `hits` finds, from the last to the first."""
    occurrences: list[Hit] = []
    for hit in hits(messages, words):
        count = fold(messages[hit.turn][hit.reply]).count(folded_words(words)[0])
        occurrences += (hit._replace(at=at) for at in reversed(range(max(count, 1))))
    return occurrences
