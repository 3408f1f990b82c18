"""A decoder-only transformer: embedding, the layers of a family (`layers/`), final norm, head.

It uses only tensors: no tokenizer, no files and no choice of a device. Its parameters are named as in `weight_map`.
"""

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from localspec.errors import LocalspecError
from localspec.families.architecture import TransformerConfig
from localspec.models.stored_names import use_stored_names
from localspec.nn.attention import Attention, fastest
from localspec.nn.cache import KVCache, LentKeys, TextPrefix
from localspec.nn.layers.gemma4 import Gemma4Layer, layer_inputs, rounded
from localspec.nn.layers.llama import NO_ADAPTERS, CacheLike, LayerAdapters, LayerRows, LlamaLayer, ReadKeys, norm
from localspec.nn.layers.qwen35 import Qwen35Layer
from localspec.nn.linear import Adapter, LayerClass, Linear, QuantizedLinear
from localspec.nn.placed_rows import PlacedRows
from localspec.nn.rotary import RotaryEmbedding

_NO_ADAPTERS: Mapping[int, LayerAdapters] = {}


def layer_class(config: TransformerConfig) -> type[LlamaLayer]:
    """Return the class of a model's layers, by their arithmetic."""
    if config.gated or config.delta is not None:
        return Qwen35Layer
    if config.layer_sizes or config.value_norm or config.layer_scalars or config.per_layer_inputs[0]:
        return Gemma4Layer
    return LlamaLayer


class Transformer(nn.Module):
    """A transformer: embedding, layers, final norm, head. Weights have the names of `weight_map`; each is read once.

    A weight is a tensor, or a `PackedWeight` for a `PackedLinear`. Computations and cache have the precision of the
    norms; an embedding may have another. `lm_head_class` is the class of the head, by default `linear_class`. `each` is
    called with every layer after it is read, before the next one.
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
            self.layers.append(layer_class(config)(config, index, weights, linear_class, attention))
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
        self.recomputed = False  # layers are computed again for the gradient instead of being held until then
        use_stored_names(self)

    @property
    def nbytes(self) -> int:
        """Bytes of the weights."""
        packed = [layer.nbytes for layer in self.modules() if isinstance(layer, QuantizedLinear)]
        return sum(packed) + sum(parameter.nbytes for parameter in self.parameters())

    @property
    def packed(self) -> bool:
        """Whether weights are quantized. The head may be dense if it has its own class."""
        return issubclass(self.linear_class, QuantizedLinear)

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the input embeddings of token ids, [..., hidden_size], in the precision of computations."""
        return self.scaled(F.embedding(tokens, self.embed_tokens).to(self.computes_in))

    def scaled(self, embeddings: torch.Tensor) -> torch.Tensor:
        """Return rows of the embedding multiplied by its scale, as layers read them.

        The scale is rounded to the precision of the embedding.
        """
        scale = self.config.embed_scale
        return embeddings if scale == 1 else embeddings * rounded(scale, self.embed_tokens.dtype)

    def head(self, states: torch.Tensor, adapter: Adapter | None = None) -> torch.Tensor:
        """Return the logits [..., vocab_size] of states after the final norm."""
        logits: torch.Tensor = self.lm_head(self.for_head(states), adapter)
        return self._capped(logits)

    def head_of(self, ids: torch.Tensor) -> tuple[Callable[..., torch.Tensor], int]:
        """Return a function like `head` that computes only the logits of these tokens, and the bytes of its weights."""
        part = self.lm_head.rows(ids)

        def head(states: torch.Tensor, adapter: Callable[..., torch.Tensor] | None = None) -> torch.Tensor:
            adapter_rows = None if adapter is None else partial(adapter, channels=ids)
            return self._capped(part(self.for_head(states), adapter_rows))

        return head, part.nbytes

    def _capped(self, logits: torch.Tensor) -> torch.Tensor:
        if not (cap := self.config.logit_cap):
            return logits
        return torch.tanh(logits / cap) * cap

    def for_head(self, states: torch.Tensor) -> torch.Tensor:
        """Return states multiplied by `logit_scale`, as the head reads them."""
        scale = self.config.logit_scale
        return states if scale == 1 else states * scale

    def forward(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        mask: torch.Tensor,
        cache: CacheLike | None = None,
        layers: Sequence[int] | None = None,
        adapters: Mapping[int, LayerAdapters] = _NO_ADAPTERS,
        inner: MutableMapping[int, torch.Tensor | None] | None = None,
    ) -> torch.Tensor:
        """Return hidden states after the final norm, [batch, n, hidden_size].

        `tokens` [batch, n] may also be embeddings [batch, n, hidden_size]. positions [n]; mask bool [n, n], True where
        a row may see another new row.

        With a KVCache (batch 1) every row also sees all committed tokens, and its keys and values are stored. With
        PlacedRows the mask is bits [n]. A TextPrefix has one text per element of the batch. The mask may then be
        [batch, n, committed + n], to say also which tokens of the text each row sees, and positions may be [batch, n].
        Without a cache gradients flow, for training.

        `layers` are the indices of the layers to run. `adapters` act in this forward only, by layer and by the name of
        the linear layer. `inner` is filled: for each of its keys, a layer number, it receives the states before that
        layer, [batch, n, hidden_size]. The number of layers, used as a key, means the states after the final norm.
        """
        x = (tokens if tokens.is_floating_point() else self.embed(tokens)).to(self.computes_in)
        computed = range(len(self.layers)) if layers is None else layers
        # The window of a layer, and how many query heads share one key head.
        kinds = {
            index: (
                self.config.sliding_windows[index],
                self.config.num_heads // self.config.sizes_of(index).num_kv_heads,
            )
            for index in computed
        }
        masks = {kind: self._additive_mask(mask, positions, *kind, cache) for kind in set(kinds.values())}
        inputs = None
        if self.config.per_layer_inputs[0]:
            table, projection = self.embed_tokens_per_layer, self.per_layer_model_projection
            inputs = layer_inputs(self.config, tokens, x, table, projection, self.per_layer_projection_norm)
        read: ReadKeys = dict.fromkeys(sizes.keys_of for sizes in self.config.layer_sizes if sizes.keys_of is not None)
        if isinstance(cache, LentKeys):
            read = {layer: cache.of_layer(layer) for layer in read if layer is not None}
        of_layers = {index: self.rotary.of_layer(self.config, index) for index in computed}
        rotations = {rotary: rotary.cos_sin(positions, x.dtype) for rotary in set(of_layers.values())}
        factors = self.rotary.query_factors(positions, x.dtype)
        for index in computed:
            if inner is not None and index in inner:
                inner[index] = x
            layer, rotation = self.layers[index], (*rotations[of_layers[index]], factors)
            own_input = None if inputs is None else inputs[:, :, index]
            rows = LayerRows(rotation, masks[kinds[index]], cache, adapters.get(index, NO_ADAPTERS), read, own_input)
            again = self.recomputed and torch.is_grad_enabled()
            x = checkpoint(layer, x, rows, use_reentrant=False) if again else layer(x, rows)
        x = norm(x, self.norm, self.config)
        if inner is not None and len(self.layers) in inner:
            inner[len(self.layers)] = x
        return x

    def side_by_side(self, states: Mapping[int, torch.Tensor | None], places: Sequence[int]) -> torch.Tensor:
        """Return the states with the numbers `places`, joined along channels: [..., len(places) * hidden_size].

        `states` maps numbers to states, like `inner` of `forward`. Raises LocalspecError for missing states.
        """
        parts = [state for place in places if (state := states[place]) is not None]
        if len(parts) < len(places):
            missing = next(place for place in places if states[place] is None)
            raise LocalspecError(f"The model has no state {missing}; give a number from 0 to {len(self.layers)}.")
        return torch.cat(parts, -1)

    def _additive_mask(
        self, mask: torch.Tensor, positions: torch.Tensor, window: int | None, group: int, cache: CacheLike | None
    ) -> torch.Tensor:
        """Return [(batch, 1,) group * n, slots] from mask and window: 0 if a row sees a slot, -inf otherwise."""
        if isinstance(cache, PlacedRows):
            visible = cache.slot_mask(mask, positions, window)
        else:
            visible = _slot_mask(mask, positions, window, cache)
        additive = torch.zeros(visible.shape, dtype=self.computes_in, device=mask.device)
        additive.masked_fill_(~visible, float("-inf"))
        return additive.repeat(group, 1) if additive.dim() == 2 else additive.repeat(1, group, 1)[:, None]


def _slot_mask(
    mask: torch.Tensor, positions: torch.Tensor, window: int | None, cache: KVCache | TextPrefix | LentKeys | None
) -> torch.Tensor:
    """Return bool [(batch,) n, slots]: the slots that each row sees."""
    n, committed = positions.shape[-1], cache.length if cache is not None else 0
    slots = cache.visible(n) if cache is not None else n
    visible = torch.zeros(*mask.shape[:-1], slots, dtype=torch.bool, device=mask.device)
    visible[..., :committed] = True
    visible[..., committed + n - mask.shape[-1] : committed + n] = mask
    if window is None:
        return visible
    # A committed token's slot is its position; a tree node's is not.
    slot_positions = torch.arange(slots, device=mask.device).repeat(*positions.shape[:-1], 1)
    slot_positions[..., committed : committed + n] = positions[..., : slots - committed]
    return visible & (slot_positions.unsqueeze(-2) > positions[..., None] - window)
