"""Tries a tokenizer that was never seen here in a process of its own: some files end the process that reads them."""

import hashlib
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from localspec.environment import home
from localspec.errors import LocalspecError, first_line
from localspec.models.confinement import Stopped, confinement
from localspec.outside_files import parse_json
from localspec.paths import Paths, private_directory

SECONDS = 60.0  # of computing; the largest tokenizers take one
_OWN = Path(__file__).parents[1]  # what comes with localspec is known
_ONE = re.compile(r"\[[^][\\]+\]")  # an expression for one character of some
_tried: set[str] = set()


def try_out(files: Mapping[str, str], path: Path) -> None:
    """Returns where these texts of a model's files were tried before, or prove harmless now, which is remembered.

    Raises LocalspecError where the tokenizer fails, takes too long, or ends the process that it is tried in.
    """
    if _OWN in path.parents:
        return
    mark = _mark({name: text.encode("utf-8", "surrogatepass") for name, text in files.items()})
    known = Paths(home()).tokenizers / mark
    if mark in _tried or known.is_file():
        return
    if not _decodes_in_bounds(files.get("tokenizer.json", "")):
        raise LocalspecError(
            f"The tokenizer in {path} makes text of ids by an expression, or makes it longer, which may never end and "
            "which no known model needs; choose another one."
        )
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


def forget(files: Mapping[str, bytes]) -> None:
    """Delete what is remembered of these texts of a model's files, which is tried again where it is still needed."""
    with suppress(OSError):
        (Paths(home()).tokenizers / _mark(files)).unlink()


def _mark(files: Mapping[str, bytes]) -> str:
    digest = hashlib.sha256(b"with its decoder")  # of those tried before the decoder was looked at nothing is known
    for name, content in sorted(files.items()):
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def _decodes_in_bounds(text: str) -> bool:
    """Whether the steps from ids to text make none of it longer, and none looks for more than a word or a character.

    Text is made of each token on the thread that decodes, where nothing could interrupt it.
    """
    try:
        waiting = [parse_json(text).get("decoder")]
    except (AttributeError, ValueError):
        return True  # which is no tokenizer, as its trial will say
    while waiting:
        step = waiting.pop()
        if not isinstance(step, dict):
            continue
        waiting += step["decoders"] if isinstance(step.get("decoders"), list) else []
        if step.get("type") == "Replace":
            pattern = step.get("pattern")
            found = pattern if isinstance(pattern, dict) else {}
            length = len(str(found["String"])) if "String" in found else 1
            if "String" not in found and not _ONE.fullmatch(str(found.get("Regex"))):
                return False
            if len(str(step.get("content"))) > length:
                return False
    return True
