"""Reads weights from a model's files into localspec's parameters, one at a time.

Each parameter is read directly into its own memory, because a mapped file counts as memory while any part of it is
used.
"""

import ctypes
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from math import prod
from pathlib import Path

import torch
from safetensors.torch import save_file

from localspec.families.architecture import TransformerConfig, in_features, stored_shape, weight_map
from localspec.machine.hardware import physical_cores
from localspec.weights.stored import LazyTensors, StoredTensor

SHARD = 2**30  # bytes of a written file at most, unless one tensor has more
PIECE = 2**18  # numbers read at a time if they change type or device
BLOCK_PIECE = 2**20  # numbers unpacked from blocks at a time, in whole rows
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # as malloc.h names them
TYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip


def read_stored(stored: StoredTensor, into: torch.Tensor) -> None:
    """Read a stored tensor into the contiguous tensor `into`, which may have any type and device.

    Blocks of GGUF files are dequantized. Raises LocalspecError if the file has changed since its header was read.
    """
    if (dtype := TYPES.get(stored.dtype)) is None:
        columns, whole = prod(stored.shape[1:]), into.view(-1)
        step = max(1, BLOCK_PIECE // columns) * columns

        def fill(first: int) -> None:
            piece = whole[first : first + step]
            piece.copy_(torch.from_numpy(stored.floats(first, len(piece))))

        with ThreadPoolExecutor(physical_cores()) as pool:
            list(pool.map(fill, range(0, len(whole), step)))
        return
    direct = into.device.type == "cpu" and into.dtype == dtype
    pieces, first = torch.split(into.view(-1), PIECE), 0
    between = None if direct else torch.empty(len(pieces[0]), dtype=dtype)
    for piece in pieces:
        buffer = piece if between is None else between[: len(piece)]
        stored.read(buffer.view(torch.uint8).numpy().data, first)
        first += buffer.nbytes
        if between is not None:
            piece.copy_(buffer)


def write_tensors(directory: Path, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Write named tensors to safetensors files of limited size, with an index if there are several.

    At most the tensors of one file and one more tensor are in memory. Raises OSError and SafetensorError.
    """
    shard: dict[str, torch.Tensor] = {}
    place: dict[str, int] = {}
    size = total = files = 0

    def flush() -> None:
        save_file(shard, directory / str(files), metadata={"format": "pt"})
        shard.clear()

    for name, tensor in tensors:
        if shard and size + tensor.nbytes > SHARD:
            flush()
            files, size = files + 1, 0
        # a copy, because safetensors accepts no views
        shard[name], place[name] = tensor.detach().clone(memory_format=torch.contiguous_format), files
        size, total = size + tensor.nbytes, total + tensor.nbytes
    flush()
    names = [f"model-{number:05}-of-{files + 1:05}.safetensors" for number in range(1, files + 2)]
    names = names if files else ["model.safetensors"]
    for number, file in enumerate(names):
        (directory / str(number)).rename(directory / file)
    if files:
        index = {"metadata": {"total_size": total}, "weight_map": {name: names[at] for name, at in place.items()}}
        (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n", "utf-8")


class Weights(LazyTensors):
    """A mapping from names to localspec's parameters. Each is built from files when it is accessed, and is not stored.

    So a model that is quantized while it is read is never in memory as a whole, and no other model is in memory twice.
    `made_of` are the stored tensors of each parameter. On torch's meta device they may be missing.
    """

    def __init__(
        self,
        made_of: Mapping[str, Sequence[StoredTensor]],
        config: TransformerConfig,
        dtype: torch.dtype,
        device: str,
    ) -> None:
        self._made_of, self._config, self._dtype, self._device = made_of, config, dtype, device
        self._rows = {name: sum(rows for _, rows in parts) for name, parts in weight_map(config).items()}
        super().__init__(self._rows, self._whole)

    def _whole(self, name: str) -> torch.Tensor:
        columns = in_features(name, self._config)
        shape = (self._rows[name],) if columns is None else stored_shape(name, self._rows[name], columns)
        whole = torch.empty(shape, dtype=self._dtype, device=self._device)
        if whole.device.type == "meta":
            return whole
        parts = self._made_of[name]
        for part, slot in zip(parts, torch.split(whole, [part.shape[0] for part in parts]), strict=True):
            read_stored(part, slot)
        return whole


@contextmanager
def freed_at_once() -> Iterator[None]:
    """Make glibc return freed memory to the system at once, within this context.

    Otherwise reading and quantizing layer after layer leaves unused gaps in memory.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # another system, with another allocator
        yield
        return
    mallopt(_MMAP_THRESHOLD, 2**17)  # glibc's initial value; it raises this as memory is freed
    try:
        yield
    finally:  # the values that glibc would reach with large tensors
        mallopt(_MMAP_THRESHOLD, 2**25)
        mallopt(_TRIM_THRESHOLD, 2**26)
