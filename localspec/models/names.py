"""Finds what a user means by a name: a model here, perhaps by the beginning of its name, or repositories of the hub."""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from localspec.config import nearest
from localspec.errors import LocalspecError, NotHere, UsageMistake
from localspec.hub.sources import Source, is_address
from localspec.models import registry
from localspec.models.registry import TargetCard
from localspec.weights.packed_files import is_gguf

LATEST = ":latest"  # the tag that Ollama adds to a name without one
LISTED = 5  # most candidates that a message names


def full_name(name: str) -> str:
    """Return the full name of the model here that `name` means: the same name in another case, or a unique prefix.

    Paths, repositories and unknown names are returned unchanged. Raises UsageMistake for a prefix of several names, and
    NotHere for a prefix of models that are registered but not here.
    """
    if not name or registry.find(name) or "\0" in name or os.path.lexists(os.path.expanduser(name)):
        return name
    if (exact := exact_name(name)) is not None:
        return exact
    if is_address(name):
        return str(Source.parse(name))
    prefix = _plain(name)
    if name.startswith((".", "~")) or "/" in name or "\\" in name or not prefix:
        return name  # a path or repository is not a prefix of another name
    models = registry.known()
    matches = [card for card in models.values() if card.name.lower().startswith(prefix)]
    here = _one_name_each(card for card in matches if card.here)
    if len(here) > 1:
        listed = ", ".join(here[:LISTED]) + (f", and {len(here) - LISTED} more" if len(here) > LISTED else "")
        raise UsageMistake(f"{name!r} could be any of {listed}; type more of the name.")
    if here:
        return here[0]
    if matches:
        first, *others = (card.name for card in matches)
        if others:
            listed = ", ".join([first, *others[:LISTED]])
            raise NotHere(f"No model here begins with {name!r}; `localspec pull NAME` fetches one of {listed}.")
        raise NotHere(f"No model here begins with {name!r}; `localspec pull {first}` fetches one.")
    return name


def exact_name(name: str) -> str | None:
    """Return the name of the model here that equals `name` except for case; None unless there is exactly one.

    A registered name in its exact spelling is returned even if the model is not here.
    """
    if name in registry.cards():
        return name
    spelled = [name.lower(), _plain(name)]
    with suppress(LocalspecError):  # the address of a page on the hub
        spelled.append(str(Source.parse(name)).lower())
    models = registry.known()
    if name in models:
        return name
    same = _one_name_each(card for card in models.values() if card.name.lower() in spelled)
    return same[0] if len(same) == 1 else None


def name_in_prompt(word: str) -> str | None:
    """Return the model that a user probably meant by a prompt of one word; None for most words."""
    if not word.isprintable() or len(word) < 3 or len(word.split()) != 1:
        return None
    with suppress(LocalspecError, OSError, ValueError):
        model = full_name(word)
        if model.lower().startswith(_plain(word)) and model in registry.known():
            return model
    return None


def _plain(name: str) -> str:
    """Return a name in lower case without Ollama's tag `:latest`."""
    return name.lower().removesuffix(LATEST)


def _one_name_each(cards: Iterable[TargetCard]) -> list[str]:
    """Return one name for each set of files, because several of the models may share their files."""
    names: dict[Path, str] = {}
    for card in cards:
        names.setdefault(card.path, card.name)
    return list(names.values())


# -- repositories ------------------------------------------------------------------------------------------------------


def sources_of(name: str, here: bool = False) -> list[Source]:
    """Return all repositories from which a model, in any form, and its drafters may have been fetched.

    With `here`, errors list only models on this machine. Raises LocalspecError for damaged files, NotHere for an
    unregistered name without a slash, and UsageMistake for a GGUF file or an invalid repository.
    """
    cards = registry.cards()
    if name in cards:
        entry = cards[name].entry
        assert entry is not None
        sources = (*entry.sources, *(drafter.source for drafter in entry.drafters))
        return list(dict.fromkeys(source for source in sources if source is not None))
    if registry.is_path(name) and is_gguf(Path(name).expanduser()):
        raise UsageMistake(f"{name} is already on this machine; chat with it: `localspec chat -m {name}`.")
    if "/" not in name:
        if here:
            registry.refuse_damaged(name)
        names = [card.name for card in cards.values() if card.here or not here]
        if here:
            raise NotHere(
                f"There is no model {name!r}{nearest(name, names)}; `localspec list` shows those that are here."
            )
        raise NotHere(
            f"There is no model {name!r}{nearest(name, names)}; give one that `localspec doctor` lists, or org/repo."
        )
    return [Source.parse(name)]


def repository_of(name: str) -> Source | None:
    """Return the repository from which an installed model was fetched, or else its publisher's repository.

    Return None if the model came with localspec, or is the user's own directory.
    """
    card = registry.cards().get(name)
    if card is None:
        return Source.parse(name)
    return registry.source_here(card.entry) or card.entry.source if card.entry else None
