"""Notices that would appear at each start, limited to once a day."""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from localspec.outside_files import read_bytes
from localspec.paths import private_directory, write_anew

DAY = 24 * 60 * 60.0  # seconds


def once_a_day(file: Path, report: Callable[[str], None]) -> Callable[[str], None]:
    """Return a function that reports a notice and saves it in `file`.

    The same notice is not reported again while the file is less than a day old.
    """

    def notice(sentence: str) -> None:
        with suppress(OSError, ValueError):
            if read_bytes(file).decode() == sentence and 0 <= time.time() - file.stat().st_mtime < DAY:
                return
        report(sentence)
        with suppress(OSError):
            private_directory(file.parent)
            write_anew(file, sentence.encode())

    return notice
