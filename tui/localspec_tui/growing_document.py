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
import threading
from collections.abc import Iterable, Iterator, Sequence
from functools import cache

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock
from markdown_it.rules_core import StateCore
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token

from localspec.text import one_line, safe
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
    complete, _, line = text.rpartition("\n")
    words = line.lstrip(" \t>").rstrip(" \t")  # apart from the blanks, over which a pattern would take cubic time
    is_open = bool(_OPEN.fullmatch(words)) if words else line.endswith((" ", "\t"))
    return complete if is_open else text


class GrowingDocument:
    """A growing text, and its blocks. The first `settled` blocks no longer change."""

    def __init__(self, source: str = "", blocks: Sequence[ReplyBlock] = ()) -> None:
        """Begin with the text `source`. `blocks` is the result of `read_blocks` for this text."""
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
        """Parse the tail. Return the text of the tail, and a reader that has its blocks. Any thread may call this."""
        tail, reader = _without_open_line(self.source[self._tail_at :]).rstrip(), BlockReader()
        reader.read(parser().parse(tail))
        return tail, reader

    def settle(self, tail: str, reader: BlockReader) -> None:
        """Replace the blocks of the tail by the parsed ones. All but the last are settled: they no longer change."""
        blocks = reader.blocks
        if blocks and self.settled:
            blocks[0].above = int(is_loose(self.blocks[self.settled - 1], blocks[0]))
        self.blocks[self.settled :] = blocks
        line, block = reader.last
        at = sum(len(row) + 1 for row in tail.split("\n")[:line])
        self.settled += block
        self._tail_at += at
        self._tail = blocks[block:]
        self._parsed = 0 if self._tail and self._tail[-1].kind == "code" else len(tail) - at


# -- Markdown as models write it: HTML is text, formulas stay as they are written, and all text is made safe -----------

# The beginning of a formula and its end; display formulas, then inline ones.
_DISPLAYED = {r"\[": r"\]", "$$": "$$"}  # on separate lines
_OF_FORMULAS = _DISPLAYED | {r"\(": r"\)", r"\)": "", r"\]": "", r"\,": ""}
LONGEST_FORMULA = 2000  # characters: an unclosed formula is not searched for its end through the whole reply
_NOT_ASCII = re.compile("(?:%[89A-F][0-9A-F])+")  # as markdown-it writes it in an address
DEEPEST = 12  # nested quotes, or twice the nested lists: an indent of 24 columns


def parser() -> MarkdownIt:
    """Return this thread's parser. No other thread may use it, because it stores the text that is being parsed."""
    return _parser_of(threading.get_ident())


@cache  # making one takes longer than parsing a paragraph
def _parser_of(_thread: int) -> MarkdownIt:
    """Return a Markdown parser that leaves HTML as text, and removes control characters such as &#27; (Escape)."""
    # Definitions of links and labels: without them, the address of [1] would not be shown.
    markdown = MarkdownIt("gfm-like", {"html": False, "inline_definitions": True, "store_labels": True})
    markdown.core.ruler.push("safe", _make_safe)
    markdown.block.ruler.before("table", "deep", _flatten_deep_text)
    markdown.block.ruler.before("table", "formula", _formula_in_lines, {"alt": ["paragraph"]})
    markdown.inline.ruler.before("escape", "formula", _keep_formula)
    return markdown


def _flatten_deep_text(state: StateBlock, first: int, end: int, silent: bool) -> bool:
    """Make one paragraph of text that is nested too deeply for markdown-it. Return whether the text is too deep."""
    if silent or state.level < DEEPEST:
        return False
    after = first
    while after < end and (state.isEmpty(after) or state.sCount[after] >= state.blkIndent):
        after += 1
    _add_paragraph(state, first, after)
    return True


def _formula_in_lines(state: StateBlock, first: int, end: int, silent: bool) -> bool:
    r"""Read a formula that begins with \[ or $$ as one paragraph. Return whether a formula begins at line `first`.

    Markdown would read a line of the formula such as "- b" as a list, and "=" as a heading.
    """
    begin = state.bMarks[first] + state.tShift[first]
    closing = _DISPLAYED.get(state.src[begin : begin + 2])
    if closing is None or state.is_code_block(first) or closing in state.src[begin + 2 : state.eMarks[first]]:
        return False
    after, closed = first + 1, False
    while after < end and not closed and not state.isEmpty(after) and state.sCount[after] >= state.blkIndent:
        closed = closing in state.src[state.bMarks[after] : state.eMarks[after]]
        after += 1
    if not silent:
        _add_paragraph(state, first, after)
    return True


def _add_paragraph(state: StateBlock, first: int, after: int) -> None:
    state.push("paragraph_open", "p", 1).map = [first, after]
    text = state.push("inline", "", 0)
    text.content, text.children = state.getLines(first, after, state.blkIndent, False).strip(), []
    state.push("paragraph_close", "p", -1)
    state.line = after


def _keep_formula(state: StateInline, silent: bool) -> bool:
    r"""Keep a formula as text, without Markdown's escapes and emphasis. Return whether a formula begins here.

    The formula keeps its line breaks. If it begins a paragraph and is not closed (yet), it takes the whole paragraph.
    """
    begun = state.src[state.pos : min(state.pos + 2, state.posMax)]
    if begun not in _OF_FORMULAS:
        return False
    end = min(state.pos + LONGEST_FORMULA, state.posMax)
    closed = state.src.find(_OF_FORMULAS[begun], state.pos + 2, end) if _OF_FORMULAS[begun] else -1
    after = state.pos + 2 if closed < 0 else closed + 2
    if closed < 0 and begun in _DISPLAYED and state.pos == 0:
        after = end
    if not silent:
        for number, line in enumerate(state.src[state.pos : after].split("\n")):
            if number:
                state.push("hardbreak", "br", 0)
            state.push("text", "", 0).content = line.strip() if number else line
    state.pos = after
    return True


def _make_safe(state: StateCore) -> None:
    for token in _with_children(state.tokens):
        if token.type == "definition":
            url, title = _NOT_ASCII.sub(_decoded, token.meta["url"]), token.meta["title"]
            token.content = f"[{token.meta['label']}]: {url}{title and ' '}{title}"
            token.attrs = {"href": token.meta["url"]}
        token.content = safe(token.content)
        token.info = one_line(token.info).partition(" ")[0]  # the language of a fence, without additions
        token.attrs = {name: safe(value) if isinstance(value, str) else value for name, value in token.attrs.items()}


def _decoded(match: re.Match[str]) -> str:
    return bytes.fromhex(match[0].replace("%", "")).decode(errors="replace")


def _with_children(tokens: Iterable[Token]) -> Iterator[Token]:
    for token in tokens:
        yield token
        yield from _with_children(token.children or ())
