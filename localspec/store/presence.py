"""Which conversation is open in which window: told by locks on a file in which nothing is written."""

import os
import sys
from contextlib import suppress
from pathlib import Path

if sys.platform != "win32":
    import fcntl


class Presence:
    """One conversation at a time is open here. Each window shares a lock on the byte of its conversation's id.

    The system takes a lock back with its process, however that ends. On Windows every window seems alone.
    """

    def __init__(self, database: Path | None) -> None:
        """`database` is where conversations are kept; None: nowhere that another window could see."""
        self._place = f"{database}-open" if database is not None and sys.platform != "win32" else ""
        self._file = -1
        self._open: int | None = None

    def enter(self, conversation: int | None) -> bool:
        """This one is open here from now on, instead of the one before. Whether another window has it open, too."""
        if not self._place or conversation == self._open:
            return False
        before, self._open, alone = self._open, conversation, True
        with suppress(OSError, OverflowError):  # a disk that can only be read or knows no locks, an id that no byte has
            if self._file < 0:
                self._file = os.open(self._place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            if before is not None:
                fcntl.lockf(self._file, fcntl.LOCK_UN, 1, before)
            if conversation is not None:
                alone = self._lock(fcntl.LOCK_EX, conversation)
                self._lock(fcntl.LOCK_SH, conversation)
        return not alone

    def _lock(self, how: int, conversation: int) -> bool:
        """Without waiting: whoever looks whether it is alone keeps others out for a moment."""
        try:
            fcntl.lockf(self._file, how | fcntl.LOCK_NB, 1, conversation)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def close(self) -> None:
        """None is open here any more."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
