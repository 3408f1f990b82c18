"""The directory of a training: its lock for one training at a time, and the checks before a training uses it."""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from filelock import FileLock, Timeout

from localspec.errors import LocalspecError, UsageMistake
from localspec.weights.checkpoint import read_json

PLAN, ANSWERS = "plan.json", "answers.jsonl"  # of a course
READINGS = "readings"  # the target's output for texts
FILES = ("losses.jsonl", "losses.svg", PLAN, ANSWERS)
DIRECTORIES = ("checkpoint", "drafter", "target", READINGS)
LOCK = "training.lock"
OWN_WORDS = ("prompts", "history")  # of a course: prompts that the model answers, or the user's history


def usable(directory: Path) -> None:
    """Raise UsageMistake if it is already known that a training could not write its result to this directory."""
    path = directory
    try:
        directory.stat()
    except FileNotFoundError:
        path = next(parent for parent in directory.absolute().parents if parent.exists())
    except OSError as error:
        raise UsageMistake(f"{directory} cannot be used ({error.strerror}); give another -o.") from None
    _check(path, directory=True)
    for name in FILES + DIRECTORIES:
        if (directory / name).exists():
            _check(directory / name, directory=name in DIRECTORIES)


def _check(path: Path, directory: bool) -> None:
    if path.is_dir() != directory:
        kind, needed = ("a file", "a directory") if directory else ("a directory", "a file")
        raise UsageMistake(f"{path} is {kind}, but {needed} is needed there; give another -o.")
    if not os.access(path, os.W_OK | os.X_OK if directory else os.W_OK):
        raise UsageMistake(f"{path} cannot be written; give another -o.")


def has_unfinished(directory: Path) -> bool:
    """Return whether a directory has an unfinished course."""
    return (directory / PLAN).exists()


def refuse_course(directory: Path, force: bool) -> None:
    """Raise UsageMistake if a course has begun in this directory; with `force`, discard the course instead."""
    if has_unfinished(directory) and not force:
        raise UsageMistake(
            f"{directory} holds a stopped training that was started without --data FILE. Repeat that command to "
            "continue, or give another -o, or --force to start over."
        )
    (directory / PLAN).unlink(missing_ok=True)


def refuse_result(directory: Path, *names: str) -> None:
    """Raise UsageMistake if a file or folder of one of `names` is in the directory: a training would replace it."""
    for name in names:
        if (directory / name).exists():
            raise UsageMistake(
                f"{directory / name} already exists, from an earlier training; give another -o, or --force to "
                "replace it."
            )


def refuse_other(directory: Path, was: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise UsageMistake if the settings `was` of the directory's stopped training differ from the settings `now`."""
    for name, value in now.items():
        if (earlier := was.get(name)) != value:
            fact = (
                f"{directory} holds a stopped training that was started {_as_typed(name, earlier)}, but this command "
                f"was given {_as_typed(name, value)}."
            )
            if name == "data" and value not in OWN_WORDS:  # for files, a digest of the text
                fact = f"{directory} holds a stopped training that learns from other text."
            raise UsageMistake(
                f"{fact} To continue, repeat the command that started it. Or give another -o, or --force to start over."
            )


def _as_typed(name: str, value: Any) -> str:
    """Return a setting of a training as a user types it on the command line."""
    flag = {"kind": "KIND", "model": "-m", "options": "-O"}.get(name, f"--{name.replace('_', '-')}")
    if value in (None, {}, "prompts"):
        return f"without {flag}"
    if isinstance(value, Mapping):
        value = " ".join(f"{key}={option}" for key, option in value.items())
    return f"with {flag} {value}"


class Lock:
    """A lock that is held from `take` until the end of a with statement, or until the process ends for any reason."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._file = directory, directory / LOCK
        self._lock = FileLock(self._file, timeout=0, mode=0o600, thread_local=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._lock.is_locked:
            with suppress(OSError):  # Windows removes no open file; a leftover file does not lock
                self._file.unlink()
            self._lock.release()

    def take(self) -> None:
        """Take the lock. Do nothing if the directory does not exist yet, or if this lock is taken already.

        Raises UsageMistake if another training holds the lock, and LocalspecError if the file of the lock cannot be
        written.
        """
        if self._lock.is_locked or not self._directory.is_dir():
            return
        try:
            self._lock.acquire()
        except Timeout:
            raise UsageMistake(
                f"Another training is running in {self._directory}; wait for it, or give another -o."
            ) from None
        except OSError as error:
            raise LocalspecError(f"{self._directory} cannot be locked ({error}); give another -o.") from None


NOTABLE = 1.5  # times as long as on an idle machine, or as many tokens as expected: the user should know


def drafter_json(directory: Path) -> Mapping[str, Any]:
    """Return the content of the trained drafter's drafter.json; empty before it is written."""
    file = directory / "drafter" / "drafter.json"
    content = read_json(file, "give --force to start over") if file.exists() else {}
    return content if isinstance(content, dict) else {}
