"""How one speaks with a model, from its files alone: the weights stay where they are."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from localspec.families.generation_config import GENERATION, generation_config, read_generation_config
from localspec.models.chat_tokenizer import ChatTokenizer
from localspec.models.tokenizer import Tokenizer
from localspec.weights import packed_file
from localspec.weights.checkpoint import is_packed


def chat_files(path: Path) -> tuple[ChatTokenizer, Mapping[str, Any]]:
    """The tokenizer of a directory or a packed file, and the model's own sampling.

    Raises LocalspecError for files that cannot be used.
    """
    if not is_packed(path):
        return ChatTokenizer(Tokenizer.open(path)), read_generation_config(path)
    found = packed_file.read(path)
    texts = {name: found.text(name) for name in found.header.texts}
    tokenizer = ChatTokenizer(Tokenizer.decoded(texts, path))
    return tokenizer, generation_config(texts.get(GENERATION, b"{}"), path / GENERATION)


def tokenizer_of(path: Path) -> Tokenizer:
    """Return the tokenizer of a directory or a packed file. Raises LocalspecError for files that cannot be used."""
    if not is_packed(path):
        return Tokenizer.open(path)
    found = packed_file.read(path)
    return Tokenizer.decoded({name: found.text(name) for name in found.header.texts}, path)
