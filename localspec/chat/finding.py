"""Words that are looked for in one conversation."""

from collections.abc import Sequence
from typing import NamedTuple

from localspec.store.searched_words import fold, folded_words, hold


class Hit(NamedTuple):
    """A place in a message: the number of its turn, whether it is the reply or the prompt, and which occurrence.

    Occurrences of the first word count from 0, at the beginning of the message.
    """

    turn: int
    reply: bool
    at: int = 0


def hits(messages: Sequence[tuple[str, str]], words: str, first: int = 0) -> list[Hit]:
    """The messages that hold all the words, the newest first, of prompts with their replies from turn `first` on.

    As in the search of conversations, a prompt and its reply may hold them together; then it is the one with the first.
    """
    wanted = folded_words(words)
    found: list[Hit] = []
    for turn in reversed(range(first, len(messages) if wanted else 0)):
        prompt, reply = messages[turn]
        if here := [Hit(turn, is_reply) for is_reply in (True, False) if hold(wanted, reply if is_reply else prompt)]:
            found += here
        elif hold(wanted, prompt, reply):
            found.append(Hit(turn, not hold(wanted[:1], prompt)))
    return found


def places(messages: Sequence[tuple[str, str]], words: str, first: int = 0) -> list[Hit]:
    """Return every occurrence of the first word in the messages that `hits` finds, the newest and lowest first."""
    found: list[Hit] = []
    for hit in hits(messages, words, first):
        count = fold(messages[hit.turn][hit.reply]).count(folded_words(words)[0])
        found += (hit._replace(at=at) for at in reversed(range(max(count, 1))))
    return found
