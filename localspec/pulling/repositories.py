"""The repositories of the hub that a name stands for."""

from localspec.config import nearest
from localspec.errors import NotHere
from localspec.hub.sources import Source
from localspec.models.registry import cards


def sources_of(name: str) -> list[Source]:
    """All that may have been fetched for a name: the model, if it has a repository, and its published drafters.

    Raises NotHere for a name that is not registered, UsageMistake for one that is no repository either.
    """
    known = cards()
    if name in known:
        entry = known[name].entry
        assert entry is not None
        every = (entry.source, *(one.source for one in entry.drafters))
        return list(dict.fromkeys(one for one in every if one is not None))
    if "/" not in name:
        raise NotHere(
            f"There is no model {name!r}{nearest(name, known)}; give a name out of: {', '.join(known)}; or org/repo."
        )
    return [Source.parse(name)]


def own_source(name: str) -> Source | None:
    """The repository of the model itself; None where it came with localspec, or is a directory of the user's."""
    card = cards().get(name)
    if card is None:
        return Source.parse(name)
    return card.entry.source if card.entry else None
