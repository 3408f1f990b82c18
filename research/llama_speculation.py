"""Greedy replies of llama.cpp: plain, with the prompt look-up of llama-cpp-python, and with a draft model.

llama.cpp has speculation in its programs, but not in its library. This module repeats it with the library's functions.
"""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import checkout  # noqa: F401
import numpy as np
from llama_cpp_model import Gguf

Propose = Callable[[Sequence[int]], Sequence[int]]  # proposes what may follow the tokens of prompt and reply so far
AMONG = 10  # candidates of a draft's token, as in llama.cpp


@dataclass(frozen=True)
class Reply:
    """A reply: its tokens without the end token, and the seconds and the target's forwards after the first token."""

    tokens: list[int]
    seconds: float
    steps: int


def reply(gguf: Gguf, prompt: Sequence[int], limit: int, stops: Collection[int], propose: Propose) -> Reply:
    """Return a greedy reply of at most `limit` tokens. One forward verifies all tokens that `propose` returns."""
    tokens, steps = [*prompt, int(gguf.read(prompt)[-1].argmax())], 0
    began = time.perf_counter()
    while tokens[-1] not in stops and (room := limit - len(tokens) + len(prompt)) > 0:
        root = len(tokens) - 1
        drafted = list(propose(tokens))[: room - 1]
        picks = gguf.logits([tokens[root], *drafted], root).argmax(-1).tolist()
        steps += 1
        right = next((at for at, token in enumerate(drafted) if token != picks[at]), len(drafted))
        committed = picks[: right + 1]
        ends = [at for at, token in enumerate(committed) if token in stops]
        tokens += committed[: ends[0] + 1] if ends else committed
    seconds = time.perf_counter() - began
    return Reply([token for token in tokens[len(prompt) :] if token not in stops], seconds, steps)


def nothing(tokens: Sequence[int]) -> Sequence[int]:
    """Propose no tokens, which gives plain decoding."""
    return ()


def look_up(tokens_ahead: int) -> Propose:
    """Return llama-cpp-python's prompt look-up: it proposes what followed the last tokens at an earlier place."""
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    drafter = LlamaPromptLookupDecoding(max_ngram_size=2, num_pred_tokens=tokens_ahead)
    return lambda tokens: drafter(np.asarray(tokens, np.intc)).tolist()


class DraftModel:
    """A draft model that proposes its greedy continuation, as llama.cpp's program `speculative` does.

    A draft has at most `most` tokens. It ends with the first token whose probability is below `sure`.
    """

    def __init__(self, gguf: Gguf, most: int, sure: float) -> None:
        self._gguf, self._most, self._sure = gguf, most, sure
        self._read: list[int] = []  # the tokens in its cache

    def __call__(self, tokens: Sequence[int]) -> Sequence[int]:
        known = next((at for at, (old, new) in enumerate(zip(self._read, tokens, strict=False)) if old != new), None)
        start = min(len(self._read), len(tokens) - 1) if known is None else min(known, len(tokens) - 1)
        unread, drafted = list(tokens[start:]), []
        self._read = self._read[:start]
        if start == 0:
            logits = self._gguf.read(unread)[-1]
        else:
            logits = self._gguf.logits(unread, start, last=True)[-1]
        self._read += unread
        while True:
            drafted.append(int(logits.argmax()))
            best = np.partition(logits, -AMONG)[-AMONG:]
            if len(drafted) == self._most or 1 / np.exp(best - best.max()).sum() < self._sure:
                return drafted
            logits = self._gguf.logits(drafted[-1:], len(self._read), last=True)[-1]
            self._read.append(drafted[-1])
