"""Writes the target that adapters have changed: its own weights, one tensor at a time, plus the adapters' products.

The training may have used weights rounded to a few bits: the written ones are not rounded.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file

from localspec.families.architecture import weight_map
from localspec.nn.adapters import Adapters
from localspec.nn.target import Target
from localspec.nn.weights import TYPES, read_stored
from localspec.weights.checkpoint import originals
from localspec.weights.stored import StoredTensor, read_config, stored_sizes, stored_tensors

SHARD = 2**30  # bytes of a file at most, and of weights in memory at once
FINE = (torch.float64, torch.float32, torch.float16, torch.bfloat16)  # precise enough for a small change


def write_merged(origin: Path, target: Target, adapters: Adapters, path: Path) -> None:
    """Write the model in the directory `origin`, changed by adapters that were trained on `target`, to `path`.

    A tied head that was trained becomes a separate matrix. Raises NotHere for a packed file, LocalspecError for
    broken files, OSError and SafetensorError if nothing can be written.
    """
    path.mkdir(parents=True)
    files: list[dict[str, torch.Tensor]] = [{}]
    where: dict[str, int] = {}
    held = total = 0
    for name, tensor in _merged(origin, adapters):
        if held and held + tensor.nbytes > SHARD:
            _write(files[-1], path, len(files))
            files.append({})
            held = 0
        files[-1][name] = tensor
        where[name] = len(files)
        held, total = held + tensor.nbytes, total + tensor.nbytes
    _write(files[-1], path, len(files))
    count = len(files)
    names = {number: f"model-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1)}
    if count == 1:
        names = {1: "model.safetensors"}
    for number, file in names.items():
        (path / str(number)).rename(path / file)
    if count > 1:
        index = {"metadata": {"total_size": total}, "weight_map": {name: names[at] for name, at in where.items()}}
        (path / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n", "utf-8")
    target.save_settings(path, {"tie_word_embeddings": False} if adapters.head is not None else {})


def _write(tensors: dict[str, torch.Tensor], path: Path, number: int) -> None:
    """Write one file, under a temporary name until the number of files is known; free the tensors."""
    save_file(tensors, path / str(number), metadata={"format": "pt"})
    tensors.clear()


def _merged(origin: Path, adapters: Adapters) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of the Hugging Face layout; changed ones are at least as precise as bf16."""
    checkpoint = originals(origin)
    sizes = stored_sizes(checkpoint, read_config(checkpoint))
    stored, made_of = stored_tensors(checkpoint, sizes), weight_map(sizes)
    if adapters.head is not None and sizes.tied:
        stored["lm_head.weight"] = stored["model.embed_tokens.weight"]
        made_of["lm_head.weight"] = [("lm_head.weight", sizes.vocab_size)]
    for name, parts in made_of.items():
        change = adapters.change_of(name)
        changes = [None] * len(parts) if change is None else torch.split(change.cpu(), [rows for _, rows in parts])
        for (part, _), own in zip(parts, changes, strict=True):
            tensor = _read(stored[part])
            if own is not None:
                dtype = tensor.dtype if tensor.dtype in FINE else torch.bfloat16
                tensor = (tensor.float() + own).to(dtype)
            yield part, tensor


def _read(stored: StoredTensor) -> torch.Tensor:
    tensor = torch.empty(stored.shape, dtype=TYPES[stored.dtype])
    read_stored(stored, tensor)
    return tensor
