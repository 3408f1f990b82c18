"""One lean decoder-only transformer that reads Llama, Mistral, Qwen2, Qwen3 and Phi-3 weights.

It knows tensors only: no tokenizer, no file, no device choice. Parameters are called as in the Hugging Face code of
Llama, with query, key and value stacked as `qkv_proj`, gate and up as `gate_up_proj` (as Phi-3 has them). `weight_map`
says which tensors of the Hugging Face layout each of ours is made of, in both directions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import PretrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from localspec.errors import LocalspecError
from localspec.nn.attention import Attention, fastest, invariant, silu
from localspec.nn.cache import FrozenPrefix, KVCache
from localspec.nn.linear import LayerClass, Linear, LoraAdapter, QuantizedLinear
from localspec.nn.stored_names import use_stored_names


@dataclass(frozen=True)
class TransformerConfig:
    """What the families differ in. Sizes are in channels; a window counts positions, the token's own included."""

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    sliding_windows: tuple[int | None, ...]  # one per layer; None sees everything
    tied: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool

    @classmethod
    def of(cls, config: PretrainedConfig) -> "TransformerConfig":
        """Reads a Hugging Face config. Raises LocalspecError where this transformer would not compute the same."""
        family = config.model_type
        if (activation := config.hidden_act) not in ("silu", "swish"):
            raise LocalspecError(
                f"The model's activation is '{activation}', and localspec computes 'silu' only; choose another model."
            )
        # A config may carry keys of other families; each is read only where the stock model reads it.
        num_layers, window = config.num_hidden_layers, None if family == "llama" else config.sliding_window
        layer_types = ["sliding_attention" if window else "full_attention"] * num_layers
        if family in ("qwen2", "qwen3"):
            layer_types = config.layer_types
        if unknown := set(layer_types) - {"full_attention", "sliding_attention"}:
            raise LocalspecError(
                f"The model has layers of type '{unknown.pop()}', which localspec cannot serve; choose another model."
            )
        bias = family in ("llama", "qwen3") and bool(config.attention_bias)
        return cls(
            family=family,
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_heads=config.num_attention_heads,
            num_kv_heads=config.num_key_value_heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
            rms_norm_eps=config.rms_norm_eps,
            sliding_windows=tuple(window if layer_type == "sliding_attention" else None for layer_type in layer_types),
            tied=config.tie_word_embeddings,
            qkv_bias=bias or family == "qwen2",
            o_bias=bias,
            mlp_bias=family == "llama" and bool(config.mlp_bias),
            qk_norm=family == "qwen3",
        )

    @property
    def num_layers(self) -> int:
        return len(self.sliding_windows)

    @property
    def cache_shape(self) -> tuple[int, int, int]:
        """(layers, key and value heads, channels of a head) of a cache."""
        return self.num_layers, self.num_kv_heads, self.head_dim


def weight_map(config: TransformerConfig) -> dict[str, list[tuple[str, int]]]:
    """Our parameter -> the Hugging Face tensors it is made of, stacked along the first axis, with their rows."""
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    parts: dict[str, list[tuple[str, int]]] = {"embed_tokens": [("model.embed_tokens.weight", config.vocab_size)]}
    for index in range(config.num_layers):
        ours, theirs = f"layers.{index}.", f"model.layers.{index}."
        self_attn, mlp = theirs + "self_attn.", theirs + "mlp."
        if config.family == "phi3":
            qkv, gate_up = [("qkv_proj", queries + 2 * keys)], [("gate_up_proj", 2 * config.intermediate_size)]
        else:
            qkv = [("q_proj", queries), ("k_proj", keys), ("v_proj", keys)]
            gate_up = [("gate_proj", config.intermediate_size), ("up_proj", config.intermediate_size)]
        linears = {
            "qkv_proj": ([(self_attn + name, rows) for name, rows in qkv], config.qkv_bias),
            "o_proj": ([(self_attn + "o_proj", config.hidden_size)], config.o_bias),
            "gate_up_proj": ([(mlp + name, rows) for name, rows in gate_up], config.mlp_bias),
            "down_proj": ([(mlp + "down_proj", config.hidden_size)], config.mlp_bias),
        }
        for name, (made_of, bias) in linears.items():
            parts[f"{ours}{name}.weight"] = [(part + ".weight", rows) for part, rows in made_of]
            if bias:
                parts[f"{ours}{name}.bias"] = [(part + ".bias", rows) for part, rows in made_of]
        for name in ("input_layernorm", "post_attention_layernorm"):
            parts[ours + name] = [(f"{theirs}{name}.weight", config.hidden_size)]
        if config.qk_norm:
            for name in ("q_norm", "k_norm"):
                parts[ours + name] = [(f"{self_attn}{name}.weight", config.head_dim)]
    parts["norm"] = [("model.norm.weight", config.hidden_size)]
    if not config.tied:
        parts["lm_head.weight"] = [("lm_head.weight", config.vocab_size)]
    return parts


def in_features(name: str, config: TransformerConfig) -> int | None:
    """The columns of one of our parameters: None for a vector, else the channels that the layer takes in."""
    if name.endswith((".bias", "norm")):
        return None
    layer = name.removesuffix(".weight").rpartition(".")[2]
    sizes = {"o_proj": config.num_heads * config.head_dim, "down_proj": config.intermediate_size}
    return sizes.get(layer, config.hidden_size)


class RotaryEmbedding:
    """Rotary position embedding: rotates the first `rotary_dim` channels of a head by angles that grow with position.

    Length-dependent scaling (dynamic NTK, longrope) is fixed here from `context`, the longest text this model will
    hold, so that a token's rotation never changes while a text grows.
    """

    def __init__(self, config: PretrainedConfig, context: int, device: torch.device) -> None:
        parameters = config.rope_parameters
        rope_type = parameters["rope_type"]
        if rope_type == "default":
            factor = parameters.get("partial_rotary_factor", 1.0) if config.model_type == "phi3" else 1.0
            self.rotary_dim = int(TransformerConfig.of(config).head_dim * factor)
            channels = torch.arange(0, self.rotary_dim, 2).float()
            inv_freq = 1.0 / parameters["rope_theta"] ** (channels / self.rotary_dim)
            self.attention_scaling = 1.0
        elif rope_type in ROPE_INIT_FUNCTIONS:
            init = ROPE_INIT_FUNCTIONS[rope_type]
            inv_freq, self.attention_scaling = init(config, torch.device("cpu"), seq_len=context)
            self.rotary_dim = 2 * len(inv_freq)
        else:
            raise LocalspecError(
                f"The model scales its positions by '{rope_type}', which localspec does not know; choose another model."
            )
        self.inv_freq = inv_freq.float().repeat(2).to(device)
        half = torch.ones(self.rotary_dim // 2)
        self.signs = torch.cat([-half, half]).to(device)

    def cos_sin(self, positions: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and signed sines, [n, 1, rotary_dim] each, as `apply_rope` takes them."""
        angles = torch.outer(positions.float(), self.inv_freq)
        cos, sin = angles.cos() * self.attention_scaling, angles.sin() * (self.attention_scaling * self.signs)
        return cos.to(dtype)[:, None], sin.to(dtype)[:, None]


def apply_rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotates the first channels of [batch, n, heads, head_dim]; those after `rotary_dim` pass unchanged."""
    rotary_dim = cos.shape[-1]
    rotary = x if x.shape[-1] == rotary_dim else x[..., :rotary_dim]
    rotated = torch.addcmul(rotary * cos, torch.roll(rotary, rotary_dim // 2, -1), sin)
    return rotated if rotary is x else torch.cat([rotated, x[..., rotary_dim:]], -1)


MOST_TREE_ROWS = 128  # no draft tree has more
PositionEmbeddings = tuple[torch.Tensor, torch.Tensor]  # cos and sin, as `RotaryEmbedding.cos_sin` gives them
CacheLike = KVCache | FrozenPrefix
LayerAdapters = Mapping[str, LoraAdapter]
_NONE: Mapping[Any, Any] = {}


class Layer(nn.Module):
    """Attention and a gated feed-forward network, each after its norm."""

    def __init__(
        self,
        config: TransformerConfig,
        index: int,
        weights: Mapping[str, torch.Tensor],
        linear_class: LayerClass,
        attention: Attention,
    ) -> None:
        super().__init__()
        self.config, self.index, self.attention = config, index, attention

        def linear(name: str) -> Linear | QuantizedLinear:
            return linear_class(weights[f"layers.{index}.{name}.weight"], weights.get(f"layers.{index}.{name}.bias"))

        def norm(name: str) -> nn.Parameter:
            return nn.Parameter(_computed(weights[f"layers.{index}.{name}"], linear_class), requires_grad=False)

        self.qkv_proj, self.o_proj = linear("qkv_proj"), linear("o_proj")
        self.gate_up_proj, self.down_proj = linear("gate_up_proj"), linear("down_proj")
        self.input_layernorm, self.post_attention_layernorm = norm("input_layernorm"), norm("post_attention_layernorm")
        if config.qk_norm:
            self.q_norm, self.k_norm = norm("q_norm"), norm("k_norm")
        use_stored_names(self)

    def forward(
        self,
        x: torch.Tensor,
        position_embeddings: PositionEmbeddings,
        mask: torch.Tensor,
        cache: CacheLike | None,
        adapters: LayerAdapters = _NONE,
    ) -> torch.Tensor:
        h = _norm(x, self.input_layernorm, self.config.rms_norm_eps)
        h = self._self_attention(h, position_embeddings, mask, cache, adapters.get("qkv_proj"))
        x = x + self.o_proj(h, adapters.get("o_proj"))
        h = _norm(x, self.post_attention_layernorm, self.config.rms_norm_eps)
        gate, up = self.gate_up_proj(h, adapters.get("gate_up_proj")).split(self.config.intermediate_size, -1)
        gate = silu(gate) if self.attention is invariant and isinstance(cache, KVCache) else F.silu(gate)
        down: torch.Tensor = self.down_proj(gate * up, adapters.get("down_proj"))
        return x + down

    def _attention_for(self, rows: int, cache: CacheLike | None) -> Attention:
        """Training needs a gradient, not bits; prefill reads the same rows with and without speculation."""
        return self.attention if isinstance(cache, KVCache) and rows <= MOST_TREE_ROWS else fastest

    def _self_attention(
        self,
        h: torch.Tensor,
        position_embeddings: PositionEmbeddings,
        mask: torch.Tensor,
        cache: CacheLike | None,
        adapter: LoraAdapter | None,
    ) -> torch.Tensor:
        config, (batch, n) = self.config, h.shape[:2]
        heads, kv_heads, head_dim, eps = config.num_heads, config.num_kv_heads, config.head_dim, config.rms_norm_eps
        group = heads // kv_heads
        qkv = self.qkv_proj(h, adapter).view(batch, n, heads + 2 * kv_heads, head_dim)
        qk, v = qkv[:, :, : heads + kv_heads], qkv[:, :, heads + kv_heads :].transpose(1, 2)
        if config.qk_norm:
            q, k = qk[:, :, :heads], qk[:, :, heads:]
            qk = torch.cat([_norm(q, self.q_norm, eps), _norm(k, self.k_norm, eps)], 2)
        qk = apply_rope(qk, *position_embeddings)
        q, k = qk[:, :, :heads], qk[:, :, heads:].transpose(1, 2)
        if cache is not None:
            cached_k, cached_v = cache.write(self.index, k[0], v[0])
            k, v = cached_k[None], cached_v[None]
        # The queries that share a key head become more rows of it, so that an explicit mask never copies keys.
        grouped = q.view(batch, n, kv_heads, group, head_dim).permute(0, 2, 3, 1, 4)
        grouped = grouped.reshape(batch, kv_heads, group * n, head_dim)
        mixed = self._attention_for(n, cache)(grouped, k, v, mask)
        mixed = mixed.view(batch, kv_heads, group, n, head_dim).permute(0, 3, 1, 2, 4)
        return mixed.reshape(batch, n, heads * head_dim)


class Transformer(nn.Module):
    """Embedding, layers, final norm, head. Weights have our names, as `weight_map` lists them; each is read once.

    With linears that compute in fp32, all that lies between them does too; embedding and cache keep the precision of
    the weights. `lm_head_class` is the class of the head, by default that of the other linears.
    """

    def __init__(
        self,
        config: TransformerConfig,
        rotary: RotaryEmbedding,
        weights: Mapping[str, torch.Tensor],
        linear_class: LayerClass = Linear,
        attention: Attention = fastest,
        lm_head_class: LayerClass | None = None,
    ) -> None:
        super().__init__()
        self.config, self.rotary, self.linear_class = config, rotary, linear_class
        embed_tokens = weights["embed_tokens"]
        self.embed_tokens = nn.Parameter(embed_tokens, requires_grad=False)
        self.computes_in = linear_class.computes_in or embed_tokens.dtype
        self.layers = nn.ModuleList(
            Layer(config, index, weights, linear_class, attention) for index in range(config.num_layers)
        )
        self.norm = nn.Parameter(_computed(weights["norm"], linear_class), requires_grad=False)
        self.lm_head = (lm_head_class or linear_class)(embed_tokens if config.tied else weights["lm_head.weight"])
        if config.tied and isinstance(self.lm_head, Linear):
            self.lm_head.weight = self.embed_tokens
        use_stored_names(self)

    @property
    def packed(self) -> bool:
        """Whether weights are rounded to a few bits; a head of another class than the other linears may be dense."""
        return issubclass(self.linear_class, QuantizedLinear)

    def forward(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        mask: torch.Tensor,
        cache: CacheLike | None = None,
        layers: Sequence[int] | None = None,
        adapters: Mapping[int, LayerAdapters] = _NONE,
    ) -> torch.Tensor:
        """Returns hidden states after the final norm, [batch, n, hidden_size].

        tokens [batch, n], or embeddings in their place [batch, n, hidden_size]; positions [n]; mask bool [n, n], True
        where a row may look at another new row. With a cache (batch 1) every row sees all committed tokens too, unless
        the mask is [n, committed + n] and says which; keys and values of a KVCache are written after them. Without one
        nothing is written and gradients flow: the training form of the same code. `layers` runs only those; `adapters`
        act in this forward only, by layer and by the name of the linear layer.
        """
        x = (tokens if tokens.is_floating_point() else F.embedding(tokens, self.embed_tokens)).to(self.computes_in)
        masks = {
            window: self._additive_mask(mask, positions, window, cache) for window in set(self.config.sliding_windows)
        }
        position_embeddings = self.rotary.cos_sin(positions, x.dtype)
        for index in range(len(self.layers)) if layers is None else layers:
            layer_mask = masks[self.config.sliding_windows[index]]
            x = self.layers[index](x, position_embeddings, layer_mask, cache, adapters.get(index, _NONE))
        return _norm(x, self.norm, self.config.rms_norm_eps)

    def _additive_mask(
        self, mask: torch.Tensor, positions: torch.Tensor, window: int | None, cache: CacheLike | None
    ) -> torch.Tensor:
        """[group * n, slots]: 0 where a row sees a slot, -inf elsewhere; from the mask of new rows, and the window."""
        n, committed = len(positions), cache.length if cache is not None else 0
        seen = torch.zeros(n, cache.visible(n) if cache is not None else n, dtype=torch.bool, device=mask.device)
        seen[:, :committed] = True
        seen[:, committed + n - mask.shape[1] : committed + n] = mask
        if window is not None:
            # A committed token's slot is its position; a tree node's is not.
            slot_positions = torch.arange(seen.shape[1], device=mask.device)
            slot_positions[committed : committed + n] = positions
            seen &= slot_positions > positions[:, None] - window
        dtype = self.embed_tokens.dtype if isinstance(cache, KVCache) else self.computes_in
        additive = torch.zeros(seen.shape, dtype=dtype, device=mask.device).masked_fill_(~seen, float("-inf"))
        return additive.repeat(self.config.num_heads // self.config.num_kv_heads, 1)


def _computed(vector: torch.Tensor, linear_class: LayerClass) -> torch.Tensor:
    return vector.to(linear_class.computes_in or vector.dtype)


def _norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return F.rms_norm(x, weight.shape, weight, eps)
