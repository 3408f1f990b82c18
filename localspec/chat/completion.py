"""What a half-typed command or path may become: the same for the full screen and for a line."""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from localspec.chat.branches import Branches, rows
from localspec.chat.commands import COMMANDS, Command, is_command
from localspec.chat.sampling import DEFAULT, KEYS
from localspec.errors import LocalspecError
from localspec.store.conversations import ConversationInfo
from localspec.text import one_line, safe

MOST = 50  # of anything: who looks for one among more types a letter
_PATH = re.compile(r'(?<![\w\\@])@(?:"([^"\n]*)|([^\s"]*))$')

Known = Mapping[str, "Sequence[Entry]"]


class Entry(NamedTuple):
    """What could be typed, and what it is."""

    text: str
    about: str


class Choice(NamedTuple):
    """What would stand before the cursor, how it is shown, and what it does."""

    line: str
    shown: str
    does: str


class Conversations(Branches, Protocol):
    """The history, as far as it is asked here."""

    def conversations(self, limit: int, among: Callable[[ConversationInfo], bool]) -> Sequence[ConversationInfo]: ...


def needed(before: str) -> str | None:
    """Which list `choices` needs where this stands before the cursor, as `look_up` names it; None where none."""
    if _is_command(before):
        word, space, _ = before.partition(" ")
        return word[1:] if space and word in ("/resume", "/model") else None
    found = _PATH.search(before)
    return None if found is None else "@" + os.path.split(found[1] or found[2] or "")[0]


def look_up(need: str, history: Conversations | None) -> list[Entry]:
    """That list. It reads the disk; what cannot be read is an empty list."""
    try:
        if need == "resume":
            found = rows(history, history.conversations(MOST, lambda info: info.for_a_chat)) if history else ()
            return [Entry(str(row.info.id), row.name) for row in found]
        if need == "model":
            from localspec.models import registry  # which the first paint need not wait for

            models = registry.installed()
            here = [Entry(card.name, card.description) for card, got in models if not isinstance(got, LocalspecError)]
            away = (card for card in registry.cards().values() if not card.here)
            return [*here, *(Entry(card.name, f"not here yet: {card.description}") for card in away)]
        return sorted(_files(need.removeprefix("@")))
    except (LocalspecError, OSError, ValueError):
        return []


def choices(before: str, known: Known) -> list[Choice]:
    """What this may become, given the lists that are known already."""
    if not _is_command(before):
        found = _PATH.search(before)
        return [] if found is None else _paths(before[: found.start()], found[1] or found[2] or "", known)
    word, space, rest = before.partition(" ")
    if not space:
        return [_command(one) for one in COMMANDS if f"/{one.name}".startswith(word)]
    entries = _settings(rest) if word == "/set" else known.get(word[1:], ())
    wanted = rest.strip().lower()
    return [
        Choice(f"{word} {entry.text}", one_line(entry.text), one_line(entry.about))
        for entry in entries
        if entry.text.lower().startswith(wanted) or (word == "/resume" and wanted in entry.about.lower())
    ]


def is_begun(before: str) -> bool:
    """Whether a command or a path stands there, even one that nothing is known of yet."""
    return _is_command(before) or _PATH.search(before) is not None


def is_whole(before: str) -> bool:
    """Whether Enter means what stands there: a command that is none yet, but the beginning of one, is not."""
    word = before.partition(" ")[0]
    begun = _is_command(before) and word == before and any(f"/{one.name}".startswith(word) for one in COMMANDS)
    return not begun or any(f"/{one.name}" == word for one in COMMANDS)


def _is_command(before: str) -> bool:
    return is_command(before) and "\n" not in before


def _command(command: Command) -> Choice:
    line = f"/{command.name}"
    return Choice(f"{line} " if command.argument else line, f"{line} {command.argument}".strip(), command.does)


def _settings(rest: str) -> list[Entry]:
    key, space, _ = rest.partition(" ")
    if space:
        return [Entry(f"{key} {DEFAULT}", "what it was at the beginning")]
    return [Entry(f"{key} ", "") for key in KEYS]


def _files(folder: str) -> Iterator[Entry]:
    with os.scandir(os.path.expanduser(folder) or ".") as found:
        for one in found:
            if safe(one.name) == one.name and not {'"', "\n"} & set(one.name):
                directory = one.is_dir()
                yield Entry(f"{one.name}/" if directory else one.name, "a directory" if directory else "")


def _paths(ahead: str, typed: str, known: Known) -> list[Choice]:
    folder, begun = os.path.split(typed)
    shown = [
        entry
        for entry in known.get("@" + folder, ())
        if entry.text.startswith(begun) and (begun or not entry.text.startswith("."))
    ]
    lines = []
    for entry in shown[:MOST]:
        path = os.path.join(folder, entry.text)
        whole = not entry.text.endswith("/")
        quoted = f'"{path}"' if whole else f'"{path}'
        line = f"{ahead}@{quoted if ' ' in path else path}{' ' if whole else ''}"
        lines.append(Choice(line, one_line(entry.text), entry.about))
    return lines
