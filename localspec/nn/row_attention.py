"""Attention in torch among the rows of a draft. A drafter's own layers use it, with their own keys and values."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as F

from localspec.choosing.fit import STATIC_ROWS
from localspec.decoding.compute import rows_seen
from localspec.families.architecture import TransformerConfig
from localspec.nn.placed_rows import filled_rows, filled_slots
from localspec.nn.recording import Recorder
from localspec.nn.rotary import RotaryEmbedding, apply_rope
from localspec.nn.transfer import moved, uploaded


class TorchAttention:
    """`RowAttention` in the precision and on the device of its rows."""

    def __init__(
        self,
        sizes: TransformerConfig,
        rotary: RotaryEmbedding,
        norms: Mapping[str, torch.Tensor],
        like: torch.Tensor,
        recorder: Recorder,
    ) -> None:
        """Begin without rows. Keys and values have the type and device of the tensor `like`.

        Results of `reserve_rows` have static shapes while the recorder is active.
        """
        self._sizes, self._rotary, self._norms, self._recorder = sizes, rotary, norms, recorder
        self.length = self.grown = 0  # rows that it holds; and how often it had to move to larger memory
        self._cache = like.new_zeros(2, sizes.num_kv_heads, 0, sizes.head_dim)  # keys, values

    @property
    def nbytes(self) -> int:
        return self._cache.nbytes

    def truncate(self, length: int) -> None:
        self.length = min(self.length, length)

    def reserve_rows(
        self,
        positions: Sequence[int],
        visible: Sequence[Sequence[int]] | None = None,
        window: int | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Make room for rows. Return their (position, slot), int64 [rows, 2], and the mask, bool [rows, slots].

        The mask is True where a row sees a slot. Rows that only pad the shape come last, and each sees only itself.
        """
        rows, first = len(positions), self.length
        filled, slots = rows, first + rows
        if self._recorder.active and rows <= STATIC_ROWS[-1]:
            filled = filled_rows(rows)
            slots = filled_slots(first + filled)
        self._reserve(slots)
        self.length = first + rows
        mask = np.zeros((filled, slots), np.bool_)
        mask[:rows, : self.length] = rows_seen(first, rows, visible, window)
        mask[range(rows, filled), range(self.length, first + filled)] = True
        placed = zip([*positions, *[0] * (filled - rows)], range(first, first + filled), strict=True)
        return uploaded(list(placed), self._cache.device), moved(torch.from_numpy(mask), self._cache.device)

    @torch.inference_mode()
    def __call__(self, qkv: torch.Tensor, places: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        sizes, (rows, slots) = self._sizes, mask.shape
        heads, keys = sizes.num_heads, sizes.num_kv_heads
        q, kv = torch.split(qkv, [heads * sizes.head_dim, 2 * keys * sizes.head_dim], 1)
        turned = self._rotary.cos_sin(places[:, 0], qkv.dtype)
        q = apply_rope(self._normed(q.view(1, rows, heads, sizes.head_dim), "q_norm"), *turned)
        self._write(kv, places[:, 1], *turned)
        group = heads // keys
        # The queries that share a key head become more rows of it, as in the target's attention.
        grouped = q.view(rows, keys, group, -1).permute(1, 2, 0, 3).reshape(1, keys, group * rows, -1)
        mixed = F.scaled_dot_product_attention(
            grouped, self._cache[:1, :, :slots], self._cache[1:, :, :slots], mask.repeat(group, 1)
        )
        return mixed.view(keys, group, rows, -1).permute(2, 0, 1, 3).reshape(rows, -1)

    @torch.inference_mode()
    def keep(self, kv: torch.Tensor, positions: Sequence[int]) -> None:
        """Store keys and values of rows whose attention output is not needed."""
        first, slots = self.length, self.length + len(kv)
        self._reserve(slots)
        turned = self._rotary.cos_sin(uploaded(positions, kv.device), kv.dtype)
        self._write(kv, torch.arange(first, slots, device=kv.device), *turned)
        self.length = slots

    def _write(self, kv: torch.Tensor, slots: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
        k, v = kv.view(1, len(kv), 2, self._sizes.num_kv_heads, self._sizes.head_dim).unbind(2)
        k = apply_rope(self._normed(k, "k_norm"), cos, sin)
        for cached, new in zip(self._cache, (k, v), strict=True):
            # An unseen slot has weight 0, but 0 times NaN is NaN; NaN still shows in a row's own query.
            cached.index_copy_(1, slots, new[0].transpose(0, 1).nan_to_num(0.0, 0.0, 0.0))

    def _normed(self, x: torch.Tensor, name: str) -> torch.Tensor:
        norm = self._norms.get(name)
        return x if norm is None else F.rms_norm(x, norm.shape, norm, self._sizes.rms_norm_eps)

    def _reserve(self, slots: int) -> None:
        """Make room for this many rows, and for some more, so that the memory seldom needs to grow."""
        if slots > (room := self._cache.shape[2]):
            cache = self._cache
            grown = cache.new_zeros(*cache.shape[:2], max(slots + 64, room + room // 2), cache.shape[3])
            grown[:, :, : self.length] = cache[:, :, : self.length]
            self._cache, self.grown = grown, self.grown + 1
