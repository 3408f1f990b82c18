"""Which templates have a switch for thinking, how it is set, and what they make of earlier thoughts."""

from pathlib import Path
from typing import Any

import pytest
from chat_templates import CHATML, write_tokenizer
from chat_templates import QWEN3_TEMPLATE as QWEN3
from each import each
from scripted_models import random_model
from thinking_templates import GRANITE, KEEPS, R1, SMOLLM3, WORDS
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend
from transformers import AutoTokenizer

from localspec.models.chat_tokenizer import ChatTokenizer
from localspec.models.thinking import Switch
from localspec.models.tokenizer import Tokenizer

ASKED = [{"role": "user", "content": "Why?"}]
WITH_SYSTEM = [{"role": "system", "content": "Be brief."}, *ASKED]
CLOSED = "<think>\n\n</think>"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("family"), CHATML)


@pytest.fixture(scope="module")
def theirs(path: Path) -> Any:
    return AutoTokenizer.from_pretrained(path)


@pytest.fixture
def chat(path: Path) -> Any:
    """chat(template): a tokenizer with this chat template."""

    def make(template: str | None) -> ChatTokenizer:
        tokenizer = Tokenizer.open(path)
        tokenizer.chat_template = template
        return ChatTokenizer(tokenizer)

    return make


@each(
    "template, switch, by_itself",
    [
        (QWEN3, Switch("enable_thinking"), True),
        (SMOLLM3, Switch("enable_thinking"), True),
        (WORDS, Switch(None), True),
        (GRANITE, Switch("thinking"), False),
        (R1, None, None),
        (KEEPS, None, None),
        ("{# enable_thinking, thinking and /no_think are named, and do nothing #}{{ messages[-1].content }}", None, None),
        ("{{ enable_thinking }}{{ raise_exception('no') }}", None, None),
        (None, None, None),
    ],
)  # fmt: skip
def test_a_switch_is_what_changes_the_text(
    chat: Any, template: str | None, switch: Switch | None, by_itself: bool | None
) -> None:
    family = chat(template)
    assert family.switch == switch
    assert family.thinks_by_itself(None) is by_itself and family.heeds_switch(None) is (switch is not None)


@each("template, variable", [(QWEN3, "enable_thinking"), (SMOLLM3, "enable_thinking"), (GRANITE, "thinking")])
@each("think", [True, False, None])
def test_a_variable_reaches_the_template_as_in_transformers(
    chat: Any, theirs: Any, template: str, variable: str, think: bool | None
) -> None:
    given = {} if think is None else {variable: think}
    for messages in (ASKED, WITH_SYSTEM):
        expected = theirs.apply_chat_template(
            messages, chat_template=template, tokenize=False, add_generation_prompt=True, **given
        )
        assert chat(template).render(messages, think=think) == expected
        assert (CLOSED in expected) == (think is False and template is not GRANITE)


def test_words_go_into_the_system_message(chat: Any) -> None:
    family = chat(WORDS)
    assert family.render(ASKED) == family.render(ASKED, think=True)
    off = family.render(ASKED, think=False)
    assert "Reasoning Mode: /no_think\n" in off and off.endswith(f"assistant\n{CLOSED}\n")
    with_system = family.render(WITH_SYSTEM, think=False)
    assert "\n\nBe brief.\n\n" in with_system and with_system.endswith(f"{CLOSED}\n")


def test_some_have_no_switch_with_a_system_prompt(chat: Any) -> None:
    assert not chat(GRANITE).heeds_switch("Be brief.") and chat(GRANITE).thinks_by_itself("Be brief.") is None
    assert all(chat(template).heeds_switch("Be brief.") for template in (QWEN3, SMOLLM3, WORDS))


@each("template, read", [(QWEN3, False), (SMOLLM3, False), (GRANITE, False), (R1, False), (KEEPS, True)])
def test_what_was_thought_is_read_again_only_where_the_template_asks_for_it(
    chat: Any, template: str, read: bool
) -> None:
    answered = {"role": "assistant", "content": "Because.", "reasoning_content": "It is so <|im_end|>."}
    text = chat(template).render([*ASKED, answered, *ASKED])
    assert ("It is so" in text) == read and text.count("Because.") == 1
    plain, spelled = (
        chat(template).encode([*ASKED, {**answered, "reasoning_content": text}, *ASKED], 10**6)
        for text in ("It is so.", answered["reasoning_content"])
    )
    end = chat(template).tokenizer.token_to_id("<|im_end|>")
    assert end is not None and plain.count(end) == spelled.count(end)  # what spells a special token is text
    without = {key: value for key, value in answered.items() if key != "reasoning_content"}
    assert (chat(template).render([*ASKED, without, *ASKED]) == text) == (not read)


@pytest.mark.slow
@each("special", [True, False])
def test_marks_are_seen_whether_they_are_special_tokens_or_not(path: Path, tmp_path: Path, special: bool) -> None:
    backend = Backend.from_file(str(path / "tokenizer.json"))
    marks = [AddedToken(mark, special=special, normalized=False) for mark in ("<think>", "</think>")]
    (backend.add_special_tokens if special else backend.add_tokens)(marks)
    for name in ("config.json",):
        (tmp_path / name).write_text((path / name).read_text())
    backend.save(str(tmp_path / "tokenizer.json"))
    chat = ChatTokenizer(Tokenizer.open(tmp_path))
    assert chat.thinking is not None
    ids = chat.tokenizer.encode("<think>\nhm</think>\n\nyes<|im_end|>", False)
    assert chat.thinking.decode(ids) == "<think>\nhm</think>\n\nyes"
    assert chat.decode(ids) == ("\nhm\n\nyes" if special else "<think>\nhm</think>\n\nyes")
    assert chat.thinking.parting(ids[:2]).thinks and not chat.thinking.parting(ids).thinks


def test_a_prompt_that_ends_in_the_mark_has_begun_the_thinking(chat: Any) -> None:
    for template, think, begun in (
        (R1, None, True),
        (QWEN3, True, False),
        (QWEN3, False, False),
        (GRANITE, True, False),
    ):
        family = chat(template)
        prompt = family.encode(ASKED, 10_000, think)
        assert family.thinking.parting(prompt).thinks is begun
    # What a user ends with is not what the template ends with.
    prompt = chat(R1.replace("<think>\\n", "")).encode([{"role": "user", "content": "<think>"}], 10_000)
    assert not chat(R1).thinking.parting(prompt).thinks


def test_a_model_without_marks_has_no_thoughts(tmp_path: Path) -> None:
    assert ChatTokenizer(Tokenizer.open(random_model(tmp_path / "noise"))).thinking is None


@each("template, thinks", [(QWEN3, "switch"), (R1, "always"), (KEEPS, None), (None, None)])
def test_when_a_model_thinks(chat, template: str | None, thinks: str | None) -> None:
    assert chat(template).thinks == thinks
