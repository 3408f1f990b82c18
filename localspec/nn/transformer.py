"""One lean decoder-only transformer that reads Llama, Mistral, Qwen2, Qwen3 and Phi-3 weights.

It knows tensors only: no tokenizer, no file, no device choice. `weight_map` says which tensors of the Hugging Face
layout each of ours is made of, in both directions.
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
from localspec.nn.linear import Linear, LinearKind, LowRank, QuantizedLinear


@dataclass(frozen=True)
class TransformerConfig:
    """What the families differ in. Widths are channels; a window counts positions, the own one included."""

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    windows: tuple[int | None, ...]  # one a layer
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
        layers, window = config.num_hidden_layers, None if family == "llama" else config.sliding_window
        kinds = ["sliding_attention" if window else "full_attention"] * layers
        if family in ("qwen2", "qwen3"):
            kinds = config.layer_types
        if unknown := set(kinds) - {"full_attention", "sliding_attention"}:
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
            windows=tuple(window if kind == "sliding_attention" else None for kind in kinds),
            tied=config.tie_word_embeddings,
            qkv_bias=bias or family == "qwen2",
            o_bias=bias,
            mlp_bias=family == "llama" and bool(config.mlp_bias),
            qk_norm=family == "qwen3",
        )

    @property
    def num_layers(self) -> int:
        return len(self.windows)


def weight_map(shape: TransformerConfig) -> dict[str, list[tuple[str, int]]]:
    """Our parameter -> the Hugging Face tensors it is made of, stacked along the first axis, with their rows."""
    query, key = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    parts: dict[str, list[tuple[str, int]]] = {"embedding": [("model.embed_tokens.weight", shape.vocab_size)]}
    for i in range(shape.num_layers):
        ours, theirs = f"layers.{i}.", f"model.layers.{i}."
        attention, inner = theirs + "self_attn.", theirs + "mlp."
        if shape.family == "phi3":
            qkv, gate_up = [("qkv_proj", query + 2 * key)], [("gate_up_proj", 2 * shape.intermediate_size)]
        else:
            qkv = [("q_proj", query), ("k_proj", key), ("v_proj", key)]
            gate_up = [("gate_proj", shape.intermediate_size), ("up_proj", shape.intermediate_size)]
        linears = {
            "qkv": ([(attention + name, rows) for name, rows in qkv], shape.qkv_bias),
            "output": ([(attention + "o_proj", shape.hidden_size)], shape.o_bias),
            "gate_up": ([(inner + name, rows) for name, rows in gate_up], shape.mlp_bias),
            "down": ([(inner + "down_proj", shape.hidden_size)], shape.mlp_bias),
        }
        for name, (made_of, bias) in linears.items():
            parts[f"{ours}{name}.weight"] = [(part + ".weight", rows) for part, rows in made_of]
            if bias:
                parts[f"{ours}{name}.bias"] = [(part + ".bias", rows) for part, rows in made_of]
        parts[ours + "attention_norm"] = [(theirs + "input_layernorm.weight", shape.hidden_size)]
        parts[ours + "inner_norm"] = [(theirs + "post_attention_layernorm.weight", shape.hidden_size)]
        if shape.qk_norm:
            parts[ours + "query_norm"] = [(attention + "q_norm.weight", shape.head_dim)]
            parts[ours + "key_norm"] = [(attention + "k_norm.weight", shape.head_dim)]
    parts["norm"] = [("model.norm.weight", shape.hidden_size)]
    if not shape.tied:
        parts["head.weight"] = [("lm_head.weight", shape.vocab_size)]
    return parts


class Rotary:
    """Rotary position embedding: turns the first `width` channels of a head by angles that grow with the position.

    Length-dependent scaling (dynamic NTK, longrope) is fixed here from `context`, the longest text this model will
    hold, so that a token's rotation never changes while a text grows.
    """

    def __init__(self, config: PretrainedConfig, context: int, device: torch.device) -> None:
        parameters = config.rope_parameters
        kind = parameters["rope_type"]
        if kind == "default":
            part = parameters.get("partial_rotary_factor", 1.0) if config.model_type == "phi3" else 1.0
            self.width = int(TransformerConfig.of(config).head_dim * part)
            frequencies = 1.0 / parameters["rope_theta"] ** (torch.arange(0, self.width, 2).float() / self.width)
            self.scaling = 1.0
        elif kind in ROPE_INIT_FUNCTIONS:
            frequencies, self.scaling = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len=context)
            self.width = 2 * len(frequencies)
        else:
            raise LocalspecError(
                f"The model scales its positions by '{kind}', which localspec does not know; choose another model."
            )
        self.frequencies = frequencies.float().repeat(2).to(device)
        self.signs = torch.cat([-torch.ones(self.width // 2), torch.ones(self.width // 2)]).to(device)

    def at(self, positions: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and signed sines, [n, 1, width] each: x * cosines + (swapped halves of x) * sines is x turned."""
        angles = torch.outer(positions.float(), self.frequencies)
        cosines, sines = angles.cos() * self.scaling, angles.sin() * (self.scaling * self.signs)
        return cosines.to(dtype)[:, None], sines.to(dtype)[:, None]


WIDEST = 128  # rows: no draft tree has so many
Turns = tuple[torch.Tensor, torch.Tensor]
Cache = KVCache | FrozenPrefix
LayerAdapters = Mapping[str, LowRank]
_NONE: Mapping[Any, Any] = {}


def _turn(x: torch.Tensor, turns: Turns) -> torch.Tensor:
    """Turns the first channels of [batch, n, heads, head_dim]; what lies beyond the rotary width passes."""
    cosines, sines = turns
    width = cosines.shape[-1]
    part = x if x.shape[-1] == width else x[..., :width]
    turned = torch.addcmul(part * cosines, torch.roll(part, width // 2, -1), sines)
    return turned if part is x else torch.cat([turned, x[..., width:]], -1)


class Layer(nn.Module):
    """Attention and gated feed-forward, each behind its norm."""

    def __init__(
        self,
        shape: TransformerConfig,
        index: int,
        weights: Mapping[str, torch.Tensor],
        kind: LinearKind,
        attend: Attention,
    ) -> None:
        super().__init__()
        self.config, self.index, self.attend = shape, index, attend

        def linear(name: str) -> Linear | QuantizedLinear:
            return kind(weights[f"layers.{index}.{name}.weight"], weights.get(f"layers.{index}.{name}.bias"))

        def vector(name: str) -> nn.Parameter:
            return nn.Parameter(_computed(weights[f"layers.{index}.{name}"], kind), requires_grad=False)

        self.qkv, self.output, self.gate_up, self.down = (
            linear("qkv"),
            linear("output"),
            linear("gate_up"),
            linear("down"),
        )
        self.attention_norm, self.inner_norm = vector("attention_norm"), vector("inner_norm")
        if shape.qk_norm:
            self.query_norm, self.key_norm = vector("query_norm"), vector("key_norm")

    def forward(
        self, x: torch.Tensor, turns: Turns, mask: torch.Tensor, cache: Cache | None, adapters: LayerAdapters = _NONE
    ) -> torch.Tensor:
        near = _norm(x, self.attention_norm, self.config.rms_norm_eps)
        x = x + self.output(self._attend(near, turns, mask, cache, adapters.get("qkv")), adapters.get("output"))
        near = _norm(x, self.inner_norm, self.config.rms_norm_eps)
        gate, up = self.gate_up(near, adapters.get("gate_up")).split(self.config.intermediate_size, -1)
        gate = silu(gate) if self.attend is invariant and isinstance(cache, KVCache) else F.silu(gate)
        down: torch.Tensor = self.down(gate * up, adapters.get("down"))
        return x + down

    def _form(self, rows: int, cache: Cache | None) -> Attention:
        """Training needs a gradient, not bits; prefill reads the same rows with and without speculation."""
        return self.attend if isinstance(cache, KVCache) and rows <= WIDEST else fastest

    def _attend(
        self, x: torch.Tensor, turns: Turns, mask: torch.Tensor, cache: Cache | None, adapter: LowRank | None
    ) -> torch.Tensor:
        shape = self.config
        batch, n, heads, num_kv_heads, width = *x.shape[:2], shape.num_heads, shape.num_kv_heads, shape.head_dim
        group = heads // num_kv_heads
        qkv = self.qkv(x, adapter).view(batch, n, heads + 2 * num_kv_heads, width)
        qk, values = qkv[:, :, : heads + num_kv_heads], qkv[:, :, heads + num_kv_heads :].transpose(1, 2)
        if shape.qk_norm:
            queries, keys = qk[:, :, :heads], qk[:, :, heads:]
            qk = torch.cat(
                [_norm(queries, self.query_norm, shape.rms_norm_eps), _norm(keys, self.key_norm, shape.rms_norm_eps)], 2
            )
        qk = _turn(qk, turns)
        keys = qk[:, :, heads:].transpose(1, 2)
        if cache is not None:
            cached_keys, cached_values = cache.write(self.index, keys[0], values[0])
            keys, values = cached_keys[None], cached_values[None]
        # The queries that share a key head become more rows of it, so that an explicit mask never copies keys.
        packed = (
            qk[:, :, :heads]
            .view(batch, n, num_kv_heads, group, width)
            .permute(0, 2, 3, 1, 4)
            .reshape(batch, num_kv_heads, group * n, width)
        )
        mixed = self._form(n, cache)(packed, keys, values, mask)
        return mixed.view(batch, num_kv_heads, group, n, width).permute(0, 3, 1, 2, 4).reshape(batch, n, heads * width)


class Transformer(nn.Module):
    """Embedding, layers, final norm, head. Weights by our names, as `weight_map` lists them; each is read once.

    With linears that compute in fp32 so is all that lies between them; embedding and cache keep the weights' precision.
    `head` is the kind of the head, that of the other linears by default.
    """

    def __init__(
        self,
        shape: TransformerConfig,
        rotary: Rotary,
        weights: Mapping[str, torch.Tensor],
        kind: LinearKind = Linear,
        attend: Attention = fastest,
        head: LinearKind | None = None,
    ) -> None:
        super().__init__()
        self.config, self.rotary, self.kind = shape, rotary, kind
        embedding = weights["embedding"]
        self.embedding = nn.Parameter(embedding, requires_grad=False)
        self.computes_in = kind.computes_in or embedding.dtype
        self.layers = nn.ModuleList(Layer(shape, index, weights, kind, attend) for index in range(shape.num_layers))
        self.norm = nn.Parameter(_computed(weights["norm"], kind), requires_grad=False)
        self.head = (head or kind)(embedding if shape.tied else weights["head.weight"])
        if shape.tied and isinstance(self.head, Linear):
            self.head.weight = self.embedding

    @property
    def packed(self) -> bool:
        """Whether weights are rounded to a few bits; a head of another kind than the other linears may be dense."""
        return issubclass(self.kind, QuantizedLinear)

    def forward(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        mask: torch.Tensor,
        cache: Cache | None = None,
        layers: Sequence[int] | None = None,
        adapters: Mapping[int, LayerAdapters] = _NONE,
    ) -> torch.Tensor:
        """Hidden states behind the final norm, [batch, n, width].

        tokens [batch, n], or what stands for them [batch, n, width]; positions [n]; mask bool [n, n], True where a row
        may look at another new row. With a cache (batch 1) every row sees all committed tokens too, unless the mask is
        [n, committed + n] and says which; keys and values of a KVCache are written behind them. Without one nothing is
        written and gradients flow: the training form of the same code. `layers` runs only those; `adapters` act in
        this forward only, by layer and by the name of the linear layer.
        """
        x = (tokens if tokens.is_floating_point() else F.embedding(tokens, self.embedding)).to(self.computes_in)
        turns = self.rotary.at(positions, x.dtype)
        masks = {window: self._mask(mask, positions, window, cache) for window in set(self.config.windows)}
        for index in range(len(self.layers)) if layers is None else layers:
            x = self.layers[index](x, turns, masks[self.config.windows[index]], cache, adapters.get(index, _NONE))
        return _norm(x, self.norm, self.config.rms_norm_eps)

    def _mask(
        self, mask: torch.Tensor, positions: torch.Tensor, window: int | None, cache: Cache | None
    ) -> torch.Tensor:
        """Additive [group * n, slots] from who may see whom among the new rows, the committed tokens and the window."""
        n, committed = len(positions), cache.length if cache is not None else 0
        seen = torch.zeros(n, cache.visible(n) if cache is not None else n, dtype=torch.bool, device=mask.device)
        seen[:, :committed] = True
        seen[:, committed + n - mask.shape[1] : committed + n] = mask
        if window is not None:
            # Committed slots stand at their own positions; a tree node's position is not its slot.
            where = torch.arange(seen.shape[1], device=mask.device)
            where[committed : committed + n] = positions
            seen &= where > positions[:, None] - window
        dtype = self.embedding.dtype if isinstance(cache, KVCache) else self.computes_in
        additive = torch.zeros(seen.shape, dtype=dtype, device=mask.device).masked_fill_(~seen, float("-inf"))
        return additive.repeat(self.config.num_heads // self.config.num_kv_heads, 1)


def _computed(vector: torch.Tensor, kind: LinearKind) -> torch.Tensor:
    return vector.to(kind.computes_in or vector.dtype)


def _norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    return F.rms_norm(x, weight.shape, weight, epsilon)
