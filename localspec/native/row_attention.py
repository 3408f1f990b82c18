"""Attention over the rows of a draft with their own keys and values, in numpy, for a drafter's own layers."""

from collections.abc import Mapping, Sequence

import numpy as np

from localspec.decoding.compute import EPS, Array, Floats, rows_seen
from localspec.families.architecture import TransformerConfig
from localspec.families.rope import Rope

_PIECE = 2**22  # scores that are in memory at once


class NativeAttention:
    """A `RowAttention` in fp32, computed by numpy."""

    def __init__(self, sizes: TransformerConfig, rope: Rope, weights: Mapping[str, Array]) -> None:
        self._sizes, self._rope, self.length = sizes, rope, 0
        norms = (weights.get(name) for name in ("q_norm", "k_norm"))
        self._norms = [None if norm is None else np.asarray(norm, np.float32) for norm in norms]
        self._cache = np.zeros((2, sizes.num_kv_heads, 0, sizes.head_dim), np.float32)  # keys, values

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
    ) -> tuple[int, Sequence[int], Sequence[Sequence[int]] | None, int | None]:
        first = self.length
        self._reserve(first + len(positions))
        self.length = first + len(positions)
        return first, positions, visible, window

    def __call__(
        self,
        qkv: Floats,
        first: int,
        positions: Sequence[int],
        visible: Sequence[Sequence[int]] | None,
        window: int | None,
    ) -> Floats:
        sizes, rows = self._sizes, len(qkv)
        heads, width = sizes.num_heads, sizes.head_dim
        turned, slots = self._cos_sin(positions), first + rows
        q = _rotated(self._normed(qkv[:, : heads * width].reshape(rows, heads, width), 0), *turned)
        self._write(first, qkv[:, heads * width :], *turned)
        mask = rows_seen(first, rows, visible, window)
        mixed = np.empty((rows, heads * width), np.float32)
        step = max(_PIECE // (heads * slots), 1)
        for start in range(0, rows, step):
            some = slice(start, start + step)
            end = slots if visible is not None else min(first + start + step, slots)
            mixed[some] = self._attend(q[some], end, mask[some, :end])
        return mixed

    def keep(self, kv: Floats, positions: Sequence[int]) -> None:
        """Store keys and values of rows whose attention output is not needed."""
        self._reserve(self.length + len(kv))
        self._write(self.length, kv, *self._cos_sin(positions))
        self.length += len(kv)

    def _write(self, first: int, kv: Floats, cos: Floats, sin: Floats) -> None:
        k, v = kv.reshape(len(kv), 2, self._sizes.num_kv_heads, self._sizes.head_dim).swapaxes(0, 1)
        slots = slice(first, first + len(kv))
        self._cache[0, :, slots] = _rotated(self._normed(k, 1), cos, sin).swapaxes(0, 1)
        self._cache[1, :, slots] = v.swapaxes(0, 1)

    def _attend(self, q: Floats, slots: int, visible: Array) -> Floats:
        """Return the attention output [rows, heads * head_dim] of queries [rows, heads, head_dim] over the first
        `slots` rows."""
        (rows, heads, width), keys = q.shape, self._sizes.num_kv_heads
        grouped = q.reshape(rows, keys, -1, width).transpose(1, 2, 0, 3).reshape(keys, -1, width)
        scores: Floats = grouped @ self._cache[0, :, :slots].swapaxes(1, 2) * np.float32(width**-0.5)
        by_row = scores.reshape(keys, -1, rows, slots)
        by_row[:, :, ~visible] = -np.inf
        with np.errstate(invalid="ignore"):
            by_row -= by_row.max(-1, keepdims=True)
            np.exp(by_row, out=by_row)
            by_row /= by_row.sum(-1, keepdims=True)
        mixed = scores @ self._cache[1, :, :slots]
        return mixed.reshape(keys, -1, rows, width).transpose(2, 0, 1, 3).reshape(rows, heads * width)

    def _normed(self, x: Floats, index: int) -> Floats:
        norm = self._norms[index]
        return x if norm is None else rms_norm(x, self._sizes.rms_norm_eps) * norm

    def _cos_sin(self, positions: Sequence[int]) -> tuple[Floats, Floats]:
        angles = np.asarray(positions, np.float32)[:, None, None] * self._rope.inv_freq
        scaling = np.float32(self._rope.attention_scaling)
        return np.cos(angles) * scaling, np.sin(angles) * scaling

    def _reserve(self, slots: int) -> None:
        """Make room for this many rows, and for some more, so that arrays seldom grow."""
        if slots > (room := self._cache.shape[2]):
            grown = np.zeros(
                (*self._cache.shape[:2], max(slots + 64, room + room // 2), self._cache.shape[3]), np.float32
            )
            grown[:, :, : self.length] = self._cache[:, :, : self.length]
            self._cache = grown


def rms_norm(x: Floats, eps: float = EPS) -> Floats:
    """Return rows divided by the root of their mean square."""
    normed: Floats = x / np.sqrt(np.square(x).mean(-1, keepdims=True) + np.float32(eps))
    return normed


def _rotated(x: Floats, cos: Floats, sin: Floats) -> Floats:
    """Rotate the first channels of [rows, heads, head_dim] by angles [rows, 1, half of these channels]."""
    half = cos.shape[-1]
    a, b = x[..., :half], x[..., half : 2 * half]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, x[..., 2 * half :]], -1)
