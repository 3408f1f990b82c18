"""The text that was copied last where no clipboard could be reached: part of a conversation, in a file of its own."""

import os
from contextlib import suppress
from pathlib import Path

from localspec.errors import LocalspecError


def remove_copied(file: Path) -> bool:
    """Overwrites and deletes it; whether it was there. Raises LocalspecError where that fails."""
    try:
        with suppress(OSError), open(os.open(file, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0)), "r+b") as opened:
            opened.write(bytes(os.fstat(opened.fileno()).st_size))
            opened.flush()
            os.fsync(opened.fileno())
        file.unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise LocalspecError(f"The copied text in {file} cannot be deleted ({error.strerror}); delete it.") from None
    return True
