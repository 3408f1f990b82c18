"""A list of conversations in families: a conversation and its branches are next to each other, with different names."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from localspec.store.conversations import ConversationInfo, Saved, Turn
from localspec.text import one_line

if TYPE_CHECKING:
    from localspec.store.history import History

SHOWN = 40  # characters of a prompt or an answer
CONTEXT = 12  # of these characters, at most, before the first difference


class ListedConversation(NamedTuple):
    """A line in a list of conversations. The list keeps each family together: a conversation and all its branches."""

    info: ConversationInfo
    below: bool = False  # listed below another branch of its family
    says: str = ""  # its difference from the others of its family
    named: bool = False  # listed below another branch, with a title that the user gave

    @property
    def name(self) -> str:
        """Return the name of the conversation in a list that does not group families."""
        return f"{self.info.title} · {self.says}" if self.says else self.info.title

    @property
    def indented(self) -> str:
        """Return the name of the conversation in a list of families, where branches are indented."""
        return self.name if not self.below else f"└ {self.name if self.named else self.says}"

    @property
    def mark(self) -> str:
        """Return " (piped)" if the input or output of the conversation was a pipe; otherwise an empty text."""
        return "" if self.info.for_a_chat else " (piped)"


def rows(history: "History", infos: Sequence[ConversationInfo]) -> list[ListedConversation]:
    """Return the conversations `infos` by family, each family at the place of its first conversation in `infos`.

    Raises StoreTrouble.
    """
    by_id = {info.id: info for info in infos}
    families: dict[int, list[ConversationInfo]] = {}
    for info in infos:
        families.setdefault(_root(info, by_id), []).append(info)
    pairs = {info.id: _pairs(info, family) for family in families.values() for info in family}
    all_pairs = [pair for several in pairs.values() for pair in several]
    partings = history.partings(all_pairs) if all_pairs else {}
    listed = []
    for family in families.values():
        for info in family:
            pair = next((pair for pair in pairs[info.id] if pair in partings), None)
            says = "" if pair is None else _says(pair[1], *partings[pair])
            below = info is not family[0]
            named = below and info.named and info.title != family[0].title
            listed.append(ListedConversation(info, below, says, named))
    return listed


def _root(info: ConversationInfo, by_id: Mapping[int, ConversationInfo]) -> int:
    """Return the id of the oldest known ancestor, which may itself be missing from `by_id` (conversations by id)."""
    visited = {info.id}
    number = info.id
    while (above := by_id.get(number)) is not None and above.branch_of is not None and above.branch_of not in visited:
        number = above.branch_of
        visited.add(number)
    return number


def _pairs(info: ConversationInfo, family: Sequence[ConversationInfo]) -> list[tuple[int, int]]:
    """Return pairs of ids to compare, the best first: this conversation and another one of its family.

    The list of conversations then shows how the two differ. A branch is first paired with its origin (the conversation
    from which it branched), even if the origin is deleted or not listed. The next pair is with the latest branch of
    this conversation, or else with any other member of the family.
    """
    others = [other for other in family if other is not info]
    others.sort(key=lambda other: other.branch_of != info.id)
    nearest = [other.id for other in others[:1]]
    return [(info.id, other) for other in ([] if info.branch_of is None else [info.branch_of]) + nearest]


def _says(other: int, mine: Turn | None, theirs: Turn | None) -> str:
    if mine is None:
        return f"the same as {other}" if theirs is None else "ends earlier"
    if theirs is not None and (mine.typed, mine.reply) == (theirs.typed, theirs.reply):
        return f"the same as {other}: “{_beginning(mine.reply or mine.typed)}”"
    if theirs is None or mine.typed != theirs.typed:
        return f"asked “{_beginning(mine.typed, '' if theirs is None else theirs.typed)}”"
    if mine.unanswered:
        return "no answer"
    return f"answered “{_beginning(mine.reply, theirs.reply)}”"


def _beginning(text: str, other: str = "") -> str:
    """Return the first words of a text, or the words near the place where the text first differs from `other`.

    If one text is the beginning of the other, that place is the end of the shorter text.
    """
    line, compared = one_line(text), one_line(other)
    differ = (index for index, pair in enumerate(zip(line, compared, strict=False)) if pair[0] != pair[1])
    common = next(differ, min(len(line), len(compared)))
    start = line.rfind(" ", 0, common - CONTEXT) + 1 if common > SHOWN - CONTEXT else 0
    shown = line[start : start + SHOWN]
    return f"{'…' if start else ''}{shown}{'…' if start + SHOWN < len(line) else ''}"


def by_present_names(infos: Iterable[ConversationInfo]) -> list[ConversationInfo]:
    """Return these conversations with their models' present names, which may differ from the saved names."""
    from localspec.models.registry import renamed  # not needed for the first paint

    names = renamed()
    return [info._replace(model=names.get(info.model, info.model)) for info in infos]


def by_present_name(saved: Saved) -> Saved:
    """Return this conversation with its model's present name, which may differ from the saved name."""
    return saved._replace(info=by_present_names([saved.info])[0])
