"""The small model that drafts for a target unless another is named: found by name, in its directory, or beside it."""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from localspec.environment import home
from localspec.errors import LocalspecError
from localspec.models.registry import TargetCard, known, named_card, resolve
from localspec.models.shape import Shape
from localspec.models.stored_tokens import compare_stored, same_file
from localspec.paths import Paths
from localspec.weights.checkpoint import inspect

BESIDE = "draft"  # the directory inside a model's own that may hold its small model
MUCH_SMALLER = 3  # times fewer parameters than the target, of a model that drafts though nobody said it should


@dataclass(frozen=True)
class OwnDraft:
    """A small model and from where it is known, in words. What is published of a pair is about a `named` one."""

    card: TargetCard
    origin: str
    named: bool = False


def own_draft(card: TargetCard, paths: Paths | None = None) -> tuple[OwnDraft | None, str]:
    """Returns the small model that drafts for a target, and why one was passed over, in sentences, if any was.

    The first of these that is here and has the target's tokens: what models.toml names, what lies in the target's
    directory under `draft`, the smallest of the installed models that have its tokenizer.json and are much smaller.
    Where none is, what models.toml names, to be fetched. Headers are read and no weights.
    """
    named = _named(card)
    troubles: list[str] = []
    for found in _candidates(card, named, paths) if card.here else ():
        try:
            compare_stored(found.card.path, _vocabulary(found.card.path), card.path, _vocabulary(card.path))
            return found, " ".join(troubles)
        except LocalspecError as trouble:
            troubles.append(f"{found.card.name}, {found.origin}, does not draft for {card.name}: {trouble}")
    return named, " ".join(troubles)


def _vocabulary(path: Path) -> int:
    """The number of token ids of a model that can be served. Raises what `inspect` raises."""
    shape = Shape.of(inspect(path).config)
    if shape is None:
        raise LocalspecError(f"{path / 'config.json'} does not say how large the model is; fetch it again.")
    return shape.vocab_size


def _named(card: TargetCard) -> OwnDraft | None:
    """What models.toml names, here or not; None where it cannot be meant."""
    if card.draft:
        with suppress(LocalspecError):  # only who asks for a draft model gets its error
            return OwnDraft(named_card(card.draft), "named in models.toml", named=True)
    return None


def _candidates(card: TargetCard, named: OwnDraft | None, paths: Paths | None) -> Iterator[OwnDraft]:
    if named is not None and named.card.here:
        yield named
    beside = card.path / BESIDE
    if os.path.isfile(beside / "config.json"):
        with suppress(LocalspecError):  # a name that no path can have
            yield OwnDraft(resolve(str(beside)), f"in the model's directory {BESIDE}")
    if (installed := _installed(card, paths or Paths(home()))) is not None:
        yield OwnDraft(installed, "installed, of the same tokenizer")


def _installed(card: TargetCard, paths: Paths) -> TargetCard | None:
    """The smallest model here that has the target's tokenizer.json and is much smaller."""
    most = inspect(card.path).parameters // MUCH_SMALLER
    found: list[tuple[int, TargetCard]] = []
    for other in known(paths).values():
        with suppress(LocalspecError):  # no model of its kind, or a damaged one, which `list` tells
            if other.here and same_file(other.path, card.path) and (size := inspect(other.path).parameters) <= most:
                found.append((size, other))
    return min(found, key=lambda one: one[0])[1] if found else None
