"""Attention over rows of a draft with keys and values of its own, by torch: what a drafter's own layers need."""

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F

from localspec.models.architecture import TransformerConfig
from localspec.nn.rotary import RotaryEmbedding, apply_rope
from localspec.nn.transfer import moved, uploaded


class TorchAttention:
    """`RowAttention` in the precision and on the device of its rows."""

    def __init__(self, sizes: TransformerConfig, rotary: RotaryEmbedding, norms: Mapping[str, torch.Tensor]) -> None:
        self._sizes, self._rotary, self._norms, self.length = sizes, rotary, norms, 0
        self._kept = torch.zeros(2, sizes.num_kv_heads, 0, sizes.head_dim)  # keys, values

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values."""
        return self._kept.nbytes

    def truncate(self, length: int) -> None:
        """Forgets all but the first `length` rows."""
        self.length = min(self.length, length)

    @torch.inference_mode()
    def __call__(
        self,
        qkv: torch.Tensor,
        positions: Sequence[int],
        seen: Sequence[Sequence[int]] | None = None,
        window: int | None = None,
    ) -> torch.Tensor:
        """Returns what rows attend to, and keeps their keys and values."""
        sizes, rows, first = self._sizes, len(qkv), self.length
        heads, keys = sizes.num_heads, sizes.num_kv_heads
        q, kv = torch.split(qkv, [heads * sizes.head_dim, 2 * keys * sizes.head_dim], 1)
        turned = self._cos_sin(positions, qkv)
        q = apply_rope(self._normed(q.view(1, rows, heads, sizes.head_dim), "q_norm"), *turned)
        self._keep(kv, *turned)
        slots = self.length
        group = heads // keys
        # The queries that share a key head become more rows of it, as in the target's attention.
        grouped = q.view(rows, keys, group, -1).permute(1, 2, 0, 3).reshape(1, keys, group * rows, -1)
        mask = moved(self._visible(first, rows, seen, window), qkv.device).repeat(group, 1)
        mixed = F.scaled_dot_product_attention(grouped, self._kept[:1, :, :slots], self._kept[1:, :, :slots], mask)
        return mixed.view(keys, group, rows, -1).permute(2, 0, 1, 3).reshape(rows, -1)

    @torch.inference_mode()
    def keep(self, kv: torch.Tensor, positions: Sequence[int]) -> None:
        """Keeps keys and values of rows."""
        self._keep(kv, *self._cos_sin(positions, kv))

    def _keep(self, kv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
        k, v = kv.view(1, len(kv), 2, self._sizes.num_kv_heads, self._sizes.head_dim).unbind(2)
        first, slots = self.length, self.length + len(kv)
        self._reserve(slots, kv)
        self._kept[0, :, first:slots] = apply_rope(self._normed(k, "k_norm"), cos, sin)[0].transpose(0, 1)
        self._kept[1, :, first:slots] = v[0].transpose(0, 1)
        self.length = slots

    def _cos_sin(self, positions: Sequence[int], like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self._rotary.cos_sin(uploaded(positions, like.device), like.dtype)

    def _visible(self, first: int, rows: int, seen: Sequence[Sequence[int]] | None, window: int | None) -> torch.Tensor:
        """bool [rows, slots]: which rows each of the new ones sees."""
        visible = torch.ones(rows, first + rows, dtype=torch.bool)
        if seen is None:
            visible.tril_(first)
        else:
            visible.zero_()
            for row, (before, *others) in enumerate(seen):
                visible[row, :before] = True
                visible[row, [*others, first + row]] = True
        return visible if window is None else visible.triu_(first - window + 1)

    def _normed(self, x: torch.Tensor, name: str) -> torch.Tensor:
        norm = self._norms.get(name)
        return x if norm is None else F.rms_norm(x, norm.shape, norm, self._sizes.rms_norm_eps)

    def _reserve(self, slots: int, like: torch.Tensor) -> None:
        """Makes room for so many rows, and for some more, so that it seldom grows."""
        if slots > (room := self._kept.shape[2]):
            grown = like.new_zeros(*self._kept.shape[:2], max(slots + 64, room + room // 2), self._kept.shape[3])
            grown[:, :, : self.length] = self._kept[:, :, : self.length]
            self._kept = grown
