"""Tries a tokenizer and its chat template in a child process before they are used here for the first time.

Some files end the process that reads them, or never let it go.
"""

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from localspec.environment import home
from localspec.errors import LocalspecError, first_line
from localspec.outside_files import parse_json
from localspec.paths import Paths, private_directory

TOO_LONG = "it takes too long"
_PATIENCE = 180.0  # seconds, by the clock, where the system cannot count a process's own
_OWN = Path(__file__).parents[1]  # what comes with localspec is known
_ONE = re.compile(r"\[[^][\\]+\]")  # an expression for one character of some
_START = "import sys; sys.path[:] = sys.argv[1:]; from localspec.models.trial_child import child; child()"
_tried: dict[str, str] = {}


def try_out(files: Mapping[str, str], path: Path) -> str:
    """Return why the chat template among these texts of a model's files must not be rendered; "" where it may be.

    Files that prove harmless are remembered by their digest, and are not tried again. Raises LocalspecError where the
    tokenizer fails, takes too long, or ends the child process.
    """
    if _OWN in path.parents:
        return ""
    mark = _mark({name: text.encode("utf-8", "surrogatepass") for name, text in files.items()})
    known = Paths(home()).tokenizers / mark
    if mark in _tried or known.is_file():
        return _tried.get(mark, "")
    if not _decodes_in_bounds(files.get("tokenizer.json", "")):
        raise LocalspecError(
            f"The tokenizer in {path} makes text of ids by an expression, or makes it longer, which may never end and "
            "which no known model needs; choose another one."
        )
    tokenizer, *template = _answers({"files": dict(files), "path": str(path)})
    if "error" in tokenizer:
        why = first_line(tokenizer["error"])
        whole = tokenizer.get("sentence")
        raise LocalspecError(why if whole else f"The tokenizer in {path} cannot be used ({why[:200]}); fetch it again.")
    _tried[mark] = template[0].get("error", "")
    if not _tried[mark]:
        with suppress(OSError):  # then it is tried again the next time
            private_directory(known.parent)
            known.touch(0o600)
    return _tried[mark]


def forget(files: Mapping[str, bytes]) -> None:
    """Delete what is remembered of these texts of a model's files, which is tried again where it is still needed."""
    with suppress(OSError):
        (Paths(home()).tokenizers / _mark(files)).unlink()


def _mark(files: Mapping[str, bytes]) -> str:
    digest = hashlib.sha256(b"with its template")  # earlier versions did not try the template
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


def _answers(request: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the child's answers about the tokenizer and the template; an error for one that it did not survive."""
    command = [sys.executable, "-S", "-c", _START, *filter(None, sys.path), str(_OWN.parent)]
    sent, nowhere = json.dumps(request).encode(), subprocess.DEVNULL
    try:
        done = subprocess.run(
            command, input=sent, stdout=subprocess.PIPE, stderr=nowhere, timeout=_PATIENCE, check=False
        )
        output, why = done.stdout, f"it ended the process that it ran in, with {done.returncode}"
        if done.returncode in (-24, -27):  # SIGXCPU, SIGPROF
            why = TOO_LONG
    except subprocess.TimeoutExpired as late:
        output, why = late.stdout or b"", TOO_LONG
    except OSError as error:
        raise LocalspecError(
            f"No process can be started for what models bring along ({error.strerror}); close other programs, and make "
            f"sure that you may run {sys.executable}."
        ) from error
    return [*(json.loads(line) for line in output.split(b"\n")[:-1]), {"error": why}]
