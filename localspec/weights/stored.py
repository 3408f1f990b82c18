"""Finds the tensors in a model's safetensors files, and compares their shapes with config.json."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from io import FileIO
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from localspec.errors import LocalspecError, cannot_read
from localspec.families.architecture import TransformerConfig, in_features, stored_shape, weight_map
from localspec.families.family import NotComputed
from localspec.families.model_config import ModelConfig, least_parameters, not_computed
from localspec.families.table import FAMILIES
from localspec.weights.checkpoint import Checkpoint, tensor_headers, tensor_start, text_name

_PIECE = 2**20  # numbers that are compared at a time
NUMPY_TYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": np.uint16}  # bf16 is read by its bits


@dataclass(frozen=True)
class StoredTensor:
    """The place of a tensor in a file: its first byte, its shape, its type in safetensors, and its total bytes."""

    file: Path
    start: int
    shape: tuple[int, ...]
    dtype: str
    bytes: int

    def read(self, into: memoryview, first: int = 0) -> None:
        """Fill `into` with the tensor's bytes from `first` on.

        Raises LocalspecError for a changed or unreadable file.
        """
        try:
            with FileIO(self.file) as stream:
                stream.seek(self.start + first)
                while into:
                    count = stream.readinto(into)
                    if not count:
                        raise damaged(self.file, "the file ends too early")
                    into = into[count:]
        except OSError as error:
            raise cannot_read(self.file, error) from error

    def floats(self, first: int, count: int) -> npt.NDArray[np.float32]:
        """Return `count` numbers from `first` on, as fp32. Raises LocalspecError for an unknown type."""
        if self.dtype not in NUMPY_TYPES:
            raise damaged(self.file, f"a tensor is of the unknown type {self.dtype}")
        numbers = np.empty(count, NUMPY_TYPES[self.dtype])
        self.read(numbers.view(np.uint8).data, first * numbers.itemsize)
        if self.dtype == "BF16":
            return (numbers.astype(np.uint32) << 16).view(np.float32)
        return numbers.astype(np.float32, copy=False)


class LazyTensors(Mapping[str, Any]):
    """A mapping of tensors by name, which reads a tensor from its file at every access and keeps none in memory."""

    def __init__(self, names: Collection[str], read: Callable[[str], Any]) -> None:
        self._names, self._read = names, read

    def __getitem__(self, name: str) -> Any:
        if name not in self._names:
            raise KeyError(name)
        return self._read(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names  # Mapping's default would read the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def damaged(file: Path, reason: str) -> LocalspecError:
    return LocalspecError(f"{file} is damaged ({reason}); fetch the model again.")


def stored_tensors(checkpoint: Checkpoint, config: TransformerConfig) -> dict[str, StoredTensor]:
    """Return every tensor of the model, by its Hugging Face name.

    Raises LocalspecError for missing tensors, and for shapes that differ from config.json.
    """
    return find_stored(checkpoint, weight_map(config), lambda name: in_features(name, config))


def stored_parts(checkpoint: Checkpoint, config: TransformerConfig) -> dict[str, list[StoredTensor]]:
    """Return the stored tensors that form each of localspec's parameters. Raises the errors of `stored_tensors`."""
    stored = stored_tensors(checkpoint, config)
    return {name: [stored[part] for part, _ in parts] for name, parts in weight_map(config).items()}


def find_stored(
    checkpoint: Checkpoint,
    made_of: Mapping[str, Sequence[tuple[str, int]]],
    columns_of: Callable[[str], int | None],
) -> dict[str, StoredTensor]:
    """Return the stored tensors that form localspec's parameters, by their names in the files.

    `made_of` lists each parameter's tensors and their rows. `columns_of` returns the number of columns of a parameter,
    or None for a vector. Raises the errors of `stored_tensors`.
    """
    names = frozenset(part for parts in made_of.values() for part, _ in parts)
    tensors = _find(checkpoint, names)
    if any("experts." in name for name in names - tensors.keys()):
        tensors |= _of_experts(checkpoint, names - tensors.keys())
    if missing := sorted(names - tensors.keys()):
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise LocalspecError(f"The weights in {checkpoint.path} lack '{missing[0]}'{more}; fetch the model again.")
    for name, parts in made_of.items():
        columns = columns_of(name)
        for part, rows in parts:
            if tensors[part].dtype not in NUMPY_TYPES:
                raise LocalspecError(
                    f"'{part}' in {checkpoint.path} is of the type {tensors[part].dtype}, which is not a type of "
                    "weights; fetch the model again."
                )
            expected = stored_shape(name, rows, columns)
            if tensors[part].shape != expected:
                raise LocalspecError(
                    f"'{part}' in {checkpoint.path} has the shape {[*tensors[part].shape]} but config.json says "
                    f"{[*expected]}; fetch the model again."
                )
            if columns is None:  # a vector may be stored as a matrix of one row
                tensors[part] = replace(tensors[part], shape=(rows,))
    return tensors


def stored_sizes(checkpoint: Checkpoint, config: ModelConfig) -> TransformerConfig:
    """Return the sizes of a model, with a separate head if its files have one.

    As in transformers, the files decide this, and not config.json. Raises the errors of `TransformerConfig.of`.
    """
    sizes = TransformerConfig.of(config)
    return replace(sizes, tied=False) if sizes.tied and _has_separate_head(checkpoint) else sizes


def _has_separate_head(checkpoint: Checkpoint) -> bool:
    """Return whether the files have a head that differs from the embedding."""
    tensors = list(_find(checkpoint, frozenset(("lm_head.weight", "model.embed_tokens.weight"))).values())
    if len(tensors) < 2:
        return False
    tensor, other = tensors
    if tensor.shape != other.shape:
        return True
    count = prod(tensor.shape)
    pieces = ((first, min(_PIECE, count - first)) for first in range(0, count, _PIECE))
    return not all(np.array_equal(tensor.floats(*piece), other.floats(*piece)) for piece in pieces)


def _find(checkpoint: Checkpoint, names: frozenset[str]) -> dict[str, StoredTensor]:
    """Return those of the named tensors that the model's files have."""
    tensors = {}
    for file in checkpoint.weight_files:
        start = tensor_start(file)
        for name, entry in tensor_headers(file).items():
            if (text_only_name := text_name(name)) in names:
                tensors[text_only_name] = _stored(file, start, entry)
    return tensors


_OF_EXPERT = re.compile(r"(.*\bexperts)\.(\d+)\.(gate|up|down)_proj\.weight")


def _of_experts(checkpoint: Checkpoint, names: frozenset[str]) -> dict[str, StoredTensor]:
    """Return the tensors `names`, each of a single expert, as parts of stored tensors [experts, rows, columns].

    A stored tensor has the down projections of all experts, or for each expert its gate rows and then its up rows.
    """
    matches = {name: match for name in names if (match := _OF_EXPERT.fullmatch(name))}
    stacked = {
        name: f"{match[1]}.{'down' if match[3] == 'down' else 'gate_up'}_proj" for name, match in matches.items()
    }
    stored, tensors = _find(checkpoint, frozenset(stacked.values())), {}
    for name, match in matches.items():
        whole = stored.get(stacked[name])
        if whole is None or len(whole.shape) != 3 or int(match[2]) >= whole.shape[0]:
            continue
        parts = 1 if match[3] == "down" else 2
        rows, size = whole.shape[1] // parts, whole.bytes // whole.shape[0] // parts
        start = whole.start + (int(match[2]) * parts + (match[3] == "up")) * size
        tensors[name] = StoredTensor(whole.file, start, (rows, whole.shape[2]), whole.dtype, size)
    return tensors


def _stored(file: Path, start: int, entry: dict[str, Any]) -> StoredTensor:
    first, end = entry["data_offsets"]
    return StoredTensor(file, start + first, tuple(entry["shape"]), entry["dtype"], end - first)


def read_config(checkpoint: Checkpoint) -> ModelConfig:
    """Read config.json. Raises LocalspecError for a config.json that is unsupported or impossible."""
    family = FAMILIES.get(str(checkpoint.config.get("model_type")))
    if family is not None and family.gguf_only and not checkpoint.packing:
        raise LocalspecError(
            f"The weights in {checkpoint.path} are in a form of {family.model_type} that localspec does not read; "
            f"fetch a GGUF file of them, such as those of {family.gguf_only}."
        )
    if packed := checkpoint.config.get("quantization_config"):
        method = packed.get("quant_method", "unknown") if isinstance(packed, dict) else packed
        raise LocalspecError(
            f"The weights in {checkpoint.path} are packed ({method}), which localspec does not read; "
            "use the model's bf16 or fp16 weights."
        )
    try:
        config = ModelConfig.of(checkpoint.config)
    except NotComputed as error:
        raise not_computed(error, checkpoint.path, checkpoint.architecture) from None
    except ValueError as error:
        raise LocalspecError(
            f"The config.json in {checkpoint.path} cannot be used ({error}); fetch the model again, or choose another."
        ) from None
    # Check this before anything is allocated for layers and experts that do not exist.
    experts = f" of {config.experts.count} experts" if config.experts else ""
    if least_parameters(config) > checkpoint.parameters:
        raise LocalspecError(
            f"{checkpoint.path / 'config.json'} claims {config.num_hidden_layers} layers{experts} and a vocabulary of "
            f"{config.vocab_size}, which need more than the {checkpoint.parameters} weights of the model; fetch the "
            "model again."
        )
    return config


Floats = npt.NDArray[np.float32]
RowsOf = Callable[[Sequence[int]], Floats]  # rows of the whole head, by token


def rows_in_file(tensor: StoredTensor) -> RowsOf:
    """Return a function that reads given rows of a tensor from its file."""
    columns = tensor.shape[1]

    def rows_of(tokens: Sequence[int]) -> Floats:
        rows, start = np.empty((len(tokens), columns), np.float32), 0
        while start < len(tokens):
            end = start + 1
            while end < len(tokens) and tokens[end] == tokens[end - 1] + 1:
                end += 1
            numbers = tensor.floats(tokens[start] * columns, (end - start) * columns)
            rows[start:end] = numbers.reshape(-1, columns)
            start = end
        return rows

    return rows_of
