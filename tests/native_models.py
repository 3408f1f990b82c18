"""Tiny models for the CPU engine: packed in memory from the stock model's weights, without our readers of files."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tiny_models import Tiny, by_expert
from transformers import AutoModelForCausalLM

from localspec.families.architecture import TABLES, TransformerConfig, weight_map
from localspec.families.model_config import ModelConfig
from localspec.families.rope import Rope
from localspec.models.tokenizer import Tokenizer
from localspec.native.cache import cache_format
from localspec.native.model import NativeModel
from localspec.native.target import NativeTarget
from localspec.native.threads import Threads
from localspec.weights.matrices import BlockMatrix, BlockStack, PackedMatrix
from localspec.weights.recipe import block_type, part_rows

GROUPS = {"fp32": 0, "bf16": 0, "int8": 64}


def packed_weights(stock: Any, sizes: TransformerConfig, packing: str) -> dict[str, Any]:
    """Return the weights of a stock model as `NativeModel` takes them; the head of a tied one is packed too."""
    theirs = by_expert({name: tensor.detach().float().numpy() for name, tensor in stock.state_dict().items()})
    ours: dict[str, Any] = {}
    for name, made_of in weight_map(sizes).items():
        whole = np.concatenate([theirs[part] for part, _ in made_of])
        whole = whole.reshape(-1) if name.endswith(".shared_gate") else whole
        if name in TABLES:
            ours[name] = whole
        elif name.endswith("router.weight"):
            ours[name] = PackedMatrix.pack(whole, "fp32")
        elif whole.ndim == 2 and packing == "int4":
            ours[name] = in_four_bits(name, whole, [rows for _, rows in made_of], sizes)
        elif whole.ndim == 2:
            ours[name] = PackedMatrix.pack(whole, packing, GROUPS[packing], interleave="gate_up_proj" in name)
        else:
            ours[name] = np.ascontiguousarray(whole)
    if sizes.tied and packing == "int4":
        head = in_four_bits("lm_head.weight", ours["embed_tokens"], [len(ours["embed_tokens"])], sizes)
        ours["embed_tokens"] = ours["lm_head.weight"] = head
    elif sizes.tied:
        head = PackedMatrix.pack(ours["embed_tokens"], packing, GROUPS[packing])
        ours["embed_tokens"] = ours["lm_head.weight"] = head
    return ours


def in_four_bits(name: str, whole: Any, stored: list[int], sizes: TransformerConfig) -> BlockStack | PackedMatrix:
    """Return a matrix in the blocks that it has in int4, or in int8 where no int4 block divides its width."""
    rows, inputs = part_rows(name, stored, sizes), whole.shape[1]
    types = [block_type(name, part, sizes.num_layers, inputs) for part in range(len(rows))]
    if None in types:
        return PackedMatrix.pack(whole, "int8", 32, interleave="gate_up_proj" in name)
    parts = [BlockMatrix.empty(count, inputs, type) for count, type in zip(rows, types, strict=True)]  # noqa: A001
    for part, weights in zip(parts, np.split(whole, np.cumsum(rows)[:-1]), strict=True):
        part.fill_rounded(np.ascontiguousarray(weights))
    return BlockStack(tuple(parts))


def native_target(
    path: Path, stock: Any, packing: str = "fp32", context: int | None = None, threads: Threads | None = None
) -> NativeTarget:
    """Return the model in a directory on the CPU engine, in this packing; its cache is fp32 where the weights are."""
    config = ModelConfig.of(json.loads((path / "config.json").read_text()))
    context = context or config.contexts[0]
    sizes = TransformerConfig.of(config)
    weights: Mapping[str, Any] = packed_weights(stock, sizes, packing)
    model = NativeModel(sizes, Rope.of(config, context), weights, threads or Threads(1), cache_format(packing))
    generation = path / "generation_config.json"
    said = json.loads(generation.read_text()) if generation.exists() else {}
    target = NativeTarget(model, config, Tokenizer.open(path), context, said, packing)
    target.read_from = path  # for tests that train a drafter, which torch does
    return target


def read_native(path: Path, context: int | None = None) -> Any:
    """Return the result of `tiny_models.read`, with a target of the CPU engine."""
    stock = AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager", dtype=torch.float32).eval()
    return Tiny(path, stock, native_target(path, stock, context=context))
