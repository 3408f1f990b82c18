"""A Markdown text that grows while a reply streams. Only its tail is parsed again, so each append costs about the same.

    # Title           settled block
    A paragraph.      settled block
    - an item         the tail: it is parsed again with every append, because its last block may still change
    - another it

If the tail is one block of more than PIECE characters, that block is divided, and its beginning is settled too.
"""

import re
from dataclasses import replace

from markdown_it.token import Token

from localspec_tui.markdown_parser import parser
from localspec_tui.reply_blocks import BlockReader, ReplyBlock, with_more

LONGEST = 64 * 1024  # bytes; a longer text is shown as plain text
PIECE = 2048  # characters of the tail, beyond which its last block is divided
AGAIN = 8  # a long block that cannot be divided is parsed again after growing by 1/8

# A last line that may still become something else: "-" below a paragraph makes it a heading, but "- x" is an item.
_OPEN = re.compile(r"#{1,6}|[-=+*_ \t]+|`{2,}|~+|\d{1,9}[.)]|[|: \t-]+")
_WORD = re.compile(r"(?<=\s)[^\W\d_]")  # a place where a paragraph can be divided
_HARD_BREAK = re.compile(r"(?: {2,}|\\)\n\Z")


def is_long(text: str) -> bool:
    """Return whether a text is too long to be parsed as Markdown."""
    return 4 * len(text) > LONGEST and len(text.encode(errors="replace")) > LONGEST


def read_blocks(text: str) -> list[ReplyBlock]:
    """Return the blocks of a whole text. It may be called on any thread."""
    if is_long(text):
        return [ReplyBlock("plain", text.expandtabs(8))]
    return BlockReader().read(parser().parse(text))


def _without_open_line(text: str) -> str:
    """Return a text without its last line if that line may still change its meaning. It is not displayed yet."""
    before, _, line = text.rpartition("\n")
    words = line.lstrip(" \t>").rstrip(" \t")  # apart from the blanks, over which a pattern would take cubic time
    is_open = bool(_OPEN.fullmatch(words)) if words else line.endswith((" ", "\t"))
    return before if is_open else text


class GrowingDocument:
    """A growing text, and its blocks. The first `settled` blocks no longer change."""

    def __init__(self) -> None:
        self.set("", [])

    def set(self, source: str, blocks: list[ReplyBlock]) -> None:
        """Use this text. `blocks` is the result of `read_blocks` for it."""
        self.source, self.blocks = source, blocks
        self.settled = 0
        self._tail_at = 0  # where the tail begins in the source
        self._undivided()

    def _undivided(self) -> None:
        """Record that the tail begins with a whole block."""
        self._opening = ""  # parsed before the tail: the first line of a fence, or the header of a table
        self._base: ReplyBlock | None = None  # the settled beginning of a divided block that the tail continues
        self._in_list = False  # whether the tail begins with an item of a divided list
        self._number: int | None = None  # the number of that item
        # Lengths of the tail: when it was parsed last, and when it is parsed next.
        self._read, self._next_read = 0, 0
        self._shown_then: list[ReplyBlock] = []  # the blocks of the tail when it was parsed last

    def append(self, text: str) -> None:
        """Append to the text. Only blocks that are not settled change."""
        self.source += text
        if is_long(self.source):
            self.settled, self.blocks = 0, [ReplyBlock("plain", self.source.expandtabs(8))]
        else:
            self._read_tail()

    def _read_tail(self) -> None:
        """Parse the tail, and settle the blocks before its last one."""
        tail = self.source[self._tail_at :]
        if len(tail) < self._next_read:  # too early to parse: show what was added as plain text
            rest = " ".join(tail[self._read :].split())
            self.blocks[self.settled :] = [*self._shown_then, *([ReplyBlock("paragraph", rest)] if rest else [])]
            return
        tail = _without_open_line(tail)
        reader = self._reader_of(tail)
        blocks = self._joined(reader.blocks)
        self.blocks[self.settled :] = blocks
        if not reader.tops:
            return
        last, first_block = reader.tops[-1]
        line = last.map[0] if last.map is not None else 0
        at = _line_begin(self._opening + tail, line) - len(self._opening)
        if at > 0:  # there are blocks before the last one, and they are complete
            self.settled += first_block + len(blocks) - len(reader.blocks)
            self._tail_at += at
            tail = tail[at:]
            self._undivided()
        else:
            line = 0
        if len(tail) > PIECE:
            self._divide(last, tail, [one - line for one in reader.items])

    def _reader_of(self, tail: str) -> BlockReader:
        """Return a reader that has parsed this tail."""
        reader = BlockReader(self._number)
        reader.read(parser().parse(self._opening + tail))
        return reader

    def _joined(self, blocks: list[ReplyBlock]) -> list[ReplyBlock]:
        """Return the blocks of the tail. The first one is joined to the beginning of a divided block."""
        base = self._base
        if base is None:
            if not blocks:
                return []
            return [replace(blocks[0], above=int(self.settled > 0 and not self._in_list)), *blocks[1:]]
        if not blocks:
            return [base]
        if base.kind != blocks[0].kind:
            return [base, replace(blocks[0], above=1), *blocks[1:]]
        return [with_more(base, blocks[0]), *blocks[1:]]

    def _divide(self, last: Token, tail: str, items: list[int]) -> None:
        """Divide the long last block, and settle its beginning.

        A paragraph is divided between words, code and tables between lines, and a list before its last item.
        """
        opening, number, at = self._opening, self._number, 0
        if last.type == "paragraph_open":
            places = _WORD.finditer(tail, len(tail) - PIECE // 2)
            at = max((found.start() for found in places), default=0)
        elif last.type == "fence" and not _closes(tail, last.markup):
            at, opening = tail.rfind("\n") + 1, opening or tail[: _line_begin(tail, 1)]
        elif last.type == "table_open":
            at, opening = tail.rfind("\n") + 1, opening or tail[: _line_begin(tail, 2)]
        elif last.type.endswith("list_open") and len(items) > 1:
            at = _line_begin(tail, items[-1])
        reader = self._reader_of(tail[:at])
        if at <= 0 or len(reader.tops) != 1 or reader.tops[0][0].type != last.type:  # it cannot be divided
            self._read, self._next_read = len(tail), len(tail) + len(tail) // AGAIN
            self._shown_then = self.blocks[self.settled :]
            return
        blocks = self._joined(reader.blocks)
        self.blocks[self.settled :] = blocks
        before = self._base
        self._undivided()
        self._tail_at += at
        if last.type.endswith("list_open"):
            self.settled += len(blocks)
            self._in_list = True
            if last.type == "ordered_list_open":
                first = int(last.attrs.get("start", 1)) if number is None else number
                self._number = first + len(items) - 1
        else:
            self.settled += len(blocks) - 1
            self._base = blocks[-1]
            if last.type == "fence":
                raw = reader.tops[0][0].content.expandtabs(8)
                self._base = replace(blocks[-1], text=(before.text if before is not None else "") + raw)
            elif last.type == "paragraph_open":
                glue = "\n" if _HARD_BREAK.search(tail, 0, at) else " "
                self._base = replace(blocks[-1], text=blocks[-1].text + glue)
            self._opening = "" if last.type == "paragraph_open" else opening
        self._read_tail()


def _line_begin(text: str, line: int) -> int:
    """Return the position where a line begins. The first line is 0."""
    at = 0
    for _ in range(line):
        at = text.find("\n", at) + 1
        if not at:
            return len(text)
    return at


def _closes(tail: str, markup: str) -> bool:
    """Return whether the last line closes a fence, or may do so when it is complete."""
    line = tail.rstrip().rpartition("\n")[2].strip()
    return line.startswith(markup) and not line.strip(markup[0])
