"""A drafter's tensors: the list that its files must contain, and reading them one at a time."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from localspec.decoding.compute import Array
from localspec.errors import LocalspecError, cannot_read
from localspec.models.drafter_cards import FACTORS, GROUP, INT4, TRAIN_AGAIN, remedy, stored_shape
from localspec.weights.checkpoint import tensor_headers, tensor_start
from localspec.weights.stored import LazyTensors

FLOATS = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
# By the names of types in files: the types that drafters have, and those that numpy reads.
_NAMES = {**FLOATS, "BOOL": "bool", "I64": "int64", INT4: "float32"}
_READ_AS = {
    "BF16": np.uint16, "F16": np.float16, "F32": np.float32, "BOOL": np.bool_, "I64": np.int64, INT4: np.uint8,
}  # fmt: skip


@dataclass(frozen=True)
class TensorSpec:
    """The shape and type of a tensor. The type is a name of numpy (`float32`), or the file's name for other types."""

    shape: tuple[int, ...]
    dtype: str = "float32"


def check_tensors(
    expected: Mapping[str, TensorSpec], stored: Mapping[str, TensorSpec], what_to_do: str = TRAIN_AGAIN
) -> None:
    """Raise LocalspecError if a tensor is missing, superfluous, or has an unexpected shape or type.

    Floating-point weights may have any precision that localspec computes in. The message ends in `what_to_do`.
    """
    if missing := sorted(expected.keys() - stored.keys()):
        raise LocalspecError(f"The drafter lacks {_named(missing)}; {what_to_do}.")
    if extra := sorted(stored.keys() - expected.keys()):
        raise LocalspecError(f"The drafter must not have {_named(extra)}; {what_to_do}.")
    for name, tensor in stored.items():
        spec = expected[name]
        if tensor.shape != spec.shape:
            raise LocalspecError(f"'{name}' has the shape {[*tensor.shape]} instead of {[*spec.shape]}; {what_to_do}.")
        if tensor.dtype != spec.dtype and not (spec.dtype == "float32" and tensor.dtype in FLOATS.values()):
            raise LocalspecError(f"'{name}' is of type {tensor.dtype} instead of {spec.dtype}; {what_to_do}.")


def _named(names: list[str]) -> str:
    """Return the names of tensors in short: `'a'`, or `'a' and 2 more`."""
    return f"'{names[0]}'" if len(names) == 1 else f"'{names[0]}' and {len(names) - 1} more"


class StoredTensors(LazyTensors):
    """The tensors of a safetensors file. Each is read when it is accessed; floating-point numbers become fp32.

    A byte of a tensor in int4 (`research/ship_drafter.py` writes them) holds two integers from 0 to 15, the lower four
    bits first. A number is (integer − 8) × factor, and `GROUP` numbers along the last axis share a factor in fp16. The
    factors are the tensor of the same name with `FACTORS` at its end. Raises LocalspecError if the file cannot be read
    or is damaged, or if it has NaN or inf.
    """

    def __init__(self, file: Path) -> None:
        self._file, self._entries, self._start = file, tensor_headers(file, remedy(file)), tensor_start(file)
        in_int4 = {name: entry for name, entry in self._entries.items() if entry["dtype"] == INT4}
        self._factors = {name: self._entries.pop(name + FACTORS, None) for name in in_int4}
        for name, entry in in_int4.items():
            *outer, inner = stored_shape(entry) or (0,)
            factors, shape = self._factors[name], [*outer, -(-inner // GROUP)]
            if not entry["shape"] or not factors or factors["dtype"] != "F16" or factors["shape"] != shape:
                raise LocalspecError(f"'{name}' of {file} has no valid scale factors; {remedy(self._file)}.")
        super().__init__(self._entries, self._whole)

    def specs(self) -> dict[str, TensorSpec]:
        """Return the shapes and types that the file states."""
        return {
            name: TensorSpec(stored_shape(entry), _NAMES.get(entry["dtype"], entry["dtype"]))
            for name, entry in self._entries.items()
        }

    def _whole(self, name: str) -> Array:
        numbers = self._stored(name, self._entries[name])
        if (factors := self._factors.get(name)) is None:
            return numbers
        integers = np.stack((numbers & 15, numbers >> 4), -1).reshape(*numbers.shape[:-1], -1).astype(np.float32) - 8
        factor_of_each = np.repeat(self._stored(name + FACTORS, factors), GROUP, -1)[..., : integers.shape[-1]]
        product: Array = integers * factor_of_each
        return product

    def _stored(self, name: str, entry: Mapping[str, Any]) -> Array:
        first, end = entry["data_offsets"]
        type_: Any = np.dtype(_READ_AS[entry["dtype"]])
        try:
            numbers: Array = np.fromfile(self._file, type_, (end - first) // type_.itemsize, offset=self._start + first)
            numbers = numbers.reshape(entry["shape"])
        except OSError as error:
            raise cannot_read(self._file, error) from error
        except ValueError as error:  # there are fewer numbers
            raise LocalspecError(f"{self._file} is damaged ({error}); {remedy(self._file)}.") from error
        if entry["dtype"] == "BF16":
            numbers = (numbers.astype(np.uint32) << 16).view(np.float32)
        if entry["dtype"] in FLOATS:
            numbers = numbers.astype(np.float32, copy=False)
            if not np.isfinite(numbers).all():
                raise LocalspecError(f"'{name}' has NaN or inf; {remedy(self._file)}.")
        return numbers
