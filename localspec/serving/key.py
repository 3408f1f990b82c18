"""The key that every request over TCP must bring: other users of this machine reach its ports, too."""

import os
import re
import secrets
import stat
from collections.abc import Callable
from pathlib import Path

from localspec.environment import SERVE_KEY, serve_key
from localspec.errors import LocalspecError, UsageMistake
from localspec.outside_files import read_bytes
from localspec.paths import private_directory

SHORTEST = 16  # characters: fewer could be guessed
_KEY = re.compile(r"[!-~]+")


def serving_key(file: Path, notice: Callable[[str], None] = lambda _: None) -> str:
    """The key of the environment, else that of the file, which is made where there is none, or an empty one.

    A key that others could read is closed to them, and `notice` is told. Raises LocalspecError.
    """
    if (given := serve_key()) is not None:
        if len(given) < SHORTEST or not _KEY.fullmatch(given):
            raise UsageMistake(
                f"{SERVE_KEY} must be {SHORTEST} or more printable ASCII characters without blanks; give another one."
            )
        return given
    try:
        private_directory(file.parent)
        try:
            found = read_bytes(file).decode("ascii", "replace").strip()
        except FileNotFoundError:
            found = ""
        if not found:  # or one that a full disk left empty
            return _made(file)
        if len(found) < SHORTEST or not _KEY.fullmatch(found):
            raise LocalspecError(f"{file} holds no key; delete it, and a new one is made.")
        if stat.S_IMODE(file.stat().st_mode) & 0o077:
            file.chmod(0o600)
            notice(
                f"others could read {file} until now, and may know the key; delete it, and the next start makes a new "
                "one."
            )
        return found
    except OSError as error:
        raise LocalspecError(f"The key cannot be kept in {file} ({error.strerror}); set {SERVE_KEY}.") from error


def _made(file: Path) -> str:
    """A new key in this file, whole or not at all."""
    key, new = f"localspec-{secrets.token_urlsafe(32)}", file.with_name(f"{file.name}-{secrets.token_hex(8)}")
    try:
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream:
            stream.write(key)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(new, file)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    return key
