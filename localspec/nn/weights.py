"""Reads the weights in a model's files into our parameters, one at a time.

Each is read straight into memory of its own: mapped files would count as memory for as long as a part of them is held.
"""

import ctypes
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

from localspec.families.architecture import TransformerConfig, weight_map
from localspec.weights.checkpoint import Checkpoint
from localspec.weights.stored import StoredTensor, damaged, stored_tensors

PIECE = 2**18  # numbers that are read at a time where they change their type or device
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # as malloc.h names them
TYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip


def read_stored(stored: StoredTensor, into: torch.Tensor) -> None:
    """Fills a contiguous tensor, of any type and on any device.

    Raises LocalspecError for a type that is not known, and where the file has changed since its header was read.
    """
    if into.device.type == "meta":  # which has shapes only
        return
    dtype = TYPES[stored.dtype]
    direct = into.device.type == "cpu" and into.dtype == dtype
    pieces, first = torch.split(into.view(-1), PIECE), 0
    between = None if direct else torch.empty(len(pieces[0]), dtype=dtype)
    for piece in pieces:
        buffer = piece if between is None else between[: len(piece)]
        stored.read(buffer.view(torch.uint8).numpy().data, first)
        first += buffer.nbytes
        if between is not None:
            piece.copy_(buffer)


class Weights(Mapping[str, torch.Tensor]):
    """Our parameters by name, each made of its Hugging Face tensors when it is asked for, and not held here.

    So a model that is quantized while it is read is never in memory whole, and no other model twice. Raises
    LocalspecError for tensors that are missing or have another shape than config.json promises.
    """

    def __init__(self, checkpoint: Checkpoint, config: TransformerConfig, dtype: torch.dtype, device: str) -> None:
        self._made_of, self._dtype, self._device = weight_map(config), dtype, device
        self._stored = stored_tensors(checkpoint, config)
        if unknown := next((name for name, stored in self._stored.items() if stored.dtype not in TYPES), None):
            stored = self._stored[unknown]
            raise damaged(stored.file, f"'{unknown}' is of the type {stored.dtype}")

    def __getitem__(self, name: str) -> torch.Tensor:
        made_of = self._made_of[name]
        rows, columns = [count for _, count in made_of], self._stored[made_of[0][0]].shape[1:]
        whole = torch.empty(sum(rows), *columns, dtype=self._dtype, device=self._device)
        for (part, _), slot in zip(made_of, torch.split(whole, rows), strict=True):
            read_stored(self._stored[part], slot)
        return whole

    def __iter__(self) -> Iterator[str]:
        return iter(self._made_of)

    def __len__(self) -> int:
        return len(self._made_of)


@contextmanager
def freed_at_once() -> Iterator[None]:
    """Lets glibc give freed memory back to the system at once, for as long as the context lasts.

    Otherwise pieces that are read, and layers that are quantized one after another, leave holes.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # another system, with another allocator
        yield
        return
    mallopt(_MMAP_THRESHOLD, 2**17)  # where glibc begins; it raises this as memory is freed
    try:
        yield
    finally:  # what glibc would arrive at where large tensors come and go
        mallopt(_MMAP_THRESHOLD, 2**25)
        mallopt(_TRIM_THRESHOLD, 2**26)
