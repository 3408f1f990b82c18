"""The small model that drafts for a target unless another is named.

It is found by its name in models.toml, in the target's directory, or among the installed models.
"""

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from localspec.errors import LocalspecError, UsageMistake, cannot_read
from localspec.families.table import text_config
from localspec.models.registry import TargetCard, known, named_card, resolve
from localspec.models.shape import Shape
from localspec.outside_files import parse_json, read_bytes
from localspec.weights import packed_file
from localspec.weights.checkpoint import inspect, is_packed

DRAFT_FOLDER = "draft"  # the directory inside a model's own that may hold its small model
LARGEST_SHARE = 0.5  # a draft model that nobody named reads at most this share of the target's bytes per step
NEARLY = 0.9  # a model that reads more than this share counts as one of the same size


@dataclass(frozen=True)
class DefaultDraft:
    """A small model that drafts for a target by default. `origin` says in words how it was found.

    `named` says whether models.toml names it. Only then do published measurements of the two models apply.
    """

    card: TargetCard
    origin: str
    named: bool = False


def default_draft(card: TargetCard, models: Mapping[str, TargetCard] | None = None) -> tuple[DefaultDraft | None, str]:
    """Return the small model that drafts for a target by default, and sentences that say why others were skipped.

    There are three candidates, in this order: the model that models.toml names; the model in the target's directory
    under `draft`; the smallest installed model with the same tokenizer.json that reads at most half of the target's
    bytes per step. The first one that is on this machine and has the target's tokens is returned. Otherwise the model
    in models.toml is returned, to be fetched, or None. Only headers are read. `models` is a recent result of
    `registry.known`, for callers with many models.
    """
    named: DefaultDraft | None = None
    if card.draft:
        with suppress(LocalspecError):  # a request for a draft model reports the error
            small = (models or {}).get(card.draft) or named_card(card.draft)
            named = DefaultDraft(small, "named in models.toml", named=True)
    problems: list[str] = []
    for candidate in _candidates(card, named, models) if card.here else ():
        try:
            compare_stored(candidate.card.path, _vocabulary(candidate.card.path), card.path, _vocabulary(card.path))
            return candidate, " ".join(problems)
        except LocalspecError as error:
            problems.append(f"{candidate.card.name} ({candidate.origin}) cannot draft for {card.name}. {error}")
    return named, " ".join(problems)


def too_large_to_draft(card: TargetCard, models: Mapping[str, TargetCard] | None = None) -> str:
    """Return a sentence if the smallest installed model with the target's tokenizer is too large to draft, or "".

    `models` is as for `default_draft`.
    """
    other = _installed(card, models or known(), NEARLY)
    if other is None or (share := step_bytes(other.path) / step_bytes(card.path)) <= LARGEST_SHARE:
        return ""
    return (
        f"{other.name} has the same tokenizer but is too large to draft for {card.name}: a step of it reads "
        f"{share:.0%} of the bytes that a step of {card.name} reads, and above {LARGEST_SHARE:.0%} drafts do not pay."
    )


def _vocabulary(path: Path) -> int:
    """Return the number of token ids of a supported model. Raises the errors of `inspect`."""
    shape = Shape.of(inspect(path).config)
    if shape is None:
        raise LocalspecError(f"{path / 'config.json'} does not give the sizes of the model; fetch the model again.")
    return shape.vocab_size


def _candidates(
    card: TargetCard, named: DefaultDraft | None, models: Mapping[str, TargetCard] | None
) -> Iterator[DefaultDraft]:
    if named is not None and named.card.here:
        yield named
    inside = card.path / DRAFT_FOLDER
    if os.path.isfile(inside / "config.json"):
        with suppress(LocalspecError):  # a name that no path can have
            yield DefaultDraft(resolve(str(inside)), f"in the model's directory {DRAFT_FOLDER}")
    if (installed := _installed(card, models or known(), LARGEST_SHARE)) is not None:
        yield DefaultDraft(installed, "installed, with the same tokenizer")


def _installed(card: TargetCard, models: Mapping[str, TargetCard], share: float) -> TargetCard | None:
    """Return the smallest installed model of `models` that has the target's tokenizer.json, and reads per step at most
    the given share of the target's bytes."""
    limit = share * step_bytes(card.path)
    candidates: list[tuple[float, TargetCard]] = []
    for other in models.values():
        with suppress(LocalspecError):  # not a supported model, or a damaged one, which `list` reports
            if other.here and same_file(other.path, card.path) and (size := step_bytes(other.path)) <= limit:
                candidates.append((size, other))
    return min(candidates, key=lambda candidate: candidate[0])[1] if candidates else None


def step_bytes(path: Path) -> float:
    """Return the bytes of weights that a model reads to decode one token. Dense weights count as int8: one byte each.

    In a mixture of experts, only the chosen experts are counted.
    """
    checkpoint = inspect(path)
    untied = 0 if text_config(checkpoint.config).get("tie_word_embeddings") else checkpoint.embedding
    shape = Shape.of(checkpoint.config)
    unread = shape.matrices - shape.read(1) if shape else 0
    return (checkpoint.parameters - untied - unread) * (checkpoint.bits / 8 if checkpoint.packing else 1.0)


FILE = "tokenizer.json"


def compare(
    small: Mapping[int, str], vocabulary: int, target: Mapping[int, str], special: Collection[int], path: Path
) -> None:
    """Raise UsageMistake unless two models have the same ids of tokens. Ids that only pad a vocabulary may differ.

    `small` and `target` map ids to tokens. `special` are the target's ids that occur in no text. The small model in
    `path` has `vocabulary` ids. Its tokenizer may list special tokens with higher ids, such as the image token in Gemma
    3's text models. Drafters replace these ids by others before the small model reads a text.
    """
    different = [index for index in target.keys() & small.keys() if target[index] != small[index]]
    if different:
        first = min(different)
        raise UsageMistake(
            f"The small model in {path} has another tokenizer: its token {first} is {small[first]!r}, and the "
            f"target's is {target[first]!r}; give one that was made for this target."
        )
    if unknown := [index for index in target if index >= vocabulary and not (index in special and index in small)]:
        highest = max(unknown)
        raise UsageMistake(
            f"The small model in {path} knows {vocabulary} tokens, and the target's tokenizer gives ids up to "
            f"{highest}; give one that was made for this target."
        )


def compare_stored(small: Path, vocabulary: int, target: Path, target_vocabulary: int) -> None:
    """Compare two models as `compare` does, from their files only. This is quick if the files are equal.

    Other files may add tokens, so both models must be compared again after loading. Raises UsageMistake as `compare`
    does, and LocalspecError if a tokenizer.json is missing or damaged.
    """
    if not (same_file(small, target) and vocabulary >= target_vocabulary):
        small_tokens, (target_tokens, special) = _tokens(_content(small), small)[0], _tokens(_content(target), target)
        compare(small_tokens, vocabulary, target_tokens, special, small)


def same_file(first: Path, second: Path) -> bool:
    """Return whether two models have the same bytes in tokenizer.json. Raises LocalspecError if a file is missing."""
    return _size(first) == _size(second) and _content(first) == _content(second)


def _size(path: Path) -> int:
    with _readable(path):
        return len(_content(path)) if is_packed(path) else (path / FILE).stat().st_size


def _content(path: Path) -> bytes:
    with _readable(path):
        return packed_file.read(path).text(FILE) if is_packed(path) else read_bytes(path / FILE)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turn errors of reading a model's tokenizer.json, in this context, into LocalspecError."""
    try:
        yield
    except FileNotFoundError as error:
        raise _unreadable(path, error.strerror) from None
    except OSError as error:
        raise cannot_read(path / FILE, error) from None
    except KeyError:
        raise _unreadable(path, "the file is missing") from None


def _tokens(content: bytes, path: Path) -> tuple[dict[int, str], set[int]]:
    """Return all tokens by id, including added tokens, and the added ids that occur in no text."""
    try:
        parsed = parse_json(content)
        vocabulary = parsed["model"]["vocab"]
        if isinstance(vocabulary, list):  # a unigram model: [token, score], in the order of their ids
            vocabulary = {token: index for index, (token, _) in enumerate(vocabulary)}
        entries = parsed.get("added_tokens") or ()
        added = {entry["id"]: entry["content"] for entry in entries}
        special = {entry["id"] for entry in entries if entry.get("special") is True}
        tokens = {index: token for token, index in vocabulary.items()} | added
        if not tokens or not all(type(index) is int for index in tokens):
            raise ValueError
    except (ValueError, TypeError, KeyError, AttributeError):
        raise _unreadable(path, "the file lists no tokens") from None
    return tokens, special


def _unreadable(path: Path, reason: str | None) -> LocalspecError:
    return LocalspecError(f"The {FILE} of the model in {path} cannot be read ({reason}); fetch the model again.")
