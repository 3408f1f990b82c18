"""Linear layers of drafters in torch, and draft heads made of such layers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from localspec.decoding.compute import LinearLayer

if TYPE_CHECKING:
    from localspec.nn.compute import TorchCompute


@dataclass(frozen=True)
class TorchLinear:
    """A layer y = x Wᵀ + b; weight [out, in], or [n, out, in] with one layer per row."""

    weight: torch.Tensor
    bias: torch.Tensor | None
    silu: bool

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes + (0 if self.bias is None else self.bias.nbytes)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the layer to rows [n, in]."""
        return self._activated(F.linear(x, self.weight, self.bias))

    def _activated(self, y: torch.Tensor) -> torch.Tensor:
        return F.silu(y) if self.silu else y


class TorchLinears(TorchLinear):
    """Several layers, one for each row."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Apply n layers to n rows: the first layer to the first row, the second to the second, …."""
        weight = self.weight[: len(x)]
        if self.bias is not None:
            y = torch.baddbmm(self.bias[: len(x), None], x[:, None], weight.transpose(1, 2))[:, 0]
        else:  # in this order a single row takes the path for vectors, which reads the matrices twice as fast
            y = torch.bmm(weight, x[:, :, None])[:, :, 0]
        return self._activated(y)


@dataclass(frozen=True)
class FrozenLayer:
    """A drafter's layer without gradients. Its weight is in NF4, or is a part of the target's head in its packing."""

    layer: Callable[[torch.Tensor], torch.Tensor]
    nbytes: int
    silu: bool = False

    @torch.inference_mode()
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the layer to rows [n, in]."""
        y = self.layer(x)
        return F.silu(y) if self.silu else y


@dataclass(frozen=True)
class FrozenLayers:
    """Several layers in NF4, one for each row."""

    layers: Sequence[FrozenLayer]

    @property
    def nbytes(self) -> int:
        return sum(layer.nbytes for layer in self.layers)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Apply n layers to n rows: the first layer to the first row, the second to the second, …."""
        return torch.cat([layer(x[row : row + 1]) for row, layer in enumerate(self.layers[: len(x)])])


@dataclass(frozen=True)
class TorchHeads:
    """A set of draft heads, which all read one row: the target's state.

    `first` (the first block) and `path` each stack the layers of all heads, because all heads read the same input
    there. The later `blocks` and `vocabulary` have one layer per head, because their inputs differ. `change` is what
    heads add to the logits of the target's head: a layer with the `down` matrices of all heads, a layer with their `up`
    matrices, and a mask [heads, heads * rank] that keeps only products of `down` and `up` of the same head.
    """

    compute: "TorchCompute"
    first: LinearLayer
    path: LinearLayer | None
    blocks: Sequence[LinearLayer]
    vocabulary: LinearLayer | None
    head: Callable[[torch.Tensor], torch.Tensor]
    change: tuple[LinearLayer, LinearLayer, torch.Tensor] | None

    @property
    def nbytes(self) -> int:
        layers: list[LinearLayer | None] = [self.first, self.path, *self.blocks, self.vocabulary]
        if self.change:
            layers += self.change[:2]
        return sum(layer.nbytes for layer in layers if layer is not None)

    def __call__(self, state: torch.Tensor, root: int, count: int) -> torch.Tensor:
        if self.path is None:
            x = self.compute.repeated(state, count) + self.first(state).reshape(-1, state.shape[1])[:count]
        else:
            read = (self.compute.rms_norm(part) for part in (state, self.compute.target.embed([root])))
            z = torch.cat([*read], 1)
            x = (self.path(z) + self.first(z)).reshape(-1, state.shape[1])[:count]
        for block in self.blocks:
            x = x + block(x)
        logits = self.head(x) if self.vocabulary is None else self.vocabulary(x)
        if self.change:
            down, up, mask = self.change
            logits = logits + up(down(x) * mask[:count])
        return logits
