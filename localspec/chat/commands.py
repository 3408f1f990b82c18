"""The slash commands of a chat: one list for the full screen and for `--plain`, and how a typed line is read."""

from collections.abc import Sequence
from typing import NamedTuple

from localspec.config import nearest
from localspec.errors import UsageMistake


class Command(NamedTuple):
    """What one types after the slash, what may follow it (empty: nothing), and what it does."""

    name: str
    argument: str
    does: str


COMMANDS = (
    Command("new", "", "begin a new conversation"),
    Command("resume", "[ID]", "go on with an earlier one; without ID: list them"),
    Command("model", "[NAME]", "let another model answer; without NAME: list them"),
    Command("system", "[TEXT]", "set the system prompt; without TEXT: show it"),
    Command("help", "", "this list"),
    Command("quit", "", "leave"),
)


class Said(NamedTuple):
    """A line as it was meant: a command by its name with what follows it, or with an empty name a prompt."""

    command: str
    rest: str


def read(line: str) -> Said:
    """A line that begins with a slash is a command, and //text is the prompt /text. Raises UsageMistake."""
    if not line.startswith("/"):
        return Said("", line)
    if line.startswith("//"):
        return Said("", line[1:])
    word, *rest = line.strip().split(maxsplit=1)
    found = next((command for command in COMMANDS if f"/{command.name}" == word), None)
    if found is None:
        guess = nearest(word, [f"/{command.name}" for command in COMMANDS])
        raise UsageMistake(f"There is no command {word!r}{guess}; /help lists them, and //text says /text.")
    if rest and not found.argument:
        raise UsageMistake(f"{word} takes nothing, and {rest[0]!r} was given; leave it out.")
    return Said(found.name, "".join(rest))


def completions(typed: str) -> Sequence[Command]:
    """The commands that what was typed so far may become; none once a blank stands behind a name."""
    if not typed.startswith("/") or typed.startswith("//"):
        return ()
    return [command for command in COMMANDS if f"/{command.name}".startswith(typed)]
