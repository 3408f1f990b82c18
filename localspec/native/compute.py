"""The arithmetic of drafters in the CPU engine, as `decoding/compute.py` describes it."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from localspec.decoding.compute import (
    EPS,
    Array,
    Floats,
    HeadWeights,
    RowAttention,
    RowFunction,
)
from localspec.events import Reporter
from localspec.families.architecture import TransformerConfig, weight_map
from localspec.families.rope import Rope
from localspec.native.cache import cache_format
from localspec.native.linear import NativeHeads, NativeLinear
from localspec.native.logits import NativeLogits
from localspec.native.model import INT8_GROUP, NativeModel, Weights
from localspec.native.packed_drafter import StoredMatrix, packed_tensors
from localspec.native.row_attention import NativeAttention, rms_norm
from localspec.weights import opening
from localspec.weights.matrices import PackedMatrix


class NativeCompute:
    """Arithmetic in fp32. Matrices are packed in int8 if the model is packed, and otherwise have the model's format."""

    def __init__(self, model: NativeModel, precision: str) -> None:
        self.target, self._precision = model, precision
        self._format = precision if precision in ("fp32", "bf16") else "int8"

    def stored(
        self, file: Path, tensors: Mapping[str, Array], of: str, reporter: Reporter | None = None
    ) -> Mapping[str, Array]:
        """Return the tensors of a drafter's file. If matrices are packed in int8, large ones are from a packed file."""
        if self._format != "int8":
            return tensors
        return packed_tensors(file, tensors, of, INT8_GROUP, self.target.threads.count, reporter or Reporter())

    def _pack(self, weight: Array, interleave: bool = False) -> PackedMatrix:
        if isinstance(weight, StoredMatrix) and len(weight.packed) == 1 and weight.interleaved == interleave:
            return weight.packed[0]
        weight = np.asarray(weight)
        return PackedMatrix.pack(weight, self._format, INT8_GROUP if self._format == "int8" else 0, interleave)

    def rows(self, values: Floats) -> Floats:
        """Return the array unchanged: this backend computes with numpy arrays."""
        return values

    def linear(self, weight: Floats, bias: Floats | None = None, silu: bool = False) -> NativeLinear:
        return NativeLinear(self._pack(weight), bias, self.target.threads, silu)

    def draft_heads(self, weights: HeadWeights, head: NativeLinear | None) -> NativeHeads:
        """Return draft heads that one call of the library computes."""

        def by_head(weight: Array | None, bias: Array | None = None, silu: bool = False) -> list[NativeLinear]:
            """Return one layer per head, from weights [heads, out, in]; an empty list if `weight` is None."""
            if weight is None:
                return []
            return [self.linear(matrix, None if bias is None else bias[n], silu) for n, matrix in enumerate(weight)]

        blocks = [by_head(*block, silu=True) for block in weights.blocks]
        path = by_head(*weights.path) if weights.path else []
        change = by_head(weights.down), by_head(weights.up)
        return NativeHeads(self.target, blocks, path, by_head(weights.vocabulary), head, change)

    def model(self, sizes: TransformerConfig, rope: Rope | None, weights: Mapping[str, Array]) -> NativeModel:
        """Return a small transformer. Its matrices are packed like a drafter's linear layers."""
        packed: dict[str, Array | PackedMatrix] = {}
        for name in weight_map(sizes):
            if name.endswith(".weight"):
                packed[name] = self._pack(weights[name], interleave="gate_up_proj" in name)
            elif name in weights:
                packed[name] = np.ascontiguousarray(weights[name], np.float32)
        if sizes.tied and sizes.vocab_size:
            packed["lm_head.weight"] = self._pack(weights["embed_tokens"])
        return self._model_of(sizes, rope or self.target.rope, packed)

    def read_model(self, path: Path, context: int) -> NativeModel:
        """Return the small language model of a directory. Make its packed file if it is missing."""
        packed = opening.load(path, self._format, path.name, self.target.threads.count, Reporter())
        return self._model_of(packed.sizes, Rope.of(packed.config, context), packed.tensors)

    def _model_of(self, sizes: TransformerConfig, rope: Rope, weights: Weights) -> NativeModel:
        return NativeModel(sizes, rope, weights, self.target.threads, cache_format(self._precision))

    def integers(self, numbers: Sequence[Sequence[int]]) -> Array:
        return np.array(numbers, np.int64)

    def recorded(self, function: RowFunction, *attentions: RowAttention) -> RowFunction:
        """Return the function unchanged: only GPUs record and replay functions (CUDA graphs)."""
        return function

    def logits(self, rows: Floats) -> NativeLogits:
        return NativeLogits(np.ascontiguousarray(rows))

    def concat(self, arrays: Sequence[Floats], axis: int = 0) -> Floats:
        return np.concatenate(arrays, axis)

    def repeated(self, row: Floats, count: int) -> Floats:
        return np.repeat(row, count, 0)

    def at_columns(self, rows: Floats, ids: Array, width: int) -> Floats:
        whole = np.full((len(rows), width), -np.inf, np.float32)
        whole[:, ids] = rows
        return whole

    def silu(self, x: Floats) -> Floats:
        with np.errstate(invalid="ignore"):
            return x * self.sigmoid(x)

    def sigmoid(self, x: Floats) -> Floats:
        with np.errstate(over="ignore"):  # the exponential of large numbers is infinite, and σ is 0
            return np.float32(1) / (np.float32(1) + np.exp(-x))

    def tanh(self, x: Floats) -> Floats:
        return np.tanh(x)

    def rms_norm(self, x: Floats, eps: float = EPS) -> Floats:
        return rms_norm(x, eps)

    def attention(self, sizes: TransformerConfig, rope: Rope | None, weights: Mapping[str, Array]) -> NativeAttention:
        return NativeAttention(sizes, rope or self.target.rope, weights)
