"""The slash commands of a chat: one list for the full screen and for `--plain`, and the parsing of a typed line."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from localspec.chat.branches import rows
from localspec.chat.sampling import DEFAULT, KEYS
from localspec.config import nearest
from localspec.errors import LocalspecError, UsageMistake
from localspec.text import one_line, safe

if TYPE_CHECKING:
    from localspec.store.history import History

QUOTED = 40  # characters of the typed text


class Command(NamedTuple):
    """A slash command: its name, its arguments (empty for none), and what it does."""

    name: str
    argument: str
    does: str


COMMANDS = (
    Command("new", "", "begin a new conversation"),
    Command("resume", "[ID]", "continue an earlier one; without ID: list them"),
    Command("model", "[NAME]", "change the model; without NAME: list the models"),
    Command("system", "[TEXT]", "set the system prompt; without TEXT: show it"),
    Command("set", "[KEY [VALUE]]", "change how replies are sampled; VALUE default resets it; without KEY: show it"),
    Command(
        "think",
        "[on|off|auto|show]",
        "let the model think first, or not; show: its last thoughts; without argument: the current setting",
    ),
    Command("again", "", "answer the last prompt again; the earlier answer stays, as a separate conversation"),
    Command("edit", "[TEXT]", "replace the last prompt by TEXT and continue from there; the old branch stays"),
    Command("title", "[TEXT]", "rename this conversation to TEXT; without TEXT: its first prompt"),
    Command("find", "[WORDS]", "find messages of this conversation that contain all WORDS"),
    Command("xray", "", "who proposed each token of the last reply, and which drafts were refused"),
    Command("phrases", "[WORDS]", "phrases saved for this model; with WORDS: those that contain them"),
    Command("race", "[PROMPT]", "the same prompt plain and speculative, side by side"),
    Command("help", "", "this list"),
    Command("quit", "", "leave"),
)

# Names in other programs.
ALIASES = {"bye": "quit", "exit": "quit", "clear": "new", "?": "help"}
ELSEWHERE = {
    "show": "/set shows how replies are sampled, /system the system prompt, /model the models.",
    "save": "Conversations are saved as you go; `localspec history export` writes them as Markdown.",
    "load": "/model NAME changes the model, /resume continues an earlier conversation.",
}


def listed() -> str:
    """Return the help of all slash commands, one line each."""
    shown = [(f"/{command.name} {command.argument}".strip(), command.does) for command in COMMANDS]
    width = max(len(name) for name, _ in shown) + 2
    return "\n".join(f"{name:{width}}{does}" for name, does in shown)


class ParsedLine(NamedTuple):
    """A parsed line: a command with its argument, or a prompt with an empty command."""

    command: str
    rest: str


def is_command(line: str) -> bool:
    """Return whether a line is meant as a command, even if no such command exists."""
    return line.startswith("/") and not line.startswith("//")


def read(line: str) -> ParsedLine:
    """Parse a line that begins with a slash as a command, and //text as the prompt /text. Raises UsageMistake."""
    if not line.startswith("/"):
        return ParsedLine("", line)
    if line.startswith("//"):
        return ParsedLine("", line[1:])
    word, *rest = line.rstrip().split(maxsplit=1)
    name = ALIASES.get(word[1:], word[1:])
    if name == "set" and rest and rest[0].split(maxsplit=1)[0] == "system":  # as in Ollama
        name, rest = "system", rest[0].split(maxsplit=1)[1:]
    command = next((command for command in COMMANDS if command.name == name), None)
    if command is None and name in ELSEWHERE:
        raise UsageMistake(f"There is no command {word}. {ELSEWHERE[name]}")
    if command is None:
        guess = nearest(word, [f"/{command.name}" for command in COMMANDS])
        raise UsageMistake(f"There is no command {_quoted(word)}{guess}; /help lists them, and //text sends /text.")
    if rest and not command.argument:
        raise UsageMistake(f"{word} takes no text, but you wrote {_quoted(rest[0])}; leave it out.")
    return ParsedLine(command.name, "".join(rest))


def _quoted(text: str) -> str:
    return repr(text if len(text) <= QUOTED else f"{text[:QUOTED]}…")


MOST = 50  # of any kind: a user who looks for one among more types a letter
_PATH = re.compile(r'(?<![\w\\@])@(?:"([^"\n]*)|([^\s"]*))$')

Known = Mapping[str, "Sequence[Suggestion]"]


class Suggestion(NamedTuple):
    """A suggested text, with its description."""

    text: str
    about: str


class Completion(NamedTuple):
    """A completion: the new text before the cursor, the displayed form of this text, and its meaning."""

    line: str
    shown: str
    does: str


def needed(before: str) -> str | None:
    """Return the name of the list that can complete this text: `resume`, `model` or `@DIRECTORY`; None for no list."""
    if _is_command(before):
        word, space, _ = before.partition(" ")
        return word[1:] if space and word in ("/resume", "/model") else None
    match = _PATH.search(before)
    return None if match is None else "@" + os.path.split(match[1] or match[2] or "")[0]


def look_up(need: str, history: "History | None") -> list[Suggestion]:
    """Read the suggestions of the list `need` from the disk. Return an empty list if that fails."""
    try:
        if need == "resume":
            conversations = rows(history, history.conversations(MOST, lambda info: info.for_a_chat)) if history else ()
            return [Suggestion(str(row.info.id), row.name) for row in conversations]
        if need == "model":
            from localspec.models import registry  # not needed for the first paint

            models = registry.installed()
            here = [
                Suggestion(card.name, card.description)
                for card, result in models
                if not isinstance(result, LocalspecError)
            ]
            elsewhere = (card for card in registry.cards().values() if not card.here)
            return [*here, *(Suggestion(card.name, f"not here yet: {card.description}") for card in elsewhere)]
        return sorted(_files(need.removeprefix("@")))
    except (LocalspecError, OSError, ValueError):
        return []


def choices(before: str, known: Known) -> list[Completion]:
    """Return the possible completions of the text before the cursor, from the lists that are loaded already."""
    if not _is_command(before):
        match = _PATH.search(before)
        return [] if match is None else _paths(before[: match.start()], match[1] or match[2] or "", known)
    word, space, rest = before.partition(" ")
    if not space:
        return [_command(command) for command in COMMANDS if f"/{command.name}".startswith(word)]
    entries = _settings(rest) if word == "/set" else known.get(word[1:], ())
    query = rest.strip().lower()
    return [
        Completion(f"{word} {entry.text}", one_line(entry.text), one_line(entry.about))
        for entry in entries
        if entry.text.lower().startswith(query) or (word == "/resume" and query in entry.about.lower())
    ]


def starts_command(before: str) -> bool:
    """Return whether the text before the cursor begins a slash command or ends in an `@path`, existing or not."""
    return _is_command(before) or _PATH.search(before) is not None


def is_whole(before: str) -> bool:
    """Return whether Enter runs this line. False for a line that is only the beginning of a command."""
    word = before.partition(" ")[0]
    begun = _is_command(before) and word == before and any(f"/{command.name}".startswith(word) for command in COMMANDS)
    return not begun or any(f"/{command.name}" == word for command in COMMANDS)


def _is_command(before: str) -> bool:
    return is_command(before) and "\n" not in before


def _command(command: Command) -> Completion:
    line = f"/{command.name}"
    return Completion(f"{line} " if command.argument else line, f"{line} {command.argument}".strip(), command.does)


def _settings(rest: str) -> list[Suggestion]:
    key, space, _ = rest.partition(" ")
    if space:
        return [Suggestion(f"{key} {DEFAULT}", "the initial settings")]
    return [Suggestion(f"{key} ", "") for key in KEYS]


def _files(folder: str) -> Iterator[Suggestion]:
    with os.scandir(os.path.expanduser(folder) or ".") as entries:
        for entry in entries:
            if safe(entry.name) == entry.name and not {'"', "\n"} & set(entry.name):
                directory = entry.is_dir()
                yield Suggestion(f"{entry.name}/" if directory else entry.name, "a directory" if directory else "")


def _paths(ahead: str, typed: str, known: Known) -> list[Completion]:
    folder, begun = os.path.split(typed)
    shown = [
        entry
        for entry in known.get("@" + folder, ())
        if entry.text.startswith(begun) and (begun or not entry.text.startswith("."))
    ]
    lines = []
    for entry in shown[:MOST]:
        path = os.path.join(folder, entry.text)
        is_file = not entry.text.endswith("/")
        quoted = f'"{path}"' if is_file else f'"{path}'
        line = f"{ahead}@{quoted if ' ' in path else path}{' ' if is_file else ''}"
        lines.append(Completion(line, one_line(entry.text), entry.about))
    return lines
