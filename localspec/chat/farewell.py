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
        lost = [*filter(None, (conversation.unkept_words, typed if unsent else ""))]
        but = f", but not {' nor '.join(lost)}" if lost else ""
        return one_line(f"{called} is kept{but}; to go on: localspec chat --conversation {conversation.id}")
    if conversation.unkept:
        return one_line(f"{called} is not kept{f', nor is {typed}' if unsent else ''}: {conversation.trouble}")
    return one_line(f"What was typed and not sent is not kept: {unsent}") if unsent else None
