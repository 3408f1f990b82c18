"""What all readers of published drafters share: files that are read as data, tables of names, and what is made of them.

A format is one file with a table of its names of tensors: `medusa_files.py`, `eagle3_files.py`, `dflash_files.py`
(DSpark's, too) and `assistant_files.py`.
"""

import pickle
import re
import shutil
import zipfile
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from localspec.drafters.tensors import TensorSpec
from localspec.errors import DoesNotFit, LocalspecError
from localspec.models.drafter_cards import read_drafter
from localspec.nn.target import Target
from localspec.outside_files import parse_json, read_bytes
from localspec.paths import private_directory, private_files
from localspec.training.checkpoint import full
from localspec.training.trainable import Saveable, save_drafter
from localspec.weights.checkpoint import inspect, text_name, weight_files
from localspec.weights.fingerprint import Identity

Tensors = Mapping[str, torch.Tensor]
_NUMBERS = (torch.float32, torch.float16, torch.bfloat16)  # what drafters are kept in


@dataclass(frozen=True)
class Published:
    """A drafter as it is written."""

    kind: str
    options: Any
    found: Tensors

    def tensors(self) -> Tensors:
        """Return the tensors by our names."""
        return self.found


def convert_published(
    model: Path, directory: Path, about: Mapping[str, Any], read: Callable[[Target], Saveable]
) -> None:
    """Write to directory/drafter what `read` makes for the model in `model`, of which it gets shapes alone.

    `about` has the model's `name` and where the heads were `published`; a drafter that was written before from the same
    heads for the same model stays. Raises what `read` and `Target.load` do, and DoesNotFit where the disk is full.
    """
    own, new = Identity(model), directory / "drafter"
    made_for = {"name": about["name"], "revision": own.revision, "weights": own.weights}
    with suppress(LocalspecError):
        existing = read_drafter(new).about
        if {**made_for, **existing["target"]} == made_for and existing.get("published") == about["published"]:
            return
    target = Target.load(model, device="meta")
    drafter = read(target)
    more = {"target": made_for, "tokenizer": target.tokenizer.hash, "published": about["published"]}
    with told(directory):
        private_directory(directory)
        save_drafter(drafter, new, more)


def stored_matrix(model: Path, names: Sequence[str]) -> torch.Tensor:
    """Return the first of these matrices that a model's files hold, as they hold it."""
    found: dict[str, torch.Tensor] = {}
    for file in inspect(model).weight_files:
        with safe_open(file, framework="pt") as opened:
            kept = {text_name(name): name for name in opened.keys()}  # noqa: SIM118 (no mapping)
            wanted = [name for name in names if name in kept and names[0] not in found]
            found.update({name: opened.get_tensor(kept[name]) for name in wanted})
    return next(found[name] for name in names if name in found)


@contextmanager
def told(directory: Path) -> Iterator[None]:
    """Says in a sentence why something cannot be written, and removes what was written in part."""
    try:
        with private_files():
            yield
    except (OSError, SafetensorError) as error:
        for left in directory.glob("**/*.new"):
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        error_type, remedy = (DoesNotFit, "make room") if full(error) else (LocalspecError, "correct that")
        raise error_type(f"The drafter cannot be written to {directory} ({error}); {remedy}, and try again.") from error


def read_tensors(file: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a file, or of those beside an index, by their names; a pickle is read as data, never run.

    Raises LocalspecError for damaged files.
    """
    found: dict[str, torch.Tensor] = {}
    with damage_told(file):
        names = sorted({*table_of(file).values()}) if file.suffix == ".json" else [file.name]
    for name in names:
        with damage_told(file.parent / name):
            if name.endswith(".safetensors"):
                with safe_open(file.parent / name, framework="pt") as opened:
                    found |= {key: opened.get_tensor(key) for key in list(opened.keys())}
            else:
                found |= unpickled(file.parent / name)
    return found


def tensors_in(path: Path, ids: Container[str] = ()) -> dict[str, torch.Tensor]:
    """Return the tensors of a directory's safetensors files. Raise what `read_tensors` and `check_numbers` do."""
    found: dict[str, torch.Tensor] = {}
    for file in weight_files(path):
        found |= read_tensors(file)
    check_numbers(found, path, ids)
    return found


def fitted(
    expected: Mapping[str, TensorSpec],
    stored: Tensors,
    names: Mapping[str, Sequence[str]],
    what: str,
    path: Path,
    ignored: str = "",
) -> dict[str, torch.Tensor]:
    """Return the tensors that a drafter needs, by our names; `names` has those that one is stacked from, where unlike.

    `what` a sentence calls the drafter in `path`. Raise LocalspecError for a tensor that is missing or of another
    shape, and for one that has no place and is not `ignored`, a pattern.
    """
    found, used = {}, set[str]()
    for ours, spec in expected.items():
        theirs = names.get(ours, (ours,))
        there = [stored[name] for name in theirs if name in stored]
        used |= {*theirs}
        alike = len(there) == len(theirs) and len({one.shape[1:] for one in there}) == 1
        whole = torch.cat(there) if alike and len(there) > 1 else there[0] if alike else None
        if whole is None or tuple(whole.shape) != spec.shape:
            missing = next((name for name in theirs if name not in stored), "")
            shapes = " and ".join(str([*one.shape]) for one in there)
            has = "is not there" if missing else f"has the shape {shapes}"
            raise LocalspecError(
                f"'{missing or theirs[0]}' of {what} in {path} {has} where {[*spec.shape]} belongs; name the model "
                "that it was made for, or fetch it again."
            )
        found[ours] = whole
    if others := sorted(name for name in stored.keys() - used if not (ignored and re.search(ignored, name))):
        raise LocalspecError(
            f"'{others[0]}' in {path} is no part of {what}, so it would draft otherwise than it was trained; use "
            "another drafter."
        )
    return found


def check_numbers(tensors: Tensors, where: Path, ids: Container[str] = ()) -> None:
    """Raise LocalspecError for a tensor without rows, of a type that is not read, or with numbers that are none.

    Those that are called as in `ids` are lists of tokens, or say of each token whether it is meant.
    """
    for name, one in tensors.items():
        if not one.ndim:
            raise LocalspecError(f"'{name}' in {where} is a single number, where heads have rows; fetch it again.")
        whole = name in ids and not one.is_floating_point()
        if one.dtype not in _NUMBERS and not whole:
            raise LocalspecError(
                f"'{name}' in {where} is of the type {str(one.dtype).removeprefix('torch.')}, and localspec reads "
                "float32, float16 and bfloat16 of drafters; get it in one of these."
            )
        if not one.isfinite().all():
            raise LocalspecError(f"'{name}' in {where} holds NaN or inf; fetch it again.")


def unpickled(file: Path) -> Tensors:
    """Return the tensors of a pickle, which is read as data and never run."""
    content = torch.load(file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file))
    if not isinstance(content, dict) or not all(isinstance(tensor, torch.Tensor) for tensor in content.values()):
        raise LocalspecError(f"{file} holds something other than tensors; get the heads from somewhere else.")
    return content


def table_of(index: Path) -> Mapping[str, str]:
    """Return which file beside an index holds each tensor. Raises LocalspecError for one that is nowhere near it."""
    table: dict[str, str] = parse_json(read_bytes(index))["weight_map"]
    for name in table.values():
        if not re.fullmatch(r"[\w.-]+\.(safetensors|bin)", name):
            raise LocalspecError(f"{index} names {name!r}, which holds no weights beside it; fetch it again.")
    return table


@contextmanager
def damage_told(file: Path) -> Iterator[None]:
    """Says in a sentence what is wrong with a file that is read."""
    try:
        yield
    except LocalspecError:
        raise
    except pickle.UnpicklingError as error:
        raise LocalspecError(
            f"{file} is damaged, or would run code when it is read, which localspec refuses; "
            "get the heads from somewhere else."
        ) from error
    except Exception as error:  # a damaged file may raise anything
        raise LocalspecError(
            f"{file} is damaged ({(str(error) or repr(error)).splitlines()[0]}); fetch it again."
        ) from error
