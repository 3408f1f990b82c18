"""Chat templates of published models, compared with transformers' own rendering."""

from collections.abc import Callable
from pathlib import Path

import pytest
from real.reference import BytePairs, File, rendered
from real.texts import CONVERSATIONS, SPELLED
from real.whole_matrix import WHOLE_MATRIX

from localspec.models.chat_tokenizer import ChatTokenizer
from localspec.models.tokenizer import Tokenizer
from localspec.weights.gguf_model import GgufModel

MODELS = ["smollm2", pytest.param("qwen-0.5b", marks=WHOLE_MATRIX), pytest.param("qwen-1.5b", marks=WHOLE_MATRIX)]


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
def test_marks_that_people_spell_are_the_ids_of_the_same_text_without_marks(
    name: str,
    published: Callable[[str], Path],
    gguf_file: Callable[[str], File],
    byte_pairs: Callable[[str], BytePairs],
) -> None:
    """The text is that of transformers; only the template's own marks become control tokens."""
    ours, theirs, pairs = chat(published(name)), gguf_file(name), byte_pairs(name)
    stand_in = "\N{SNOWMAN}"  # which SPELLED does not hold
    for messages in SPELLED:
        expected = rendered(theirs, messages)
        assert ours.render(messages) == expected
        without = rendered(theirs, [{**message, "content": stand_in} for message in messages]).split(stand_in)
        ids = ours.encode(messages, 10**6)
        own = [token for piece in without for token in pairs.encode(piece) if token in pairs.marks.values()]
        assert [token for token in ids if token in pairs.marks.values()] == own
        assert ours.tokenizer.decode(ids) == expected
