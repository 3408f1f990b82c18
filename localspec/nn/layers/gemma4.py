"""The arithmetic that Gemma 4 adds to Gemma 3: layers of different sizes, and additional inputs by token id.

Values are normed, without weights. Some layers read the keys and values of an earlier layer. In some, a single
projection makes both keys and values. After the MLP, a layer adds a product with its additional input for the token,
and multiplies its states by a number.
"""

from collections.abc import Callable
from functools import cache as cached

import torch
import torch.nn.functional as F

from localspec.families.architecture import TransformerConfig
from localspec.nn.layers.llama import LayerRows, LlamaLayer, norm
from localspec.nn.rotary import apply_rope


class Gemma4Layer(LlamaLayer):
    """A layer of Gemma 4, with weights named as in `weight_map`."""

    def read_more(self) -> None:
        """Read the weights that follow the MLP."""
        if self.config.per_layer_inputs[0]:
            self.per_layer_input_gate = self.linear("per_layer_input_gate")
            self.per_layer_projection = self.linear("per_layer_projection")
            self.per_layer_norm = self.vector("per_layer_norm")
        if self.config.layer_scalars:
            self.layer_scalar = self.vector("layer_scalar")

    def forward(self, x: torch.Tensor, rows: LayerRows) -> torch.Tensor:
        x = super().forward(x, rows)
        if rows.own_input is not None:
            gate = self.activation(self.per_layer_input_gate(x))
            x = x + norm(self.per_layer_projection(gate * rows.own_input), self.per_layer_norm, self.config)
        return x * self.layer_scalar if self.config.layer_scalars else x

    def self_attention(self, h: torch.Tensor, rows: LayerRows) -> torch.Tensor:
        sizes, heads = self.sizes, self.config.num_heads
        cos, sin, _ = rows.position_embeddings
        key_heads = sizes.num_kv_heads if sizes.keys_of is None else 0
        qkv = self.split_heads(self.qkv_proj(h, rows.adapters.get("qkv_proj")))
        qk = apply_rope(self.normed(qkv[:, :, : heads + key_heads]), cos, sin)
        if sizes.keys_of is None:
            v = qkv[:, :, heads:] if sizes.keys_are_values else qkv[:, :, heads + key_heads :]
            v = F.rms_norm(v, (sizes.head_dim,), eps=self.config.rms_norm_eps)
            k, v = self.with_cached(qk[:, :, heads:], v, rows.cache)
            if self.index in rows.read:
                rows.read[self.index] = k, v
        else:
            shared = rows.read[sizes.keys_of]
            assert shared is not None, "this layer reads keys of a layer that is left out"
            k, v = shared
        return self.attend(self.grouped(qk[:, :, :heads]), k, v, rows)


def layer_inputs(
    config: TransformerConfig,
    tokens: torch.Tensor,
    x: torch.Tensor,
    table: torch.Tensor,
    projection: Callable[[torch.Tensor], torch.Tensor],
    projection_norm: torch.Tensor,
) -> torch.Tensor:
    """Return each layer's additional input for each token, [batch, n, layers, channels].

    The inputs are the tokens' rows of a table plus a projection of the tokens' embeddings x.
    """
    assert not tokens.is_floating_point(), (
        "this model needs token ids, because its layers look up an input for each of them"
    )
    width, layers = config.per_layer_inputs[0], config.num_layers
    of_tokens = F.embedding(tokens, table).to(x.dtype) * rounded(width**0.5, table.dtype)
    of_states = projection(x) * config.hidden_size**-0.5
    of_states = norm(of_states.view(*tokens.shape, layers, width), projection_norm, config)
    inputs: torch.Tensor = (of_states + of_tokens.view(of_states.shape)) * 2.0**-0.5
    return inputs


@cached
def rounded(number: float, dtype: torch.dtype) -> float:
    """Return a number rounded to a type."""
    return float(torch.tensor(number, dtype=dtype))
