"""Conversations under the present name of their model, which may have been called otherwise when they were saved."""

from collections.abc import Iterable

from localspec.models.registry import renamed
from localspec.store.conversations import ConversationInfo, Saved


def by_present_names(infos: Iterable[ConversationInfo]) -> list[ConversationInfo]:
    """Return these conversations under the present names of their models, for a list."""
    names = renamed()
    return [info._replace(model=names.get(info.model, info.model)) for info in infos]


def by_present_name(found: Saved) -> Saved:
    """Return this conversation under the present name of its model, to show it."""
    return found._replace(info=by_present_names([found.info])[0])
