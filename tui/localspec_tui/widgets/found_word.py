"""Marking a searched word in a message: every occurrence is underlined, and one is selected."""

from collections.abc import Callable, Iterator

from textual.content import Content, Span
from textual.geometry import Offset
from textual.selection import Selection
from textual.widgets import Static

from localspec.store.searched_words import span
from localspec_tui.widgets.message_view import MessageView

ELSEWHERE = "bold underline"  # style of the other occurrences


def mark_words(view: MessageView, word: str, at: int) -> tuple[int, Callable[[], None]]:
    """Underline a word in a message, and select occurrence number `at`, or the last one if fewer are shown.

    Return the row of that occurrence, and a function that removes the marks. The row is 0 if the word is only in the
    source of the message.
    """
    found: list[tuple[Static, Content, tuple[int, int]]] = []
    marked: list[tuple[Static, Content, Content]] = []
    for one in view.query(Static):
        text = one.visual
        if isinstance(text, Content) and one.region.height and (spans := [*_spans(word, text.plain)]):
            found += ((one, text, here) for here in spans)
            with_marks = type(text)(text.plain, [*text.spans, *(Span(*here, ELSEWHERE) for here in spans)])
            one.update(with_marks, layout=False)
            marked.append((one, text, with_marks))

    def unmark() -> None:
        for one, text, with_marks in marked:
            if one.is_attached and one.visual is with_marks:  # otherwise the message has changed since
                one.update(text, layout=False)

    if not found:
        return 0, unmark
    one, text, hit = found[min(at, len(found) - 1)]
    line, begin = text.plain.count("\n", 0, hit[0]), text.plain.rfind("\n", 0, hit[0]) + 1
    view.screen.selections = {one: Selection(*(Offset(place - begin, line) for place in hit))}
    above = Content(text.plain[: hit[1]]).wrap(max(one.content_size.width, 1))
    return one.content_region.y - view.region.y + len(above) - 1, unmark


def _spans(word: str, text: str) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each occurrence of a word."""
    start = 0
    while hit := span(word, text[start:]):
        yield start + hit[0], start + hit[1]
        start += max(hit[1], 1)
