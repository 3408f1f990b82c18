"""A layer of Llama: attention and a gated MLP, each preceded by a norm and added to its input.

Most families use this layer with small changes, chosen by their config: norms of queries and keys (Qwen3), norms of the
outputs of attention and MLP (Gemma 3), a factor of the outputs (Granite).
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from localspec.families.architecture import TransformerConfig
from localspec.models.stored_names import use_stored_names
from localspec.nn import kernel_checks, row_kernels
from localspec.nn.attention import ACTIVATIONS, Attention, clamped_gate, fastest, invariant, with_sinks
from localspec.nn.cache import KVCache, LentKeys, TextPrefix
from localspec.nn.experts import Experts
from localspec.nn.linear import Adapter, LayerClass, Linear, QuantizedLinear
from localspec.nn.placed_rows import PlacedRows
from localspec.nn.rotary import apply_interleaved_rope, apply_rope
from localspec.nn.states import AT_ONCE


def norm(x: torch.Tensor, weight: torch.Tensor, config: TransformerConfig) -> torch.Tensor:
    """Return x, each row divided by the root of its mean square and multiplied by the weight (RMSNorm)."""
    return added_norm(x, None, weight, config)[1]


def added_norm(
    x: torch.Tensor, added: torch.Tensor | None, weight: torch.Tensor, config: TransformerConfig
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return x plus `added` (only x if `added` is None), and the norm of this sum."""
    others = (weight,) if added is None else (weight, added)
    same_dtype = all(other.dtype == x.dtype for other in others) and row_kernels.fits(x)
    if kernel_checks.serve(x, *others) and same_dtype:
        return row_kernels.add_norm(x, added, weight, config.norm_offset, config.rms_norm_eps)
    x = x if added is None else x + added
    if not config.norm_offset:
        return x, F.rms_norm(x, weight.shape, weight, config.rms_norm_eps)
    # One plus a weight has more digits than bf16 can represent.
    wide = F.rms_norm(x.float(), weight.shape, weight.float() + config.norm_offset, config.rms_norm_eps)
    return x, wide.to(x.dtype)


# Cosines and sines, as `RotaryEmbedding.cos_sin` returns them, and the factors of queries.
PositionEmbeddings = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]
CacheLike = KVCache | PlacedRows | TextPrefix | LentKeys
LayerAdapters = Mapping[str, Adapter]
ReadKeys = dict[int, tuple[torch.Tensor, torch.Tensor] | None]  # keys and values by layer that later layers read too
NO_ADAPTERS: LayerAdapters = {}


class LayerRows(NamedTuple):
    """The inputs of a layer in addition to the states of the rows.

    Only some families use `read`, the keys and values of earlier layers, and `own_input` [batch, n, channels], an
    additional input for each token.
    """

    position_embeddings: PositionEmbeddings
    mask: torch.Tensor
    cache: CacheLike | None
    adapters: LayerAdapters
    read: ReadKeys
    own_input: torch.Tensor | None


class LlamaLayer(nn.Module):
    """A layer of Llama. Its weights have the names of `weight_map`."""

    def __init__(
        self,
        config: TransformerConfig,
        index: int,
        weights: Mapping[str, Any],
        linear_class: LayerClass,
        attention: Attention,
    ) -> None:
        super().__init__()
        self.config, self.index, self.attention, self.sizes = config, index, attention, config.sizes_of(index)
        self._weights, self._linear_class = weights, linear_class
        self.activation = ACTIVATIONS.get(config.activation, F.silu)
        self.rotate = apply_interleaved_rope if config.interleaved else apply_rope
        self.scale = config.query_scalar**-0.5 if config.query_scalar else None
        self.input_layernorm = self.vector("input_layernorm")
        self.read_mixer()
        self.post_attention_layernorm = self.vector("post_attention_layernorm")
        self.read_mlp()
        if config.output_norms:
            self.o_norm, self.down_norm = self.vector("o_norm"), self.vector("down_norm")
        self.read_more()
        del self._weights
        use_stored_names(self)

    def read_mixer(self) -> None:
        """Read the weights of attention."""
        self.qkv_proj, self.o_proj = self.linear("qkv_proj"), self.linear("o_proj")
        if self.config.sinks:
            self.sinks = self.vector("sinks")
        if self.config.qk_norm:
            self.q_norm = self.vector("q_norm")
            self.k_norm = self.vector("k_norm") if self.sizes.keys_of is None else None

    def read_mlp(self) -> None:
        """Read the weights of the MLP, or of the experts in its place."""
        sizes = self.config.experts
        if sizes is None or sizes.dense:
            self.gate_up_proj, self.down_proj = self.linear("gate_up_proj"), self.linear("down_proj")
        if sizes is None:
            return
        if sizes.gated:
            self.shared_gate = self.vector("shared_gate")
        if sizes.norms:
            self.router_norm, self.expert_norm = self.vector("router_norm"), self.vector("expert_norm")
            self.mlp_out_norm, self.expert_out_norm = self.vector("mlp_out_norm"), self.vector("expert_out_norm")
            self.expert_scale = self.vector("expert_scale")
        self.router, exact = self.linear("router"), self.attention is invariant
        gate_up, down = self.linear("experts.gate_up_proj"), self.linear("experts.down_proj")
        self.experts = Experts(sizes, gate_up, down, self.gate, exact)

    def read_more(self) -> None:
        """Do nothing. Layers of other families override this, to read weights that a Llama layer does not have."""

    def linear(self, name: str) -> Linear | QuantizedLinear:
        """Return one of the layer's linear layers."""
        prefix = f"layers.{self.index}.{name}."
        return self._linear_class(self._weights[prefix + "weight"], self._weights.get(prefix + "bias"))

    def vector(self, name: str) -> nn.Parameter:
        """Return one of the layer's vectors."""
        return nn.Parameter(self._weights[f"layers.{self.index}.{name}"], requires_grad=False)

    def forward(self, x: torch.Tensor, rows: LayerRows) -> torch.Tensor:
        """Return the states of rows [batch, n, hidden_size] after the layer."""
        h = self.mix(norm(x, self.input_layernorm, self.config), rows)
        x, h = added_norm(x, self._to_add(h, "o_norm"), self.post_attention_layernorm, self.config)
        sizes, outputs = self.config.experts, []
        if sizes is None or sizes.dense:
            outputs.append(self.mlp(h, rows.adapters))
        if sizes is not None:
            outputs.append(self.mixture(h, x))
        return x + self._to_add(outputs[0] if len(outputs) == 1 else outputs[0] + outputs[1], "down_norm")

    def mlp(self, h: torch.Tensor, adapters: LayerAdapters) -> torch.Tensor:
        """Return the output of the MLP for rows [batch, n, hidden_size]."""
        inner = self.gated(self.gate_up_proj(h, adapters.get("gate_up_proj")))
        output: torch.Tensor = self.down_proj(inner, adapters.get("down_proj"))
        if self.config.experts is not None and self.config.experts.gated:
            output = output * torch.sigmoid(F.linear(h, self.shared_gate[None]))
        if self.config.experts is not None and self.config.experts.norms:
            output = norm(output, self.mlp_out_norm, self.config)
        return output

    def mixture(self, h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Return the output of the experts. x [batch, n, hidden_size] are the states, and h is x after the norm."""
        output: torch.Tensor
        if self.config.experts is None or not self.config.experts.norms:
            output = self.experts(h, self.router(h))
            return output
        logits = self.router(norm(x, self.router_norm, self.config) * self.config.hidden_size**-0.5)
        output = self.experts(norm(x, self.expert_norm, self.config), logits, self.expert_scale)
        return norm(output, self.expert_out_norm, self.config)

    def mix(self, h: torch.Tensor, rows: LayerRows) -> torch.Tensor:
        """Return the output of attention for rows, [batch, n, hidden_size]."""
        output: torch.Tensor = self.o_proj(self.self_attention(h, rows), rows.adapters.get("o_proj"))
        return output

    def self_attention(self, h: torch.Tensor, rows: LayerRows) -> torch.Tensor:
        """Return the attention output of rows, [batch, n, heads * head_dim]."""
        heads, kv_heads, cache = self.config.num_heads, self.sizes.num_kv_heads, rows.cache
        cos, sin, factors = rows.position_embeddings
        qkv = self.split_heads(self.qkv_proj(h, rows.adapters.get("qkv_proj")))
        plain = self.rotate is apply_rope and not self.config.qk_norm and factors is None
        if plain and cached_in_slots(cache) and kernel_checks.serve(qkv):
            placing = cache.placing(self.index, h.shape[1])  # type: ignore[union-attr]
            grouped = row_kernels.rotate_and_place(qkv[0], cos, sin, heads, kv_heads, placing)[None]
            k, v = placing.slots[:, None, :, : placing.visible]
            return self.attend(grouped, k, v, rows)
        qk, v = qkv[:, :, : heads + kv_heads], qkv[:, :, heads + kv_heads :]
        qk = self.normed(qk) if self.config.qk_norm else qk
        qk = self.rotate(qk, cos, sin)
        q, k = qk[:, :, :heads], qk[:, :, heads:]
        k, v = self.with_cached(k, v, cache)
        return self.attend(self.grouped(q if factors is None else q * factors), k, v, rows)

    def split_heads(self, projected: torch.Tensor) -> torch.Tensor:
        """Return heads [batch, n, heads, head_dim] of a projection."""
        head_dim = self.sizes.head_dim
        return projected.view(*projected.shape[:2], projected.shape[-1] // head_dim, head_dim)  # there may be no rows

    def normed(self, qk: torch.Tensor) -> torch.Tensor:
        """Return queries and keys after the norms that the family applies to them, if it has such norms."""
        heads = self.config.num_heads
        parts = ((qk[:, :, :heads], self.q_norm), (qk[:, :, heads:], self.k_norm))
        normed = [norm(part, weight, self.config) for part, weight in parts if weight is not None]
        return normed[0] if len(normed) == 1 else torch.cat(normed, 2)

    def with_cached(
        self, k: torch.Tensor, v: torch.Tensor, cache: CacheLike | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store `k` and `v`. Return keys and values of all tokens, [batch, kv_heads, slots, head_dim]."""
        k, v = k.transpose(1, 2), v.transpose(1, 2)
        if isinstance(cache, TextPrefix):
            return cache.extended(self.index, k, v)
        assert not isinstance(cache, LentKeys), "this layer computes keys, so its cache must store them"
        if cache is None:
            return k, v
        cached_k, cached_v = cache.write(self.index, k[0], v[0])
        return cached_k[None], cached_v[None]

    def grouped(self, q: torch.Tensor) -> torch.Tensor:
        """Return queries as [batch, key heads, heads per key head * n, head_dim]. Shared keys then need no copies."""
        batch, n, heads, head_dim = q.shape
        kv_heads, group = self.sizes.num_kv_heads, heads // self.sizes.num_kv_heads
        by_head = q.view(batch, n, kv_heads, group, head_dim).permute(0, 2, 3, 1, 4)
        return by_head.reshape(batch, kv_heads, group * n, head_dim)

    def attend(self, grouped: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rows: LayerRows) -> torch.Tensor:
        """Return the attention output of the queries `grouped` by key head, as [batch, n, heads * head_dim].

        Training and prefill use the fastest form: training needs no exact bits, and prefill reads the same rows with
        and without speculation.
        """
        batch, kv_heads, query_rows, head_dim = grouped.shape
        heads = self.config.num_heads
        n = query_rows * kv_heads // heads
        if self.config.sinks:
            sinks = self.sinks.view(kv_heads, -1, 1).expand(-1, -1, n).reshape(kv_heads, query_rows)
            mixed = with_sinks(grouped, k, v, rows.mask, self.scale, sinks)
        else:
            attention = self.attention if cached_in_slots(rows.cache) and n <= AT_ONCE else fastest
            mixed = attention(grouped, k, v, rows.mask, self.scale)
        mixed = mixed.view(batch, kv_heads, heads // kv_heads, n, head_dim).permute(0, 3, 1, 2, 4)
        return mixed.reshape(batch, n, heads * head_dim)

    def gate(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """Return the product of `up` and the activation of `gate`."""
        if self.config.activation == "clamped":
            return clamped_gate(gate, up, self.config.gate_limit)
        return self.activation(gate) * up

    def gated(self, gate_up: torch.Tensor) -> torch.Tensor:
        """Return the product of the second half of the channels and the activation of the first half."""
        if kernel_checks.serve(gate_up) and gate_up.shape[-1] % 16 == 0 and gate_up.dtype in row_kernels.SMALL:
            return row_kernels.gated(gate_up.contiguous(), self.config.activation)
        return self.gate(*torch.split(gate_up, self.sizes.intermediate_size, -1))

    def _to_add(self, h: torch.Tensor, norm_name: str) -> torch.Tensor:
        """Return the output of attention or MLP as it is added to the states: after the family's norm and factor."""
        scale = self.config.residual_scale
        h = norm(h, getattr(self, norm_name), self.config) if self.config.output_norms else h
        return h if scale == 1 else h * scale


def cached_in_slots(cache: CacheLike | None) -> bool:
    """Return whether the cache writes rows into slots after the committed tokens."""
    return isinstance(cache, KVCache | PlacedRows)
