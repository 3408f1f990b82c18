"""What localspec has, by name: commands, flags, settings, keys and so on, asked of the program itself."""

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import typer
from command import ROOT
from textual.binding import Binding
from typer.main import get_command

from localspec import config, environment, errors
from localspec.cli import main, plain
from localspec.models.drafter_kinds import kinds
from localspec.models.entries import read_entries
from localspec_tui.app import ChatApp
from localspec_tui.screens.all_keys import AllKeysScreen
from localspec_tui.screens.chat import ChatScreen
from localspec_tui.screens.conversations import ConversationsScreen
from localspec_tui.screens.models import ModelsScreen
from localspec_tui.screens.phrases import PhrasesScreen
from localspec_tui.screens.race import RaceScreen
from localspec_tui.screens.sampling import SamplingScreen
from localspec_tui.screens.system_prompt import SystemPromptScreen
from localspec_tui.screens.xray import XRayScreen
from localspec_tui.widgets.message_view import MessageView
from localspec_tui.widgets.prompt import Prompt
from localspec_tui.widgets.xray_view import XRayView

CLI = ROOT / "localspec" / "cli"
REPORT = ROOT / "localspec" / "engine" / "report.py"  # the JSON of a reply
SCREENS = (
    ChatApp,
    ChatScreen,
    ConversationsScreen,
    ModelsScreen,
    SamplingScreen,
    SystemPromptScreen,
    XRayScreen,
    PhrasesScreen,
    RaceScreen,
    AllKeysScreen,
    XRayView,
    MessageView,
)
HELP = {"--help", "-h"}
FOREIGN_VARIABLES = {"NO_COLOR"}  # read by Textual


@cache
def flags() -> dict[str, list[set[str]]]:
    """By command (`run`, `history list`; empty: of the program) its flags, each as the set of its spellings."""

    def walk(name: str, command: object) -> Iterator[tuple[str, list[set[str]]]]:
        options = [parameter for parameter in command.params if parameter.param_type_name == "option"]
        yield name, [{*option.opts, *option.secondary_opts} for option in options] + [set(HELP)]
        for below, one in getattr(command, "commands", {}).items():
            yield from walk(f"{name} {below}", one)

    program = get_command(main.app)
    found = dict(walk("", program))
    for name in main.COMMANDS:
        found |= dict(walk(name, program.get_command(typer.Context(program), name)))
    return found


@cache
def keys(own: bool = False) -> set[str]:
    """The keys of the chat; only its `own`: without what every field for text has."""
    bindings = [binding for screen in SCREENS for binding in screen.BINDINGS]
    bindings += Prompt.OWN if own else Prompt.BINDINGS
    named = {key for one in bindings if isinstance(one, Binding) for key in one.key.split(",")}
    return {*named, ChatApp.COMMAND_PALETTE_BINDING}


@cache
def exit_codes() -> set[str]:
    """Of everything that can go wrong, and of what goes well."""
    known = [errors.LocalspecError]
    for error in known:
        known += error.__subclasses__()
    return {str(code) for code in (0, main.INTERRUPTED, main.READER_GONE, *(error.exit_code for error in known))}


@cache
def variables() -> set[str]:
    """The environment variables that are read."""
    read = set(re.findall(r'"([A-Z]+_[A-Z_]+|TERM)"', (ROOT / "localspec" / "environment.py").read_text("utf-8")))
    return {*read, *(config.PREFIX + name.upper() for name in config.NAMES), *FOREIGN_VARIABLES}


@cache
def json_keys() -> set[str]:
    """The keys that `run` and `list` print, and what functions of the other commands return."""
    found = {
        key
        for file in (CLI / "run.py", CLI / "list.py", REPORT)
        for node in ast.walk(_tree(file))
        for key in _keys(node)
    }
    for file in CLI.glob("*.py"):
        returned = [node.value for node in ast.walk(_tree(file)) if isinstance(node, ast.Return) and node.value]
        found |= {key for value in returned for key in _keys(value)}
    return found


@cache
def printed_names() -> set[str]:
    """The keys of every dictionary, and the fields of every class, that commands may print."""
    files = [file for name in ("cli", "bench", "store") for file in (ROOT / "localspec" / name).glob("*.py")]
    nodes = [node for file in (*files, REPORT) for node in ast.walk(_tree(file))]
    fields = {node.target.id for node in nodes if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)}
    return {*fields, *(key for node in nodes for key in _keys(node))}


@cache
def paths() -> set[str]:
    """The lines of `localspec path`."""
    return {key for node in ast.walk(_tree(CLI / "path.py")) for key in _keys(node)}


@cache
def models() -> set[str]:
    """Those that have a name."""
    return {entry.name for entry in read_entries(ROOT / "models.toml")}


@cache
def options() -> set[str]:
    """What `train -O` takes, as kind.name: the fields of the class …Options in the file of each kind."""
    found = set()
    for kind in kinds("weights"):
        nodes = ast.walk(_tree(ROOT / "localspec" / "drafters" / f"{kind}.py"))
        classes = [node for node in nodes if isinstance(node, ast.ClassDef) and node.name.endswith("Options")]
        fields = [node for one in classes for node in one.body if isinstance(node, ast.AnnAssign)]
        found |= {f"{kind}.{field.target.id}" for field in fields if isinstance(field.target, ast.Name)}
    return found


@cache
def words() -> set[str]:
    """What stands in the source as a text of its own or in a list, docstrings left out, and the names of fields."""
    found: set[str] = set()
    for file in (*ROOT.glob("localspec/**/*.py"), *ROOT.glob("tui/**/*.py")):
        nodes = list(ast.walk(_tree(file)))
        docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        for node in nodes:
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
                found |= {word.strip(".;()") or word for word in re.split(r"[\s,|]+|(?<!cuda):", node.value)} | {
                    node.value
                }
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                found.add(node.target.id)
    return found


@cache
def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text("utf-8"))


def _keys(node: ast.AST) -> list[str]:
    keys = node.keys if isinstance(node, ast.Dict) else []
    return [key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]


NAMED = {  # what stands before a name in `about`, and which names there are
    "setting": lambda: set(config.NAMES),
    "key": keys,
    "drafter": lambda: set(kinds()),
    "option": options,
    "model": models,
    "json": json_keys,
    "exit": exit_codes,
    "path": paths,
}


def exists(about: str) -> bool:
    """Whether the program has this thing, in the words that training-data/README.md lists."""
    before, _, name = about.rpartition(" ")
    if name.startswith("-"):
        return any(
            name in spellings for of, all_flags in flags().items() if before in ("", of) for spellings in all_flags
        )
    if about.startswith("/"):
        return about in slash_commands()
    if about.isupper():
        return about in variables()
    if before == "json":
        return name in printed_names()
    if before in NAMED:
        return name in NAMED[before]()
    return about in flags()


def slash_commands() -> set[str]:
    """The commands of the line-by-line chat."""
    return set(re.findall(r"^/\w+", plain.HELP, re.MULTILINE))


def all_things() -> Iterator[set[str]]:
    """Everything that needs a question, each with the ways to say it in `about`."""
    for command, all_flags in flags().items():
        if command:
            yield {command}
        for spellings in all_flags:
            yield {*spellings, *(f"{command} {flag}" for flag in spellings)}
    for before, names in NAMED.items():
        for name in keys(own=True) if before == "key" else names():
            yield {f"{before} {name}"}
    for command in slash_commands():
        yield {command}
    yield {environment.HOME}


def unknown(span: str) -> list[str]:
    """What the program does not have of a piece of text that names commands, flags, settings, keys or words of it."""
    if re.match(r"[A-Z]+_", span):
        name = span.partition("=")[0]
        return [] if name in variables() or name == config.PREFIX or span == f"{config.PREFIX}*" else [name]
    if span.startswith("/") and not span.startswith("//"):
        return [word for word in span.split()[:1] if word not in slash_commands()]
    if span.startswith("//") or span.lower() in keys():
        return []
    if "localspec " in f"{span} ":
        return _unknown_in_command(shlex.split(span[span.index("localspec") :])[1:])
    if span.startswith("-"):
        return _unknown_flags(shlex.split(span), [flag for all_flags in flags().values() for flag in all_flags])
    if assigned := re.match(r"(\w+) ?= ?", span):
        return [] if assigned[1] in words() else [assigned[1]]
    return [] if span in words() or span in models() or span.partition("+")[0] in kinds() else [span]


def _unknown_in_command(line: list[str]) -> list[str]:
    if line[:1] == ["COMMAND"] or not line:
        return []
    command = ""
    while line and f"{command} {line[0]}".strip() in flags():
        command, line = f"{command} {line[0]}".strip(), line[1:]
    needs_more = any(name.startswith(f"{command} ") for name in flags())
    if line and not line[0].startswith("-") and (not command or needs_more):
        return [" ".join([command, line[0]]).strip()]
    return _unknown_flags(line, flags()[command])


def _unknown_flags(line: list[str], known: list[set[str]]) -> list[str]:
    names = {name.partition(".")[2] for name in options()}
    wrong = [word for word in line if re.match("-.", word) and not any(word in spellings for spellings in known)]
    given = [line[at + 1].partition("=")[0] for at, word in enumerate(line[:-1]) if word in ("-O", "--option")]
    return wrong + [f"-O {name}" for name in given if name not in {*names, "NAME"}]
