"""Compiled kernels, kept in the cache directory: the compiler takes some tenths of a second for each, the disk none."""

import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from localspec.environment import home
from localspec.paths import Paths, private_directory, write_anew

MOST = 256  # files; a model uses some twenty, and other versions leave theirs behind
DIGEST = hashlib.sha256
SUFFIX = ".cubin"


def kept_or_compiled(made_of: Sequence[str], compile_: Callable[[], bytes]) -> bytes:
    """Returns what was compiled of these texts before, or now, and keeps it; where it cannot be kept, it is not.

    Raises what `compile_` does.
    """
    file = Paths(home()).kernels / (DIGEST("\0".join(made_of).encode()).hexdigest() + SUFFIX)
    if (binary := _read(file)) is None:
        binary = compile_()
        with suppress(OSError):
            private_directory(file.parent)
            write_anew(file, DIGEST(binary).digest() + binary)
            _forget_oldest(file.parent)
    return binary


def _read(file: Path) -> bytes | None:
    """Nothing where it is missing or damaged, of which a driver makes what it likes."""
    try:
        content = file.read_bytes() if file.is_file() else b""  # of a pipe one would wait for the other end
    except OSError:
        return None
    digest, binary = content[: DIGEST().digest_size], content[DIGEST().digest_size :]
    return binary if DIGEST(binary).digest() == digest else None


def _forget_oldest(directory: Path) -> None:
    files = [file for file in directory.glob("*" + SUFFIX) if file.is_file()]
    for file in sorted(files, key=lambda file: file.stat().st_mtime)[:-MOST]:
        file.unlink(missing_ok=True)
