"""Tokenizers from metadata give the ids of the files that the metadata was made of, and pieces those of SentencePiece."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chat_templates import CHATML, LLAMA3, LLAMA3_BOS, PHI3, QWEN3, write_tokenizer
from gguf_files import tokenizer_of

from localspec.errors import LocalspecError
from localspec.gguf.config import Metadata
from localspec.gguf.tokens import _SPLITS, tokenizer_files
from localspec.models.chat_tokenizer import ChatTokenizer
from localspec.models.tokenizer import Tokenizer

DEMO = Path(__file__).parents[2] / "localspec" / "demo"
TEXTS = [
    "", " ", "  ", "\n\n \t", "a", "Hello", " Hello  world ", "The 12345 cats' don't sat, we'LL see...",
    "über allen Gipfeln", "e\u0301 \ufb01", "漢字かな交じり文", "👩‍👩‍👧‍👦", "\x00\x7f", "<|end|>a<|eot_id|>b<|im_end|>\n<think>x",
    "word " * 50, "def f(x):\n    return x ** 2\r\n", "1 22 333 4444 55555 ½", "<|endoftext|> <|im_start|>user",
]  # fmt: skip


def converted(said: dict[str, Any], path: Path) -> Tokenizer:
    files = tokenizer_files(Metadata(said), 10**6)
    return Tokenizer(
        {name: one if isinstance(one, str) else json.dumps(one) for name, one in files.items()}, path, True
    )


@pytest.mark.parametrize(
    ("name", "pre"),
    [(LLAMA3, "llama-bpe"), (LLAMA3_BOS, "llama-bpe"), (CHATML, "qwen2"), (QWEN3, "qwen2"), ("demo", "smollm")],
)
@pytest.mark.parametrize("marks", [False, True])
def test_byte_level_tokens_are_those_of_the_original(tmp_path: Path, name: str, pre: str, marks: bool) -> None:
    path = DEMO if name == "demo" else write_tokenizer(tmp_path, name)
    original = Tokenizer.open(path)
    said = tokenizer_of(path, pre)
    said |= {"tokenizer.ggml.token_type": np.array(said["tokenizer.ggml.token_type"])} | {
        "tokenizer.ggml.add_bos_token": name == LLAMA3_BOS
    }
    ours = converted(said, path)
    for text in TEXTS:
        ids = original.encode(text, marks)
        assert ours.encode(text, marks) == ids, repr(text)
        assert [ours.decode(ids, skip) for skip in (False, True)] == [
            original.decode(ids, skip) for skip in (False, True)
        ]
    assert ours.special_ids == original.special_ids
    assert ours.eos_token_id == original.eos_token_id
    assert ours.chat_template == original.chat_template


def pieces(path: Path) -> dict[str, Any]:
    """Metadata as of a SentencePiece model: the tokens of a file, the sooner merged the better their scores."""
    content = json.loads((path / "tokenizer.json").read_text())
    added = {one["id"] for one in content["added_tokens"]}
    vocabulary = {index: token for token, index in content["model"]["vocab"].items()}
    vocabulary |= {one["id"]: one["content"] for one in content["added_tokens"]}
    tokens = [vocabulary[index] for index in sorted(vocabulary)]
    kinds = [
        2 if token == "<unk>" else 3 if at in added else 6 if token[:3] == "<0x" else 1
        for at, token in enumerate(tokens)
    ]
    ranks = {"".join(merge): rank for rank, merge in reversed(list(enumerate(content["model"]["merges"])))}
    return {
        "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": np.array(kinds),
        "tokenizer.ggml.scores": np.array([float(-ranks.get(token, 1e6)) for token in tokens]),
        "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.unknown_token_id": 0,
    }  # fmt: skip


def merged(text: str, said: dict[str, Any]) -> list[int]:
    """SentencePiece's loop as it is described: the two neighbours that make the best piece become it, the first first."""
    tokens = said["tokenizer.ggml.tokens"]
    score = {
        token: said["tokenizer.ggml.scores"][at]
        for at, token in enumerate(tokens)
        if said["tokenizer.ggml.token_type"][at] == 1
    }
    symbols = list(("▁" + text.replace(" ", "▁")) if text else "")
    while True:
        ways = [(score[a + b], -at) for at, (a, b) in enumerate(pairwise(symbols)) if a + b in score]
        if not ways:
            break
        at = -max(ways)[1]
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
    ids = []
    for symbol in symbols:
        ids += (
            [tokens.index(symbol)] if symbol in score else [tokens.index(f"<0x{byte:02X}>") for byte in symbol.encode()]
        )
    return ids


def test_pieces_are_merged_as_by_sentencepiece(tmp_path: Path) -> None:
    said = pieces(write_tokenizer(tmp_path, PHI3))
    ours = converted(said, tmp_path)
    for text in (text for text in TEXTS if "<" not in text):
        assert ours.encode(text, False) == merged(text, said), repr(text)
        assert ours.encode(text, True) == [1, *merged(text, said)]
        assert ours.decode(ours.encode(text, True), True) == text


def test_what_follows_a_role_of_phi_3_is_swallowed_as_in_its_own_files(tmp_path: Path) -> None:
    said = pieces(write_tokenizer(tmp_path, PHI3))
    user = said["tokenizer.ggml.tokens"].index("<|user|>")
    plain, phi = converted(said, tmp_path), converted({**said, "general.name": "Phi-3 Mini"}, tmp_path)
    assert phi.encode("<|user|>\n\nHi", False) == [user, *merged("Hi", said)] != plain.encode("<|user|>\n\nHi", False)


def test_expressions_are_those_that_transformers_has() -> None:
    theirs = pytest.importorskip("transformers.integrations.gguf.gguf_tokenizer_mapping").GGUF_PRE_TOKENIZER_SPLITS
    both = [name for name in _SPLITS if name in theirs]
    assert len(both) > 8
    assert {name: _SPLITS[name] for name in both} == {name: theirs[name] for name in both}


SOUND = {
    "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": ["a", "b", "ab"],
    "tokenizer.ggml.merges": ["a b"], "tokenizer.ggml.eos_token_id": 2,
}  # fmt: skip
WRONG = {
    "none": {"tokenizer.ggml.model": None},
    "another kind": {"tokenizer.ggml.model": "bert"},
    "an unknown split": {"tokenizer.ggml.pre": "grok-2"},
    "no split": {"tokenizer.ggml.pre": None},
    "no tokens": {"tokenizer.ggml.tokens": []},
    "tokens that are numbers": {"tokenizer.ggml.tokens": 3},
    "a token without end": {"tokenizer.ggml.tokens": ["a", "b" * 5000, "ab"]},
    "a merge of nothing": {"tokenizer.ggml.merges": ["a x"]},
    "a merge of three": {"tokenizer.ggml.merges": ["a b c"]},
    "an end beyond": {"tokenizer.ggml.eos_token_id": 3},
    "an end that is a text": {"tokenizer.ggml.eos_token_id": "ab"},
    "an end below": {"tokenizer.ggml.eos_token_id": -1},
    "types of others": {"tokenizer.ggml.token_type": np.array([1, 1])},
    "pieces without scores": {"tokenizer.ggml.model": "llama"},
    "a template that is a number": {"tokenizer.chat_template": 5},
    "a beginning that is a text": {"tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.add_bos_token": "yes"},
}


@pytest.mark.parametrize("name", WRONG)
def test_what_makes_no_tokenizer_is_refused(name: str) -> None:
    said = {key: one for key, one in {**SOUND, **WRONG[name]}.items() if one is not None}
    with pytest.raises((ValueError, LocalspecError)):
        tokenizer_files(Metadata(said), 3)
    assert tokenizer_files(Metadata(SOUND), 3)


def test_more_tokens_than_the_model_has_are_refused() -> None:
    with pytest.raises(ValueError, match="2"):
        tokenizer_files(Metadata(SOUND), 2)


def test_a_token_without_end_is_told_by_itself() -> None:
    said = {**SOUND, "tokenizer.ggml.tokens": ["a", "b", "c" * 5000]}
    with pytest.raises(ValueError, match="^a token of its tokenizer has 5,000 characters, and 1,024 are the most$"):
        tokenizer_files(Metadata(said), 3)


def test_ends_of_turns_that_a_file_calls_user_defined_are_special(tmp_path: Path) -> None:
    said = pieces(write_tokenizer(tmp_path, PHI3))
    end, user = (said["tokenizer.ggml.tokens"].index(mark) for mark in ("<|end|>", "<|user|>"))
    types = [4 if index in (end, user) else kind for index, kind in enumerate(said["tokenizer.ggml.token_type"])]
    template = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    more = {"tokenizer.ggml.eos_token_id": end, "tokenizer.chat_template": template}
    ours = converted({**said, **more, "tokenizer.ggml.token_type": np.array(types)}, tmp_path)
    chat = ChatTokenizer(ours)
    assert end in ours.special_ids and chat.turn_marks == {user}
    ids = chat.encode([{"role": "user", "content": "a<|end|><|user|>b"}], 10**6)
    assert (ids.count(end), ids.count(user)) == (1, 1)
