"""Rotary position embeddings."""

import torch

from localspec.families.architecture import TransformerConfig
from localspec.families.rope import Rope


class RotaryEmbedding:
    """Rotary position embedding: rotates the first `rotary_dim` channels of a head by angles that grow with position.

    Length-dependent scaling (dynamic NTK, longrope) is fixed in `rope`, so that a token's rotation never changes as a
    text grows.
    """

    def __init__(self, rope: Rope, device: torch.device | str) -> None:
        self.rotary_dim, self.attention_scaling = rope.rotary_dim, rope.attention_scaling
        self.inv_freq = torch.from_numpy(rope.inv_freq).repeat(2).to(device)
        half = torch.ones(self.rotary_dim // 2)
        self.signs = torch.cat([-half, half]).to(device)
        self.local = None if rope.local is None else RotaryEmbedding(rope.local, device)
        factors = rope.query_factors
        self._query_factors = None if factors is None else torch.from_numpy(factors).to(device)
        self._query_period = rope.query_period

    def of_layer(self, config: TransformerConfig, layer: int) -> "RotaryEmbedding":
        """Return the rotary embedding of a layer."""
        return self if self.local is None or not config.is_local(layer) else self.local

    def query_factors(self, positions: torch.Tensor, dtype: torch.dtype) -> torch.Tensor | None:
        """Return the factors that scale queries by position, [(batch,) n, 1, 1]; None if queries are not scaled."""
        if self._query_factors is None:
            return None
        turns = (positions // self._query_period).clamp(max=len(self._query_factors) - 1)
        return self._query_factors[turns].to(dtype)[..., None, None]

    def cos_sin(self, positions: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cosines and signed sines for `apply_rope`, each [(batch,) n, 1, rotary_dim]."""
        angles = positions.float()[..., None] * self.inv_freq
        cos, sin = angles.cos() * self.attention_scaling, angles.sin() * (self.attention_scaling * self.signs)
        return cos.to(dtype).unsqueeze(-2), sin.to(dtype).unsqueeze(-2)


def apply_rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate the first channels of [batch, n, heads, head_dim]. Channels after `rotary_dim` do not change."""
    rotary_dim = cos.shape[-1]
    rotary = x if x.shape[-1] == rotary_dim else x[..., :rotary_dim]
    rotated = torch.addcmul(rotary * cos, torch.roll(rotary, rotary_dim // 2, -1), sin)
    return rotated if rotary is x else torch.cat([rotated, x[..., rotary_dim:]], -1)


def apply_interleaved_rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate pairs of neighbouring channels, as GLM-4 does. `cos` and the signed `sin` are as in `apply_rope`."""
    rotary_dim = cos.shape[-1]
    first, second = x[..., :rotary_dim:2], x[..., 1:rotary_dim:2]
    cos, sin = cos[..., : rotary_dim // 2], sin[..., rotary_dim // 2 :]
    rotated = torch.stack([first * cos - second * sin, second * cos + first * sin], -1).flatten(-2)
    return rotated if rotary_dim == x.shape[-1] else torch.cat([rotated, x[..., rotary_dim:]], -1)
