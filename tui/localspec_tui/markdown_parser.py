"""Parses Markdown as models write it. HTML is text, formulas stay as they are written, and all text is made safe."""

import re
import threading
from collections.abc import Iterable, Iterator
from functools import cache

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock
from markdown_it.rules_core import StateCore
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token

from localspec.text import one_line, safe

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
    """Return a parser without HTML; decoded entities such as &#27; are made safe."""
    # Definitions of links and labels: without them, the address of [1] would not be shown.
    markdown = MarkdownIt("gfm-like", {"html": False, "inline_definitions": True, "store_labels": True})
    markdown.core.ruler.push("safe", _make_safe)
    markdown.block.ruler.before("table", "deep", _as_it_stands)
    markdown.block.ruler.before("table", "formula", _formula_in_lines, {"alt": ["paragraph"]})
    markdown.inline.ruler.before("escape", "formula", _keep_formula)
    return markdown


def _as_it_stands(state: StateBlock, first: int, end: int, silent: bool) -> bool:
    """Make one paragraph of text that is nested too deeply, which markdown-it would drop with all text after it."""
    if silent or state.level < DEEPEST:
        return False
    after = first
    while after < end and (state.isEmpty(after) or state.sCount[after] >= state.blkIndent):
        after += 1
    _add_paragraph(state, first, after)
    return True


def _formula_in_lines(state: StateBlock, first: int, end: int, silent: bool) -> bool:
    r"""Make a line with \[ or $$ begin a paragraph. Within the formula "- b" is no list, and "=" no heading."""
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
    r"""Keep a formula as text. Markdown would read LaTeX's backslashes as escapes, and text inside \( … \) as emphasis.

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


def _decoded(found: re.Match[str]) -> str:
    return bytes.fromhex(found[0].replace("%", "")).decode(errors="replace")


def _with_children(tokens: Iterable[Token]) -> Iterator[Token]:
    for token in tokens:
        yield token
        yield from _with_children(token.children or ())
