"""What is said when a chat has been left."""

from localspec.chat.conversation import Conversation
from localspec.text import one_line

UNSEEN = dict.fromkeys((0x200B, 0x2060, 0xFEFF))  # characters of no width that join and shape nothing


def farewell(conversation: Conversation) -> str | None:
    """How to go on with it, on one line; None where nothing of it is kept. Its store must be open."""
    if not conversation.lasts:
        return None
    title = conversation.title.translate(UNSEEN)  # it goes to a shell, from where it may be copied
    return one_line(f"“{title}” is kept; to go on: localspec chat --conversation {conversation.id}")
