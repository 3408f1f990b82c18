"""Small vocabularies whose merges ignore the borders of words, so that ids show where a text was split."""

import random
from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any

TEXTS = [
    "The quick brown fox jumps over the lazy dog's tail, don't we'LL they've I'M you'd re-use it.",
    "  two   spaces\n\n\n\tand\ttabs \r\n\r\n   x = 12345 + 67890; y=1 22 333 4444 55555 666666",
    "HelloWorld camelCase, ÄÖÜß ǅx ʰa ñandú", "漢字かな交じり文。カタカナ、한국어 텍스트 ㄱㄴ ㄅㄆ 中文字符！？「引用」…",
    "ไทย ภาษา में עברית العربية، ۔ ।", "🙂👩\u200d👩\u200d👧🇪🇺 ½ Ⅳ ² ① ٣٤٥ ১২৩", "a.b,c!d?e(f)g[h]{i}'j\"k@l%m&n*o-p_q /x/y == +=",
    "IMGIMGABCZ <sentinel:12> \u00a0nbsp\u2003em\u3000wide\u0085nel\u2028ls\u200bzw\x0b\x0c\x1c\x07\x7f",
    "<s>a<think> b</s>\n\nuser", "x1\n 2y\t\t3", "", " ", "/  1/",
]  # fmt: skip


def _letters() -> dict[int, str]:
    """Return GPT-2's letter for each byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + at) for at, byte in enumerate(others)}


def _learned(words: list[list[str]]) -> list[tuple[str, str]]:
    """Return merges of the most frequent pairs, until every word is one token."""
    merges = []
    while pairs := Counter(pair for word in words for pair in pairwise(word)):
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        merges.append(best)
        for word in words:
            at = 0
            while at < len(word) - 1:
                if (word[at], word[at + 1]) == best:
                    word[at : at + 2] = ["".join(best)]
                at += 1
    return merges


@cache
def _merges(raw: bool) -> list[tuple[str, str]]:
    letters = _letters()
    if raw:
        return _learned([list(line.replace(" ", "▁")) for text in TEXTS for line in text.split("\n")])
    return _learned([[letters[byte] for byte in text.encode()] for text in TEXTS])


def merging(pre: str, raw: bool, kind: str = "gpt2") -> dict[str, Any]:
    """Return the metadata of a tokenizer with merges, of bytes or of `raw` characters."""
    merges = _merges(raw)
    if raw:
        singles = sorted({letter for text in TEXTS for letter in text.replace(" ", "▁")})
        first, types = [f"<0x{byte:02X}>" for byte in range(256)], [6] * 256
    else:
        singles, first, types = list(_letters().values()), [], []
    words = list(dict.fromkeys([*singles, *(left + right for left, right in merges)]))
    tokens = [*first, *words, "<s>", "</s>", "<think>"]
    return {
        "tokenizer.ggml.model": kind, "tokenizer.ggml.pre": pre, "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [*types, *[1] * len(words), 3, 3, 4],
        "tokenizer.ggml.merges": [f"{left} {right}" for left, right in merges],
        "tokenizer.ggml.bos_token_id": len(tokens) - 3, "tokenizer.ggml.eos_token_id": len(tokens) - 2,
    }  # fmt: skip


def pieces(seed: int, prefix: bool) -> dict[str, Any]:
    """Return the metadata of a SentencePiece tokenizer: random pieces with random scores, each score once."""
    chance = random.Random(seed)
    made = {"".join(chance.choice("▁aaabbc漢é") for _ in range(chance.randrange(2, 6))) for _ in range(60)}
    normal = [*"▁abcé漢\n", *sorted(made | {"aa", "aaa", "aaaa", "ab", "ba", "aba", "▁a", "▁▁"})]
    scores = [-float(rank) for rank in chance.sample(range(len(normal)), len(normal))]
    return {
        "tokenizer.ggml.model": "llama", "tokenizer.ggml.add_space_prefix": prefix,
        "tokenizer.ggml.tokens": [
            "<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *normal, "<mark>", "  ", "\n\n",
        ],
        "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * len(normal), 3, 4, 4],
        "tokenizer.ggml.scores": [*[0.0] * 259, *scores, *[0.0] * 3],
        "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.unknown_token_id": 0,
    }  # fmt: skip


def with_equal_scores(seed: int) -> dict[str, Any]:
    """Return the same with one more piece, which has the best score and which no two others make."""
    found = pieces(seed, prefix=False)
    for key, one in (("tokens", "zzz"), ("token_type", 1), ("scores", 0.0)):
        found[f"tokenizer.ggml.{key}"] = [*found[f"tokenizer.ggml.{key}"], one]
    assert found["tokenizer.ggml.scores"][259:-4].count(0.0) == 1
    return found


def texts_of_pieces(seed: int) -> Sequence[str]:
    """Return random texts for `pieces`."""
    chance, parts = random.Random(seed), ["a", "a", *"bcé漢 \n▁z🙂", "  ", "\n\n", "<mark>", "<s>"]
    return ["".join(chance.choice(parts) for _ in range(chance.randrange(1, 25))) for _ in range(100)]
