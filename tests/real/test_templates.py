"""Chat templates of published models, compared with transformers' own rendering."""

from collections.abc import Callable
from pathlib import Path

import pytest
from real.reference import BytePairs, File, rendered
from real.texts import CONVERSATIONS, SPELLED

from localspec.gguf.model import GgufModel
from localspec.models.chat_tokenizer import ChatTokenizer
from localspec.models.tokenizer import Tokenizer

LONG = pytest.mark.long
MODELS = ["smollm2", pytest.param("qwen-0.5b", marks=LONG), pytest.param("qwen-1.5b", marks=LONG)]


def chat(file: Path) -> ChatTokenizer:
    model = GgufModel.open(file)
    return ChatTokenizer(Tokenizer.decoded(model.texts, file))


@pytest.mark.parametrize("name", MODELS)
def test_conversations_are_the_text_and_ids_that_transformers_makes_of_them(
    name: str,
    published: Callable[[str], Path],
    gguf_file: Callable[[str], File],
    byte_pairs: Callable[[str], BytePairs],
) -> None:
    ours, theirs = chat(published(name)), gguf_file(name)
    for messages in CONVERSATIONS:
        expected = rendered(theirs, messages)
        assert ours.render(messages) == expected
        assert ours.encode(messages, 10**6) == byte_pairs(name).encode(expected), expected


@pytest.mark.parametrize("name", MODELS)
def test_only_spellings_of_special_tokens_are_changed_on_purpose(
    name: str,
    published: Callable[[str], Path],
    gguf_file: Callable[[str], File],
    byte_pairs: Callable[[str], BytePairs],
) -> None:
    """A zero-width non-joiner goes into each such spelling, so that it cannot end a turn.

    Where those spellings are kept as text by other means, compare with `rendered` as it is, and the ids of what people
    said with those of `BytePairs` without marks.
    """
    ours, theirs, pairs = chat(published(name)), gguf_file(name), byte_pairs(name)
    turn = pairs.marks["<|im_end|>"]
    for messages in SPELLED:
        found, expected = ours.render(messages), rendered(theirs, messages)
        assert found != expected and found.replace("\u200c", "") == expected
        plain = [{**message, "content": "x"} for message in messages]
        assert ours.encode(messages, 10**6).count(turn) == pairs.encode(rendered(theirs, plain)).count(turn)
