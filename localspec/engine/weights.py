"""Weights as they lie in a model's files, made into our parameters one at a time."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from localspec.checkpoint import Checkpoint
from localspec.engine.transformer import Architecture, weight_map
from localspec.errors import LocalspecError


def own_head(checkpoint: Checkpoint) -> bool:
    """Whether the weights hold a head that is not the embedding, though config.json says that the two are one."""
    found: dict[str, torch.Tensor] = {}
    names = ("lm_head.weight", "model.embed_tokens.weight")
    for file in checkpoint.weight_files:
        with safe_open(file, framework="pt") as tensors:
            found.update({name: tensors.get_tensor(name) for name in names if name in tensors.keys()})  # noqa: SIM118
    return len(found) == len(names) and not torch.equal(*found.values())


class Weights(Mapping[str, torch.Tensor]):
    """Our parameters by name, each made of its Hugging Face tensors when it is asked for and not held here.

    So a model that is packed while it is read never lies in memory whole. Raises LocalspecError for what is missing.
    """

    def __init__(self, checkpoint: Checkpoint, shape: Architecture, dtype: torch.dtype, device: str) -> None:
        self._made_of, self._dtype, self._device, self._path = weight_map(shape), dtype, device, checkpoint.path
        names = {part for made_of in self._made_of.values() for part, _ in made_of}
        self._file: dict[str, Any] = {}
        for file in checkpoint.weight_files:
            with self._told(file):
                tensors: Any = safe_open(file, framework="pt")
                self._file.update(dict.fromkeys(names & set(tensors.keys()), tensors))
        if missing := sorted(names - self._file.keys()):
            raise LocalspecError(
                f"The weights in {self._path} lack '{missing[0]}' and {len(missing) - 1} more; fetch the model again."
            )
        for name, made_of in self._made_of.items():
            for part, rows in made_of:
                found, promised = self._file[part].get_slice(part).get_shape(), [rows, *_columns(name, shape)]
                if list(found) != promised:
                    raise LocalspecError(
                        f"'{part}' in {self._path} has the shape {list(found)} where config.json promises "
                        f"{promised}; fetch the model again."
                    )

    def __getitem__(self, name: str) -> torch.Tensor:
        with self._told(self._path):
            parts = [self._file[part].get_tensor(part) for part, _ in self._made_of[name]]
        return (parts[0] if len(parts) == 1 else torch.cat(parts)).to(self._device, self._dtype)

    def __iter__(self) -> Iterator[str]:
        return iter(self._made_of)

    def __len__(self) -> int:
        return len(self._made_of)

    @staticmethod
    @contextmanager
    def _told(what: Path) -> Iterator[None]:
        try:
            yield
        except (SafetensorError, OSError) as error:
            raise LocalspecError(f"{what} is damaged ({first_line(error)}); fetch the model again.") from error


def _columns(name: str, shape: Architecture) -> list[int]:
    """What follows the rows in one of our parameters: nothing in a vector, else what the layer takes in."""
    if name.endswith((".bias", "norm")):
        return []
    kind = name.removesuffix(".weight").rpartition(".")[2]
    return [{"output": shape.heads * shape.head_width, "down": shape.inner}.get(kind, shape.width)]


def first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
