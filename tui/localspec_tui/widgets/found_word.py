"""Marking a searched word in a message: every occurrence is underlined, and one is selected."""

from collections.abc import Callable, Iterator
from unicodedata import is_normalized

from textual.content import Content, Span
from textual.geometry import Offset
from textual.selection import Selection
from textual.widgets import Static

from localspec.store.searched_words import fold, span
from localspec_tui.block_view import BlockView
from localspec_tui.widgets.message_view import MessageView

MOST = 1000  # occurrences that are marked in one text
ELSEWHERE = "bold underline"  # style of the other occurrences


def mark_words(view: MessageView, word: str, at: int) -> tuple[int, Callable[[], None]]:
    """Underline a word in a message, and select occurrence number `at`, or the last one if fewer are shown.

    Return the row of that occurrence, and a function that removes the marks. The row is 0 if the word is only in the
    source of the message.
    """
    view_of_blocks = next(iter(view.query(BlockView).results(BlockView)), None)
    if view_of_blocks is not None:
        return _mark_in_blocks(view, view_of_blocks, word, at)
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


def _mark_in_blocks(view: MessageView, shown: BlockView, word: str, at: int) -> tuple[int, Callable[[], None]]:
    spans = {number: found for number, block in enumerate(shown.blocks) if (found := [*_spans(word, block.text)])}
    shown.mark(spans)
    places = [(number, *span) for number, found in spans.items() for span in found]
    row = shown.select(*places[min(at, len(places) - 1)]) + shown.content_region.y - view.region.y if places else 0
    return row, lambda: shown.mark({})


def _spans(word: str, text: str) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each occurrence of a word, the first MOST of them."""
    if len(fold(text)) == len(text) and is_normalized("NFC", text):  # character by character
        folded, start = fold(text), 0
        for _ in range(MOST):
            if (start := folded.find(word, start)) < 0:
                return
            yield start, start + len(word)
            start += len(word)
        return
    begin, left = 0, MOST
    for line in text.split("\n"):
        start = 0
        while left and (hit := span(word, line[start:])):
            yield begin + start + hit[0], begin + start + hit[1]
            start += max(hit[1], 1)
            left -= 1
        begin += len(line) + 1
