"""Loads the target model in torch, which computes the gradients of a training, and measures its perplexity.

On a CPU, packed weights come from the compiled library.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from localspec.choosing.choice import LoadSpec
from localspec.choosing.choose import choose
from localspec.config import Settings
from localspec.decoding.compute import DraftableModel
from localspec.engine.backends import Target as DecodingTarget
from localspec.engine.loading import load_target as load_for_replies
from localspec.errors import LocalspecError, fits_or
from localspec.events import Reporter
from localspec.families.architecture import TABLES
from localspec.models.registry import TargetCard
from localspec.native.model import as_fine
from localspec.native.target import NativeTarget
from localspec.nn.linear import PackedLinear, PackedWeight
from localspec.nn.losses import cross_entropy
from localspec.nn.packing import DTYPES
from localspec.nn.rotary import RotaryEmbedding
from localspec.nn.target import Target
from localspec.nn.transformer import Transformer
from localspec.training.corpus import PaddedRows, Row, split_rows
from localspec.weights.matrices import BlockStack, PackedMatrix


def load_target(choice: LoadSpec, reporter: Reporter, each: Callable[[nn.Module], None] = lambda layer: None) -> Target:
    """Load the chosen model in torch. `each` is called with every dense layer.

    Raises DoesNotFit, and the errors of loading a model.
    """
    path = choice.target.path
    with fits_or(f"{choice.target.name} does not fit in the memory of {choice.device}; choose a smaller model."):
        if choice.device == "cpu" and choice.quantize != "none":
            packed = NativeTarget.open(path, packing=choice.quantize, name=choice.target.name, reporter=reporter)
            return torch_target(packed)
        return Target.load(path, device=choice.device, dtype=DTYPES[choice.dtype], quantize=choice.quantize, each=each)


def decoding_target(choice: LoadSpec, target: Target) -> DraftableModel[Any]:
    """Return the model that generates text: `target`, or for packed weights on a CPU the compiled library.

    Torch would unpack every weight again in each forward pass.
    """
    if choice.device == "cpu" and choice.quantize != "none":
        return NativeTarget.open(choice.target.path, packing=choice.quantize, name=choice.target.name)
    return target


def served_target(card: TargetCard, settings: Settings, target: Target | None) -> DecodingTarget:
    """Return the model as it would be loaded for replies with these settings. `target` is the one in training, if any.

    That is a model in the compiled library, or `target` itself if torch would decode, or if the model cannot be loaded.
    """
    try:
        choice = choose(card, replace(settings, drafter="none", draft_max="auto", accept="exact", exact=False))
        return load_for_replies(choice, Reporter()) if choice.engine == "native" or target is None else target
    except LocalspecError:
        if target is None:
            raise
        return target


def torch_target(native: NativeTarget) -> Target:
    """Return the compiled library's model as a torch model in fp32 with the same weights, to compute gradients.

    The torch model differs in two ways: activations are not rounded, and the embedding is not packed.
    """
    model = native.model
    scale = as_fine(model.sizes.embed_scale, model.weights["embed_tokens"])
    sizes = replace(model.sizes, tied=False, embed_scale=scale)  # the head is packed, the embedding is not
    weights = {name: _of_torch(name, weight) for name, weight in model.weights.items()}
    transformer = Transformer(sizes, RotaryEmbedding(model.rope, "cpu"), weights, PackedLinear)
    return Target(transformer, native.config, native.tokenizer, native.context, native.generation)


def _of_torch(name: str, weight: PackedMatrix | BlockStack | npt.NDArray[Any]) -> PackedWeight | torch.Tensor:
    if name in TABLES and isinstance(weight, PackedMatrix | BlockStack):
        return torch.from_numpy(weight.rows(range(weight.out)))
    if isinstance(weight, BlockStack):
        shape = torch.Size((weight.out, weight.inputs))
        return PackedWeight(shape, weight.nbytes, lambda: weight.rows(range(weight.out)), weight.rows)
    if isinstance(weight, PackedMatrix):
        interleaved = name.endswith("gate_up_proj.weight")
        shape = torch.Size((weight.out, weight.inputs))
        return PackedWeight(shape, weight.data.nbytes, lambda: weight.unpack(interleaved), weight.rows)
    tensor = torch.from_numpy(weight.copy())  # a mapped file is read-only, and torch has no such tensors
    return tensor.view(torch.bfloat16) if weight.dtype == np.uint16 else tensor


@torch.no_grad()
def perplexity(target: Target, rows: list[Row], at_once: int) -> float:
    """Return the perplexity over the tokens that count in the loss. It shows whether a changed target became worse."""
    total, count = 0.0, 0
    for group in split_rows(rows, at_once):
        padded = PaddedRows.of(group, target.device)
        positions = torch.arange(padded.tokens.shape[1], device=target.device)
        states = target.transformer(padded.tokens, positions, padded.causal)
        where = padded.loss_mask[:, 1:]
        loss_sum = cross_entropy(states[:, :-1][where], target.head, padded.tokens[:, 1:][where])
        total, count = total + float(loss_sum.loss), count + loss_sum.count
    return math.exp(total / count)
