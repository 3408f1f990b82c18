"""Marks of turns that people spell, such as <|im_end|>: text to a model, unlike those of its chat template."""

import re
import secrets
from collections.abc import Callable, Collection
from functools import cached_property

from localspec.models.tokenizer import Tokenizer

# High surrogates: no text holds them, and none of two in a row becomes a character in JSON.
_FIRST, _MOST = 0xD800, 0x3FE
PROBE = "\udbff"  # marks a content of which a template is asked whether it writes it
_BREAK = "\u200c"  # zero-width non-joiner
_ALIAS = f"\ufdd0{secrets.token_hex(8)}\ufdd0"  # stands for the marks of a template; nobody can guess it
_HALF = re.compile("[\ud800-\udfff]")


def whole_characters(text: str) -> str:
    """Return a text with the replacement character for each half of a surrogate pair, which is no character."""
    return _HALF.sub("\N{REPLACEMENT CHARACTER}", text)


class SpelledMarks:
    """The marks of one tokenizer, and the stand-ins for the first characters of those that people spell.

    A stand-in goes through a chat template in the place of the character. So a mark in its text is the template's
    own, or begins with a stand-in.
    """

    def __init__(self, tokenizer: Tokenizer, marks: Collection[str]) -> None:
        self._tokenizer, self._marks = tokenizer, frozenset(filter(None, marks))
        self._lengths = sorted({len(mark) for mark in self._marks})
        firsts = sorted({mark[0] for mark in self._marks})
        self._begins = re.compile(f"[{re.escape(''.join(firsts))}]") if firsts else None
        self._stand_ins = {first: chr(_FIRST + index) for index, first in enumerate(firsts[:_MOST])}
        self._restore = {ord(stand_in): first for first, stand_in in self._stand_ins.items()}
        self._neutral = dict.fromkeys(self._restore, "\N{REPLACEMENT CHARACTER}")
        found = {tokenizer.token_to_id(mark) for mark in self._marks}
        self._unknown = tokenizer.token_to_id(tokenizer.special_tokens.get("unk_token", ""))
        self._ids = frozenset(token for token in found if token is not None)

    def set_apart(self, text: str) -> str:
        """Return a text with a stand-in for the first character of each mark."""
        return self._replaced(text, lambda first: self._stand_ins.get(first, first + _BREAK))

    def broken(self, text: str) -> str:
        """Return a text with an invisible character in each mark, for templates that stand-ins do not get through."""
        return self._replaced(text, lambda first: first + _BREAK)

    def restored(self, text: str) -> str:
        """Return a text with the characters that stand-ins stand for."""
        return text.translate(self._restore)

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Return the ids of a text with stand-ins: its marks are tokens, and what begins with a stand-in is text.

        Raises what `Tokenizer.encode` raises.
        """
        if self.restored(text) == text:
            return self._tokenizer.encode(text, add_special_tokens)
        return self._encode(text, add_special_tokens)[0]

    def encode_with_offsets(self, text: str, add_special_tokens: bool) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the same ids, and which characters of the text each stands for. Raises the same."""
        if self.restored(text) == text:
            return self._tokenizer.encode_with_offsets(text, add_special_tokens)
        return self._encode(text, add_special_tokens)

    def _replaced(self, text: str, instead: Callable[[str], str]) -> str:
        if self._begins is None:
            return text

        def replaced(found: re.Match[str]) -> str:
            at = found.start()
            spelled = any(text[at : at + length] in self._marks for length in self._lengths)
            return instead(found[0]) if spelled else found[0]

        return self._begins.sub(replaced, text)

    def _encode(
        self, text: str, add_special_tokens: bool, split: bool = False
    ) -> tuple[list[int], list[tuple[int, int]]]:
        """Return ids and offsets of a text with stand-ins; with `split` it is cut after each of them, too."""
        # Where the template's marks are, with the blanks that they swallow.
        neutral = text.translate(self._neutral)
        coded = zip(*self._tokenizer.encode_with_offsets(neutral, False), strict=True)
        places: list[tuple[int, int, int | None]] = [
            (*span, token) for token, span in coded if self._is_mark(token, neutral, span)
        ]
        if split:
            places += [(at + 1, at + 1, None) for at, one in enumerate(text) if ord(one) in self._restore]
            places.sort(key=lambda place: place[:2])
        # The whole text at once, so that what is around a mark is split and merged as ever.
        pieces, last = [], 0
        for start, end, _ in places:
            pieces += [self.restored(text[last:start]), _ALIAS]
            last = end
        literal = "".join([*pieces, self.restored(text[last:])])
        ids, offsets, added = self._literal.encode_with_added(literal, add_special_tokens)
        # Back to the template's marks, and to places in the text that was given.
        alias, waiting, shift = self._literal.token_to_id(_ALIAS), iter(places), 0
        found: list[tuple[int, tuple[int, int]]] = []
        for token, (start, end), is_added in zip(ids, offsets, added, strict=True):
            if token == alias:
                first, after, mark = next(waiting)
                shift = after - end
                found += [] if mark is None else [(mark, (first, after))]
            elif is_added:
                found.append((token, (start, end)))
            elif not split and self._is_mark(
                token, literal, (start, end)
            ):  # this vocabulary spells the whole mark as one piece
                return self._encode(text, add_special_tokens, split=True)
            else:
                found.append((token, (start + shift, end + shift)))
        return [token for token, _ in found], [span for _, span in found]

    def _is_mark(self, token: int, text: str, span: tuple[int, int]) -> bool:
        """Return whether a token is a mark, and not what stands for an unknown character."""
        if token != self._unknown:
            return token in self._ids
        return text[slice(*span)].strip() == self._tokenizer.special_tokens["unk_token"]

    @cached_property
    def _literal(self) -> Tokenizer:
        """The same tokenizer, to which marks are text; made when somebody spells one, for it is as large."""
        return self._tokenizer.reading_as_text(self._marks, _ALIAS)
