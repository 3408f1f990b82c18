"""The tokens that a model's tokenizer.json lists, read without a tokenizer; and whether two models have the same."""

from collections.abc import Collection, Mapping
from pathlib import Path

from localspec.errors import LocalspecError, UsageMistake, cannot_read
from localspec.outside_files import parse_json, read_bytes
from localspec.weights import packed_file
from localspec.weights.checkpoint import is_packed

FILE = "tokenizer.json"


def compare(
    small: Mapping[int, str], vocabulary: int, target: Mapping[int, str], special: Collection[int], path: Path
) -> None:
    """Raises UsageMistake where a token's id is not the same in both; ids that only fill up a vocabulary may differ.

    `small` and `target` are tokens by id, `special` those of the target's that no text has; the small model in `path`
    has `vocabulary` ids. Special ones beyond them that its own tokenizer lists all the same, as Gemma 3's of text alone
    does one for pictures, are no trouble: drafters read another in their place.
    """
    different = [index for index in target.keys() & small.keys() if target[index] != small[index]]
    if different:
        first = min(different)
        raise UsageMistake(
            f"The small model in {path} has another tokenizer: its token {first} is {small[first]!r}, and the "
            f"target's is {target[first]!r}; give one that was made for this target."
        )
    if unknown := [index for index in target if index >= vocabulary and not (index in special and index in small)]:
        raise UsageMistake(
            f"The small model in {path} knows {vocabulary} tokens, and the target's tokenizer gives ids up to "
            f"{max(unknown)}; give one that was made for this target."
        )


def compare_stored(small: Path, vocabulary: int, target: Path, target_vocabulary: int) -> None:
    """Compares two models as `compare` does, by their files alone; quick where these are the same.

    Settings beside tokenizer.json may add tokens, so whoever loads both compares once more. Raises UsageMistake as
    `compare` does, LocalspecError where a tokenizer.json is missing or damaged.
    """
    if not (same_file(small, target) and vocabulary >= target_vocabulary):
        own, (theirs, special) = _tokens(_content(small), small)[0], _tokens(_content(target), target)
        compare(own, vocabulary, theirs, special, small)


def same_file(one: Path, other: Path) -> bool:
    """Whether two models have the same tokenizer.json, byte for byte. Raises LocalspecError where one has none."""
    return _size(one) == _size(other) and _content(one) == _content(other)


def _size(path: Path) -> int:
    try:
        return len(_content(path)) if is_packed(path) else (path / FILE).stat().st_size
    except FileNotFoundError as error:
        raise _unreadable(path, error.strerror) from None
    except OSError as error:
        raise cannot_read(path / FILE, error) from None


def _content(path: Path) -> bytes:
    try:
        return packed_file.read(path).text(FILE) if is_packed(path) else read_bytes(path / FILE)
    except FileNotFoundError as error:
        raise _unreadable(path, error.strerror) from None
    except OSError as error:
        raise cannot_read(path / FILE, error) from None
    except KeyError:
        raise _unreadable(path, "there is none") from None


def _tokens(content: bytes, path: Path) -> tuple[dict[int, str], set[int]]:
    """Tokens by id, those of the vocabulary and those that were added; and which of the latter no text has."""
    try:
        told = parse_json(content)
        vocabulary = told["model"]["vocab"]
        if isinstance(vocabulary, list):  # of a unigram model: [token, score], in the order of their ids
            vocabulary = {token: index for index, (token, _) in enumerate(vocabulary)}
        listed = told.get("added_tokens") or ()
        added = {one["id"]: one["content"] for one in listed}
        special = {one["id"] for one in listed if one.get("special") is True}
        tokens = {index: token for token, index in vocabulary.items()} | added
        if not tokens or not all(type(index) is int for index in tokens):
            raise ValueError
    except (ValueError, TypeError, KeyError, AttributeError):
        raise _unreadable(path, "it lists no tokens") from None
    return tokens, special


def _unreadable(path: Path, why: str | None) -> LocalspecError:
    return LocalspecError(f"The {FILE} of the model in {path} cannot be read ({why}); fetch the model again.")
