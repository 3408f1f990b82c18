"""The published models of the tests: which files they are, and where they lie. They are known by their SHA-256."""

import hashlib
import os
from functools import cache
from pathlib import Path
from typing import NamedTuple

from platformdirs import user_cache_path

FOLDER = "LOCALSPEC_REAL_MODELS"


class Published(NamedTuple):
    """A published GGUF file."""

    title: str
    sha256: str
    bytes: int


MODELS = {
    "smollm2": Published(
        "SmolLM2-135M-Instruct", "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53", 98_362_432
    ),
    "qwen-0.5b": Published(
        "Qwen2.5-Coder-0.5B-Instruct", "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32", 491_400_064
    ),
    "qwen-1.5b": Published(
        "Qwen2.5-Coder-1.5B-Instruct", "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046", 1_117_320_768
    ),
}


def folder() -> Path:
    """Return the folder that the files are looked for in."""
    named = os.environ.get(FOLDER)
    return Path(named).expanduser().absolute() if named else user_cache_path("localspec-real-models", appauthor=False)


def find(name: str) -> Path | None:
    """Return the file of this model, whatever it is called, or None where the folder has none."""
    wanted = MODELS[name]
    for file in sorted(folder().glob("*.gguf")):
        stamp = file.stat()
        if stamp.st_size == wanted.bytes and _digest(file, stamp.st_size, stamp.st_mtime_ns) == wanted.sha256:
            return file
    return None


@cache
def _digest(file: Path, size: int, changed: int) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
