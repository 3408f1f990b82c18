"""The slash commands of a chat: one list for the full screen and for `--plain`, and how a typed line is read."""

from typing import NamedTuple

from localspec.config import nearest
from localspec.errors import UsageMistake

QUOTED = 40  # characters of what was typed


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
    Command("set", "[KEY [VALUE]]", "how replies are sampled; VALUE default takes it back; without KEY: show it"),
    Command(
        "think", "[on|off|auto|show]", "let the model think first, or not; show: its last thoughts; alone: what holds"
    ),
    Command("again", "", "another answer to the last prompt; the one before stays, as a conversation of its own"),
    Command("edit", "[TEXT]", "say TEXT instead of the last prompt, and go on from there; the old way stays, too"),
    Command("title", "[TEXT]", "call this conversation TEXT; without TEXT: by its first prompt"),
    Command("find", "[WORDS]", "the messages of this conversation that hold all of WORDS"),
    Command("xray", "", "who proposed each token of the last reply, and what was refused"),
    Command("phrases", "[WORDS]", "the phrases that are kept for this model; with WORDS: those that hold them"),
    Command("race", "[PROMPT]", "the same prompt plain and speculative, side by side"),
    Command("help", "", "this list"),
    Command("quit", "", "leave"),
)

# What other programs call them.
ALIASES = {"bye": "quit", "exit": "quit", "clear": "new", "?": "help"}
ELSEWHERE = {
    "show": "/set shows how replies are sampled, /system the system prompt, /model the models.",
    "save": "Conversations are saved as you go; `localspec history export` writes them as Markdown.",
    "load": "/model NAME lets another model answer, /resume goes on with an earlier conversation.",
}


def listed() -> str:
    """A line for each command."""
    shown = [(f"/{command.name} {command.argument}".strip(), command.does) for command in COMMANDS]
    width = max(len(name) for name, _ in shown) + 2
    return "\n".join(f"{name:{width}}{does}" for name, does in shown)


class Said(NamedTuple):
    """A line as it was meant: a command by its name with what follows it, or with an empty name a prompt."""

    command: str
    rest: str


def is_command(line: str) -> bool:
    """Whether a line is meant as a command, be it one or not."""
    return line.startswith("/") and not line.startswith("//")


def read(line: str) -> Said:
    """A line that begins with a slash is a command, and //text is the prompt /text. Raises UsageMistake."""
    if not line.startswith("/"):
        return Said("", line)
    if line.startswith("//"):
        return Said("", line[1:])
    word, *rest = line.rstrip().split(maxsplit=1)
    name = ALIASES.get(word[1:], word[1:])
    if name == "set" and rest and rest[0].split(maxsplit=1)[0] == "system":  # as Ollama has it
        name, rest = "system", rest[0].split(maxsplit=1)[1:]
    found = next((command for command in COMMANDS if command.name == name), None)
    if found is None and name in ELSEWHERE:
        raise UsageMistake(f"There is no command {word}. {ELSEWHERE[name]}")
    if found is None:
        guess = nearest(word, [f"/{command.name}" for command in COMMANDS])
        raise UsageMistake(f"There is no command {_quoted(word)}{guess}; /help lists them, and //text says /text.")
    if rest and not found.argument:
        raise UsageMistake(f"{word} takes nothing, and {_quoted(rest[0])} was given; leave it out.")
    return Said(found.name, "".join(rest))


def _quoted(text: str) -> str:
    """As much of it as tells which was meant."""
    return repr(text if len(text) <= QUOTED else f"{text[:QUOTED]}…")
