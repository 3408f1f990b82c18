"""The key that every request over TCP must bring: other users of this machine reach its ports, too."""

import os
import re
import secrets
from pathlib import Path

from localspec.config import SERVE_KEY, serve_key
from localspec.errors import LocalspecError, UsageMistake
from localspec.outside_files import read_bytes
from localspec.paths import private_directory

SHORTEST = 16  # characters: fewer could be guessed
_KEY = re.compile(r"[!-~]+")


def serving_key(file: Path) -> str:
    """The key of the environment, else that of the file, which is made where there is none. Raises LocalspecError."""
    if (given := serve_key()) is not None:
        if len(given) < SHORTEST or not _KEY.fullmatch(given):
            raise UsageMistake(
                f"{SERVE_KEY} must be {SHORTEST} or more printable ASCII characters without blanks; give another one."
            )
        return given
    try:
        private_directory(file.parent)
        try:
            made = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            found = read_bytes(file).decode("ascii", "replace").strip()
            if len(found) < SHORTEST or not _KEY.fullmatch(found):
                raise LocalspecError(f"{file} holds no key; delete it, and a new one is made.") from None
            file.chmod(0o600)
            return found
        with os.fdopen(made, "w") as stream:
            stream.write(key := f"localspec-{secrets.token_urlsafe(32)}")
        return key
    except OSError as error:
        raise LocalspecError(f"The key cannot be kept in {file} ({error.strerror}); set {SERVE_KEY}.") from error
