"""Errors that a user can act on: one sentence and an exit code each."""

import errno
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_NO_MORE_FILES = (errno.EMFILE, errno.ENFILE)
_NUMBER = re.compile(r"\[(?:Errno|WinError) -?\d+\] ?")


class LocalspecError(Exception):
    """A runtime failure. Its message is one sentence: what is wrong, with the value, and what to do."""

    exit_code = 1


class UsageMistake(LocalspecError):
    """An error: a flag, a setting or an argument has an impossible value."""

    exit_code = 2


class NotHere(LocalspecError):
    """An error: a model or a drafter is not on this machine."""

    exit_code = 3


class DoesNotFit(LocalspecError):
    """An error: more memory or disk is needed than available."""

    exit_code = 4


class NotAllowed(LocalspecError):
    """An error: a repository is gated, or the account has no access to it."""

    exit_code = 5


def first_line(error: BaseException | str) -> str:
    """Return the first line of another library's message, without its error number; for an empty message, the type
    of the error."""
    return (_NUMBER.sub("", str(error)).strip().splitlines() or [type(error).__name__])[0]


def no_more_files(error: BaseException) -> str:
    """Return a sentence for an error that means that no more files can be opened; empty for any other error."""
    if not (isinstance(error, OSError) and error.errno in _NO_MORE_FILES):
        return ""
    return (
        f"No more files can be opened ({error.strerror}); close other programs, or raise the limit of this shell "
        "(`ulimit -n 1024`)."
    )


def cannot_read(file: Path, error: OSError) -> LocalspecError:
    """Return the error for a file that cannot be read for lack of permission.

    Such a file is not damaged, so it is not fetched again.
    """
    return LocalspecError(
        no_more_files(error)
        or f"{file} cannot be read ({error.strerror or first_line(error)}); check the file and its "
        "permissions, then try again."
    )


def out_of_memory(error: BaseException) -> bool:
    """Return whether this error means that memory ran out. Torch has an exception for lack of memory only on CUDA.

    A thread that cannot be started counts as well: memory for its stack is missing, or there are too many threads.
    """
    torch = sys.modules.get("torch")
    if isinstance(error, OSError):  # from a mapped file
        return error.errno == errno.ENOMEM
    if isinstance(error, MemoryError) or (torch is not None and isinstance(error, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(
        phrase in str(error)
        for phrase in ("can't allocate memory", "out of memory", "_ALLOC_FAILED", "can't start new thread")
    )


@contextmanager
def fits_or(sentence: str) -> Iterator[None]:
    """Raise DoesNotFit with this sentence if memory runs out within this context."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        raise DoesNotFit(sentence) from error
