"""The texts given to commands: as arguments, in files, through pipes, or line by line."""

import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from localspec.chat.commands import Completion, Suggestion, choices, needed
from localspec.cli.console import Progress, tell
from localspec.errors import UsageMistake
from localspec.outside_files import MIB, decoded, read_bytes
from localspec.text import one_line, shortened

LONGEST = 64 * MIB  # bytes of a prompt: far more than the longest context


def valid_text(argument: str) -> str:
    """Return the argument without lone surrogates, which stand for bytes that are not text: no tokenizer
    accepts them."""
    return re.sub("[\ud800-\udfff]", "\N{REPLACEMENT CHARACTER}", argument)


def checked_prompt(argument: str) -> str:
    """Return the prompt as valid text. Raises UsageMistake if it names a GGUF file, which the user meant as a model."""
    from localspec.weights.packed_files import is_gguf  # takes a twentieth of the time before the first paint

    prompt = valid_text(argument)
    if "\0" not in prompt and len(prompt) < 4096 and is_gguf(Path(prompt).expanduser()):
        raise UsageMistake(f"{prompt} is a GGUF file, not a question; to chat with it give -m {shlex.quote(prompt)}.")
    return prompt


def conversation_id(text: str, list_command: str) -> int:
    """Return the number of a conversation.

    Raises UsageMistake. The message names `list_command`, the command that lists conversations.
    """
    try:
        return int(text)
    except ValueError:
        raise UsageMistake(
            f"{shortened(text, 80)!r} is not the number of a conversation; {list_command} shows the numbers."
        ) from None


def file_named(argument: str) -> Path:
    """Return the file that an argument names.

    Raises UsageMistake for an empty argument, which would mean the current directory.
    """
    if not argument:
        raise UsageMistake("'' is not a file name; give one.")
    return Path(argument)


def read_file(file: Path) -> str:
    """Return the text of a file. Raises UsageMistake."""
    try:
        return decoded(read_bytes(file, LONGEST, pipe=True))
    except OSError as error:
        raise UsageMistake(
            f"{file} cannot be read ({error.strerror}); check its path and permissions, or give another file."
        ) from None
    except ValueError as error:
        raise UsageMistake(f"{file} cannot be read, because it {error}; give a text file.") from None


def piped_text() -> str | None:
    """Return all of standard input, or None if it is a terminal or closed. Raises UsageMistake."""
    if sys.stdin is None or sys.stdin.isatty():
        return None
    with Progress() as progress, _readable():
        progress.show("reading standard input (</dev/null skips it)")
        content = sys.stdin.buffer.read(LONGEST + 1)
    if len(content) > LONGEST:
        raise UsageMistake(f"Standard input is longer than {LONGEST // MIB} MiB, more than any model reads; pipe less.")
    try:
        return decoded(content)
    except ValueError as error:
        raise UsageMistake(f"Standard input {error}; pipe text in.") from None


@contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageMistake(
            f"Standard input cannot be read ({error.strerror}); pipe text in, or add </dev/null."
        ) from None


# -- line by line ------------------------------------------------------------------------------------------------------

TOO_LONG = f"A prompt is longer than {LONGEST // MIB} MiB, more than any model reads; pipe less."

LookUp = Callable[[str], Sequence[Suggestion]]


def read_line(mark: str, look_up: LookUp) -> str:
    """Return one line without its end. At a terminal, display `mark` before it. Raises EOFError, UsageMistake."""
    if sys.stdin is None:
        raise EOFError
    if sys.stdin.isatty() and sys.stdout is not None and sys.stdout.isatty():
        with suppress(ImportError):  # Windows has its own line editing
            _complete_with(look_up, mark)
        return input(mark)
    with _readable():
        line = sys.stdin.readline(LONGEST + 1)
    if not line:
        raise EOFError
    if len(line) > LONGEST:
        raise UsageMistake(TOO_LONG)
    return line.rstrip("\n")


class Completer:
    """The completions of a line. readline requests them one at a time."""

    def __init__(self, look_up: LookUp) -> None:
        self._look_up = look_up
        self.completions: list[Completion] = []

    def __call__(self, line: str, number: int) -> str | None:
        if number == 0:
            need = needed(line)
            self.completions = choices(line, {} if need is None else {need: self._look_up(need)})
        return self.completions[number].line if number < len(self.completions) else None


def _complete_with(look_up: LookUp, mark: str) -> None:
    """Make Tab print the completions from `look_up`, and below them the prompt `mark` with the typed line. Raises
    ImportError without readline."""
    import readline  # input() uses it once it is imported

    completer = Completer(look_up)

    def show(*_: object) -> None:
        tell("\n" + "\n".join(one_line(f"{shown}  {does}") for _, shown, does in completer.completions))
        print(mark + readline.get_line_buffer(), end="", flush=True)

    readline.set_completer(completer)
    readline.set_completer_delims("")  # complete the whole line, not its last word
    readline.set_completion_display_matches_hook(show)
    readline.parse_and_bind("bind ^I rl_complete" if "libedit" in (readline.__doc__ or "") else "tab: complete")
