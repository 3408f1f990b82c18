"""Converts published Medusa heads, in all known layouts, into localspec's drafters.

The layouts, by version or engine, file, and names of tensors:

    v0.1   medusa_lm_head.pt           {head}.{block}.linear.{weight,bias}   {head}.{blocks}.weight
    v2     medusa_lm_head.safetensors  {head}.{block}.linear.{weight,bias}
    TGI    medusa_lm_head.safetensors  as v2, or with matrices as v0.1
    vLLM   model.safetensors           blocks.{head}.layers.{block}.{weight,bias}   lm_heads.{head}.weight   token_map
    v1.0   a whole model's files       those of v0.1 after medusa_head., and the model's own tensors

The numbers of heads and blocks are counted in the names, because published configs state wrong numbers.
"""

import json
import re
import shutil
from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from localspec.drafters.medusa import MedusaOptions
from localspec.errors import LocalspecError, NotHere
from localspec.models.drafter_cards import read_drafter
from localspec.nn.target import Target
from localspec.paths import OWNER_READS, private_directory, without_rights
from localspec.training.checkpoint import errors_in_words
from localspec.training.published_files import (
    Stored,
    Tensors,
    check_numbers,
    convert,
    damage_in_words,
    first_file,
    read_tensors,
    table_of,
    unpickled,
)
from localspec.training.trainable import ConvertedDrafter
from localspec.weights.checkpoint import PICKLED_INDEX

FILES = (
    "medusa_lm_head.safetensors",
    "medusa_lm_head.pt",
    "model.safetensors",
    "pytorch_model.bin",
    "model.safetensors.index.json",
    PICKLED_INDEX,
)
_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.index.json")  # of a whole model, which are not copied
_PREFIX = re.compile(r"^medusa_heads?\.")
_BLOCK = re.compile(r"^(?:(\d+)\.(\d+)\.linear|blocks\.(\d+)\.layers\.(\d+))\.(weight|bias)$")
_LINEAR = re.compile(r"^(?:(\d+)\.(\d+)|lm_heads\.(\d+))\.weight$")
HEAD = ("lm_head.weight", "model.embed_tokens.weight")  # a model's matrix from states to logits
_ONE_LINEAR, _TOKEN_MAP = "lm_head.weight", "token_map"  # vLLM: one matrix for all heads; ids that its rows stand for


def split(path: Path, directory: Path, about: Mapping[str, Any]) -> None:
    """Split a pickled model with Medusa heads inside: the model to directory/target, the heads to directory/drafter.

    The pickles are read as data, one at a time. `about` has the model's `name`, and where the heads were `published`.
    An earlier split of the same files is kept. Raises the errors of `convert`.
    """
    target, new = directory / "target", directory / "target.new"
    with suppress(LocalspecError):
        if target.is_dir() and read_drafter(directory / "drafter").about.get("published") == about["published"]:
            return
    with without_rights(OWNER_READS), errors_in_words(directory):
        private_directory(directory)
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir()
        table: dict[str, str] = {}
        files = sorted(set(table_of(path / PICKLED_INDEX).values()))
        for number, name in enumerate(files, start=1):
            with damage_in_words(path / name):
                tensors = {key: tensor for key, tensor in unpickled(path / name).items() if not _PREFIX.match(key)}
            file = f"model-{number:05}-of-{len(files):05}.safetensors"
            save_file({key: t.clone().contiguous() for key, t in tensors.items()}, new / file, {"format": "pt"})
            table |= dict.fromkeys(tensors, file)
        (new / "model.safetensors.index.json").write_text(json.dumps({"weight_map": table}) + "\n", "utf-8")
        for other in path.iterdir():
            if other.is_file() and not any(other.match(pattern) for pattern in _WEIGHTS):
                shutil.copyfile(other, new / other.name)
        shutil.rmtree(target, ignore_errors=True)
        new.replace(target)
    convert("medusa", path, target, directory, about)


def read_published(path: Path, target: Target, stored: Stored) -> ConvertedDrafter:
    """Return the heads in the file or directory `path`, converted for this target model, in the file's precision.

    If the heads' vocabulary matrix equals the target's, which `stored` reads, they share the target's. Pickles are read
    as data, never run. Raises NotHere if there are no heads. Raises LocalspecError for heads of another model, for a
    truncated vocabulary and for damaged files.
    """
    file = first_file(path, FILES, "Medusa head")
    tensors, vocabulary = read_tensors(file, partial(_head_names, file=file)), stored(HEAD)
    check_numbers(tensors, file, (_TOKEN_MAP,))
    blocks = _blocks(tensors, file)
    heads, layers = len(blocks), len(blocks[0])
    shape = target.transformer.config
    for name, (weight, bias) in ((f"{i}.{j}", pair) for i, head in enumerate(blocks) for j, pair in enumerate(head)):
        if weight.shape != (shape.hidden_size, shape.hidden_size) or bias.shape != (shape.hidden_size,):
            raise LocalspecError(
                f"Block {name} in {file} has the shape {list(weight.shape)}, but the model has {shape.hidden_size} "
                "channels; name the model that these heads were made for."
            )
    linears = _linears(tensors, file, heads)
    for linear in linears:
        if linear.shape != (shape.vocab_size, shape.hidden_size):
            problem = f"The heads in {file} are of another model"
            if _TOKEN_MAP in tensors and len(linear) == len(tensors[_TOKEN_MAP]):
                problem = f"The heads in {file} have a truncated vocabulary (token_map), which localspec does not read"
            raise LocalspecError(
                f"{problem}: their vocabulary matrix has the shape {list(linear.shape)} where the "
                f"model has {[shape.vocab_size, shape.hidden_size]}; train some with `localspec train medusa`."
            )
    private = not all(torch.equal(linear.to(vocabulary.dtype), vocabulary) for linear in linears)
    filled = {}
    for layer in range(layers):
        filled[f"blocks.{layer}.weight"] = torch.stack([head[layer][0] for head in blocks])
        filled[f"blocks.{layer}.bias"] = torch.stack([head[layer][1] for head in blocks])
    if private:
        filled["linears"] = torch.stack(linears)
    options = MedusaOptions(heads, layers, private, private_rank=0, linear=False, vocabulary=0)
    return ConvertedDrafter("medusa", options, filled)


def _head_names(names: Collection[str], file: Path) -> dict[str, str]:
    """Map the name of each head tensor in the file to a shorter name, without the prefix `medusa_head.`.

    Raises NotHere if there is no head, and LocalspecError for unknown tensors.
    """
    whole = any(name.startswith("model.") for name in names)
    short_names = {name: _PREFIX.sub("", name) for name in names if not whole or _PREFIX.match(name)}
    others = [
        name
        for name in short_names.values()
        if not (_BLOCK.match(name) or _LINEAR.match(name) or name in (_ONE_LINEAR, _TOKEN_MAP))
    ]
    if not any(_BLOCK.match(name) for name in short_names.values()):
        raise NotHere(f"{file} has no Medusa heads; train heads with `localspec train medusa`.")
    if others:
        raise LocalspecError(
            f"'{others[0]}' in {file} is not a part of Medusa heads; get the heads from another source."
        )
    return short_names


def _blocks(tensors: Tensors, file: Path) -> list[list[tuple[torch.Tensor, torch.Tensor]]]:
    """Return the (weight, bias) of each block of each head. A bias that is missing in the file is zero."""
    blocks: dict[tuple[int, int], dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        if match := _BLOCK.match(name):
            head, block, *_ = (int(number) for number in match.groups()[:4] if number is not None)
            blocks.setdefault((head, block), {})[match[5]] = tensor
    heads, layers = max(head for head, _ in blocks) + 1, max(block for _, block in blocks) + 1
    for key in ((head, block) for head in range(heads) for block in range(layers)):
        if "weight" not in blocks.get(key, {}):
            raise LocalspecError(f"{file} lacks the weight of block {key[1]} of head {key[0]}; fetch it again.")
    return [
        [(pair["weight"], pair.get("bias", pair["weight"].new_zeros(len(pair["weight"])))) for pair in of_head]
        for of_head in ([blocks[head, block] for block in range(layers)] for head in range(heads))
    ]


def _linears(tensors: Tensors, file: Path, heads: int) -> list[torch.Tensor]:
    """Return the vocabulary matrix of each head; empty if the heads use the target's matrix."""
    linears = {int(match[1] or match[3]): tensor for name, tensor in tensors.items() if (match := _LINEAR.match(name))}
    shared = tensors.get(_ONE_LINEAR) if not linears else linears[0] if linears.keys() == {0} else None
    if shared is not None:
        return [shared] * heads
    if linears and linears.keys() != set(range(heads)):
        raise LocalspecError(f"{file} has {heads} heads, but {len(linears)} vocabulary matrices; fetch it again.")
    return [linears[head] for head in range(heads)] if linears else []
