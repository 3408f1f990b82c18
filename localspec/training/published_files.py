"""Code that all converters of published drafters share: reading files as data, renaming tensors, and saving the result.

Each format has a file with a table of tensor names and a function `read_published`: `medusa_files.py`,
`eagle3_files.py`, `dflash_files.py` (also for DSpark) and `assistant_files.py`.
"""

import pickle
import re
import zipfile
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from localspec.drafters.tensors import TensorSpec
from localspec.errors import LocalspecError, NotHere
from localspec.models.drafter_cards import read_drafter
from localspec.models.drafter_kinds import kind_of
from localspec.nn.target import Target
from localspec.outside_files import parse_json, read_bytes
from localspec.paths import OWNER_READS, private_directory, without_rights
from localspec.training.checkpoint import errors_in_words
from localspec.training.trainable import ConvertedDrafter, save_drafter
from localspec.weights.checkpoint import inspect, text_name, weight_files
from localspec.weights.fingerprint import Identity

Tensors = Mapping[str, torch.Tensor]
Stored = Callable[[Sequence[str]], torch.Tensor]  # returns the first of these matrices that a model's files have
_READERS = {
    "medusa": "medusa_files", "eagle3": "eagle3_files", "dflash": "dflash_files", "dspark": "dflash_files",
    "assistant": "assistant_files",
}  # fmt: skip
LAYER_KEYS = (  # of a layer in the config.json of a published drafter
    "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size",
    "hidden_act", "max_position_embeddings", "rms_norm_eps", "rope_theta", "rope_scaling", "rope_parameters",
    "num_hidden_layers",
)  # fmt: skip
_NUMBERS = (torch.float32, torch.float16, torch.bfloat16)  # the types of drafters' numbers


def convert(kind: str, path: Path, model: Path, directory: Path, about: Mapping[str, Any]) -> None:
    """Convert the published drafter in `path` into localspec's form, and save it in directory/drafter. `model` is the
    directory of its target.

    Of the target, only shapes are read, and the matrices that the converter asks for. `about` has the model's `name`,
    and where the drafter was `published`. An earlier conversion of the same files for the same model is kept. Raises
    the errors of the converter and of `Target.load`, and DoesNotFit if the disk is full.
    """
    identity, new = Identity(model), directory / "drafter"
    made_for = {"name": about["name"], "revision": identity.revision, "weights": identity.weights}
    with suppress(LocalspecError):
        existing = read_drafter(new).about
        if {**made_for, **existing["target"]} == made_for and existing.get("published") == about["published"]:
            return
    target = Target.load(model, device="meta")
    read: Callable[..., ConvertedDrafter] = import_module(f"localspec.training.{_READERS[kind]}").read_published
    drafter = read(path, target, *(() if kind_of(kind).by_shapes else (partial(stored_matrix, model),)))
    more = {"target": made_for, "tokenizer": target.tokenizer.hash, "published": about["published"]}
    with without_rights(OWNER_READS), errors_in_words(directory):
        private_directory(directory)
        save_drafter(drafter, new, more)


def stored_matrix(model: Path, names: Sequence[str]) -> torch.Tensor:
    """Return the first of the matrices called `names` that is in a model's files, as it is stored."""
    matrices: dict[str, torch.Tensor] = {}
    for file in inspect(model).weight_files:
        with safe_open(file, framework="pt") as opened:
            stored_names = {text_name(name): name for name in opened.keys()}  # noqa: SIM118 (no mapping)
            missing = [name for name in names if name in stored_names and names[0] not in matrices]
            matrices.update({name: opened.get_tensor(stored_names[name]) for name in missing})
    return next(matrices[name] for name in names if name in matrices)


def first_file(path: Path, names: Sequence[str], what: str) -> Path:
    """Return the first of the files called `names` that is in the directory `path`. If `path` is a file, return it.

    Raises NotHere if there is no such file. The message calls it `what`, for example "Medusa head".
    """
    file = next((path / name for name in names if (path / name).is_file()), path)
    if not file.is_file():
        raise NotHere(f"There is no {what} in {path}; give a directory that has {names[0]}.")
    return file


def _as_stored(names: Collection[str]) -> Mapping[str, str]:
    return dict(zip(names, names, strict=True))


def read_tensors(
    file: Path, called: Callable[[Collection[str]], Mapping[str, str]] = _as_stored
) -> dict[str, torch.Tensor]:
    """Return the tensors of a file, or of all files that an index names. A pickle is read as data, never run.

    The function `called` maps stored names to localspec's names. Tensors that it leaves out are not read. Raises the
    errors of `called`, and LocalspecError for damaged files.
    """
    tensors: dict[str, torch.Tensor] = {}
    with damage_in_words(file):
        table = table_of(file) if file.suffix == ".json" else {}
        selected = called(table) if table else {}
    for name in sorted({table[key] for key in selected}) if table else [file.name]:
        with damage_in_words(file.parent / name), _opened(file.parent / name) as (names, get):
            selected = selected or called(names)
            tensors |= {selected[key]: get(key) for key in names if key in selected}
    return tensors


@contextmanager
def _opened(file: Path) -> Iterator[tuple[Collection[str], Callable[[str], torch.Tensor]]]:
    """Yield the names of a file's tensors, and a function that reads a tensor by its name."""
    if file.suffix == ".safetensors":
        with safe_open(file, framework="pt") as opened:
            yield list(opened.keys()), opened.get_tensor
    else:
        content = unpickled(file)
        yield content.keys(), content.__getitem__


def tensors_in(path: Path, ids: Container[str] = ()) -> dict[str, torch.Tensor]:
    """Return the tensors in a directory's safetensors files. Tensors named in `ids` hold token ids or flags.

    Raises the errors of `read_tensors` and `check_numbers`.
    """
    tensors: dict[str, torch.Tensor] = {}
    for file in weight_files(path):
        tensors |= read_tensors(file)
    check_numbers(tensors, path, ids)
    return tensors


def fitted(
    expected: Mapping[str, TensorSpec],
    stored: Tensors,
    names: Mapping[str, Sequence[str]],
    label: str,
    path: Path,
    ignored: str = "",
) -> dict[str, torch.Tensor]:
    """Return a drafter's tensors under localspec's names. Check that they have the `expected` shapes.

    `names` maps a tensor's name to the names under which it is stored; several stored tensors are joined. Error
    messages call the drafter `label`. Raises LocalspecError for a tensor that is missing or has another shape, and for
    an unused tensor that does not match the pattern `ignored`.
    """
    tensors, used = {}, set[str]()
    for our_name, spec in expected.items():
        parts = names.get(our_name, (our_name,))
        present = [stored[name] for name in parts if name in stored]
        used |= {*parts}
        same_widths = len(present) == len(parts) and len({tensor.shape[1:] for tensor in present}) == 1
        whole = torch.cat(present) if same_widths and len(present) > 1 else present[0] if same_widths else None
        if whole is None or tuple(whole.shape) != spec.shape:
            missing = next((name for name in parts if name not in stored), "")
            shapes = " and ".join(str([*tensor.shape]) for tensor in present)
            has = "is missing" if missing else f"has the shape {shapes}"
            raise LocalspecError(
                f"'{missing or parts[0]}' of {label} in {path} {has} (expected: {[*spec.shape]}); name the model "
                "that it was made for, or fetch the drafter again."
            )
        tensors[our_name] = whole
    if others := sorted(name for name in stored.keys() - used if not (ignored and re.search(ignored, name))):
        raise LocalspecError(
            f"'{others[0]}' in {path} is a tensor that {label} should not have, and without it drafts would differ; "
            "use another drafter."
        )
    return tensors


def check_numbers(tensors: Tensors, where: Path, ids: Container[str] = ()) -> None:
    """Raise LocalspecError for a tensor that is a single number, has an unsupported type, or contains NaN or inf.

    Tensors named in `ids` hold token ids, or a flag for each token, and may be integers.
    """
    for name, tensor in tensors.items():
        if not tensor.ndim:
            raise LocalspecError(
                f"'{name}' in {where} is a single number instead of an array; fetch the drafter again."
            )
        whole = name in ids and not tensor.is_floating_point()
        if tensor.dtype not in _NUMBERS and not whole:
            kind = str(tensor.dtype).removeprefix("torch.")
            raise LocalspecError(
                f"'{name}' in {where} is of the type {kind}, but localspec reads drafters in float32, float16 or "
                "bfloat16; get a file in one of these formats."
            )
        if not tensor.isfinite().all():
            raise LocalspecError(f"'{name}' in {where} has NaN or inf; fetch the drafter again.")


def unpickled(file: Path) -> Tensors:
    """Return the tensors of a pickle, which is read as data and never run."""
    content = torch.load(file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file))
    if not isinstance(content, dict) or not all(isinstance(tensor, torch.Tensor) for tensor in content.values()):
        raise LocalspecError(f"{file} has something other than tensors; get the heads from another source.")
    return content


def table_of(index: Path) -> Mapping[str, str]:
    """Return which file has each tensor, from a JSON `index`. Raises LocalspecError for a file in another directory."""
    table: dict[str, str] = parse_json(read_bytes(index))["weight_map"]
    for name in table.values():
        if not re.fullmatch(r"[\w.-]+\.(safetensors|bin)", name):
            raise LocalspecError(f"{index} names {name!r}, which is not a file in the same directory; fetch it again.")
    return table


@contextmanager
def damage_in_words(file: Path) -> Iterator[None]:
    """Turn any error of reading a file in the `with` block into a LocalspecError with one clear sentence."""
    try:
        yield
    except LocalspecError:
        raise
    except pickle.UnpicklingError as error:
        raise LocalspecError(
            f"{file} is damaged, or would run code when it is read, which localspec refuses; get the heads from "
            "another source."
        ) from error
    except Exception as error:  # a damaged file may raise anything
        reason = (str(error) or repr(error)).splitlines()[0]
        raise LocalspecError(f"{file} is damaged ({reason}); fetch it again.") from error
