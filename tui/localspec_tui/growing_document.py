"""A Markdown text that grows while a reply streams. Only its tail is parsed again.

    # Title           settled block
    A paragraph.      settled block
    - an item         the tail: it is parsed again with every append, because its last block may still change
    - another it

A tail of more than LONG characters is one long block. It is parsed again only after it has grown by an eighth.
"""

import re
from dataclasses import replace

from localspec_tui.markdown_parser import parser
from localspec_tui.reply_blocks import Block, BlockReader

LONGEST = 64 * 1024  # bytes; a longer text is shown as plain text
LONG = 4096  # characters of the tail
AGAIN = 8  # a long tail is parsed again after growing by 1/8

# A last line that may still become something else: "-" below a paragraph makes it a heading, but "- x" is an item.
# Such a line is not shown yet.
_OPEN_LINE = re.compile(r"(?:^|\n)[ \t>]*(?:#{1,6}|[-=+*_ \t]+|`{2,}|~+|\d{1,9}[.)]|[|: \t-]+)[ \t]*\Z")


def is_long(text: str) -> bool:
    """Return whether a text is too long to be parsed as Markdown."""
    return 4 * len(text) > LONGEST and len(text.encode(errors="replace")) > LONGEST


def read_blocks(text: str) -> list[Block]:
    """Return the blocks of a whole text. This is safe on any thread."""
    if is_long(text):
        return [Block("plain", text.expandtabs(8))]
    return BlockReader().read(parser().parse(text))


class GrowingDocument:
    """A text to which more is appended, and its blocks. The first `settled` blocks no longer change."""

    def __init__(self) -> None:
        self.set("", [])

    def set(self, source: str, blocks: list[Block]) -> None:
        """Show this text. `blocks` is what `read_blocks` returned for it."""
        self.source, self.blocks = source, blocks
        self.settled = 0
        self._tail_at = 0  # where the tail begins in the source
        self._read = 0  # characters of the tail that were parsed
        self._shown: list[Block] = []  # the blocks of the tail when it was parsed last

    def append(self, text: str) -> None:
        """Append to the text. Only blocks that are not settled change."""
        self.source += text
        if is_long(self.source):
            self.settled, self.blocks = 0, [Block("plain", self.source.expandtabs(8))]
            return
        tail = self.source[self._tail_at :]
        if self._read > LONG and len(tail) < self._read + self._read // AGAIN:
            self._show(self._continued(tail[self._read :]))
            return
        self._read = tail.rfind("\n") + 1 if len(tail) > LONG and "\n" in tail else len(tail)
        tail, rest = tail[: self._read], tail[self._read :]
        if open_line := _OPEN_LINE.search(tail):
            tail = tail[: open_line.start()]
        reader = BlockReader()
        self._shown = reader.read(parser().parse(tail))
        if self._shown and self.settled:
            self._shown[0] = replace(self._shown[0], above=1)
        self._show(self._continued(rest))
        last, first_block = reader.tops[-1] if reader.tops else (None, 0)
        if last is not None and last.map is not None and (line := last.map[0]):  # the blocks before it are complete
            at = len("\n".join(tail.split("\n")[:line])) + 1
            self.settled += first_block
            self._tail_at, self._read, self._shown = self._tail_at + at, self._read - at, self._shown[first_block:]

    def _show(self, blocks: list[Block]) -> None:
        self.blocks[self.settled :] = blocks

    def _continued(self, text: str) -> list[Block]:
        """Return the blocks of the tail with a text that is not parsed yet: more code, or else a paragraph."""
        if self._shown and self._shown[-1].kind == "code":
            last = self._shown[-1]
            return [*self._shown[:-1], replace(last, text=f"{last.text}\n{text.expandtabs(8)}".rstrip())]
        rest = " ".join(text.split())
        return [*self._shown, *([Block("paragraph", rest)] if rest else [])]
