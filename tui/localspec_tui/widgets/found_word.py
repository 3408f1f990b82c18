"""A word in a message that was looked for: shown as if it were selected, whatever widget it stands in."""

from textual.content import Content
from textual.geometry import Offset
from textual.selection import Selection
from textual.widgets import Static

from localspec.store.searched_words import span
from localspec_tui.widgets.message_view import MessageView


def mark_word(view: MessageView, word: str) -> int:
    """Marks where it stands first; returns the row of the message, which is the first where only its source has it."""
    for one in view.query(Static):
        text = one.visual
        if isinstance(text, Content) and one.region.height and (hit := span(word, text.plain)):
            line, begin = text.plain.count("\n", 0, hit[0]), text.plain.rfind("\n", 0, hit[0]) + 1
            ends = (Offset(at - begin, line) for at in hit)
            view.screen.selections = {one: Selection(*ends)}
            above = Content(text.plain[: hit[1]]).wrap(max(one.content_size.width, 1))
            return one.content_region.y - view.region.y + len(above) - 1
    return 0
