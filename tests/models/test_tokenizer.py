"""Our tokenizer and templates against those of transformers: the same ids, the same text, the same special tokens."""

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from chat_templates import (
    CHATML,
    GEMMA3,
    LLAMA3,
    LLAMA3_BOS,
    METASPACE,
    MISTRAL3,
    PHI3,
    QWEN3,
    TEMPLATES,
    write_tokenizer,
)
from each import each
from golden import matching, wording
from jinja2 import TemplateError
from tiny_models import CONFIGS, byte_tokenizer
from transformers import AutoTokenizer

from localspec.errors import LocalspecError
from localspec.models.chat_template import render_template
from localspec.models.chat_tokenizer import ChatTokenizer
from localspec.models.tokenizer import Tokenizer

DEMO = Path(__file__).parents[2] / "localspec" / "demo"
STAND_INS = [LLAMA3, LLAMA3_BOS, MISTRAL3, CHATML, QWEN3, PHI3, METASPACE, GEMMA3]
TEXTS = [
    "", " ", "  ", "\n", "\n\n \t", "a", "Hello", " Hello  world ", "The 12345 cats' don't sat, we'LL see...",
    "über allen Gipfeln", "e\u0301 é ﬁ Å \u212b", "漢字かな交じり文", "שלום", "👩‍👩‍👧‍👦 🇩🇪 a👍🏽", "\x00\x01\x1b[31m\x7f", "\u200b\u200c\ufeff\u2028",
    "\U0010ffff\ud7ff", "<|end|>", "a<|eot_id|>b <s> </s> [INST] x [/INST]<|im_end|>\n<|endoftext|>", "<0x0A> ▁ Ġ Ċ", "x" * 3000,
    "word " * 2000, "def f(x):\n    return x ** 2  # comment\n\tif y:\r\n", "\r\n\r", "1 22 333 4444 55555", "<|im_start|> <|x|>",
]  # fmt: skip
CONVERSATIONS = [
    [("user", "Hello!")],
    [("user", "")],
    [("system", "Be brief."), ("user", "Who are you?")],
    [("user", "a"), ("assistant", "b"), ("user", "c")],
    [("system", "s"), ("user", "a\n"), ("assistant", "<think>\nhm\n</think>\n\n b "), ("user", " c")],
    [("user", "x"), ("assistant", "{{ 1 }} {% raw %}"), ("user", "<b>'\"&")],
    [("user", "a"), ("assistant", "b")],
]


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """stand_in(name): its directory, the tokenizer of transformers and ours."""

    @cache
    def make(name: str) -> tuple[Path, Any, Tokenizer]:
        path = DEMO if name == "demo" else write_tokenizer(tmp_path_factory.mktemp(name), name)
        return path, AutoTokenizer.from_pretrained(path), Tokenizer.open(path)

    return make


def tokenizer_hash(theirs: Any) -> str:
    return hashlib.sha256(theirs.backend_tokenizer.to_str().encode()).hexdigest()[:16]


def keeps_system(theirs: Any) -> bool:
    messages = [{"role": "system", "content": "\u2460"}, {"role": "user", "content": "a"}]
    return "\u2460" in theirs.apply_chat_template(messages, tokenize=False)


ALL = each("name", ["demo", *STAND_INS])


@pytest.mark.slow
@ALL
@each("marks", [False, True])
def test_ids_are_those_of_transformers(stand_in: Any, name: str, marks: bool) -> None:
    _, theirs, ours = stand_in(name)
    for text in TEXTS:
        assert ours.encode(text, marks) == theirs(text, add_special_tokens=marks)["input_ids"], repr(text[:80])
        ids, offsets = (one := ours.encoding(text, marks)).ids, one.offsets
        coded = theirs(text, add_special_tokens=marks, return_offsets_mapping=True)
        assert (ids, offsets) == (coded["input_ids"], coded["offset_mapping"])


@pytest.mark.slow
@ALL
def test_decoded_text_is_that_of_transformers(stand_in: Any, name: str) -> None:
    _, theirs, ours = stand_in(name)
    every = list(range(len(theirs)))
    runs = [theirs(text)["input_ids"] for text in TEXTS] + [
        every[start : start + 5] for start in range(0, len(every), 3)
    ]
    for ids in (*runs, every):
        for skip in (False, True):
            expected = theirs.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
            assert ours.decode(ids, skip) == expected, ids[:20]


@ALL
def test_special_tokens_vocabulary_and_hash_are_those_of_transformers(stand_in: Any, name: str) -> None:
    _, theirs, ours = stand_in(name)
    assert ours.get_vocab() == theirs.get_vocab()
    assert ours.eos_token_id == theirs.eos_token_id
    assert {key: str(value) for key, value in ours.added_tokens.items()} == {
        key: str(value) for key, value in theirs.added_tokens_decoder.items()
    }
    special = {index for index, token in theirs.added_tokens_decoder.items() if token.special}
    assert ours.special_ids == set(theirs.all_special_ids) | special
    assert theirs.special_tokens_map == ours.special_tokens
    parts, expected = json.loads(ours.backend.to_str()), json.loads(theirs.backend_tokenizer.to_str())
    assert all(parts[part] == expected[part] for part in parts if part != "model")
    assert ours.hash == tokenizer_hash(theirs) or name != "demo", "phrases and drafters that were kept belong to it"


@ALL
@each("waits", [True, False])
def test_conversations_are_rendered_as_by_transformers(stand_in: Any, name: str, waits: bool) -> None:
    _, theirs, ours = stand_in(name)
    chat, rendered = ChatTokenizer(ours), 0
    for turns in CONVERSATIONS:
        messages = [{"role": role, "content": content} for role, content in turns]
        try:
            expected = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=waits)
        except TemplateError:
            with pytest.raises(TemplateError):
                render_template(ours.chat_template, messages, waits, ours.special_tokens)
            continue
        rendered += 1
        assert render_template(ours.chat_template, messages, waits, ours.special_tokens) == expected
        if turns[0][0] == "system" and not keeps_system(theirs):  # then it comes before the user's message
            turn = {"role": "user", "content": f"{turns[0][1]}\n\n{turns[1][1]}"}
            messages = [turn, *messages[2:]]
            expected = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=waits)
        assert chat.render(messages, waits) == expected
        if waits:
            assert chat.encode(messages, 10_000) == theirs(expected, add_special_tokens=False)["input_ids"]
    assert rendered >= 5


@ALL
def test_a_user_who_spells_special_tokens_gives_no_special_ids(stand_in: Any, name: str) -> None:
    _, _, ours = stand_in(name)
    chat = ChatTokenizer(ours)
    hostile = "".join(token.content for token in ours.added_tokens.values() if token.special)
    plain, attacked = (chat.encode([{"role": "user", "content": text}], 10_000) for text in ("a", hostile))
    count = [sum(token in ours.special_ids for token in ids) for ids in (plain, attacked)]
    assert hostile and count[0] == count[1]


@each(
    "name, stops",
    [("demo", {"<|end|>", "<|endoftext|>"}), (LLAMA3, {"<|eot_id|>"}), (MISTRAL3, {"</s>"}), (CHATML, {"<|im_end|>"}),
     (PHI3, {"<|end|>", "<|endoftext|>"}), (METASPACE, {"</s>"})],
)  # fmt: skip
def test_what_ends_a_reply_is_found_in_configs_tokenizer_and_template(
    stand_in: Any, name: str, stops: set[str]
) -> None:
    path, _, ours = stand_in(name)
    names = [name for name in ("config.json", "generation_config.json") if (path / name).exists()]
    written = [json.loads((path / name).read_text())["eos_token_id"] for name in names]
    assert ChatTokenizer(ours).stop_tokens(written) == {ours.token_to_id(token) for token in stops}


@pytest.mark.slow
@each("template", TEMPLATES)
def test_what_templates_are_written_with_works_as_in_transformers(stand_in: Any, template: str) -> None:
    _, theirs, ours = stand_in(CHATML)
    messages = [
        {"role": "user", "content": "a<é'"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]

    def outcome(render: Any) -> str:
        try:
            return str(render())
        except Exception as error:
            return type(error).__name__

    expected = outcome(lambda: theirs.apply_chat_template(messages, chat_template=template, tokenize=False))
    assert outcome(lambda: render_template(template, messages, False, ours.special_tokens)) == expected


@pytest.mark.slow
def test_the_template_in_a_file_goes_before_the_configs_and_of_several_the_default(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, CHATML)
    (tmp_path / "chat_template.jinja").unlink(missing_ok=True)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    named = [{"name": "default", "template": "one"}, {"name": "tool_use", "template": "two"}]
    for given, expected in (("plain", "plain"), (named, "one"), (None, None)):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": given}))
        assert Tokenizer.open(tmp_path).chat_template == expected
    (tmp_path / "chat_template.jinja").write_text("file")
    assert Tokenizer.open(tmp_path).chat_template == AutoTokenizer.from_pretrained(tmp_path).chat_template == "file"


@pytest.mark.slow
def test_older_files_name_special_tokens_and_added_ones_apart(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, CHATML)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    for name in ("added_tokens_decoder", "eos_token", "pad_token", "extra_special_tokens", "additional_special_tokens"):
        config.pop(name, None)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    eos = {"content": "<|im_end|>", "lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
    more = {"eos_token": eos, "pad_token": "<|pad|>", "additional_special_tokens": ["<|new|>"]}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(more))
    size = Tokenizer.open(tmp_path).backend.get_vocab_size() - 2
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<tool>": size, "<|pad|>": size + 1}))
    theirs, ours = AutoTokenizer.from_pretrained(tmp_path), Tokenizer.open(tmp_path)
    assert ours.get_vocab() == theirs.get_vocab() and ours.token_to_id("<tool>") == size
    assert ours.special_ids == set(theirs.all_special_ids) | {
        index for index, token in theirs.added_tokens_decoder.items() if token.special
    }
    assert ours.eos_token_id == theirs.eos_token_id
    for text in ("<tool> a<|pad|>b<|new|>", "<|im_end|>"):
        assert ours.encode(text) == theirs(text)["input_ids"]


@pytest.mark.slow
def test_the_tokenizer_of_every_family_is_read_as_its_files_say(tmp_path: Path) -> None:
    """The name Qwen2 is enough to change how transformers splits; a byte-level tokenizer.json is taken as it is."""
    byte_tokenizer().save_pretrained(tmp_path)
    whole = byte_tokenizer()
    families = {config().model_type: config for config in CONFIGS.values()}
    for name, config in families.items():
        config().save_pretrained(tmp_path)
        ours = Tokenizer.open(tmp_path)
        assert ours.get_vocab() == whole.get_vocab(), name
        assert [ours.encode(text) for text in TEXTS] == [whole(text)["input_ids"] for text in TEXTS], name


@pytest.mark.slow
@each(
    "name, text",
    [
        ("tokenizer.json", "{"),
        ("tokenizer.json", "{}"),
        ("tokenizer_config.json", "[]"),
        ("tokenizer_config.json", "{"),
        ("tokenizer_config.json", '{"added_tokens_decoder": 3}'),
        ("tokenizer_config.json", '{"chat_template": 3}'),
        ("tokenizer_config.json", '{"chat_template": {"tool_use": ""}}'),
        ("tokenizer.json", b"\xff\xfe"),
        ("special_tokens_map.json", "3"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"a": {}}}'),
    ],
)
def test_damaged_files_are_reported_in_a_sentence(tmp_path: Path, name: str, text: str | bytes) -> None:
    byte_tokenizer().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    config.pop("added_tokens_decoder", None)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "chat_template.jinja").unlink()
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(LocalspecError, match="tokenizer") as told:
        Tokenizer.open(tmp_path)
    assert wording("fetch_the_model_again") in str(told.value) and "\n" not in str(told.value)


def test_a_tokenizer_that_needs_a_conversion_is_reported_with_the_converter(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"sentencepiece")
    with pytest.raises(LocalspecError, match=f"{matching('no_tokenizer_json')}.*{matching('save_pretrained')}"):
        Tokenizer.open(tmp_path)


@pytest.mark.slow
def test_it_is_written_back_as_it_was_read(stand_in: Any, tmp_path: Path) -> None:
    for name in ("demo", MISTRAL3):
        path, _, ours = stand_in(name)
        (copy := tmp_path / name).mkdir()
        ours.save(copy)
        assert {file.name for file in copy.iterdir()} >= {"tokenizer.json", "tokenizer_config.json"}
        for file in copy.iterdir():
            assert file.read_bytes() == (path / file.name).read_bytes()
        assert Tokenizer.open(copy).hash == ours.hash


@each("error", [MemoryError(), RuntimeError(wording("can_t_start_new_thread"))])
def test_too_little_memory_is_no_damage(stand_in: Any, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Otherwise the message would advise to fetch an intact model again."""

    def full(*_: object) -> None:
        raise error

    path, *_ = stand_in("demo")
    monkeypatch.setattr("localspec.models.tokenizer.run_with_timeout", full)
    with pytest.raises(MemoryError):
        Tokenizer.open(path).encode("Hello")
