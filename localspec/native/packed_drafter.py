"""Saves the large matrices of a trained drafter in a packed file, because packing them may take seconds at each
load."""

from collections.abc import Callable, Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from localspec.decoding.compute import Array, Floats
from localspec.environment import home
from localspec.errors import DoesNotFit, LocalspecError
from localspec.events import Reporter
from localspec.models.drafter_cards import remedy
from localspec.paths import Paths
from localspec.weights.checkpoint import tensor_headers, tensor_start
from localspec.weights.file_fingerprint import file_fingerprint
from localspec.weights.matrices import PackedMatrix
from localspec.weights.opened import PackedModel
from localspec.weights.opening import CannotWrite, once, write_with_room
from localspec.weights.packed_file import FORMAT, SUFFIX, Header, Origin, Section, Tensor
from localspec.weights.source import fill_panels, is_finite
from localspec.weights.stored import LazyTensors, StoredTensor

LARGE = 2**20  # weights of a tensor that is packed
MATTERS = 2**25  # weights in all from which a file pays: packing this many takes a core a tenth of a second
_STORED = ("F32", "F16", "BF16")
# Never packed: multiplied with the target's head when loaded, or read by rows.
_READ = ("correction.out.weight", "embedding")


class StoredMatrix(NDArrayOperatorsMixin):
    """A weight [out, in], or a stack [n, out, in], packed on disk. As a numpy array it has the original numbers."""

    def __init__(self, read: Callable[[], Floats], packed: list[PackedMatrix], interleaved: bool) -> None:
        self._read, self.packed, self.interleaved = read, packed, interleaved

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Floats:
        return cast("Floats", np.asarray(self._read(), dtype))

    def __array_ufunc__(self, function: np.ufunc, method: str, *inputs: Any, **more: Any) -> Any:
        arrays = (np.asarray(value) if isinstance(value, StoredMatrix) else value for value in inputs)
        return getattr(function, method)(*arrays, **more)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # numpy looks for other protocols
            raise AttributeError(name)
        return getattr(np.asarray(self), name)

    def __len__(self) -> int:
        return len(np.asarray(self)) if len(self.packed) == 1 else len(self.packed)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, int) and len(self.packed) > 1:
            return StoredMatrix(lambda: self._read()[index], [self.packed[index]], self.interleaved)
        return np.asarray(self)[index]

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))


def packed_tensors(
    file: Path, tensors: Mapping[str, Array], of: str, group: int, threads: int, reporter: Reporter
) -> Mapping[str, Array]:
    """Return a drafter's `tensors`, packed on disk in int8 if that pays, with a scale for each `group` inputs.

    The packed file is made once. Its name begins with `of`, the revision of the drafter's target, so that it is deleted
    with the target's packed files. If there is no room or permission to write, a notice says so, and the tensors are
    packed at each load. A packed file that is damaged or has other tensors is made again, with a notice. Raises
    LocalspecError for weights that are NaN or inf.
    """
    large = _large(file)
    if sum(prod(parts[0].shape) * len(parts) for parts in large.values()) < MATTERS:
        return tensors
    matrices = {f"{name} {index}": part for name, parts in large.items() for index, part in enumerate(parts)}
    paths = Paths(home())
    digest = file_fingerprint(file)
    packed_file = paths.packed / f"{of or 'drafter'}-{digest}-int8-{FORMAT}{SUFFIX}"
    planned = {name: Tensor("panels", "int8", part.shape[0], part.shape[1], group) for name, part in matrices.items()}

    def serves(header: Header) -> bool:
        """Return True if the header has the tensors that the library reads. Otherwise raise LocalspecError."""
        if {name: section.tensor for name, section in header.tensors.items()} != planned:
            raise LocalspecError(
                f"The packed copy of {file} does not have the tensors of that drafter, so the drafter is packed again."
            )
        return True

    def make(path: Path) -> None:
        origin = Origin(f"a drafter, {file.parent.name}", digest)
        header = Header.plan(origin, "int8", sum(prod(part.shape) for part in matrices.values()), planned, {})
        write_with_room(path, header, _filler(matrices), threads, lambda done, total: None)

    try:
        model = PackedModel.open(once([packed_file], make, reporter, serves))
    except (CannotWrite, DoesNotFit) as error:
        reporter.notice(f"{error} Until you have done this, the drafter is packed again whenever it is loaded.")
        return tensors
    packed = {name: [_matrix(model, f"{name} {n}") for n in range(len(parts))] for name, parts in large.items()}

    def read(name: str) -> Array:
        if name not in packed:
            return tensors[name]
        return cast("Array", StoredMatrix(lambda: tensors[name], packed[name], _interleaved(name)))

    return LazyTensors(tensors, read)


def _matrix(model: PackedModel, name: str) -> PackedMatrix:
    matrix = model.tensors[name]
    assert isinstance(matrix, PackedMatrix)
    return matrix


def _interleaved(name: str) -> bool:
    return "gate_up" in name


def _large(file: Path) -> dict[str, list[StoredTensor]]:
    """Return the matrices of a file that are worth packing, by name. A stack becomes a list of its matrices."""
    matrices, start = {}, tensor_start(file)
    for name, entry in sorted(tensor_headers(file).items()):
        shape, dtype, (first, end) = tuple(entry["shape"]), entry["dtype"], entry["data_offsets"]
        if name in _READ or dtype not in _STORED:
            continue
        if len(shape) not in (2, 3) or prod(shape) < LARGE or min(shape[-2:]) < 32:
            continue
        count = 1 if len(shape) == 2 else shape[0]
        size = (end - first) // count
        matrices[name] = [StoredTensor(file, start + first + n * size, shape[-2:], dtype, size) for n in range(count)]
    return matrices


def _filler(matrices: Mapping[str, StoredTensor]) -> Callable[[str, Section, int, memoryview], None]:
    def fill(name: str, section: Section, first: int, into: memoryview) -> None:
        tensor = section.tensor
        assert tensor is not None
        fill_panels([matrices[name]], tensor, first, into, _interleaved(name))
        if not is_finite(into, tensor):
            matrix = name.rpartition(" ")[0]
            raise LocalspecError(f"'{matrix}' has NaN or inf; {remedy(matrices[name].file)}.")

    return fill
