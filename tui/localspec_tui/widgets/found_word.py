"""Marking a searched word in a message: every occurrence is underlined, and one is selected."""

from collections.abc import Callable, Iterator
from unicodedata import is_normalized

from localspec.store.searched_words import fold, span
from localspec_tui.block_view import BlockView
from localspec_tui.widgets.message_view import MessageView

MOST = 1000  # occurrences that are marked in one text


def mark_words(view: MessageView, word: str, at: int) -> tuple[int, Callable[[], None]]:
    """Underline a word in a message, and select occurrence number `at`, or the last one if fewer are shown.

    Return the row of that occurrence, and a function that removes the marks. The row is 0 if the word is only in the
    source of the message.
    """
    shown = view.query(BlockView).last()  # thoughts stand above the reply
    found = {number: spans for number, block in enumerate(shown.blocks) if (spans := [*_spans(word, block.text)])}
    shown.mark(found)
    places = [(number, *place) for number, spans in found.items() for place in spans]
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
