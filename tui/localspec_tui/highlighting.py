"""Syntax highlighting of code. The language must be named, because guessing it can take minutes."""

import time
from functools import lru_cache

from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound
from textual.content import Span
from textual.highlight import ANSIDarkHighlightTheme, ANSILightHighlightTheme, HighlightTheme

LONGEST = 8192  # characters; longer code is not highlighted
SECONDS = 0.1  # after this time, the rest of the code is not highlighted


@lru_cache(maxsize=32)
def highlighted(code: str, language: str, ansi: bool, dark: bool) -> tuple[Span, ...]:
    """Return the styles of a piece of code, in the order of the text."""
    if not language or len(code) > LONGEST:
        return ()
    try:
        lexer = get_lexer_by_name(language, stripnl=False, ensurenl=True)
    except ClassNotFound:
        return ()
    theme = (ANSIDarkHighlightTheme if dark else ANSILightHighlightTheme) if ansi else HighlightTheme
    spans, at, end = [], 0, time.perf_counter() + SECONDS
    for kind, text in lexer.get_tokens(code):
        while kind is not None and kind not in theme.STYLES:
            kind = kind.parent
        if kind is not None and (style := theme.STYLES[kind]):
            spans.append(Span(at, at + len(text), style))
        at += len(text)
        if time.perf_counter() > end:
            break
    return tuple(spans)
