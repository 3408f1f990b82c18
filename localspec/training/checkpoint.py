"""Checkpoints, from which a training resumes exactly: tensors as safetensors, the rest as JSON.

`state.json` names its file of tensors and is replaced atomically, so a kill at any moment leaves the old checkpoint or
the new one.
"""

import errno
import json
import math
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from localspec.errors import DoesNotFit, LocalspecError
from localspec.outside_files import parse_json, read_bytes

STATE, SPENT = "state.json", "spent"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_STATE = {"asked": dict, "at_once": int, "tensors": str}  # required keys of a training's state
_ASKED = {"asked": dict, "options": dict}


def save(directory: Path, step: int, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any]) -> None:
    """Write a checkpoint. Raises DoesNotFit if the disk is full; the old checkpoint is then still there."""
    name = f"step-{step}.safetensors"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        copies = {key: tensor.detach().to("cpu", copy=True).contiguous() for key, tensor in tensors.items()}
        save_file(copies, directory / (name + ".new"))
        (directory / (name + ".new")).replace(directory / name)
        (directory / (STATE + ".new")).write_text(json.dumps({**state, "tensors": name}) + "\n", "utf-8")
        (directory / (STATE + ".new")).replace(directory / STATE)
    except (OSError, SafetensorError) as error:
        for file in directory.glob("*.new"):
            file.unlink(missing_ok=True)
        raise _write_error(error, directory, tensors) from error
    for old in directory.glob("*.safetensors"):
        if old.name != name:
            old.unlink()


def note_spent(directory: Path, seconds: float) -> None:
    """Record in a checkpoint, if there is one, how many seconds the training has taken so far.

    So if the process is killed, the time since the checkpoint is still counted.
    """
    with suppress(OSError):  # the next checkpoint will report a full disk
        (directory / SPENT).write_text(f"{seconds:.3f}\n", "utf-8")


def spent(directory: Path) -> float:
    """Return the recorded seconds of training; 0 if there are none, or if they are invalid."""
    try:
        seconds = float((directory / SPENT).read_text("utf-8"))
    except (OSError, ValueError):
        return 0.0
    return seconds if 0 <= seconds < math.inf else 0.0


def remove(directory: Path) -> None:
    """Remove a checkpoint, or an incomplete one."""
    with suppress(OSError):  # the state first: after a kill here, no checkpoint lacks its tensors
        (directory / STATE).unlink()
    shutil.rmtree(directory, ignore_errors=True)


def load(directory: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]] | None:
    """Return (tensors, state) of the last checkpoint, if there is one. Raises LocalspecError if it is damaged."""
    try:
        state = parse_json(read_bytes(directory / STATE))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise _damaged(directory, error) from None
    try:
        return load_file(directory / state["tensors"]), state
    except FileNotFoundError:
        raise LocalspecError(f"{directory} lacks {state['tensors']}; give --force to start over.") from None
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise _damaged(directory, error) from None


def state(directory: Path) -> Mapping[str, Any] | None:
    """Return the content of state.json of a stopped training; None if there is no checkpoint.

    Raises LocalspecError if it is damaged.
    """
    try:
        content = parse_json(read_bytes(directory / STATE))
        if not (_has(content, _STATE) and _has(content["asked"], _ASKED)):
            raise ValueError(f"{STATE} does not hold the state of a training")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise _damaged(directory, error) from None
    state: Mapping[str, Any] = content
    return state


def full(error: Exception) -> bool:
    """Return whether a write failed because the disk is full."""
    text = str(error).lower()
    return (isinstance(error, OSError) and error.errno in _FULL) or "no space" in text or "too large" in text


@contextmanager
def errors_in_words(directory: Path, words: tuple[str, str] = ("The drafter", "try again")) -> Iterator[None]:
    """Turn errors of writing in the `with` block into an error with a clear message, and remove incomplete files.

    `words` is a pair: what could not be written, and what to do after the cause is removed.
    """
    subject, again = words
    try:
        yield
    except (OSError, SafetensorError) as error:
        for path in directory.glob("**/*.new"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        kind, remedy = (
            (DoesNotFit, "make room") if full(error) else (LocalspecError, "check the permissions of this directory")
        )
        raise kind(f"{subject} cannot be written to {directory} ({error}); {remedy}, and {again}.") from error


def _has(value: object, entries: Mapping[str, type]) -> bool:
    return isinstance(value, dict) and all(isinstance(value.get(name), kind) for name, kind in entries.items())


def _damaged(directory: Path, error: Exception) -> LocalspecError:
    return LocalspecError(f"The checkpoint in {directory} is damaged ({error}); give --force to start over.")


def _write_error(error: Exception, directory: Path, tensors: Mapping[str, torch.Tensor]) -> LocalspecError:
    if full(error):
        size = sum(tensor.nbytes for tensor in tensors.values())
        return DoesNotFit(
            f"There is no room for a checkpoint of {size / 2**20:.0f} MiB in {directory}; make room, and give the same "
            "command again."
        )
    return LocalspecError(
        f"{directory} cannot be written ({error}); check its permissions, then give the same command again."
    )
