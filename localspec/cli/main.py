"""The table of commands, and the only place that turns errors into a sentence and an exit code."""

import errno
import io
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException
from typer.main import get_command

import localspec
from localspec.cli.console import say  # early: it could not be imported after memory or files ran out
from localspec.cli.interrupt import INTERRUPTED
from localspec.config import nearest
from localspec.environment import home
from localspec.errors import LocalspecError, no_more_files, out_of_memory
from localspec.paths import Paths, private_directory, write_anew
from localspec.text import one_line

# All help texts are here, so that `localspec --help` and completion import no command.
COMMANDS = {
    "chat": "Chat in the terminal.",
    "run": "Print one answer; for pipelines.",
    "pull": "Fetch a model and its drafter, after showing a plan.",
    "import": "Register a GGUF file as a model.",
    "list": "List the models on this machine.",
    "use": "Choose the model that answers when you name none.",
    "ps": "List the models that `localspec serve` has loaded.",
    "show": "Show what is known about a model.",
    "rm": "Delete a model.",
    "verify": "Check a fetched model against its digests.",
    "serve": "Serve OpenAI's API on this machine and keep models loaded.",
    "doctor": "Show what this machine has, what fits and what would be chosen; --prove MODEL compares "
    "replies with and without drafts.",
    "bench": "Compare the speed of plain and speculative decoding.",
    "race": "Watch one prompt being answered with and without drafts.",
    "distill": "Let a model answer prompts, as training data for drafters.",
    "train": "Train a drafter for a model.",
    "export": "Write a drafter in the layout of vLLM or SGLang, with the command that serves it.",
    "pool": "List, show, clear or export learned phrases.",
    "history": "List, search, show, export or delete saved conversations.",
    "config": "Show the settings and where each value comes from.",
    "path": "Show where every file is.",
    "uninstall": "Delete everything that localspec keeps on this machine.",
}
ALIASES = {"ls": "list", "models": "list"}
# Commands of other programs.
_ELSEWHERE = {
    "create": "`localspec import FILE.gguf` makes a model of a GGUF file; `localspec config` shows the system prompt.",
    "search": "`localspec doctor` lists the models that you can fetch, `localspec history search` finds conversations.",
    "delete": "`localspec rm NAME` deletes a model, `localspec history rm` conversations.",
    "remove": "`localspec rm NAME` deletes a model, `localspec history rm` conversations.",
    "stop": "`localspec ps` shows the process that has models loaded; end it with `kill`.",
}
_WITH_PROMPT = ("chat", "race", "run")
READER_GONE = 141
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
_LONGEST = 1500  # characters of a sentence: names and values may be of any length


class LazyCommands(TyperGroup):
    """A command group that imports localspec/cli/<command>.py only when that command is used."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        cmd_name = ALIASES.get(cmd_name, cmd_name)
        if cmd_name not in COMMANDS:
            if ctx.resilient_parsing:
                return None
            if cmd_name == "version":
                return get_command(_version)
            if cmd_name in _ELSEWHERE:
                ctx.fail(f"There is no command {cmd_name!r}. {_ELSEWHERE[cmd_name]}")
            guess = nearest(cmd_name, [*COMMANDS, *ALIASES, "version"])
            ctx.fail(f"There is no command {cmd_name!r}{guess}; `localspec --help` lists them.")
        app = import_module(f"localspec.cli.{cmd_name}").app
        app.rich_markup_mode = None
        command = get_command(app)
        for entry in (command, *getattr(command, "commands", {}).values()):
            entry.params = [param for param in entry.params if not (param.name or "").endswith("_completion")]
            entry.short_help = " ".join((entry.help or "").split("\n\n")[0].split())  # click would cut it
            _light(entry)
        if isinstance(command, TyperGroup):
            command.no_args_is_help = False  # a whole help page is not an error message
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def _light(command: Any) -> Any:
    """Let typer parse a command's parameters without Pydantic, whose import is slow. Return the command."""
    params = command.get_params
    command.get_params = lambda ctx: list(map(_without_pydantic, params(ctx)))
    return command


def _without_pydantic(param: Any) -> Any:
    """Let typer parse a parameter without Pydantic, which takes 80 ms to import.

    Return the parameter.
    """
    typers = param.get_runtime_param

    class Reader:
        @staticmethod
        def coerce(value: Any, param: Any, ctx: Any) -> Any:
            kind = param.type_descriptor
            read = kind.parameter_info.parser or (str if kind.annotation in (str, list[str]) else None)
            if value is None:
                return () if param.multiple or param.nargs == -1 else None
            if read is None:
                return typers().coerce(value, param=param, ctx=ctx)
            return list(map(read, value)) if isinstance(value, list | tuple) else read(value)

    param.get_runtime_param = lambda: Reader
    return param


app = typer.Typer(
    cls=LazyCommands,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(requested: bool) -> None:
    if requested:
        print(f"localspec {localspec.__version__}")
        raise typer.Exit


_version = typer.Typer()


@_version.command()
def _show_version() -> None:
    """Print the version."""
    _print_version(True)


@app.callback(invoke_without_command=True)
def _localspec(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", "-v", is_eager=True, callback=_print_version, help="Print the version.")
    ] = False,
) -> None:
    """Chat with language models on this machine. Speculative decoding makes replies faster, with the same text."""
    if context.invoked_subcommand is None:
        print(context.get_help())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code. Every error is one line on standard error."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if sys.stdout is None:
        sys.stdout = open(os.devnull)  # noqa: SIM115  # it was closed, so writing to it is an error
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # a character that the terminal lacks is no reason to stop
    try:
        code = _run(sys.argv[1:] if arguments is None else list(arguments))
        sys.stdout.flush()  # errors are reported here, not at the end of the interpreter
    except BrokenPipeError:
        code = READER_GONE
    except KeyboardInterrupt:
        code = INTERRUPTED
    except OSError as error:
        code = _say(f"Standard output cannot be written: {error.strerror or error}.")
    for descriptor, stream in ((1, sys.stdout), (2, sys.stderr)):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):  # the interpreter's last flush would change the exit code
            with suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
    return code


def _run(arguments: list[str]) -> int:
    command = _light(get_command(app))
    try:
        if "_LOCALSPEC_COMPLETE" in os.environ:
            command.main(prog_name="localspec")
        # Not command.main(), which turns a closed pipe into exit code 1.
        with command.make_context("localspec", arguments) as context:
            result = command.invoke(context)
    except typer.Exit as end:
        return end.exit_code
    except LocalspecError as error:
        return _say(str(error), error.exit_code)
    except TyperException as error:  # a usage error, or a file that cannot be opened
        message, failed = error.format_message(), getattr(getattr(error, "ctx", None), "command", None)
        if "unexpected extra argument" in message and getattr(failed, "name", None) in _WITH_PROMPT:
            message = f"{message}; put quotation marks around the prompt."
        return _say(message, error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return _say("Interrupted.", INTERRUPTED)
    except BrokenPipeError:
        raise
    except io.UnsupportedOperation:
        return _say(
            "Standard output is closed, so this command cannot print anything; run it with standard output open."
        )
    except Exception as error:
        if out_of_memory(error):
            return _say(
                "There is not enough memory for this command; close other programs, or choose a smaller model or "
                "context.",
                4,
            )
        if isinstance(error, OSError) and error.filename is None and error.errno in _NO_ROOM:
            raise  # an open stream failed, and standard output is the only one that commands write to
        if message := no_more_files(error):
            return _say(message)
        if isinstance(error, OSError) and error.filename is not None and error.strerror:
            path = os.fsdecode(error.filename)
            return _say(
                f"{path} cannot be used ({error.strerror}); check this path and its permissions, then try again."
            )
        return _say(f"Unexpected {type(error).__name__}: {error} ({_keep_traceback(error)}).")
    return result if isinstance(result, int) and not isinstance(result, bool) else 0


def _say(sentence: str, code: int = 1) -> int:
    """Print a sentence, and return `code`. A very long sentence loses its middle, not the problem or the remedy."""
    text = one_line(sentence)
    say(text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]} … {text[-_LONGEST // 2 :]}")
    return code


def _keep_traceback(error: BaseException) -> str:
    """Save a traceback without messages, which may quote a prompt. Return the file, or why there is none."""
    text, link = f"localspec {localspec.__version__}, Python {sys.version.split()[0]}\n", error
    while link is not None:
        name = f"{type(link).__module__}.{type(link).__qualname__}"
        text += "\n".join(["", name, *traceback.format_tb(link.__traceback__)])
        link = link.__cause__ or link.__context__  # type: ignore[assignment]
    try:
        file = private_directory(Paths(home()).logs) / "last-error.log"
        write_anew(file, text.encode(errors="replace"))
    except OSError as trouble:
        return f"the traceback could not be saved: {trouble.strerror}"
    return f"the traceback is in {file}"
