"""Models with invented weights and no tokenizer, to measure a CPU with."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tokenizers

from localspec.families.architecture import TransformerConfig, in_features, weight_map
from localspec.families.model_config import ModelConfig
from localspec.families.rope import Rope
from localspec.machine.hardware import physical_cores
from localspec.models.tokenizer import Tokenizer
from localspec.native.model import NativeModel
from localspec.native.target import NativeTarget
from localspec.native.threads import Threads
from localspec.weights.matrices import BlockMatrix, BlockStack, PackedMatrix
from localspec.weights.packed_file import BLOCK_PANEL, BLOCKS, PANEL, Tensor
from localspec.weights.recipe import Recipe, part_rows

SPREAD = 0.02  # standard deviation of the weights


def invented_target(config: ModelConfig, packing: str) -> NativeTarget:
    """Make a model of this config in int8, int4, bf16 or fp32."""
    sizes, recipe = TransformerConfig.of(config), Recipe(packing)
    weights: dict[str, Any] = {}
    for name, made_of in weight_map(sizes).items():
        parts = [(rows, None) for rows in part_rows(name, [rows for _, rows in made_of], sizes)]
        tensors = recipe.sections(name, parts, in_features(name, sizes), sizes.num_layers).values()
        blocks = tuple(_part(one) for one in tensors if one.layout == BLOCKS)
        weights[name] = BlockStack(blocks) if blocks else _weight(next(iter(tensors)))
    cache_format = "fp32" if packing == "fp32" else "fp16"
    rope = Rope.of(config, config.max_position_embeddings)
    model = NativeModel(sizes, rope, weights, Threads(physical_cores()), cache_format)
    none = Tokenizer({"tokenizer.json": tokenizers.Tokenizer(tokenizers.models.BPE()).to_str()}, Path())
    return NativeTarget(model, config, none, config.max_position_embeddings, {}, packing)


def _weight(tensor: Tensor) -> PackedMatrix | npt.NDArray[Any]:
    """Return ones for a vector, else one random panel repeated: packing different panels would take seconds."""
    if tensor.layout == "rows":
        one = np.float32(1.0 if tensor.out == 1 else SPREAD)
        if tensor.format == "bf16":
            return np.full((tensor.out, tensor.inputs), one.view(np.uint32) >> 16, np.uint16)
        return np.full(tensor.inputs if tensor.out == 1 else (tensor.out, tensor.inputs), one)
    panel = PackedMatrix.pack(_random(PANEL, tensor.inputs), tensor.format, tensor.group)
    count = -(-tensor.out // PANEL)
    whole = PackedMatrix.empty(tensor.out, tensor.inputs, tensor.format, tensor.group)
    whole.data[:] = np.tile(panel.data, count)
    return whole


def _part(tensor: Tensor) -> BlockMatrix:
    panel = BlockMatrix.empty(BLOCK_PANEL, tensor.inputs, tensor.format)
    panel.fill_rounded(_random(BLOCK_PANEL, tensor.inputs))
    whole = BlockMatrix.empty(tensor.out, tensor.inputs, tensor.format)
    whole.data[:] = np.tile(panel.data, whole.panels)
    return whole


def _random(rows: int, inputs: int) -> npt.NDArray[np.float32]:
    return np.random.default_rng(0).normal(0.0, SPREAD, (rows, inputs)).astype(np.float32)
