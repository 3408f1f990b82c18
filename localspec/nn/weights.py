"""Reads the weights in a model's files into our parameters, one at a time.

Each is read straight into memory of its own: mapped files would count as memory for as long as a part of them is held.
"""

import ctypes
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import FileIO
from math import prod
from pathlib import Path
from typing import NamedTuple

import torch

from localspec.checkpoint import Checkpoint, tensor_headers, tensor_start
from localspec.errors import LocalspecError, first_line
from localspec.models.architecture import TransformerConfig, in_features, weight_map

PIECE = 2**18  # numbers that are read at a time where they change their type or device
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # as malloc.h names them
TYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip


class _Stored(NamedTuple):
    """Where a tensor is in a file, and its shape and type."""

    file: Path
    start: int  # bytes
    shape: list[int]
    dtype: torch.dtype

    def read(self, into: torch.Tensor, first: int = 0) -> None:
        """Fills a contiguous tensor, of any type and on any device, with the numbers from the `first` on.

        Raises LocalspecError where the file has changed since its header was read.
        """
        if into.device.type == "meta":  # which has shapes only
            return
        direct = into.device.type == "cpu" and into.dtype == self.dtype
        pieces = torch.split(into.view(-1), PIECE)
        between = None if direct else torch.empty(len(pieces[0]), dtype=self.dtype)
        try:
            with FileIO(self.file) as stream:
                stream.seek(self.start + first * self.dtype.itemsize)
                for piece in pieces:
                    buffer = piece if between is None else between[: len(piece)]
                    _fill(buffer, stream)
                    if between is not None:
                        piece.copy_(buffer)
        except OSError as error:
            raise _damaged(self.file, first_line(error)) from error


def _fill(buffer: torch.Tensor, stream: FileIO) -> None:
    left = buffer.view(torch.uint8).numpy().data
    while left:
        count = stream.readinto(left)
        if not count:
            raise OSError("it ends too early")
        left = left[count:]


def _stored(checkpoint: Checkpoint, names: frozenset[str]) -> dict[str, _Stored]:
    """Finds the tensors of these names in the files; some may be missing."""
    found = {}
    for file in checkpoint.weight_files:
        start = tensor_start(file)
        for name, entry in tensor_headers(file).items():
            if name not in names:
                continue
            if entry["dtype"] not in TYPES:
                raise _damaged(file, f"'{name}' is of the type {entry['dtype']}")
            found[name] = _Stored(file, start + entry["data_offsets"][0], entry["shape"], TYPES[entry["dtype"]])
    return found


def own_head(checkpoint: Checkpoint) -> bool:
    """Returns whether the weights hold a head that is not the embedding, though config.json says the two are one."""
    found = list(_stored(checkpoint, frozenset(("lm_head.weight", "model.embed_tokens.weight"))).values())
    if len(found) < 2:
        return False
    if found[0].shape != found[1].shape:
        return True
    count = prod(found[0].shape)
    for first in range(0, count, PIECE):
        both = torch.empty(2, min(PIECE, count - first), dtype=torch.float32)
        for stored, piece in zip(found, both, strict=True):
            stored.read(piece, first)
        if not torch.equal(*both):
            return True
    return False


class Weights(Mapping[str, torch.Tensor]):
    """Our parameters by name, each made of its Hugging Face tensors when it is asked for, and not held here.

    So a model that is quantized while it is read is never in memory whole, and no other model twice. Raises
    LocalspecError for tensors that are missing or have another shape than config.json promises.
    """

    def __init__(self, checkpoint: Checkpoint, config: TransformerConfig, dtype: torch.dtype, device: str) -> None:
        self._made_of, self._dtype, self._device = weight_map(config), dtype, device
        names = frozenset(part for made_of in self._made_of.values() for part, _ in made_of)
        self._stored = _stored(checkpoint, names)
        if missing := sorted(names - self._stored.keys()):
            raise LocalspecError(
                f"The weights in {checkpoint.path} lack '{missing[0]}' and {len(missing) - 1} more; fetch the model "
                "again."
            )
        for name, made_of in self._made_of.items():
            columns = in_features(name, config)
            for part, rows in made_of:
                found, promised = self._stored[part].shape, [rows] if columns is None else [rows, columns]
                if found != promised:
                    raise LocalspecError(
                        f"'{part}' in {checkpoint.path} has the shape {found} where config.json promises "
                        f"{promised}; fetch the model again."
                    )

    def __getitem__(self, name: str) -> torch.Tensor:
        made_of = self._made_of[name]
        rows, columns = [count for _, count in made_of], self._stored[made_of[0][0]].shape[1:]
        whole = torch.empty(sum(rows), *columns, dtype=self._dtype, device=self._device)
        for (part, _), slot in zip(made_of, torch.split(whole, rows), strict=True):
            self._stored[part].read(slot)
        return whole

    def __iter__(self) -> Iterator[str]:
        return iter(self._made_of)

    def __len__(self) -> int:
        return len(self._made_of)


@contextmanager
def freed_at_once() -> Iterator[None]:
    """Lets glibc give freed memory back to the system at once, for as long as the context lasts.

    Otherwise holes stay between layers that are quantized one after another, and a model in int8 takes half as much
    again; pieces that are read leave holes as well.
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


def _damaged(file: Path, what: str) -> LocalspecError:
    return LocalspecError(f"{file} is damaged ({what}); fetch the model again.")
