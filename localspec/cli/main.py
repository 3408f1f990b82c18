"""The table of commands, and the one place where an error becomes a sentence and an exit code."""

import errno
import os
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException
from typer.main import get_command

import localspec
from localspec.cli.interrupt import INTERRUPTED, interrupt, postponed
from localspec.cli.progress import say  # at once: where memory or files have run out it could not be imported
from localspec.config import nearest
from localspec.environment import home
from localspec.errors import LocalspecError, no_more_files, out_of_memory
from localspec.paths import Paths, private_directory
from localspec.text import one_line

# Every command's help is here, so that `localspec --help` and completion import none of them.
COMMANDS = {
    "chat": "A conversation in the terminal.",
    "run": "One answer to standard output; for pipelines.",
    "pull": "Fetch a model and its drafter, after a plan.",
    "import": "Make a model in a GGUF file ready for this engine.",
    "list": "The models on this machine.",
    "use": "Choose the model that answers where none is named.",
    "ps": "The models that `localspec serve` has loaded.",
    "show": "What is known about one model.",
    "rm": "Delete a fetched model.",
    "verify": "Compare a fetched model with its digests.",
    "serve": "The API that OpenAI's clients speak, on this machine; models stay loaded.",
    "doctor": "What this machine has, what fits and what would be chosen; --prove MODEL shows losslessness.",
    "bench": "Plain and speculative decoding side by side, on this machine.",
    "race": "The same prompt plain and speculative, to watch.",
    "distill": "Let a model answer prompts: training text in its own words.",
    "train": "Train a drafter for a model.",
    "export": "A drafter in the layout of vllm or sglang, with the command that serves it.",
    "pool": "The phrases learned here: list, show, clear, export.",
    "history": "Saved conversations: list, search, show, export, rm.",
    "config": "The settings, and where each value comes from.",
    "path": "Where every file lies.",
    "uninstall": "Delete everything that localspec keeps on this machine.",
}
ALIASES = {"ls": "list", "models": "list"}
# What other programs have as commands.
_ELSEWHERE = {
    "create": "`localspec import FILE.gguf` makes a model of a GGUF file; `localspec config` shows the system prompt.",
    "search": "`localspec doctor` lists the models that you can fetch, `localspec history search` finds conversations.",
    "delete": "`localspec rm NAME` deletes a model, `localspec history rm` conversations.",
    "remove": "`localspec rm NAME` deletes a model, `localspec history rm` conversations.",
    "stop": "`localspec ps` shows the process that has models loaded; end it with `kill`.",
}
_MOVED = {"--peer": "`python research/compare_peers.py` in a checkout compares with llama.cpp and transformers."}
_WITH_PROMPT = ("chat", "race", "run")
READER_GONE = 141
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
_LONGEST = 1500  # characters of a sentence: names and values may be of any length


class _ReaderGone(Exception):
    """Standard output was closed by whoever read it. Not an OSError, which typer would turn into exit code 1."""


@contextmanager
def _own_signals() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as error:
        raise _ReaderGone from error
    except KeyboardInterrupt as error:
        raise typer.Abort from error


class Commands(TyperGroup):
    """Imports localspec/cli/<command>.py when that command is used, and not before."""

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
        app.rich_markup_mode, app._add_completion = None, False  # completion belongs to the whole program
        command = get_command(app)
        if isinstance(command, TyperGroup):
            command.no_args_is_help = False  # a whole page is no error message
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def make_context(self, *args: Any, **extra: Any) -> Any:
        with _own_signals():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: Any) -> Any:
        with _own_signals():
            return super().invoke(ctx)


with suppress(ImportError):  # a typer that is built in another way takes longer, and no more
    from localspec.cli import plain_values

    plain_values.install()

app = typer.Typer(
    cls=Commands,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
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
    """Local chat with speculative decoding: the same text, sooner."""
    if context.invoked_subcommand is None:
        print(context.get_help())


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code. Every error is one line on standard error."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, interrupt)
    closed = None
    if sys.stdout is None:
        from localspec.cli.closed_output import ClosedOutput

        closed = sys.stdout = ClosedOutput()
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # a terminal that lacks a character is no reason to stop
    try:
        code = _run(arguments)
        sys.stdout.flush()  # what cannot be written must be reported here, not at interpreter shutdown
        if code == 0 and closed is not None and closed.missed:
            code = _say("Standard output is closed, so what was to be read there is nowhere; leave it open.")
    except (BrokenPipeError, _ReaderGone):
        code = READER_GONE
    except KeyboardInterrupt:  # while the last sentence was said, or that of a Ctrl+C that had been put off
        code = INTERRUPTED
    except OSError as error:
        code = _say(f"Standard output cannot be written: {error.strerror or error}.")
    if not _flushed(sys.stderr):
        _discard(2)
    if code == READER_GONE or not _flushed(sys.stdout):
        _discard(1)
    return code


def _discard(descriptor: int) -> None:
    """Lets the interpreter's last flush, when it ends, go nowhere: that it failed would change the exit code."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


def _flushed(stream: TextIO | None) -> bool:
    try:
        if stream is not None:
            stream.flush()
    except (OSError, ValueError):
        return False
    return True


def _run(arguments: Sequence[str] | None) -> int:
    try:
        result = get_command(app).main(
            args=None if arguments is None else list(arguments), prog_name="localspec", standalone_mode=False
        )
        if postponed():
            raise KeyboardInterrupt
    except LocalspecError as error:
        return _say(str(error), error.exit_code)
    except TyperException as error:  # a usage error, or a file that cannot be opened
        return _say(_usage_error(error), error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return _say("Interrupted.", INTERRUPTED)
    except (BrokenPipeError, _ReaderGone):
        raise
    except Exception as error:
        if out_of_memory(error):
            return _say(
                "There is not enough memory for this; close other programs, or choose a smaller model or context.", 4
            )
        if isinstance(error, FileNotFoundError) and error.filename is None and not _is_somewhere():
            return _say("The directory that this was started in is gone; change into one that is there.", 3)
        if isinstance(error, OSError) and error.filename is None and error.errno in _NO_ROOM:
            raise  # an open stream failed, and the only one that commands write to is standard output
        if said := no_more_files(error):
            return _say(said)
        if isinstance(error, OverflowError) and "timestamp" in str(error):  # Python counts nanoseconds in 64 bits
            return _say("The clock of this machine is centuries away from now; set it right.")
        if isinstance(error, OSError) and error.filename is not None and error.strerror:
            return _say(f"{os.fsdecode(error.filename)} cannot be used ({error.strerror}); correct that.")
        return _say(f"Unexpected {type(error).__name__}: {error} ({_keep_traceback(error)}).")
    return result if isinstance(result, int) and not isinstance(result, bool) else 0


def _usage_error(error: TyperException) -> str:
    said, command = error.format_message(), getattr(getattr(error, "ctx", None), "command", None)
    if "unexpected extra argument" in said and getattr(command, "name", None) in _WITH_PROMPT:
        return f"{said}; put quotation marks around the prompt."
    if (option := getattr(error, "option_name", "")) in _MOVED:
        return f"There is no option {option}. {_MOVED[option]}"
    return said


def _is_somewhere() -> bool:
    try:
        os.getcwd()
    except OSError:
        return False
    return True


def _say(sentence: str, code: int = 1) -> int:
    say(_shortened(one_line(sentence)))
    return code


def _shortened(sentence: str) -> str:
    """What was wrong stands at the beginning, what to do at the end."""
    if len(sentence) <= _LONGEST:
        return sentence
    return f"{sentence[: _LONGEST // 2]} … {sentence[-_LONGEST // 2 :]}"


def _keep_traceback(error: BaseException) -> str:
    """Writes where it happened, without messages and values: these may quote a prompt. Returns the file, or why not."""
    lines: list[str] = []
    link: BaseException | None = error
    while link is not None and len(lines) < 1000:
        lines += [
            f"{type(link).__module__}.{type(link).__qualname__}\n",
            *traceback.format_tb(link.__traceback__),
            "\n",
        ]
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    try:
        file: Path = private_directory(Paths(home()).logs) / "last-error.log"
        file.unlink(missing_ok=True)  # a new file has the right mode, and is nobody's link
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as log:
            log.write(f"localspec {localspec.__version__}, Python {sys.version.split()[0]}\n\n")
            log.writelines(lines)
    except OSError as trouble:
        return f"the traceback could not be kept: {trouble.strerror}"
    return f"the traceback is in {file}"
