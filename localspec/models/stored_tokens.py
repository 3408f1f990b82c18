"""The tokens that a model's tokenizer.json lists, read without a tokenizer; and whether two models have the same."""

from collections.abc import Mapping
from pathlib import Path

from localspec import packed_file
from localspec.checkpoint import is_packed
from localspec.errors import LocalspecError, UsageMistake
from localspec.outside_files import parse_json, read_bytes

FILE = "tokenizer.json"


def compare(small: Mapping[int, str], vocabulary: int, target: Mapping[int, str], path: Path) -> None:
    """Raises UsageMistake where a token's id is not the same in both; ids that only fill up a vocabulary may differ.

    `small` and `target` are tokens by id; the small model in `path` has `vocabulary` ids.
    """
    different = [index for index in target.keys() & small.keys() if target[index] != small[index]]
    if different:
        first = min(different)
        raise UsageMistake(
            f"The small model in {path} has another tokenizer: its token {first} is {small[first]!r}, and the "
            f"target's is {target[first]!r}; give one that was made for this target."
        )
    if max(target) >= vocabulary:
        raise UsageMistake(
            f"The small model in {path} knows {vocabulary} tokens, and the target's tokenizer gives ids up to "
            f"{max(target)}; give one that was made for this target."
        )


def compare_stored(small: Path, vocabulary: int, target: Path, target_vocabulary: int) -> None:
    """Compares two models as `compare` does, by their files alone; quick where these are the same.

    Settings beside tokenizer.json may add tokens, so whoever loads both compares once more. Raises UsageMistake as
    `compare` does, LocalspecError where a tokenizer.json is missing or damaged.
    """
    if not (same_file(small, target) and vocabulary >= target_vocabulary):
        compare(_tokens(_content(small), small), vocabulary, _tokens(_content(target), target), small)


def same_file(one: Path, other: Path) -> bool:
    """Whether two models have the same tokenizer.json, byte for byte. Raises LocalspecError where one has none."""
    return _size(one) == _size(other) and _content(one) == _content(other)


def _size(path: Path) -> int:
    try:
        return len(_content(path)) if is_packed(path) else (path / FILE).stat().st_size
    except OSError as error:
        raise _unreadable(path, error.strerror) from None


def _content(path: Path) -> bytes:
    try:
        return packed_file.read(path).text(FILE) if is_packed(path) else read_bytes(path / FILE)
    except OSError as error:
        raise _unreadable(path, error.strerror) from None
    except KeyError:
        raise _unreadable(path, "there is none") from None


def _tokens(content: bytes, path: Path) -> dict[int, str]:
    """Tokens by id: those of the vocabulary, and those that were added."""
    try:
        told = parse_json(content)
        vocabulary = told["model"]["vocab"]
        if isinstance(vocabulary, list):  # of a unigram model: [token, score], in the order of their ids
            vocabulary = {token: index for index, (token, _) in enumerate(vocabulary)}
        added = {one["id"]: one["content"] for one in told.get("added_tokens") or ()}
        tokens = {index: token for token, index in vocabulary.items()} | added
        if not tokens or not all(type(index) is int for index in tokens):
            raise ValueError
    except (ValueError, TypeError, KeyError, AttributeError):
        raise _unreadable(path, "it lists no tokens") from None
    return tokens


def _unreadable(path: Path, why: str | None) -> LocalspecError:
    return LocalspecError(f"The {FILE} of the model in {path} cannot be read ({why}); fetch the model again.")
