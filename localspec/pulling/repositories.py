"""The repositories of the hub that a name means."""

from pathlib import Path

from localspec.config import nearest
from localspec.errors import NotHere, UsageMistake
from localspec.hub.sources import Source
from localspec.models.registry import cards, is_path, refuse_damaged, source_here
from localspec.weights.packed_files import is_gguf


def sources_of(name: str, here: bool = False) -> list[Source]:
    """Return all repositories that may have been fetched for a name: the model in any of its forms, and its drafters.

    With `here`, errors list only models on this machine. Raises LocalspecError for damaged files, NotHere for a name
    that is not registered, and UsageMistake for one that is not a repository either.
    """
    known = cards()
    if name in known:
        entry = known[name].entry
        assert entry is not None
        every = (*entry.sources, *(one.source for one in entry.drafters))
        return list(dict.fromkeys(one for one in every if one is not None))
    if is_path(name) and is_gguf(Path(name).expanduser()):
        raise UsageMistake(f"{name} is already on this machine; chat with it: `localspec chat -m {name}`.")
    if "/" not in name:
        if here:
            refuse_damaged(name)
        names = [one.name for one in known.values() if one.here or not here]
        listed = (
            "`localspec list` shows those that are here"
            if here
            else "give one that `localspec doctor` lists, or org/repo"
        )
        raise NotHere(f"There is no model {name!r}{nearest(name, names)}; {listed}.")
    return [Source.parse(name)]


def repository_of(name: str) -> Source | None:
    """Return the repository from which an installed model was fetched, or else its publisher's repository.

    Return None if the model came with localspec, or is the user's own directory.
    """
    card = cards().get(name)
    if card is None:
        return Source.parse(name)
    return source_here(card.entry) or card.entry.source if card.entry else None
