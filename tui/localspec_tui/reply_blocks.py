"""A reply as a flat list of blocks. A block has a text with styles, and bullets or bars to its left."""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from markdown_it.token import Token

BULLETS = ("• ", "▪ ", "‣ ", "⭑ ", "◦ ")  # by the depth of the list
QUOTE = "▌ "
IMAGE = "🖼  "
TAB = 8  # columns
BETWEEN_CELLS = " │ "  # in the text of a row of a table

_BLANKS = re.compile(r"\s+")


class StyledRun(NamedTuple):
    """A range of a text with styles (`marks`, such as "strong"), and an address if the range is a link."""

    start: int
    end: int
    marks: tuple[str, ...]
    href: str = ""


class Margin(NamedTuple):
    """One level of indentation: a bullet, a number, the bar of a quote, or blanks."""

    text: str
    is_quote: bool = False


@dataclass
class ReplyBlock:
    """A paragraph, heading, table, piece of code or rule.

    An example: a paragraph in a list in a quote, with a blank row above it.

        ▌                   `above` = 1, with `between` to the left
        ▌ • The first row   `lead`
        ▌   and the next    `rest`

    For a table, `cells` has the range of each cell in the text, by rows.
    """

    kind: str
    text: str = ""
    runs: list[StyledRun] = field(default_factory=list)
    lead: tuple[Margin, ...] = ()
    rest: tuple[Margin, ...] = ()
    above: int = 0
    between: tuple[Margin, ...] = ()
    language: str = ""
    source: str = ""  # of code and plain text, with its tabs
    cells: list[list[tuple[int, int]]] = field(default_factory=list)

    def source_text(self, start: int, end: int) -> str:
        """Return the text from `start` to `end` as the model wrote it, with tabs where `text` has blanks."""
        if "\t" not in self.source:
            return self.text[start:end]
        characters, at, column = [], 0, 0
        for character in self.source:
            width = TAB - column % TAB if character == "\t" else 1
            if start < at + width and at < end:
                characters.append(character)
            at, column = at + width, 0 if character == "\n" else column + width
        return "".join(characters)

    def runs_in(self, start: int, end: int) -> Iterator[StyledRun]:
        """Yield the runs between `start` and `end`, clipped to this range."""
        at = bisect_right(self.runs, start, key=lambda run: run.end)
        while at < len(self.runs) and self.runs[at].start < end:
            run = self.runs[at]
            yield run._replace(start=max(run.start, start), end=min(run.end, end))
            at += 1


@dataclass(eq=False)
class _Container:
    """A quote, list or list item that is being read. `marker` goes left of its first line; then `used` is True."""

    kind: str
    marker: Margin | None = None
    used: bool = False

    def margin(self) -> Margin | None:
        """Return the margin of the next line: the marker, or blanks below the marker of an item."""
        if self.marker is None or self.kind == "quote" or not self.used:
            return self.marker
        return Margin(" " * len(self.marker.text))


class BlockReader:
    """A converter from markdown-it tokens to blocks."""

    def __init__(self) -> None:
        self.blocks: list[ReplyBlock] = []
        self.last = (0, 0)  # the line and the number of the block where the last token of the outer level begins
        self._open: list[_Container] = []
        self._last_open: list[_Container] = []  # the containers that were open at the last block
        self._numbers: list[Iterator[str] | None] = []  # item numbers of each open list; None for bullets

    def read(self, tokens: "Sequence[Token]") -> list[ReplyBlock]:
        """Return the blocks of these tokens."""
        at = 0
        while at < len(tokens):
            token = tokens[at]
            if token.level == 0 and token.nesting >= 0 and token.map is not None:
                self.last = token.map[0], len(self.blocks)
            match token.type:
                case "paragraph_open" | "heading_open":
                    kind = "paragraph" if token.type == "paragraph_open" else token.tag
                    self._add(ReplyBlock(kind, *inline(tokens[at + 1])))
                    at += 2
                case "fence" | "code_block":
                    self._add(ReplyBlock("code", code(token.content), language=token.info, source=token.content))
                case "definition":
                    text, href = " ".join(token.content.split()), str(token.attrs["href"])
                    self._add(ReplyBlock("definition", text, [StyledRun(text.index("]:") + 3, len(text), (), href)]))
                case "hr":
                    self._add(ReplyBlock("rule"))
                case "table_open":
                    at = self._add_table(tokens, at)
                case "blockquote_open":
                    self._open.append(_Container("quote", Margin(QUOTE, is_quote=True)))
                case "bullet_list_open" | "ordered_list_open":
                    self._open.append(_Container("list"))
                    self._numbers.append(None if token.type == "bullet_list_open" else self._list_numbers(tokens, at))
                case "list_item_open":
                    numbers = self._numbers[-1]
                    depth = sum(counter is None for counter in self._numbers) - 1
                    marker = BULLETS[depth % len(BULLETS)] if numbers is None else next(numbers)
                    self._open.append(_Container("item", Margin(marker)))
                case "bullet_list_close" | "ordered_list_close":
                    self._open.pop()
                    self._numbers.pop()
                case "list_item_close" | "blockquote_close":
                    if not self._open[-1].used:
                        self._add(ReplyBlock("paragraph"))  # an empty item or quote
                    self._open.pop()
            at += 1
        return self.blocks

    def _add(self, block: ReplyBlock) -> None:
        """Add a block, with margins for the open containers."""
        if self.blocks:
            pairs = zip(self._open, self._last_open, strict=False)
            shared = [container for container, other in pairs if container is other]
            loose = (not shared or shared[-1].kind == "quote") and is_loose(self.blocks[-1], block)
            block.above = int(loose or "code" in (self.blocks[-1].kind, block.kind))
            block.between = tuple(margin for container in shared if (margin := container.margin()))
        self._last_open = [*self._open]
        block.lead = tuple(margin for container in self._open if (margin := container.margin()))
        for container in self._open:
            container.used = True
        block.rest = tuple(margin for container in self._open if (margin := container.margin()))
        self.blocks.append(block)

    def _list_numbers(self, tokens: "Sequence[Token]", at: int) -> Iterator[str]:
        """Return the numbers of the items of a list, aligned to the right."""
        level, count, after = tokens[at].level, 0, at + 1
        while tokens[after].level > level:
            count += tokens[after].type == "list_item_open" and tokens[after].level == level + 1
            after += 1
        first = int(tokens[at].attrs.get("start", 1))
        width = len(str(first + count - 1)) + 3
        mark = tokens[at].markup or "."
        return iter([f"{number}{mark} ".rjust(width) for number in range(first, first + count)])

    def _add_table(self, tokens: "Sequence[Token]", at: int) -> int:
        """Add a table whose first token is at index `at`. Return the index of its last token."""
        block, parts, size = ReplyBlock("table"), list[str](), 0
        while tokens[at].type != "table_close":
            token = tokens[at]
            if token.type == "tr_open":
                block.cells.append([])
                if parts:
                    parts.append("\n")
                    size += 1
            elif token.type == "inline":
                if block.cells[-1]:
                    parts.append(BETWEEN_CELLS)
                    size += len(BETWEEN_CELLS)
                text, runs = inline(token)
                text = text.replace("\n", " ")
                block.cells[-1].append((size, size + len(text)))
                block.runs += (run._replace(start=run.start + size, end=run.end + size) for run in runs)
                parts.append(text)
                size += len(text)
            at += 1
        block.text = "".join(parts)
        self._add(block)
        return at


def is_loose(previous: ReplyBlock, block: ReplyBlock) -> bool:
    """Return whether a blank row separates these top-level blocks. Two definitions of links have none between them."""
    return not previous.kind == block.kind == "definition"


def inline(token: "Token") -> tuple[str, list[StyledRun]]:
    """Return the text of an inline token, and its runs.

    Nested marks become consecutive runs: "*a **b** c*" gives "a " (em), "b" (em, strong) and " c" (em).
    """
    parts: list[str] = []
    runs: list[StyledRun] = []
    depths = {"em": 0, "strong": 0, "s": 0}
    hrefs: list[str] = []
    ends: list[str] = []
    size = 0

    def add(text: str, *more: str, href: str = "") -> None:
        nonlocal size
        if not text:
            return
        marks = (*(mark for mark, depth in depths.items() if depth), *more)
        href = href or (hrefs[-1] if hrefs else "")
        if marks or href:
            if runs and runs[-1].end == size and runs[-1][2:] == (marks, href):
                runs[-1] = runs[-1]._replace(end=size + len(text))
            else:
                runs.append(StyledRun(size, size + len(text), marks, href))
        parts.append(text)
        size += len(text)

    children = token.children or []
    for at, child in enumerate(children):
        match child.type:
            case "text":
                add(_BLANKS.sub(" ", child.content))
            case "hardbreak":
                add("\n")
            case "softbreak":
                add(" ")
            case "code_inline":
                add(child.content, "code_inline")
            case "link_open":
                hrefs.append(str(child.attrs.get("href", "")))
                ends.append("]" if _is_label(children, at) else "")
                add("[" if ends[-1] else "")
            case "link_close":
                add(ends.pop())
                hrefs.pop()
            case "image":
                alt = "".join(piece.content for piece in child.children or ())
                add(f"{IMAGE}{alt}", href=str(child.attrs.get("src", "")))
            case _ if child.tag in depths:
                depths[child.tag] += child.nesting
    return "".join(parts), runs


def _is_label(children: "Sequence[Token]", at: int) -> bool:
    """Return whether the link at index `at` shows only a label, such as [1], whose address is defined elsewhere."""
    from markdown_it.common.utils import normalizeReference  # after the first paint

    label, text = children[at].meta.get("label"), ""
    while label and children[at].type != "link_close":
        text += children[at].content
        at += 1
    return bool(label) and normalizeReference(text) == label


def code(content: str) -> str:
    """Return code without blank lines at its end, and with tabs expanded."""
    return content.rstrip().expandtabs(TAB)


def plain(text: str) -> ReplyBlock:
    """Return a text without Markdown as one block."""
    return ReplyBlock("plain", text.expandtabs(TAB), source=text)
