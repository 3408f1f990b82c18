"""A Markdown text that grows while a reply streams. Only its tail is parsed again, so all appends cost about the same.

    # Title           settled block
    A paragraph.      settled block
    - an item         the tail: it is parsed again with every append, because its last block may still change
    - another it

If the tail has more than LONG characters, it is one long block. Code is still parsed with every append, because that is
quick. Any other long block is parsed on another thread, and only after it has grown by a fraction; until then new text
is shown unparsed.
"""

import re
from collections.abc import Sequence

from localspec_tui.markdown_parser import parser
from localspec_tui.reply_blocks import BlockReader, ReplyBlock, is_loose, plain

LONGEST = 64 * 1024  # bytes; a longer text is shown as plain text
LONG = 4096  # characters of the tail
AGAIN = 8  # a longer tail is parsed again after growing by 1/8

# A last line that may still become something else: "-" below a paragraph makes it a heading, but "- x" is an item.
_OPEN = re.compile(r"#{1,6}|[-=+*_ \t]+|`{2,}|~+|\d{1,9}[.)]|[|: \t-]+")


def is_long(text: str) -> bool:
    """Return whether a text is too long to be parsed as Markdown."""
    return 4 * len(text) > LONGEST and len(text.encode(errors="replace")) > LONGEST


def read_blocks(text: str) -> list[ReplyBlock]:
    """Return the blocks of a whole text. Any thread may call this."""
    if is_long(text):
        return [plain(text)]
    return BlockReader().read(parser().parse(text))


def _without_open_line(text: str) -> str:
    """Return the text to display. The last line is left out if more text may change its meaning."""
    before, _, line = text.rpartition("\n")
    words = line.lstrip(" \t>").rstrip(" \t")  # apart from the blanks, over which a pattern would take cubic time
    is_open = bool(_OPEN.fullmatch(words)) if words else line.endswith((" ", "\t"))
    return before if is_open else text


class GrowingDocument:
    """A growing text, and its blocks. The first `settled` blocks no longer change."""

    def __init__(self, source: str = "", blocks: Sequence[ReplyBlock] = ()) -> None:
        """Begin with a text. `blocks` is the result of `read_blocks` for it."""
        self.source, self.blocks = source, [*blocks]
        self.settled = 0
        self._tail_at = 0  # where the tail begins in the source
        self._parsed = 0  # characters of the tail when it was parsed last; 0 for code
        self._tail: list[ReplyBlock] = []  # its blocks then

    @property
    def is_slow(self) -> bool:
        """Return whether the tail is one long block, which takes long to parse."""
        return self._parsed > LONG

    def append(self, text: str) -> None:
        """Append to the text. Only blocks that are not settled change."""
        if self.add(text):
            self.settle(*self.read())

    def add(self, text: str) -> bool:
        """Append to the text, and show the new part unparsed. Return whether the tail should be parsed now."""
        self.source += text
        if is_long(self.source):
            self.settled, self.blocks = 0, [plain(self.source)]
            return False
        tail = self.source[self._tail_at :]
        self.blocks[self.settled :] = [*self._tail, plain(tail[self._parsed :].strip("\n"))]
        return not self.is_slow or len(tail) >= self._parsed + self._parsed // AGAIN

    def read(self) -> tuple[str, BlockReader]:
        """Parse the tail. Return its text and a reader of its blocks. Any thread may call this."""
        tail, reader = _without_open_line(self.source[self._tail_at :]).rstrip(), BlockReader()
        reader.read(parser().parse(tail))
        return tail, reader

    def settle(self, tail: str, reader: BlockReader) -> None:
        """Show the blocks of the tail, and settle all of them but the last."""
        blocks = reader.blocks
        if blocks and self.settled:
            blocks[0].above = int(is_loose(self.blocks[self.settled - 1], blocks[0]))
        self.blocks[self.settled :] = blocks
        line, block = reader.last
        at = sum(len(one) + 1 for one in tail.split("\n")[:line])
        self.settled += block
        self._tail_at += at
        self._tail = blocks[block:]
        self._parsed = 0 if self._tail and self._tail[-1].kind == "code" else len(tail) - at
