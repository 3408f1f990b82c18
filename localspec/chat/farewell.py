"""What is said when a chat has been left."""

from localspec.chat.conversation import Conversation
from localspec.text import one_line

UNSEEN = dict.fromkeys((0x200B, 0x2060, 0xFEFF))  # characters of no width that join and shape nothing


def farewell(conversation: Conversation, title: str, unsent: str = "") -> str | None:
    """What is kept of it and how to go on, and what is not kept, on one line; None where there is nothing to say.

    `unsent`: why what was typed and not sent is not kept, if it is not.
    """
    called = f"“{title.translate(UNSEEN)}”"  # it goes to a shell, from where it may be copied
    typed = "what was typed and not sent"
    if conversation.lasts:
        lost = [*filter(None, (unkept_words(conversation.unkept), typed if unsent else ""))]
        but = f", but not {' nor '.join(lost)}" if lost else ""
        return one_line(f"{called} is kept{but}; to go on: localspec chat --conversation {conversation.id}")
    if conversation.unkept:
        return one_line(f"{called} is not kept{f', nor is {typed}' if unsent else ''}: {conversation.trouble}")
    return one_line(f"What was typed and not sent is not kept: {unsent}") if unsent else None


def let_go(conversation: Conversation) -> str:
    """Tries once more to keep all of it, for another one goes on in its place; says what could not be kept."""
    conversation.keep_rest()
    words = unkept_words(conversation.unkept)
    return words and f"“{conversation.title}” is left without {words}, which could not be kept: {conversation.trouble}"


def unkept_words(turns: int) -> str:
    """So many of the newest turns, which could not be kept; nothing where there are none."""
    return "" if not turns else "its last turn" if turns == 1 else f"its last {turns} turns"
