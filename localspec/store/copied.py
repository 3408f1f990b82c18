"""The text that was copied last where no clipboard could be reached: part of a conversation, in a file of its own."""

import os
from contextlib import suppress
from pathlib import Path

from localspec.errors import LocalspecError

_PIECE = 2**20  # bytes that are overwritten at a time


def remove_copied(file: Path) -> bool:
    """Overwrites and deletes it; whether it was there. Raises LocalspecError where that fails."""
    try:
        erase(file)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise LocalspecError(f"The copied text in {file} cannot be deleted ({error.strerror}); delete it.") from None
    return True


def erase(file: Path) -> None:
    """Overwrite a file, as far as its permissions let it, and delete it. Raises OSError."""
    with suppress(OSError), open(os.open(file, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0)), "r+b") as opened:
        left = os.fstat(opened.fileno()).st_size
        while left > 0:
            left -= opened.write(bytes(min(left, _PIECE)))
        opened.flush()
        os.fsync(opened.fileno())
    file.unlink()
