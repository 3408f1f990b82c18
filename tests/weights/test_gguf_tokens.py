"""Tokenizers from metadata give the ids of the files that the metadata was made of, and pieces those of SentencePiece."""

import json
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chat_templates import CHATML, LLAMA3, LLAMA3_BOS, PHI3, QWEN3, write_tokenizer
from each import each
from gguf_files import stored, tokenizer_of, written
from golden import matching
from weights.small_vocabularies import pieces as pieces_of

from localspec.errors import LocalspecError
from localspec.models.chat_tokenizer import ChatTokenizer
from localspec.models.tokenizer import Tokenizer
from localspec.weights.checkpoint import AROUND
from localspec.weights.gguf_metadata import Metadata
from localspec.weights.gguf_model import GgufModel
from localspec.weights.gguf_splits import SPLITS
from localspec.weights.gguf_tokens import ends, ends_at_words, impossible_roles, tokenizer_files

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


@pytest.mark.slow
@each(
    "name, pre",
    [(LLAMA3, "llama-bpe"), (LLAMA3_BOS, "llama-bpe"), (CHATML, "qwen2"), (QWEN3, "qwen2"), ("demo", "smollm")],
)
@each("marks", [False, True])
def test_byte_level_tokens_are_those_of_the_original(tmp_path, name, pre, marks):
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
    """Return metadata like that of a SentencePiece model: tokens of a file, merged the sooner the better their scores."""
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
    """Merge as SentencePiece describes it: join the two neighbours that make the best piece, the first of equals."""
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


def test_pieces_are_merged_as_by_sentencepiece(tmp_path):
    said = pieces(write_tokenizer(tmp_path, PHI3))
    ours = converted(said, tmp_path)
    for text in (text for text in TEXTS if "<" not in text):
        assert ours.encode(text, False) == merged(text, said), repr(text)
        assert ours.encode(text, True) == [1, *merged(text, said)]
        assert ours.decode(ours.encode(text, True), True) == text


def test_what_follows_a_role_of_phi_3_is_swallowed_as_in_its_own_files(tmp_path):
    said = pieces(write_tokenizer(tmp_path, PHI3))
    user = said["tokenizer.ggml.tokens"].index("<|user|>")
    for name in ("Phi-3 Mini", "Phi 3.5 Mini Instruct", "anything"):
        phi = converted({**said, "general.name": name}, tmp_path)
        assert phi.encode("<|user|>\n\nHi", False) == [user, *merged("Hi", said)], name
    tuned = {**tokenizer_of(write_tokenizer(tmp_path, CHATML), "qwen2"), "general.name": "tuned on phi-3 answers"}
    tuned["tokenizer.ggml.token_type"] = np.array(tuned["tokenizer.ggml.token_type"])
    other = converted(tuned, tmp_path)
    assert other.encode("<|im_start|> a", False) != other.encode("<|im_start|>a", False)


def test_expressions_are_those_that_transformers_has():
    theirs = pytest.importorskip("transformers.integrations.gguf.gguf_tokenizer_mapping").GGUF_PRE_TOKENIZER_SPLITS
    both = [name for name in SPLITS if name in theirs]
    assert len(both) == len(theirs)
    assert {name: SPLITS[name].expressions for name in both} == {name: (theirs[name],) for name in both}


def test_a_pre_tokenizer_that_is_unknown_or_missing_is_refused_by_name():
    for pre, named in (("whitespace", "'whitespace'"), ("roberta-bpe", "'roberta-bpe'"), (None, "tokenizer.ggml.pre")):
        said = {key: one for key, one in {**SOUND, "tokenizer.ggml.pre": pre}.items() if one is not None}
        with pytest.raises(LocalspecError, match=named):
            tokenizer_files(Metadata(said), 3)


def test_each_piece_is_made_by_the_pair_that_sentencepiece_merges(tmp_path):
    tokens = ["<unk>", *"abc▁", "ab", "bc", "abc", "aa", "aaa"]
    said = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": np.array([2] + [1] * 9), "tokenizer.ggml.add_bos_token": False,
            "tokenizer.ggml.scores": np.array([0, 0, 0, 0, 0, -1, -2, -3, -4, -5.0])}  # fmt: skip
    merges = tokenizer_files(Metadata(said), 10)["tokenizer.json"]["model"]["merges"]
    assert merges == [("a", "b"), ("b", "c"), ("ab", "c"), ("a", "a"), ("aa", "a")]


def of_pieces(pieces: list[str], scores: list[float]) -> dict[str, Any]:
    return {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": ["<unk>", *pieces],
            "tokenizer.ggml.token_type": np.array([2] + [1] * len(pieces)), "tokenizer.ggml.add_bos_token": False,
            "tokenizer.ggml.scores": np.array([0.0, *scores])}  # fmt: skip


def test_pieces_of_one_score_that_two_others_make_are_refused(tmp_path):
    """llama.cpp merges the first of the two in a text: "ab" in "abc", and "bc" in "bcab"."""
    singles = [*"abcd"]
    with pytest.raises(LocalspecError, match=matching("pieces_have_the_same_score")):
        tokenizer_files(Metadata(of_pieces([*singles, "ab", "bc"], [0, 0, 0, 0, -1, -1])), 10)
    never_made = of_pieces([*singles, "ab", "abcd", "bc"], [0, 0, 0, 0, -1, -1, -2])  # "abcd" ends as "ab", "c", "d"
    assert converted(never_made, tmp_path).encode("abcd", False)[-3:] == [5, 3, 4]


def test_merges_are_the_same_without_the_compiled_library(monkeypatch):
    """GGUF files are computed without the library on a GPU."""
    for seed in range(20):
        said = {
            key: np.array(one) if key.endswith(("_type", "scores")) else one
            for key, one in pieces_of(seed, False).items()
        }
        found = tokenizer_files(Metadata(said), 10**6)["tokenizer.json"]["model"]["merges"]
        with monkeypatch.context() as without:
            without.setattr("localspec.machine.compiled.library", lambda: None)
            assert tokenizer_files(Metadata(said), 10**6)["tokenizer.json"]["model"]["merges"] == found
        assert len(found) > 5


def test_merges_of_hostile_pieces_are_found_in_bounded_time():
    rising = ["a" * length for length in range(1, 129)]
    several = [chr(first) + one for first in range(0x4E00, 0x4E00 + 40) for one in rising[:126]]
    for pieces in (rising, [*rising, *several]):
        began = time.process_time()
        tokenizer_files(Metadata(of_pieces(pieces, [-float(at) for at in range(len(pieces))])), 10**6)
        assert time.process_time() - began < 5


def test_a_hostile_file_of_long_pieces_is_refused_at_once_in_a_sentence(tmp_path):
    long = [f"{at:0128}" for at in range(10_000)]
    said = {**of_pieces(long, [-float(at) for at in range(len(long))]), "general.architecture": "llama"}
    shape = {"context_length": 64, "embedding_length": 32, "block_count": 1, "feed_forward_length": 32}
    shape |= {"attention.head_count": 4, "attention.layer_norm_rms_epsilon": 1e-5}
    file = tmp_path / "hostile.gguf"
    lists = {key: one.tolist() if isinstance(one, np.ndarray) else one for key, one in said.items()}
    tensors = {"token_embd.weight": stored("F32", np.zeros((len(long) + 1, 32), np.float32))}
    file.write_bytes(written({**lists, **{f"llama.{key}": one for key, one in shape.items()}}, tensors))
    began = time.process_time()
    with pytest.raises(LocalspecError, match="their squared lengths add up to 163,840,000"):
        GgufModel.open(file).texts  # noqa: B018 -- read when it is asked for
    assert time.process_time() - began < 5


SOUND = {
    "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": ["a", "b", "ab"],
    "tokenizer.ggml.merges": ["a b"], "tokenizer.ggml.eos_token_id": 2,
}  # fmt: skip
WRONG = {
    "none": {"tokenizer.ggml.model": None},
    "another kind": {"tokenizer.ggml.model": "bert"},
    "an unknown split": {"tokenizer.ggml.pre": "grok-7"},
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


@each("name", WRONG)
def test_what_makes_no_tokenizer_is_refused(name):
    said = {key: one for key, one in {**SOUND, **WRONG[name]}.items() if one is not None}
    with pytest.raises((ValueError, LocalspecError)):
        tokenizer_files(Metadata(said), 3)
    assert tokenizer_files(Metadata(SOUND), 3)


def test_a_merged_token_of_the_type_unused_is_made_as_in_llama_cpp(tmp_path):
    original, said = Tokenizer.open(DEMO), tokenizer_of(DEMO, "smollm")
    text = "the quick brown fox"
    ids = original.encode(text, False)
    said["tokenizer.ggml.token_type"] = np.array(said["tokenizer.ggml.token_type"])
    longest = max(ids, key=lambda one: len(said["tokenizer.ggml.tokens"][one]))
    said["tokenizer.ggml.token_type"][longest] = 5
    assert converted(said, DEMO).encode(text, False) == ids


def test_a_byte_level_tokenizer_whose_merges_are_missing_is_refused_unless_its_words_are_bytes():
    without = {key: one for key, one in SOUND.items() if key != "tokenizer.ggml.merges"}
    for said in (without, {**SOUND, "tokenizer.ggml.merges": []}):
        with pytest.raises(ValueError, match=r"tokenizer\.ggml\.merges yields only 0 of the 1 tokens"):
            tokenizer_files(Metadata(said), 3)
    whole = tokenizer_of(DEMO, "smollm")
    half = {**whole, "tokenizer.ggml.merges": whole["tokenizer.ggml.merges"][::2]}
    half["tokenizer.ggml.token_type"] = np.array(whole["tokenizer.ggml.token_type"])
    with pytest.raises(ValueError, match=r"tokenizer\.ggml\.merges yields"):
        tokenizer_files(Metadata(half), 10**6)
    marks = np.array([1, 1, 3])
    assert tokenizer_files(Metadata({**without, "tokenizer.ggml.token_type": marks}), 3)


def test_more_merges_than_any_vocabulary_has_are_refused_before_they_are_read():
    class Endless(list):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return 2_000_000

        def __iter__(self) -> Any:
            raise AssertionError("they are read")

    with pytest.raises(ValueError, match="2,000,000 merges, but at most 1,048,576"):
        tokenizer_files(Metadata({**SOUND, "tokenizer.ggml.merges": Endless()}), 3)


def test_of_a_merge_that_is_there_twice_the_first_counts(tmp_path):
    said = {**SOUND, "tokenizer.ggml.tokens": ["a", "b", "c", "ab", "bc"], "tokenizer.ggml.eos_token_id": 0}
    twice = converted({**said, "tokenizer.ggml.merges": ["a b", "b c", "a b"]}, tmp_path)
    assert twice.encode("abc", False) == [3, 2]


@each("index", [2**32 - 1, -1, 7, 2.0, "ab", True])
@each("role", ["padding", "unknown", "bos", "eot", "eom", "fim_pad"])
def test_a_role_that_no_token_has_is_left_out(role, index):
    said = {**SOUND, f"tokenizer.ggml.{role}_token_id": index}
    assert tokenizer_files(Metadata(said), 3) == tokenizer_files(Metadata(SOUND), 3)
    assert ends(Metadata(said)) == [2]
    assert bool(impossible_roles(Metadata(said), 3)) is (index not in (2**32 - 1, -1) or index is True)


@each("role", ["bos", "eos"])
def test_marks_stand_around_a_text_as_the_file_says(tmp_path, role):
    said = {**SOUND, "tokenizer.ggml.tokens": ["<b>", "b", "<e>"]}
    said |= {"tokenizer.ggml.token_type": np.array([3, 1, 3]), "tokenizer.ggml.bos_token_id": 0}
    said.pop("tokenizer.ggml.merges")
    with_marks = converted({**said, f"tokenizer.ggml.add_{role}_token": True}, tmp_path)
    assert with_marks.encode("b", True) == ([0, 1] if role == "bos" else [1, 2])
    assert with_marks.encode("b", False) == [1]
    assert with_marks.around == (([0], []) if role == "bos" else ([], [2]))
    del said[f"tokenizer.ggml.{role}_token_id"]
    with pytest.raises(
        LocalspecError, match=f"add_{role}_token = true but has no valid tokenizer.ggml.{role}_token_id"
    ):
        converted({**said, f"tokenizer.ggml.add_{role}_token": True}, tmp_path)


@each("odd", [5, "a", [], [[1]], [5, 6], [["a", -1, 10**9, True], None], {"a": 1}])
def test_impossible_marks_around_prompts_are_ignored(tmp_path, odd):
    files = tokenizer_files(Metadata(SOUND), 3)
    files["tokenizer_config.json"][AROUND] = odd
    tokenizer = Tokenizer({name: json.dumps(one) for name, one in files.items()}, tmp_path, True)
    assert tokenizer.around == ([], [])


def test_a_word_with_a_role_stays_a_word(tmp_path):
    """As a special token it would be removed from every text."""
    said = {**SOUND, "tokenizer.ggml.padding_token_id": 2, "tokenizer.ggml.unknown_token_id": 0}
    said["tokenizer.ggml.bos_token_id"] = 1
    assert converted(said, tmp_path).added_tokens == {}
    assert ends(Metadata(said)) == [2]


KNOWN = ["<|endoftext|>", "<|im_end|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "[EOS]"]
ENDS: dict[str, tuple[dict[str, Any], set[int]]] = {
    "control": ({}, {0, 1, 2, 3, 4, 5}),
    "user-defined": ({"tokenizer.ggml.token_type": np.array([4] * 6 + [1] * 5)}, {0, 1, 2, 3, 4, 5}),
    "ordinary, and never merged": ({"tokenizer.ggml.token_type": np.array([1] * 11)}, {0, 1, 2, 3, 4, 5}),
    "an ordinary word": (
        {"tokenizer.ggml.tokens": [*KNOWN[:5], "</s>", "</", "s>", "a", "b", "c"],
         "tokenizer.ggml.token_type": np.array([3] * 5 + [1] * 6), "tokenizer.ggml.merges": ["</ s>"]},
        {0, 1, 2, 3, 4},
    ),
    "another pad": ({"tokenizer.ggml.fim_pad_token_id": 10}, {0, 1, 3, 4, 5, 10}),
    "another pad that is not there": ({"tokenizer.ggml.fim_pad_token_id": 11}, {0, 1, 2, 3, 4, 5}),
    "ends of turns and messages": (
        {"tokenizer.ggml.eot_token_id": 8, "tokenizer.ggml.eom_token_id": 9}, {0, 1, 2, 3, 4, 5, 8, 9},
    ),
    "within replies": (
        {"tokenizer.ggml.tokens": ["<|endoftext|>", "<|return|>", "<|call|>", "<|end|>", *"abcdefg"]}, {0, 1, 2},
    ),
    "an end without calls": (
        {"tokenizer.ggml.tokens": ["<|endoftext|>", "<|return|>", "x", "<|end|>", *"abcdefg"]}, {0, 1, 3},
    ),
    "no end after tools": (
        {"tokenizer.ggml.tokens": ["<|endoftext|>", "<|tool_response>", "</s>", *"abcdefgh"]}, {0, 1},
    ),
}  # fmt: skip


@each("name", ENDS)
def test_known_marks_end_a_reply(name):
    """As llama.cpp builds its set, except for words that spell a mark."""
    said = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": [*KNOWN, *"abcde"],
            "tokenizer.ggml.token_type": np.array([3] * 6 + [1] * 5), "tokenizer.ggml.eos_token_id": 0}  # fmt: skip
    changed, expected = ENDS[name]
    found = ends(Metadata({**said, **changed}))
    assert {*found} == expected and found[0] == 0 and len(found) == len(expected)


def test_an_ordinary_word_that_ends_replies_is_noticed():
    said = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["<|im_end|>", *"The", "Th", "The"],
            "tokenizer.ggml.merges": ["T h", "Th e"], "tokenizer.ggml.token_type": np.array([3, 1, 1, 1, 1, 1]),
            "tokenizer.ggml.eos_token_id": 0}  # fmt: skip
    assert ends_at_words(Metadata(said)) == []
    for key in ("eos", "eot", "eom"):
        (sentence,) = ends_at_words(Metadata({**said, f"tokenizer.ggml.{key}_token_id": 5}))
        assert "'The'" in sentence and f"tokenizer.ggml.{key}_token_id = 5" in sentence


def test_pieces_have_the_usual_roles_where_the_file_does_not_say(tmp_path):
    said = pieces(write_tokenizer(tmp_path, PHI3))
    without = {key: one for key, one in said.items() if not key.endswith("_token_id")}
    assert ends(Metadata(without)) == ends(Metadata(said))
    assert converted(without, tmp_path).encode("Hi", True) == converted(said, tmp_path).encode("Hi", True)


@each("typed", [True, False])
def test_a_piece_with_a_role_is_a_mark_unless_its_type_says_otherwise(tmp_path, typed):
    tokens = ["<unk>", "<s>", "</s>", "<", "s>", "a", "b", "ab"]
    said = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.scores": -np.arange(8.0),
            "tokenizer.ggml.padding_token_id": 7}  # fmt: skip
    said |= {"tokenizer.ggml.token_type": np.array([2, 3, 3, 1, 1, 1, 1, 1])} if typed else {}
    marks = {tokens[0], tokens[1], tokens[2], *([] if typed else ["ab"])}
    assert {one.content for one in converted(said, tmp_path).added_tokens.values()} == marks


@each("odd", [float("nan"), float("inf"), float("-inf")])
def test_scores_that_are_no_numbers_are_refused(tmp_path, odd):
    said = pieces(write_tokenizer(tmp_path, PHI3))
    said["tokenizer.ggml.scores"][5] = odd
    with pytest.raises(ValueError, match=r"tokenizer\.ggml\.scores"):
        tokenizer_files(Metadata(said), 10**6)


def test_tokens_twice_too_many_and_too_long_are_refused_with_a_reason():
    for tokens, most, reason in (
        (["a", "b", "ab", "a"], 4, "'a' twice"),
        (SOUND["tokenizer.ggml.tokens"], 2, "2"),
        (["a", "b", "c" * 5000], 3, f"^{matching('a_token_of_its_tokenizer_has')}$"),
    ):
        with pytest.raises(ValueError, match=reason):
            tokenizer_files(Metadata({**SOUND, "tokenizer.ggml.tokens": tokens}), most)


def test_ends_of_turns_that_a_file_calls_user_defined_are_special(tmp_path):
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
