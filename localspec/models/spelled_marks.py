"""Encodes marks that a user types, such as <|im_end|>, as text, unlike the same marks of the chat template.

An example with the mark <|im_end|>, where ␣ is the stand-in for "<":

    typed by the user           Say <|im_end|> twice.
    set_apart                   Say ␣|im_end|> twice.
    after the chat template     <|im_start|>user\nSay ␣|im_end|> twice.<|im_end|>
    encode                      the template's marks as single tokens, the rest as text, with "<" for ␣
"""

import re
import secrets
from collections.abc import Callable, Collection
from functools import cached_property

from localspec.models.tokenizer import Tokenizer

# Stand-ins are high surrogates. Text has no surrogates, and JSON joins no two high ones into a character.
_FIRST, _MOST = 0xD800, 0x3FE
PROBE = "\udbff"  # a content for testing whether a template renders it
_BREAK = "\u200c"  # zero-width non-joiner
_ALIAS = (
    f"\ufdd0{secrets.token_hex(8)}\ufdd0"  # replaces each mark of the template; random, so that no user can type it
)
_HALF = re.compile("[\ud800-\udfff]")


def whole_characters(text: str) -> str:
    """Return a text with U+FFFD for each half of a surrogate pair, because a half is not a character."""
    return _HALF.sub("\N{REPLACEMENT CHARACTER}", text)


class SpelledMarks:
    """A codec for the marks of one tokenizer. It puts a stand-in in place of the first character of each typed mark.

    The chat template is rendered later, so every whole mark in the rendered text comes from the template.
    """

    def __init__(self, tokenizer: Tokenizer, marks: Collection[str]) -> None:
        self._tokenizer, self._marks = tokenizer, frozenset(filter(None, marks))
        self._lengths = sorted({len(mark) for mark in self._marks})
        firsts = sorted({mark[0] for mark in self._marks})
        self._begins = re.compile(f"[{re.escape(''.join(firsts))}]") if firsts else None
        self._stand_ins = {first: chr(_FIRST + index) for index, first in enumerate(firsts[:_MOST])}
        self._restore = {ord(stand_in): first for first, stand_in in self._stand_ins.items()}
        self._neutral = dict.fromkeys(self._restore, "\N{REPLACEMENT CHARACTER}")
        ids = {tokenizer.token_to_id(mark) for mark in self._marks}
        self._unknown = tokenizer.token_to_id(tokenizer.special_tokens.get("unk_token", ""))
        self._ids = frozenset(token for token in ids if token is not None)

    def set_apart(self, text: str) -> str:
        """Return a text with a stand-in for the first character of each mark in it."""
        return self._replaced(text, lambda first: self._stand_ins.get(first, first + _BREAK))

    def broken(self, text: str) -> str:
        """Return a text with an invisible character in each mark, for templates that change stand-ins."""
        return self._replaced(text, lambda first: first + _BREAK)

    def restored(self, text: str) -> str:
        """Return a text with each stand-in replaced by its character."""
        return text.translate(self._restore)

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Return the ids of a text with stand-ins: whole marks become tokens, and marks with a stand-in become text.

        Raises the errors of `Tokenizer.encode`.
        """
        if self.restored(text) == text:
            return self._tokenizer.encode(text, add_special_tokens)
        return self._encode(text, add_special_tokens)[0]

    def encode_with_offsets(self, text: str, add_special_tokens: bool) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the ids as `encode` does, and the range of characters of each. Raises the errors of `encode`."""
        if self.restored(text) == text:
            plain = self._tokenizer.encoding(text, add_special_tokens)
            return plain.ids, plain.offsets
        return self._encode(text, add_special_tokens)

    def _replaced(self, text: str, substitute: Callable[[str], str]) -> str:
        """Return a text with `substitute(first)` for the first character of each mark."""
        if self._begins is None:
            return text

        def replaced(match: re.Match[str]) -> str:
            start = match.start()
            spelled = any(text[start : start + length] in self._marks for length in self._lengths)
            return substitute(match[0]) if spelled else match[0]

        return self._begins.sub(replaced, text)

    def _encode(
        self, text: str, add_special_tokens: bool, split: bool = False
    ) -> tuple[list[int], list[tuple[int, int]]]:
        """Return ids and offsets of a text with stand-ins.

        With `split`, the text is also cut after each stand-in, so that no token spans a whole mark.
        """
        # 1. Find the template's marks. A span includes the blanks that the tokenizer strips around its mark.
        neutral = text.translate(self._neutral)
        around = self._tokenizer.encoding(neutral, False)
        coded = zip(around.ids, around.offsets, strict=True)
        cuts: list[tuple[int, int, int | None]] = [
            (*span, token) for token, span in coded if self._is_mark(token, neutral, span)
        ]
        if split:
            cuts += [(index + 1, index + 1, None) for index, char in enumerate(text) if ord(char) in self._restore]
            cuts.sort(key=lambda cut: cut[:2])
        # 2. Encode the whole text at once, with an alias for each mark. So the text around a mark is split and merged
        # as usual. `_literal` knows no mark but the alias.
        pieces, last = [], 0
        for start, end, _ in cuts:
            pieces += [self.restored(text[last:start]), _ALIAS]
            last = end
        literal = "".join([*pieces, self.restored(text[last:])])
        coded_text = self._literal.encoding(literal, add_special_tokens)
        # 3. Replace the aliases by the marks, and shift the spans to `text`. Alias and mark differ in length.
        alias, waiting, shift = self._literal.token_to_id(_ALIAS), iter(cuts), 0
        tokens: list[tuple[int, tuple[int, int]]] = []
        for token, (start, end), is_added in zip(
            coded_text.ids, coded_text.offsets, coded_text.special_tokens_mask, strict=True
        ):
            if token == alias:
                first, after, mark = next(waiting)
                shift = after - end
                tokens += [] if mark is None else [(mark, (first, after))]
            elif is_added:
                tokens.append((token, (start, end)))
            elif not split and self._is_mark(token, literal, (start, end)):  # text was merged into a whole mark
                return self._encode(text, add_special_tokens, split=True)
            else:
                tokens.append((token, (start + shift, end + shift)))
        return [token for token, _ in tokens], [span for _, span in tokens]

    def _is_mark(self, token: int, text: str, span: tuple[int, int]) -> bool:
        """Return whether a token is a mark. The unknown token is a mark only if the text spells it."""
        if token != self._unknown:
            return token in self._ids
        return text[slice(*span)].strip() == self._tokenizer.special_tokens["unk_token"]

    @cached_property
    def _literal(self) -> Tokenizer:
        """A tokenizer that reads marks as text.

        It is made only when needed, because it is as large as the original tokenizer.
        """
        return self._tokenizer.reading_as_text(self._marks, _ALIAS)
