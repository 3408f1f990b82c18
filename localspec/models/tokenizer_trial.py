"""Tries a tokenizer and its chat template in a child process before they are first used here.

Some files crash the process that reads them, or block it forever.
"""

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localspec.environment import home
from localspec.errors import LocalspecError, first_line
from localspec.paths import Paths, private_directory

TOO_LONG = "the trial takes too long"
_PATIENCE = 180.0  # seconds of time, if the system cannot count those of a process
_OWN = Path(__file__).parents[1]  # files that come with localspec are trusted
_START = "import sys; sys.path[:] = sys.argv[1:]; from localspec.models.trial_child import child; child()"
HASH = 16  # digits of the hash of a tokenizer
_tried: dict[str, str] = {}
_at_hand: list["subprocess.Popen[bytes]"] = []  # a child that was started in advance


@contextmanager
def child_at_hand() -> Iterator[None]:
    """Start the child process of `try_out` in advance, because its imports take a while.

    If `try_out` is not called in this context, the child process ends unused.
    """
    with suppress(LocalspecError):  # raised again if it is needed
        _at_hand.append(_started())
    try:
        yield
    finally:
        while _at_hand:
            with _at_hand.pop() as child:
                child.kill()


@dataclass(frozen=True)
class Trial:
    """A result of a trial. `template_fault` is the reason not to render the chat template, or "". `record` is the file
    that records that the model's files are harmless."""

    template_fault: str = ""
    record: Path | None = None

    def hash(self, compute: Callable[[], str]) -> str:
        """Return the tokenizer's hash for this version of the `tokenizers` library, from the record or by `compute`."""
        if self.record is None or self.template_fault:
            return compute()
        import tokenizers  # light commands import this module, and never try a tokenizer

        version = f"{tokenizers.__version__} "
        with suppress(OSError, UnicodeDecodeError):
            text = self.record.read_text("ascii")
            if text.startswith(version) and len(text) == len(version) + HASH:
                return text.removeprefix(version)
        result = compute()
        with suppress(OSError):  # it is computed again the next time
            self.record.write_text(version + result, "ascii")
        return result


def try_out(files: Mapping[str, str], path: Path) -> Trial:
    """Try `files`, a model's tokenizer files by name, unless they were tried before.

    Digests of harmless files are remembered, so that they are not tried again. Raises LocalspecError if the tokenizer
    fails, takes too long, or ends the child process.
    """
    if _OWN in path.parents:
        return Trial()
    mark = _mark({name: text.encode("utf-8", "surrogatepass") for name, text in files.items()})
    record = Paths(home()).tokenizers / mark
    if mark in _tried or record.is_file():
        return Trial(_tried.get(mark, ""), record)
    tokenizer, *template = _child_results(files, path)
    if "error" in tokenizer:
        reason = first_line(tokenizer["error"])
        whole = tokenizer.get("sentence")
        raise LocalspecError(
            reason if whole else f"The tokenizer in {path} cannot be used ({reason[:200]}); fetch it again."
        )
    _tried[mark] = template[0].get("error", "")
    if not _tried[mark]:
        with suppress(OSError):  # if its result cannot be saved, it is tried again the next time
            private_directory(record.parent)
            record.touch(0o600)
    return Trial(_tried[mark], record)


def forget(files: Mapping[str, bytes]) -> None:
    """Delete the record that `files`, a model's tokenizer files by name, were tried; the next use tries them again."""
    with suppress(OSError):
        (Paths(home()).tokenizers / _mark(files)).unlink()


def _mark(files: Mapping[str, bytes]) -> str:
    digest = hashlib.sha256(b"with its template")  # earlier versions did not try the template
    for name, content in sorted(files.items()):
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def _started() -> "subprocess.Popen[bytes]":
    """Start the child process, which waits for files. Raises LocalspecError if no process can be started."""
    command = [sys.executable, "-S", "-c", _START, *filter(None, sys.path), str(_OWN.parent)]
    pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
    try:
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=nowhere)
    except OSError as error:
        raise LocalspecError(
            f"The process that runs chat templates and tokenizers cannot be started ({error.strerror}); close other "
            f"programs, and make sure that you may run {sys.executable}."
        ) from error


def _child_results(files: Mapping[str, str], path: Path) -> list[dict[str, Any]]:
    """Return the child's results: one for the tokenizer, then one for the template. After a crash, results are missing.

    The last item is always an error, to be used in place of a missing result.
    """
    contents = {name: text.encode("utf-8", "surrogatepass") for name, text in files.items()}
    request = {"path": str(path), "files": {name: len(content) for name, content in contents.items()}}
    sent = b"".join([json.dumps(request).encode(), b"\n", *contents.values()])
    with _at_hand.pop() if _at_hand else _started() as child:
        try:
            output, reason = child.communicate(sent, _PATIENCE)[0], "the trial crashed its process, with the code {}"
        except subprocess.TimeoutExpired:
            child.kill()
            output, reason = child.communicate()[0], TOO_LONG
        except BaseException:
            child.kill()
            raise
    if child.returncode in (-24, -27):  # SIGXCPU, SIGPROF
        reason = TOO_LONG
    return [*(json.loads(line) for line in output.split(b"\n")[:-1]), {"error": reason.format(child.returncode)}]
