"""The directory of a training: checks that it can be written, and locks it for one training at a time."""

import os
import sqlite3
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

from localspec.errors import LocalspecError, UsageMistake

PLAN, ANSWERS = "plan.json", "answers.jsonl"  # of a course
READINGS = "readings"  # the target's output for texts
FILES = ("losses.jsonl", "losses.svg", PLAN, ANSWERS)
DIRECTORIES = ("checkpoint", "drafter", "target", READINGS)
LOCK = "training.lock"
OWN_WORDS = ("prompts", "history")  # of a course: text that the model answered, or learns from


def usable(directory: Path) -> None:
    """Raise UsageMistake if a training could not write its result to this directory, as far as that is known in
    advance."""
    there = directory
    try:
        directory.stat()
    except FileNotFoundError:
        there = next(parent for parent in directory.absolute().parents if parent.exists())
    except OSError as error:
        raise UsageMistake(f"{directory} cannot be used ({error.strerror}); give another -o.") from None
    _check(there, directory=True)
    for name in FILES + DIRECTORIES:
        if (directory / name).exists():
            _check(directory / name, directory=name in DIRECTORIES)


def _check(there: Path, directory: bool) -> None:
    if there.is_dir() != directory:
        found, needed = ("a file", "a directory") if directory else ("a directory", "a file")
        raise UsageMistake(f"{there} is {found}, but {needed} is needed there; give another -o.")
    if not os.access(there, os.W_OK | os.X_OK if directory else os.W_OK):
        raise UsageMistake(f"{there} cannot be written; give another -o.")


def has_unfinished(directory: Path) -> bool:
    """Return whether a directory has an unfinished course."""
    return (directory / PLAN).exists()


def refuse_course(directory: Path, force: bool) -> None:
    """Raise UsageMistake if a course has begun in this directory; with `force`, discard the course instead."""
    if has_unfinished(directory) and not force:
        raise UsageMistake(
            f"{directory} has a training without --data FILE that was stopped; give that command to continue, "
            "another -o, or --force to start over."
        )
    (directory / PLAN).unlink(missing_ok=True)


def refuse_result(directory: Path, *names: str) -> None:
    """Raise UsageMistake if one of these files or directories exists, because this training would replace it."""
    for name in names:
        if (directory / name).exists():
            raise UsageMistake(
                f"{directory / name} already exists, from an earlier training; give another -o, or --force to "
                "replace it."
            )


def refuse_other(directory: Path, was: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise UsageMistake if the stopped training in that directory has other settings than this one."""
    for name, value in now.items():
        if (before := was.get(name)) != value:
            differs = f"started {_as_typed(name, before)}, but this command is {_as_typed(name, value)}"
            if name == "data" and value not in OWN_WORDS:  # for files, a digest of the text
                differs = "which learned from other text"
            raise UsageMistake(
                f"{directory} has a training that was stopped, {differs}; give the same command to continue, "
                "another -o, or --force to start over."
            )


def _as_typed(name: str, value: Any) -> str:
    """Return a setting of a training as a user types it on the command line."""
    flag = {"kind": "KIND", "model": "-m", "options": "-O"}.get(name, f"--{name.replace('_', '-')}")
    if value in (None, {}, "prompts"):
        return f"without {flag}"
    if isinstance(value, Mapping):
        value = " ".join(f"{key}={one}" for key, one in value.items())
    return f"with {flag} {value}"


class Lock:
    """A lock that is held from `take` until the end of a with statement, or until the process ends for any reason."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._held: ExitStack | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._held is not None:
            with suppress(OSError):  # Windows removes no open file; a leftover file does not lock
                (self._directory / LOCK).unlink()
            self._held.close()
            self._held = None

    def take(self) -> None:
        """Take the lock. Do nothing if the directory does not exist yet, or if this lock is taken already.

        Raises UsageMistake if another training has it, and LocalspecError if no lock can be written.
        """
        if self._held is not None or not self._directory.is_dir():
            return
        # An empty SQLite file, as for the database: the only lock that works the same way on every system.
        try:
            with ExitStack() as opened:
                lock = sqlite3.connect(self._directory / LOCK, timeout=0, isolation_level=None)
                opened.callback(lock.close)
                lock.execute("BEGIN EXCLUSIVE")
                self._held = opened.pop_all()
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY:
                raise UsageMistake(
                    f"Another training is running in {self._directory}; wait for it, or give another -o."
                ) from None
            raise LocalspecError(f"{self._directory} cannot be locked ({error}); give another -o.") from None
