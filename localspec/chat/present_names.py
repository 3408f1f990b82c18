"""Conversations with the present name of their model, which may differ from the saved name."""

from collections.abc import Iterable

from localspec.models.registry import renamed
from localspec.store.conversations import ConversationInfo, Saved


def by_present_names(infos: Iterable[ConversationInfo]) -> list[ConversationInfo]:
    """Return these conversations with the present names of their models."""
    names = renamed()
    return [info._replace(model=names.get(info.model, info.model)) for info in infos]


def by_present_name(found: Saved) -> Saved:
    """Return this conversation with the present name of its model."""
    return found._replace(info=by_present_names([found.info])[0])
