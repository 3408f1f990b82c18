"""The texts given to commands as arguments, in files or through pipes."""

import re
import sys
from pathlib import Path

from localspec.cli.progress import Progress
from localspec.errors import UsageMistake
from localspec.outside_files import MIB, decoded, read_bytes
from localspec.text import shortened

LONGEST = 64 * MIB  # bytes of a prompt: far more than the longest context


def valid_text(argument: str) -> str:
    """Return the argument without lone surrogates, which stand for bytes that are not text: no tokenizer
    accepts them."""
    return re.sub("[\ud800-\udfff]", "\N{REPLACEMENT CHARACTER}", argument)


def checked_prompt(argument: str) -> str:
    """Return a prompt unchanged. Raises UsageMistake for the name of a GGUF file, which was meant as a model."""
    from localspec.weights.packed_files import is_gguf  # takes a twentieth of the time before the chat's first paint

    prompt = valid_text(argument)
    if "\0" not in prompt and len(prompt) < 4096 and is_gguf(Path(prompt).expanduser()):
        raise UsageMistake(f"{prompt} is a GGUF file, not a question; to chat with it give -m {prompt}.")
    return prompt


def conversation_id(text: str, list_of_them: str) -> int:
    """Return the number of a conversation.

    Raises UsageMistake; the message names the command `list_of_them`, which lists them.
    """
    try:
        return int(text)
    except ValueError:
        raise UsageMistake(
            f"{shortened(text, 80)!r} is not the number of a conversation; {list_of_them} shows those that are."
        ) from None


def file_named(argument: str) -> Path:
    """Return the file that an argument names.

    Raises UsageMistake for an empty argument, which would mean this directory.
    """
    if not argument:
        raise UsageMistake("'' is not a file name; give one.")
    return Path(argument)


def read_file(file: Path) -> str:
    """Return the text of a file. Raises UsageMistake."""
    try:
        return decoded(read_bytes(file, LONGEST, pipe=True))
    except OSError as error:
        raise UsageMistake(f"{file} cannot be read ({error.strerror}); give a file that can.") from None
    except ValueError as error:
        raise UsageMistake(f"{file} {error}; give a text file.") from None


def piped_text() -> str | None:
    """Return all of standard input, or None if it is a terminal or closed. Raises UsageMistake."""
    if sys.stdin is None or sys.stdin.isatty():
        return None
    progress = Progress()
    progress.show("reading standard input (</dev/null skips it)")
    try:
        content = sys.stdin.buffer.read(LONGEST + 1)
    except OSError as error:
        raise UsageMistake(f"Standard input cannot be read ({error.strerror}); pipe text in, or </dev/null.") from None
    finally:
        progress.clear()
    if len(content) > LONGEST:
        raise UsageMistake(f"Standard input is longer than {LONGEST // MIB} MiB, more than any model reads; pipe less.")
    try:
        return decoded(content)
    except ValueError as error:
        raise UsageMistake(f"Standard input {error}; pipe text in.") from None
