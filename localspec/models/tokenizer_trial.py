"""Tries a tokenizer that was never seen here in a process of its own: some files end the process that reads them."""

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from localspec.config import home
from localspec.errors import LocalspecError, first_line
from localspec.models.confinement import Stopped, confinement
from localspec.paths import Paths, private_directory

SECONDS = 60.0  # of computing; the largest tokenizers take one
_OWN = Path(__file__).parents[1]  # what comes with localspec is known
_tried: set[str] = set()


def try_out(files: Mapping[str, str], path: Path) -> None:
    """Returns where these texts of a model's files were tried before, or prove harmless now, which is remembered.

    Raises LocalspecError where the tokenizer fails, takes too long, or ends the process that it is tried in.
    """
    if _OWN in path.parents:
        return
    digest = hashlib.sha256()
    for name, text in sorted(files.items()):
        content = text.encode("utf-8", "surrogatepass")
        digest.update(f"{name} {len(content)}\n".encode() + content)
    mark = digest.hexdigest()
    known = Paths(home()).tokenizers / mark
    if mark in _tried or known.is_file():
        return
    try:
        answer = confinement.ask({"tokenizer": dict(files), "path": str(path)}, SECONDS)
    except Stopped as stopped:
        answer = {"error": str(stopped)}
    if "error" in answer:
        why = first_line(answer["error"])
        whole = answer.get("sentence")
        raise LocalspecError(why if whole else f"The tokenizer in {path} cannot be used ({why[:200]}); fetch it again.")
    _tried.add(mark)
    with suppress(OSError):  # then it is tried again the next time
        private_directory(known.parent)
        known.touch(0o600)
