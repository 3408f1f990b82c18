"""Layers of Qwen3.5: every fourth has attention with a gated output; the others have a recurrent state."""

import torch

from localspec.nn.attention import invariant
from localspec.nn.delta_net import GatedDeltaNet
from localspec.nn.layers.llama import LayerRows, LlamaLayer
from localspec.nn.placed_rows import PlacedChain
from localspec.nn.rotary import apply_rope
from localspec.nn.states import StateCache


class Qwen35Layer(LlamaLayer):
    """A layer of Qwen3.5. `delta` is None in a layer with attention."""

    delta: GatedDeltaNet | None

    def read_mixer(self) -> None:
        """Read the weights of attention, or of the recurrent state."""
        config, exact = self.config, self.attention is invariant
        self.delta = None
        if config.delta is None or not config.is_recurrent(self.index):
            return super().read_mixer()
        name = f"layers.{self.index}.delta."
        self.delta = GatedDeltaNet(config.delta, config.rms_norm_eps, self._weights, name, self._linear_class, exact)
        return None

    def mix(self, h: torch.Tensor, rows: LayerRows) -> torch.Tensor:
        """Return the output of attention, or of the recurrent state, for rows [batch, n, hidden_size]."""
        if self.delta is None:
            return super().mix(h, rows)
        cache = rows.cache
        assert isinstance(cache, StateCache | PlacedChain | None), "recurrent layers can read only chains of tokens"
        output: torch.Tensor = self.delta(h, cache, self.index)
        return output

    def self_attention(self, h: torch.Tensor, rows: LayerRows) -> torch.Tensor:
        """Return the attention output of rows times the sigmoid of their gates, [batch, n, heads * head_dim]."""
        heads, kv_heads = self.config.num_heads, self.sizes.num_kv_heads
        cos, sin, _ = rows.position_embeddings
        qkv = self.split_heads(
            self.qkv_proj(h, rows.adapters.get("qkv_proj"))
        )  # a query, its gate, a query, its gate, …, keys, values
        gate = qkv[:, :, 1 : 2 * heads : 2].flatten(2)
        q, k, v = qkv[:, :, : 2 * heads : 2], qkv[:, :, 2 * heads : -kv_heads], qkv[:, :, -kv_heads:]
        qk = apply_rope(self.normed(torch.cat([q, k], 2)), cos, sin)
        k, v = self.with_cached(qk[:, :, heads:], v, rows.cache)
        mixed = self.attend(self.grouped(qk[:, :, :heads]), k, v, rows)
        return mixed * torch.sigmoid(gate)
