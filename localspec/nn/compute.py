"""The arithmetic of drafters in torch, as `decoding/compute.py` describes it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from localspec.choosing.choice import StepForm
from localspec.decoding.compute import (
    EPS,
    Array,
    Floats,
    HeadWeights,
    LowRank,
    PackedAdapters,
    RowAttention,
    RowFunction,
)
from localspec.decoding.forward import TokenCache
from localspec.events import Reporter
from localspec.families.architecture import TransformerConfig, weight_map
from localspec.families.rope import Rope
from localspec.nn import kernel_checks
from localspec.nn.cache import KVCache, LentKeys
from localspec.nn.draft_layers import FrozenLayer, FrozenLayers, TorchHeads, TorchLinear, TorchLinears
from localspec.nn.linear import Linear, PackedLinear
from localspec.nn.linear_bitsandbytes import NF4Linear
from localspec.nn.logits import TorchLogits
from localspec.nn.packing import linear_class, lm_head_class
from localspec.nn.recording import RecordedRows, Recorder
from localspec.nn.rotary import RotaryEmbedding
from localspec.nn.row_attention import TorchAttention
from localspec.nn.states import StateCache, cache_of
from localspec.nn.static_forward import StaticForward
from localspec.nn.transfer import uploaded
from localspec.nn.transformer import Transformer
from localspec.nn.weights import Weights
from localspec.weights.checkpoint import inspect
from localspec.weights.stored import read_config, stored_parts, stored_sizes

LEAST_SIDE, LEAST_WEIGHTS = 64, 2**16  # of a drafter's matrix that is worth packing


@dataclass(frozen=True)
class TorchAdapter:
    """The change of a linear layer by an adapter."""

    a: torch.Tensor
    b: torch.Tensor
    scale: float

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return scale * B (A x)."""
        return F.linear(F.linear(x.to(self.a.dtype), self.a), self.b) * self.scale


class TorchAdapters(dict[int, dict[str, TorchAdapter]]):
    """Adapters of a model, by layer and by the name of the linear layer."""

    @property
    def nbytes(self) -> int:
        return sum(adapter.a.nbytes + adapter.b.nbytes for layer in self.values() for adapter in layer.values())


class TorchRowModel:
    """A transformer in torch with the interface that drafters use (`RowModel`)."""

    def __init__(self, transformer: Transformer, recorder: Recorder, form: StepForm = "eager") -> None:
        self._transformer, self._recorder = transformer, recorder
        self.use_step_form(form)

    def use_step_form(self, form: StepForm) -> None:
        """Read later rows operation by operation (`eager`), or in static shapes, which may be CUDA graphs."""
        self.static = None if form == "eager" else StaticForward(self._transformer, self._recorder)

    @property
    def sizes(self) -> TransformerConfig:
        return self._transformer.config

    @property
    def nbytes(self) -> int:
        return self._transformer.nbytes

    @property
    def _device(self) -> torch.device:
        return self._transformer.embed_tokens.device

    def cache(self, slots: int) -> KVCache:
        return cache_of(self.sizes, slots, self._transformer.computes_in, self._device)

    def embed(self, tokens: Sequence[int] | torch.Tensor) -> torch.Tensor:
        ids = tokens if isinstance(tokens, torch.Tensor) else uploaded(tokens, self._device)
        return self._transformer.embed(ids).detach()

    def adapters(self, adapters: Mapping[int, Mapping[str, LowRank]]) -> TorchAdapters:
        return TorchAdapters(
            {layer: {name: self._adapter(lora) for name, lora in parts.items()} for layer, parts in adapters.items()}
        )

    def _adapter(self, lora: LowRank) -> TorchAdapter:
        a, b = (torch.from_numpy(part).to(self._device, self._transformer.computes_in) for part in (lora.a, lora.b))
        return TorchAdapter(a, b, lora.scale)

    @torch.inference_mode()
    def read_rows(
        self,
        inputs: torch.Tensor,
        cache: TokenCache,
        layers: Sequence[int] | None = None,
        adapters: PackedAdapters | None = None,
    ) -> torch.Tensor:
        assert isinstance(cache, KVCache) and isinstance(adapters, TorchAdapters | None)
        rows = len(inputs)
        if self.static is not None and self.static.can_read(cache, rows) and not isinstance(cache, StateCache):
            return self.static.chain(inputs, cache, layers, adapters)
        cache.reserve(cache.length + rows)
        positions = torch.arange(cache.length, cache.length + rows, device=self._device)
        causal = torch.ones(rows, rows, dtype=torch.bool, device=self._device).tril_()
        states: torch.Tensor = self._transformer(inputs[None], positions, causal, cache, layers, adapters or {})[0]
        return states

    @torch.inference_mode()
    def read_borrowed(self, inputs: torch.Tensor, cache: TokenCache, position: int) -> torch.Tensor:
        assert isinstance(cache, KVCache)
        positions = torch.full((len(inputs),), position, device=self._device)
        nothing = torch.zeros(len(inputs), 0, dtype=torch.bool, device=self._device)
        states: torch.Tensor = self._transformer(inputs[None], positions, nothing, LentKeys(cache))[0]
        return states

    def forget_rows(self, cache: TokenCache, rows: int, layers: Sequence[int]) -> None:
        """Write zeros over the first `rows` rows after the committed tokens, in these layers.

        Masked slots have the weight 0. But 0 times infinity is NaN, and would reach the target.
        """
        assert isinstance(cache, KVCache)
        for layer in layers:
            cache.forget(layer, rows)

    @torch.inference_mode()
    def head(self, states: torch.Tensor) -> torch.Tensor:
        return self._transformer.head(states.to(self._transformer.computes_in))

    def head_rows(self, ids: Sequence[int]) -> FrozenLayer:
        return FrozenLayer(*self._transformer.head_of(torch.tensor(ids, device=self._device)))


class TorchCompute:
    """Arithmetic in the precision of a transformer's activations, on its device."""

    def __init__(self, transformer: Transformer) -> None:
        # Separate, so that a failing recording of a drafter does not stop those of the target.
        self.recorder, self.draft_recorder = Recorder(), Recorder()
        self._transformer, self.target = transformer, TorchRowModel(transformer, self.recorder)
        self.step_form: StepForm = "eager"

    def use_step_form(self, form: StepForm) -> None:
        """Choose how steps run: `eager`, `static` or `captured` (CUDA graphs), also in models that are loaded later."""
        self.step_form = form
        for recorder in (self.recorder, self.draft_recorder):
            recorder.active, recorder.trouble = form == "captured", None
        self.target.use_step_form(form)

    @property
    def _device(self) -> torch.device:
        return self._transformer.embed_tokens.device

    def stored(
        self, file: Path, tensors: Mapping[str, Array], of: str, reporter: Reporter | None = None
    ) -> Mapping[str, Array]:
        """Return the tensors unchanged: torch has no packed form on disk for them."""
        return tensors

    def rows(self, values: Floats) -> torch.Tensor:
        """Return numbers as a tensor on the device."""
        return torch.from_numpy(values).to(self._device, self._transformer.computes_in)

    @cached_property
    def _packs(self) -> bool:
        """Whether drafters' matrices are packed in NF4. This requires a target in NF4 and localspec's own kernels."""
        return self._transformer.linear_class is NF4Linear and kernel_checks.trouble(self._device) is None

    def _packed(self, weight: Floats, bias: Floats | None, silu: bool) -> FrozenLayer | None:
        """Pack a drafter's layer in NF4. Return None if this is off, or if the layer is too small to become faster."""
        if not self._packs or min(weight.shape) < LEAST_SIDE or weight.size < LEAST_WEIGHTS:
            return None
        layer = NF4Linear(self.rows(weight), None if bias is None else self.rows(bias))
        return FrozenLayer(layer, layer.nbytes, silu)

    def linear(self, weight: Floats, bias: Floats | None = None, silu: bool = False) -> TorchLinear | FrozenLayer:
        if (packed := self._packed(weight, bias, silu)) is not None:
            return packed
        return TorchLinear(self.rows(weight), None if bias is None else self.rows(bias), silu)

    def linears(self, weights: Floats, biases: Floats | None = None, silu: bool = False) -> TorchLinears | FrozenLayers:
        """Return n layers with weights [n, out, in] and biases [n, out], one layer per row."""
        of_each = [None] * len(weights) if biases is None else biases
        packed = [self._packed(weight, bias, silu) for weight, bias in zip(weights, of_each, strict=True)]
        if frozen := [layer for layer in packed if layer is not None]:  # all have one size
            return FrozenLayers(frozen)
        return TorchLinears(self.rows(weights), None if biases is None else self.rows(biases), silu)

    def draft_heads(self, weights: HeadWeights, head: FrozenLayer | None) -> TorchHeads:
        """Return draft heads that compute on the device."""

        def stacked(weight: Array, bias: Array, silu: bool = False) -> TorchLinear | FrozenLayer:
            """Return one layer that computes the layers of all heads, from their stacked weights and biases.

            Its outputs are those of the first head, then of the second, ….
            """
            return self.linear(np.asarray(weight).reshape(bias.size, -1), bias.reshape(-1), silu)

        change = None
        if weights.down is not None and weights.up is not None:
            heads, rank, _ = weights.down.shape
            side_by_side = np.ascontiguousarray(np.asarray(weights.up).transpose(1, 0, 2)).reshape(-1, heads * rank)
            mask = self.rows(np.repeat(np.eye(heads, dtype=np.float32), rank, 1))
            change = self.linear(weights.down.reshape(heads * rank, -1)), self.linear(side_by_side), mask
        return TorchHeads(
            self,
            stacked(*weights.blocks[0], silu=True),
            stacked(*weights.path) if weights.path else None,
            [self.linears(*block, silu=True) for block in weights.blocks[1:]],
            None if weights.vocabulary is None else self.linears(weights.vocabulary),
            head or self.target.head,
            change,
        )

    def model(self, sizes: TransformerConfig, rope: Rope | None, weights: Mapping[str, Array]) -> TorchRowModel:
        """Return a small transformer in the precision of the target's computations."""
        rotary = self._transformer.rotary if rope is None else RotaryEmbedding(rope, self._device)
        tensors = {name: self.rows(weights[name]) for name in weight_map(sizes) if name in weights}
        tensors.setdefault("embed_tokens", tensors["norm"].new_zeros(0, sizes.hidden_size))
        linear = NF4Linear if self._packs else Linear
        transformer = Transformer(sizes, rotary, tensors, linear, lm_head_class=Linear)
        return TorchRowModel(transformer, self.draft_recorder, self.step_form)

    def read_model(self, path: Path, context: int) -> TorchRowModel:
        """Return the small language model of a directory: in int8 if the target is quantized, else in the target's
        precision."""
        checkpoint = inspect(path)
        config = read_config(checkpoint)
        sizes = stored_sizes(checkpoint, config)
        device = str(self._device)
        weights = Weights(stored_parts(checkpoint, sizes), sizes, self._transformer.computes_in, device)
        packs = self._transformer.packed and self._transformer.linear_class is not PackedLinear
        linear, head = (linear_class("int8", device), lm_head_class("int8", device)) if packs else (Linear, Linear)
        rotary = RotaryEmbedding(Rope.of(config, context), self._device)
        transformer = Transformer(sizes, rotary, weights, linear, lm_head_class=head)
        return TorchRowModel(transformer, self.draft_recorder, self.step_form)

    def integers(self, numbers: Sequence[Sequence[int]]) -> torch.Tensor:
        return uploaded(numbers, self._device)

    def recorded(self, function: RowFunction, *attentions: RowAttention) -> RowFunction:
        in_torch = [attention for attention in attentions if isinstance(attention, TorchAttention)]
        return RecordedRows(function, self.draft_recorder, in_torch)

    def logits(self, rows: torch.Tensor) -> TorchLogits:
        return TorchLogits(rows)

    def concat(self, arrays: Sequence[torch.Tensor], axis: int = 0) -> torch.Tensor:
        return torch.cat(list(arrays), axis)

    def repeated(self, row: torch.Tensor, count: int) -> torch.Tensor:
        """Return a row `count` times, without copies."""
        return row.expand(count, -1)

    def at_columns(self, rows: torch.Tensor, ids: Array, width: int) -> torch.Tensor:
        whole = rows.new_full((len(rows), width), float("-inf"))
        return whole.index_copy_(1, torch.from_numpy(ids).to(rows.device), rows)

    def silu(self, x: torch.Tensor) -> torch.Tensor:
        return F.silu(x)

    def sigmoid(self, x: torch.Tensor) -> torch.Tensor:
        return x.sigmoid()

    def tanh(self, x: torch.Tensor) -> torch.Tensor:
        return x.tanh()

    def rms_norm(self, x: torch.Tensor, eps: float = EPS) -> torch.Tensor:
        return F.rms_norm(x, (x.shape[-1],), eps=eps)

    def attention(self, sizes: TransformerConfig, rope: Rope | None, weights: Mapping[str, Array]) -> TorchAttention:
        rotary = self._transformer.rotary if rope is None else RotaryEmbedding(rope, self._device)
        norms = {name: self.rows(np.asarray(weights[name])) for name in ("q_norm", "k_norm") if name in weights}
        like = torch.empty(0, dtype=self._transformer.computes_in, device=self._device)
        return TorchAttention(sizes, rotary, norms, like, self.draft_recorder)
