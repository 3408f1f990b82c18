"""Tokenizers of published models, compared with a BPE in plain Python over nasty texts."""

import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
from real.reference import BytePairs
from real.texts import nasty
from real.whole_matrix import WHOLE_MATRIX

from localspec.models.tokenizer import Tokenizer
from localspec.weights.gguf_model import GgufModel

MODELS = ["smollm2", pytest.param("qwen-0.5b", marks=WHOLE_MATRIX), pytest.param("qwen-1.5b", marks=WHOLE_MATRIX)]
# Bytes that SmolLM2's vocabulary lacks. Characters that need one vanish, as they do in llama.cpp.
MISSING = {
    "smollm2": {*b"\x04\x06\x13\x14\x16\x1d", 0xC0, 0xC1, 0xF1, 0xF2, *range(0xF5, 0x100)},
    "qwen-0.5b": set(),
    "qwen-1.5b": set(),
}
# Combining marks that Python's Unicode tables reorder and those of the tokenizers library do not.
OTHER_TABLES = "\u1df9\u1dfe"


def tokenizer(file: Path) -> Tokenizer:
    model = GgufModel.open(file)
    return Tokenizer.decoded(model.texts, file)


@pytest.mark.parametrize("name", MODELS)
def test_nasty_texts_have_the_ids_of_an_independent_bpe(
    name: str, published: Callable[[str], Path], byte_pairs: Callable[[str], BytePairs]
) -> None:
    ours, theirs = tokenizer(published(name)), byte_pairs(name)
    texts = nasty(theirs.marks)
    assert len(texts) >= 300 and not any(set(OTHER_TABLES) & set(text) for text in texts)
    different = {text: (ours.encode(text, False), ids) for text in texts if ours.encode(text, False) != (ids := theirs.encode(text))}  # fmt: skip
    assert different == {}


@pytest.mark.parametrize("name", MODELS)
def test_ids_of_nasty_texts_are_read_back(
    name: str, published: Callable[[str], Path], byte_pairs: Callable[[str], BytePairs]
) -> None:
    ours, theirs = tokenizer(published(name)), byte_pairs(name)
    assert theirs.missing_bytes == MISSING[name]
    whole = 0
    for text in nasty(theirs.marks):
        ids = theirs.encode(text)
        again = ours.decode(ids)
        assert again == theirs.decode(ids), text
        if theirs.missing_bytes.isdisjoint(text.encode()):
            assert again == (unicodedata.normalize("NFC", text) if theirs.split_name == "qwen2" else text)
            whole += 1
    assert whole >= 270
