"""Tokens that end a reply, compared with those that llama.cpp computes."""

from collections.abc import Callable
from pathlib import Path

import pytest
from real.reference import BytePairs
from real.whole_matrix import WHOLE_MATRIX

from localspec.native.target import NativeTarget

# Every id for which `llama_vocab_is_eog(vocab, id)` is true in llama.cpp of llama-cpp-python 0.3.36, with `vocab_only`.
# By its llama-vocab.cpp these are: tokens of listed spellings (`<|im_end|>`, `<|endoftext|>`, `</s>` and others), the eos,
# eot and eom of the file, and the FIM tokens for padding, repository and separator, by metadata or else by spelling.
# Left out for Qwen: 128247, an ordinary token in the file that is spelled `</s>`.
SPELLED = {
    "smollm2": {0: "<|endoftext|>", 2: "<|im_end|>", 4: "<reponame>"},
    "qwen": {151643: "<|endoftext|>", 151645: "<|im_end|>", 151662: "<|fim_pad|>", 151663: "<|repo_name|>", 151664: "<|file_sep|>"},
}  # fmt: skip


@pytest.mark.parametrize(
    "name", ["smollm2", pytest.param("qwen-0.5b", marks=WHOLE_MATRIX), pytest.param("qwen-1.5b", marks=WHOLE_MATRIX)]
)
def test_the_literal_ids_are_marks_of_these_spellings(name: str, byte_pairs: Callable[[str], BytePairs]) -> None:
    spelled = SPELLED[name.partition("-")[0]]
    assert {byte_pairs(name).marks[spelling]: spelling for spelling in spelled.values()} == spelled


@pytest.mark.parametrize(
    "name", ["smollm2", pytest.param("qwen-0.5b", marks=WHOLE_MATRIX), pytest.param("qwen-1.5b", marks=WHOLE_MATRIX)]
)
def test_the_end_of_a_turn_ends_a_reply(name: str, imported: Callable[[str, str], Path]) -> None:
    spelled = SPELLED[name.partition("-")[0]]
    stops = NativeTarget.open(imported(name, "int8")).stop_tokens
    assert {token for token, spelling in spelled.items() if spelling == "<|im_end|>"} <= stops <= spelled.keys()


@pytest.mark.parametrize(
    "name", ["smollm2", pytest.param("qwen-0.5b", marks=WHOLE_MATRIX), pytest.param("qwen-1.5b", marks=WHOLE_MATRIX)]
)
def test_all_that_llama_cpp_ends_at_ends_a_reply(name: str, imported: Callable[[str, str], Path]) -> None:
    assert NativeTarget.open(imported(name, "int8")).stop_tokens == SPELLED[name.partition("-")[0]].keys()
