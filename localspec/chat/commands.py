"""The slash commands of a chat: one list for the full screen and for `--plain`, and how a typed line is read."""

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
    Command("again", "", "another answer to the last prompt; the one before stays, as a conversation of its own"),
    Command("edit", "[TEXT]", "say TEXT instead of the last prompt, and go on from there; the old way stays, too"),
    Command("title", "[TEXT]", "call this conversation TEXT; without TEXT: by its first prompt"),
    Command("help", "", "this list"),
    Command("quit", "", "leave"),
)


def listed() -> str:
    """A line for each command."""
    shown = [(f"/{command.name} {command.argument}".strip(), command.does) for command in COMMANDS]
    width = max(len(name) for name, _ in shown) + 2
    return "\n".join(f"{name:{width}}{does}" for name, does in shown)


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
    word, *rest = line.rstrip().split(maxsplit=1)
    found = next((command for command in COMMANDS if f"/{command.name}" == word), None)
    if found is None:
        guess = nearest(word, [f"/{command.name}" for command in COMMANDS])
        raise UsageMistake(f"There is no command {word!r}{guess}; /help lists them, and //text says /text.")
    if rest and not found.argument:
        raise UsageMistake(f"{word} takes nothing, and {rest[0]!r} was given; leave it out.")
    return Said(found.name, "".join(rest))
