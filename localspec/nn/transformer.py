"""One lean decoder-only transformer that reads the weights of all families that are served.

It knows tensors only: no tokenizer, no file, no device choice. Its parameters are called as in `weight_map`.
"""

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from localspec.errors import LocalspecError
from localspec.families.architecture import TransformerConfig
from localspec.models.stored_names import use_stored_names
from localspec.nn import layer_kernels, own_kernels
from localspec.nn.attention import ACTIVATIONS, Attention, fastest, invariant
from localspec.nn.cache import KVCache, TextPrefix
from localspec.nn.delta_net import GatedDeltaNet
from localspec.nn.linear import Adapter, LayerClass, Linear, QuantizedLinear
from localspec.nn.norms import added_norm, norm
from localspec.nn.placed_rows import PlacedChain, PlacedRows
from localspec.nn.rotary import RotaryEmbedding, apply_rope
from localspec.nn.states import AT_ONCE, StateCache

# Cosines and sines, as `RotaryEmbedding.cos_sin` gives them, and what queries are multiplied by.
PositionEmbeddings = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]
CacheLike = KVCache | PlacedRows | TextPrefix
LayerAdapters = Mapping[str, Adapter]
ReadKeys = dict[int, tuple[torch.Tensor, torch.Tensor] | None]  # keys and values by layer, which later layers read too
_NONE: Mapping[Any, Any] = {}


class Layer(nn.Module):
    """Attention, or a recurrent state in its place, and a gated feed-forward network: each after its norm, and in some
    families before another one.
    """

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
        self.activation = ACTIVATIONS[config.activation]
        self.scale = config.query_scalar**-0.5 if config.query_scalar else None
        # Whether queries and keys are rotated as they come from their product, and nobody else reads the keys.
        changed = config.qk_norm or config.gated or config.value_norm
        of_others = self.sizes.keys_of is not None or self.sizes.keys_are_values
        self._plain = not (changed or of_others) and index not in {one.keys_of for one in config.layer_sizes}

        def linear(name: str) -> Linear | QuantizedLinear:
            return linear_class(weights[f"layers.{index}.{name}.weight"], weights.get(f"layers.{index}.{name}.bias"))

        def vector(name: str) -> nn.Parameter:
            return nn.Parameter(weights[f"layers.{index}.{name}"], requires_grad=False)

        self.delta: GatedDeltaNet | None = None
        if config.delta is not None and config.is_recurrent(index):
            own = f"layers.{index}.delta."
            self.delta = GatedDeltaNet(
                config.delta, config.rms_norm_eps, weights, own, linear_class, attention is invariant
            )
        else:
            self.qkv_proj, self.o_proj = linear("qkv_proj"), linear("o_proj")
            if config.qk_norm:
                self.q_norm = vector("q_norm")
                self.k_norm = vector("k_norm") if self.sizes.keys_of is None else None
        self.gate_up_proj, self.down_proj = linear("gate_up_proj"), linear("down_proj")
        self.input_layernorm, self.post_attention_layernorm = (
            vector("input_layernorm"),
            vector("post_attention_layernorm"),
        )
        if config.output_norms:
            self.o_norm, self.down_norm = vector("o_norm"), vector("down_norm")
        if config.per_layer_inputs[0]:
            self.per_layer_input_gate = linear("per_layer_input_gate")
            self.per_layer_projection, self.per_layer_norm = (
                linear("per_layer_projection"),
                vector("per_layer_norm"),
            )
        if config.layer_scalars:
            self.layer_scalar = vector("layer_scalar")
        use_stored_names(self)

    def forward(
        self,
        x: torch.Tensor,
        position_embeddings: PositionEmbeddings,
        mask: torch.Tensor,
        cache: CacheLike | None,
        adapters: LayerAdapters = _NONE,
        own_input: torch.Tensor | None = None,
        read: ReadKeys | None = None,
    ) -> torch.Tensor:
        config = self.config
        h = norm(x, self.input_layernorm, config)
        if self.delta is not None:
            assert isinstance(cache, StateCache | PlacedChain | None), (
                "no drafter has rows of its own in recurrent layers"
            )
            h = self.delta(h, cache, self.index)
        else:
            h = self._self_attention(h, position_embeddings, mask, cache, adapters.get("qkv_proj"), read)
            h = self.o_proj(h, adapters.get("o_proj"))
        given = self._scaled(norm(h, self.o_norm, config) if config.output_norms else h)
        x, h = added_norm(x, given, self.post_attention_layernorm, config)
        h = self._gated(self.gate_up_proj(h, adapters.get("gate_up_proj")))
        down: torch.Tensor = self.down_proj(h, adapters.get("down_proj"))
        x = x + self._scaled(norm(down, self.down_norm, config) if config.output_norms else down)
        if own_input is not None:
            gate = self.activation(self.per_layer_input_gate(x))
            x = x + norm(self.per_layer_projection(gate * own_input), self.per_layer_norm, config)
        return x * self.layer_scalar if config.layer_scalars else x

    def _gated(self, both: torch.Tensor) -> torch.Tensor:
        """Return the activation of the gate, the first half of the channels, times the other half."""
        if own_kernels.serve(both) and both.shape[-1] % 16 == 0 and both.dtype in layer_kernels.SMALL:
            return layer_kernels.gated(both.contiguous(), self.config.activation)
        gate, up = torch.split(both, self.sizes.intermediate_size, -1)
        return self.activation(gate) * up

    def _scaled(self, given: torch.Tensor) -> torch.Tensor:
        scale = self.config.residual_scale
        return given if scale == 1 else given * scale

    def _attention_for(self, rows: int, cache: CacheLike | None) -> Attention:
        """Training needs a gradient, not bits; prefill reads the same rows with and without speculation."""
        return self.attention if isinstance(cache, KVCache | PlacedRows) and rows <= AT_ONCE else fastest

    def _self_attention(
        self,
        h: torch.Tensor,
        position_embeddings: PositionEmbeddings,
        mask: torch.Tensor,
        cache: CacheLike | None,
        adapter: Adapter | None,
        read: ReadKeys | None,
    ) -> torch.Tensor:
        config, sizes, (batch, n) = self.config, self.sizes, h.shape[:2]
        heads, kv_heads, head_dim = config.num_heads, sizes.num_kv_heads, sizes.head_dim
        group, own = heads // kv_heads, kv_heads if sizes.keys_of is None else 0
        qkv = self.qkv_proj(h, adapter)
        qkv = qkv.view(batch, n, qkv.shape[-1] // head_dim, head_dim)  # there may be no rows
        cos, sin, factors = position_embeddings
        if self._plain and factors is None and isinstance(cache, KVCache | PlacedRows) and own_kernels.serve(qkv):
            placing = cache.placing(self.index, n)
            grouped = layer_kernels.rotate_and_place(qkv[0], cos, sin, heads, kv_heads, placing)[None]
            k, v = placing.slots[:, None, :, : placing.visible]
            return self._mixed(grouped, k, v, mask, n, cache)
        gate = None
        if config.gated:  # a query, its gate, a query, its gate, …, keys, values
            gate = qkv[:, :, 1 : 2 * heads : 2].reshape(batch, n, heads * head_dim)
            qkv = torch.cat([qkv[:, :, : 2 * heads : 2], qkv[:, :, 2 * heads :]], 2)
        qk, v = qkv[:, :, : heads + own], qkv[:, :, heads + (0 if sizes.keys_are_values else own) :]
        if config.value_norm and own:
            v = F.rms_norm(v, (head_dim,), eps=config.rms_norm_eps)
        v = v.transpose(1, 2)
        if config.qk_norm:
            q, k = norm(qk[:, :, :heads], self.q_norm, config), qk[:, :, heads:]
            qk = q if self.k_norm is None else torch.cat([q, norm(k, self.k_norm, config)], 2)
        qk = apply_rope(qk, cos, sin)
        q, k = qk[:, :, :heads], qk[:, :, heads:].transpose(1, 2)
        q = q if factors is None else q * factors
        if sizes.keys_of is not None:
            others = None if read is None else read[sizes.keys_of]
            assert others is not None, "a layer that others read is left out"
            k, v = others
        elif isinstance(cache, TextPrefix):
            k, v = cache.extended(self.index, k, v)
        elif cache is not None:
            cached_k, cached_v = cache.write(self.index, k[0], v[0])
            k, v = cached_k[None], cached_v[None]
        if read is not None and self.index in read:
            read[self.index] = k, v
        # The queries that share a key head become more rows of it, so that an explicit mask never copies keys.
        grouped = q.view(batch, n, kv_heads, group, head_dim).permute(0, 2, 3, 1, 4)
        mixed = self._mixed(grouped.reshape(batch, kv_heads, group * n, head_dim), k, v, mask, n, cache)
        return mixed if gate is None else mixed * torch.sigmoid(gate)

    def _mixed(
        self,
        grouped: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        mask: torch.Tensor,
        n: int,
        cache: CacheLike | None,
    ) -> torch.Tensor:
        """Returns what n rows get by attention, [batch, n, heads * head_dim]."""
        batch, kv_heads, _, head_dim = grouped.shape
        mixed = self._attention_for(n, cache)(grouped, k, v, mask, self.scale)
        mixed = mixed.view(batch, kv_heads, self.config.num_heads // kv_heads, n, head_dim).permute(0, 3, 1, 2, 4)
        return mixed.reshape(batch, n, self.config.num_heads * head_dim)


class Transformer(nn.Module):
    """Embedding, layers, final norm, head. Weights have our names, as `weight_map` lists them; each is read once.

    They are tensors, and for a `PackedLinear` a `PackedWeight`.

    It computes in the precision of its norms, which is that of a cache too; an embedding may have another.
    `lm_head_class` is the class of the head, by default that of the other linears. `each` is called with every layer
    once it is read, before the next one.
    """

    def __init__(
        self,
        config: TransformerConfig,
        rotary: RotaryEmbedding,
        weights: Mapping[str, Any],
        linear_class: LayerClass = Linear,
        attention: Attention = fastest,
        lm_head_class: LayerClass | None = None,
        each: Callable[[nn.Module], None] = lambda layer: None,
    ) -> None:
        super().__init__()
        self.config, self.rotary, self.linear_class = config, rotary, linear_class
        embed_tokens = weights["embed_tokens"]
        self.embed_tokens = nn.Parameter(embed_tokens, requires_grad=False)
        self.layers = nn.ModuleList()
        for index in range(config.num_layers):
            self.layers.append(Layer(config, index, weights, linear_class, attention))
            each(self.layers[index])
        self.attention = attention
        if config.per_layer_inputs[0]:
            self.embed_tokens_per_layer = nn.Parameter(weights["embed_tokens_per_layer"], requires_grad=False)
            self.per_layer_model_projection = linear_class(weights["per_layer_model_projection.weight"])
            self.per_layer_projection_norm = nn.Parameter(weights["per_layer_projection_norm"], requires_grad=False)
        self.norm = nn.Parameter(weights["norm"], requires_grad=False)
        self.computes_in = self.norm.dtype
        self.lm_head = (lm_head_class or linear_class)(embed_tokens if config.tied else weights["lm_head.weight"])
        if config.tied and isinstance(self.lm_head, Linear):
            self.lm_head.weight = self.embed_tokens
        self.recomputed = False  # a gradient's layers are computed a second time, and not held until it comes
        use_stored_names(self)

    @property
    def nbytes(self) -> int:
        """Bytes of its weights."""
        packed = [layer.nbytes for layer in self.modules() if isinstance(layer, QuantizedLinear)]
        return sum(packed) + sum(parameter.nbytes for parameter in self.parameters())

    @property
    def packed(self) -> bool:
        """Whether weights are rounded to a few bits; a head of another class than the other linears may be dense."""
        return issubclass(self.linear_class, QuantizedLinear)

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Returns the input embeddings of token ids, [..., hidden_size], in the precision that it computes in."""
        return self.scaled(F.embedding(tokens, self.embed_tokens).to(self.computes_in))

    def scaled(self, embeddings: torch.Tensor) -> torch.Tensor:
        """Returns rows of the embedding as layers read them; the scale has no more digits than the embedding."""
        scale = self.config.embed_scale
        return embeddings if scale == 1 else embeddings * _rounded(scale, self.embed_tokens.dtype)

    def head(self, states: torch.Tensor, adapter: Adapter | None = None) -> torch.Tensor:
        """Returns the logits [..., vocab_size] of states after the final norm."""
        logits: torch.Tensor = self.lm_head(self.for_head(states), adapter)
        return self._capped(logits)

    def head_of(self, ids: torch.Tensor) -> tuple[Callable[[torch.Tensor], torch.Tensor], int]:
        """Returns the part of the head that makes the logits of these tokens, and its bytes."""
        part = self.lm_head.rows(ids)
        return lambda states: self._capped(part(self.for_head(states))), part.nbytes

    def _capped(self, logits: torch.Tensor) -> torch.Tensor:
        if not (cap := self.config.logit_cap):
            return logits
        return torch.tanh(logits / cap) * cap

    def _layer_inputs(self, tokens: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """What each layer reads of tokens beside their states, [batch, n, layers, channels] (Gemma 4)."""
        assert not tokens.is_floating_point(), "an embedding does not tell what its layers read"
        width, layers = self.config.per_layer_inputs[0], self.config.num_layers
        table = self.embed_tokens_per_layer
        of_tokens = F.embedding(tokens, table).to(x.dtype) * _rounded(width**0.5, table.dtype)
        of_states = self.per_layer_model_projection(x) * self.config.hidden_size**-0.5
        of_states = norm(of_states.view(*tokens.shape, layers, width), self.per_layer_projection_norm, self.config)
        both: torch.Tensor = (of_states + of_tokens.view(of_states.shape)) * 2.0**-0.5
        return both

    def for_head(self, states: torch.Tensor) -> torch.Tensor:
        """Returns states as the matrix of the head reads them."""
        scale = self.config.logit_scale
        return states if scale == 1 else states * scale

    def forward(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        mask: torch.Tensor,
        cache: CacheLike | None = None,
        layers: Sequence[int] | None = None,
        adapters: Mapping[int, LayerAdapters] = _NONE,
        inner: MutableMapping[int, torch.Tensor | None] | None = None,
    ) -> torch.Tensor:
        """Returns hidden states after the final norm, [batch, n, hidden_size].

        tokens [batch, n], or embeddings in their place [batch, n, hidden_size]; positions [n]; mask bool [n, n], True
        where a row may look at another new row. With a KVCache (batch 1) every row sees all committed tokens too, and
        keys and values are written after them; with PlacedRows the mask are bits [n]. A TextPrefix has a text for each
        of the batch; then the mask may be [batch, n, committed + n] and say which of its tokens each row sees, and
        positions [batch, n]. Without a cache gradients flow: the training form of the same code. `layers` runs only
        those; `adapters` act in this forward only, by layer and by the name of the linear layer. `inner` gets, for
        those of its keys, the states [batch, n, hidden_size] before a layer by its number, and those after the final
        norm by the number of layers.
        """
        x = (tokens if tokens.is_floating_point() else self.embed(tokens)).to(self.computes_in)
        computed = range(len(self.layers)) if layers is None else layers
        kinds = {index: (self.config.sliding_windows[index], self._group(index)) for index in computed}
        masks = {kind: self._additive_mask(mask, positions, *kind, cache) for kind in set(kinds.values())}
        inputs = self._layer_inputs(tokens, x) if self.config.per_layer_inputs[0] else None
        read: ReadKeys = dict.fromkeys(one.keys_of for one in self.config.layer_sizes if one.keys_of is not None)
        of_layers = {index: self.rotary.of_layer(self.config, index) for index in computed}
        rotations = {rotary: rotary.cos_sin(positions, x.dtype) for rotary in set(of_layers.values())}
        factors = self.rotary.query_factors(positions, x.dtype)
        for index in computed:
            if inner is not None and index in inner:
                inner[index] = x
            layer, rotation = self.layers[index], (*rotations[of_layers[index]], factors)
            own_input = None if inputs is None else inputs[:, :, index]
            brought = x, rotation, masks[kinds[index]], cache, adapters.get(index, _NONE), own_input, read
            again = self.recomputed and torch.is_grad_enabled()
            x = checkpoint(layer, *brought, use_reentrant=False) if again else layer(*brought)
        x = norm(x, self.norm, self.config)
        if inner is not None and len(self.layers) in inner:
            inner[len(self.layers)] = x
        return x

    def side_by_side(self, found: Mapping[int, torch.Tensor | None], places: Sequence[int]) -> torch.Tensor:
        """Returns states that `inner` got [..., places * hidden_size]. Raises LocalspecError where there are none."""
        states = [one for place in places if (one := found[place]) is not None]
        if len(states) < len(places):
            missing = next(place for place in places if found[place] is None)
            raise LocalspecError(f"There are no states at {missing}; give 0 to {len(self.layers)}.")
        return torch.cat(states, -1)

    def _group(self, layer: int) -> int:
        """How many heads share a key head."""
        return self.config.num_heads // self.config.sizes_of(layer).num_kv_heads

    def _additive_mask(
        self, mask: torch.Tensor, positions: torch.Tensor, window: int | None, group: int, cache: CacheLike | None
    ) -> torch.Tensor:
        """[(batch, 1,) group * n, slots]: 0 where a row sees a slot, -inf elsewhere; from the mask and the window."""
        if isinstance(cache, PlacedRows):
            seen = cache.seen(mask, positions, window)
        else:
            seen = _seen(mask, positions, window, cache)
        additive = torch.zeros(seen.shape, dtype=self.computes_in, device=mask.device)
        additive.masked_fill_(~seen, float("-inf"))
        return additive.repeat(group, 1) if additive.dim() == 2 else additive.repeat(1, group, 1)[:, None]


def _seen(
    mask: torch.Tensor, positions: torch.Tensor, window: int | None, cache: KVCache | TextPrefix | None
) -> torch.Tensor:
    """bool [(batch,) n, slots]: which slots a row sees."""
    n, committed = positions.shape[-1], cache.length if cache is not None else 0
    slots = cache.visible(n) if cache is not None else n
    seen = torch.zeros(*mask.shape[:-1], slots, dtype=torch.bool, device=mask.device)
    seen[..., :committed] = True
    seen[..., committed + n - mask.shape[-1] : committed + n] = mask
    if window is None:
        return seen
    # A committed token's slot is its position; a tree node's is not.
    slot_positions = torch.arange(slots, device=mask.device).repeat(*positions.shape[:-1], 1)
    slot_positions[..., committed : committed + n] = positions
    return seen & (slot_positions.unsqueeze(-2) > positions[..., None] - window)


@cache
def _rounded(number: float, dtype: torch.dtype) -> float:
    return float(torch.tensor(number, dtype=dtype))
