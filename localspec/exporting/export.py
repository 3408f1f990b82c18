"""Writes a drafter for another engine, either completely or not at all."""

import glob
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from safetensors import SafetensorError

from localspec.environment import home
from localspec.errors import DoesNotFit, LocalspecError, NotHere, UsageMistake, first_line
from localspec.exporting.counterparts import counterpart
from localspec.exporting.engines import Form, check_heads, check_path, command, engine_named
from localspec.hub.cache import find_snapshot
from localspec.models.drafter_cards import read_drafter
from localspec.models.registry import TargetCard, resolve
from localspec.paths import OWNER_READS, Paths, without_rights
from localspec.training.checkpoint import full
from localspec.weights.checkpoint import originals
from localspec.weights.stored import read_config


@dataclass(frozen=True)
class Exported:
    """The result of an export: the written drafter's directory and `bytes`, and the command that serves it."""

    engine: str
    form: Form
    model: str  # the target's name
    directory: Path
    files: tuple[str, ...]
    bytes: int
    tokens: int  # of a draft
    command: tuple[str, ...]
    notes: tuple[str, ...]  # notes for the user, as sentences


def export(engine: str, drafter: str, model: str | None, out: Path, tensor_parallel: int = 1) -> Exported:
    """Write a drafter to a new or empty directory, in a form that another engine reads.

    The drafter is written for `model`, or else for the model that it was trained for. Raises UsageMistake if the engine
    has no form for it, and for a directory that is not empty. Raises NotHere and LocalspecError for models and drafters
    that are missing or damaged, and DoesNotFit if the disk is full.
    """
    other_engine = engine_named(engine)
    out = Path(os.path.abspath(os.path.expanduser(out)))
    if os.path.lexists(out) and not (out.is_dir() and not out.is_symlink() and not any(out.iterdir())):
        raise UsageMistake(f"{out} already exists, and nothing is overwritten; give another --out.")
    card = _target_of(drafter, model)
    checkpoint = originals(card.path)
    result = counterpart(other_engine, drafter, card, checkpoint)
    check_path(other_engine, out, result.form)
    config = read_config(checkpoint)
    for heads, kv_heads in ((config.num_attention_heads, config.num_key_value_heads), *result.heads):
        check_heads(heads, kv_heads, tensor_parallel)
    with _whole(out) as directory:
        result.write(directory)
    repository, revision = _served_as(card)
    tokens = result.tokens or other_engine.tokens
    words = command(other_engine, result.form, repository, revision, out, tokens, tensor_parallel)
    sizes = {file.name: file.stat().st_size for file in sorted(out.iterdir())}
    return Exported(
        engine, result.form, card.name, out, tuple(sizes), sum(sizes.values()), tokens, tuple(words), result.notes
    )


def _target_of(drafter: str, model: str | None) -> TargetCard:
    """Return the model named `model`, or else the model for which the drafter in a directory was trained."""
    if model is not None:
        return resolve(model)
    path = Path(os.path.expanduser(drafter))
    if not path.is_dir():
        raise UsageMistake(f"Name the model that '{drafter}' drafts for: -m MODEL.")
    if (path / "target" / "config.json").is_file():  # a target that was changed together with the drafter
        return resolve(str(path))
    trained = read_drafter(path)
    if not trained.target:
        raise UsageMistake(f"The small model in {path} drafts for several models; choose one with -m MODEL.")
    try:
        return resolve(trained.target)
    except NotHere as missing:
        raise NotHere(f"{missing} Or give -m MODEL for the model that {path} was trained for.") from None


def _served_as(card: TargetCard) -> tuple[str, str]:
    """Return how the command names the target: (repository, revision), or (directory, "")."""
    source = card.entry.source if card.entry else None
    if source is not None and not source.gguf and find_snapshot(source, Paths(home())) == card.path:
        return source.repo, "" if source.revision == "main" else source.revision
    return str(card.path), ""


@contextmanager
def _whole(out: Path) -> Iterator[Path]:
    """Yield a temporary directory, which is renamed to `out` when it is complete, or removed on failure.

    Only its owner can read it, like trained drafters, because their training text may be private.
    """
    new: Path | None = None
    try:
        with without_rights(OWNER_READS):
            out.parent.mkdir(parents=True, exist_ok=True)
            for leftover in out.parent.glob(f".{glob.escape(out.name)}.*.new"):  # left by killed exports
                process = leftover.name.split(".")[-2]
                if process.isdecimal() and (int(process) == os.getpid() or not psutil.pid_exists(int(process))):
                    shutil.rmtree(leftover, ignore_errors=True)
            new = out.parent / f".{out.name}.{os.getpid()}.new"
            new.mkdir()
            yield new
            if out.is_dir():
                out.rmdir()  # it is empty, as checked before
            new.rename(out)
    except (OSError, SafetensorError) as error:
        error_type, remedy = (
            (DoesNotFit, "make room") if full(error) else (LocalspecError, "check the permissions of this directory")
        )
        raise error_type(f"The drafter cannot be written to {out} ({first_line(error)}); {remedy}.") from error
    finally:
        if new is not None:
            shutil.rmtree(new, ignore_errors=True)
