"""How Markdown is read as a model writes it: HTML is text, formulas stay as they are written, and nothing is unsafe."""

import threading
from collections.abc import Iterable, Iterator

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock
from markdown_it.rules_core import StateCore
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token

from localspec.text import one_line, safe

# What a formula begins with, and what ends it; the rest stands in one, or alone while it comes.
_DISPLAYED = {r"\[": r"\]", "$$": "$$"}  # on lines of its own
_OF_FORMULAS = _DISPLAYED | {r"\(": r"\)", r"\)": "", r"\]": "", r"\,": ""}
LONGEST_FORMULA = 2000  # characters: of many that are never closed, none is looked for to the end of the reply
MOST_BRACKETS = 500  # in one paragraph
DEEPEST = 12  # quotes, or twice the lists, one within the other: an indent of 24 columns


_parsers = threading.local()  # a parser remembers what it looks for links in


def parser() -> MarkdownIt:
    """Return the parser of this thread: to make one takes longer than to read a paragraph."""
    if not hasattr(_parsers, "one"):
        _parsers.one = _new_parser()
    found: MarkdownIt = _parsers.one
    return found


def _new_parser() -> MarkdownIt:
    """Return one without HTML; what entities such as &#27; stand for is made safe after they were decoded."""
    markdown = MarkdownIt("gfm-like", {"html": False})
    markdown.core.ruler.before("inline", "brackets", _keep_many_brackets)
    markdown.core.ruler.push("safe", _make_safe)
    markdown.block.ruler.before("table", "deep", _as_it_stands)
    markdown.block.ruler.before("table", "formula", _formula_in_lines, {"alt": ["paragraph"]})
    markdown.inline.ruler.before("escape", "formula", _keep_formula)
    return markdown


def _as_it_stands(state: StateBlock, first: int, end: int, silent: bool) -> bool:
    """Turn what is nested too deep into one paragraph: markdown-it would leave out it and all that follows."""
    if silent or state.level < DEEPEST:
        return False
    after = first
    while after < end and (state.isEmpty(after) or state.sCount[after] >= state.blkIndent):
        after += 1
    _add_paragraph(state, first, after)
    return True


def _formula_in_lines(state: StateBlock, first: int, end: int, silent: bool) -> bool:
    r"""Let a line with \[ or $$ begin a paragraph: until it is closed, "- b" is not a list, "=" not a heading."""
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
    """Markdown would take the backslashes of LaTeX for escapes; and what \\( … \\) encloses is no emphasis either.

    It has the lines that it was written in. One that begins a paragraph and is not closed, or not yet, is all of it.
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


def _keep_many_brackets(state: StateCore) -> None:
    """Take a paragraph of very many brackets for text. To look for links in it would take seconds."""
    for token in state.tokens:
        if token.type == "inline" and token.content.count("[") > MOST_BRACKETS:
            lines = token.content.split("\n")
            token.children = [part for line in lines for part in (Token("softbreak", "br", 0), _text(line))][1:]
            token.content = ""


def _text(content: str) -> Token:
    token = Token("text", "", 0)
    token.content = content
    return token


def _make_safe(state: StateCore) -> None:
    for token in _with_children(state.tokens):
        token.content = safe(token.content)
        token.info = one_line(token.info).partition(" ")[0]  # the language of a fence, without what some add to it
        token.attrs = {name: safe(value) if isinstance(value, str) else value for name, value in token.attrs.items()}


def _with_children(tokens: Iterable[Token]) -> Iterator[Token]:
    for token in tokens:
        yield token
        yield from _with_children(token.children or ())
