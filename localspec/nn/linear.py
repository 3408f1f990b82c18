"""Linear layers in torch: dense ones, the base class of quantized ones, and ones with weights packed for a CPU.

A forward may bring a LoRA adapter, which acts only in that forward.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import nn

from localspec.models.stored_names import use_stored_names


class LoraAdapter(nn.Module):
    """The change that an adapter adds to a linear layer: (alpha / rank) B A x (LoRA, Hu et al. 2022).

    A linear layer of localspec stacks several projections. `blocks` are the rows [start, end) of the adapted ones. Each
    has a separate pair of matrices, so that training gives the same adapters as for separate projections:

        lora_A [blocks * rank, in]    lora_B [out, blocks * rank]    q │ ■ · ·
                                                                     k │ · ■ ·
                                                                     v │ · · ■

    `lora_B` starts at zero: the adapter then changes nothing. In training, `dropout` is the share of inputs set to
    zero.
    """

    block_mask: torch.Tensor

    def __init__(self, inputs: int, outputs: int, blocks: Sequence[tuple[int, int]], rank: int, alpha: float) -> None:
        super().__init__()
        self.blocks, self.rank, self.alpha, self.dropout = tuple(blocks), rank, alpha, 0.0
        self.lora_A = nn.Parameter(torch.empty(len(blocks) * rank, inputs))
        self.lora_B = nn.Parameter(torch.zeros(outputs, len(blocks) * rank))
        nn.init.kaiming_uniform_(self.lora_A, a=5**0.5)
        block_mask = torch.zeros(outputs, len(blocks) * rank)
        for block, (start, end) in enumerate(blocks):
            block_mask[start:end, block * rank : (block + 1) * rank] = 1.0
        self.register_buffer("block_mask", block_mask, persistent=False)
        use_stored_names(self)

    def forward(self, x: torch.Tensor, channels: torch.Tensor | None = None) -> torch.Tensor:
        """Return the change of the layer's output, or of some of its channels."""
        # Masked again during training, so that no gradient reaches entries outside the blocks.
        lora_b = self.lora_B * self.block_mask if self.lora_B.requires_grad else self.lora_B
        lora_b = lora_b if channels is None else lora_b[channels]
        x = F.dropout(x.to(self.lora_A.dtype), self.dropout, self.training)
        return F.linear(F.linear(x, self.lora_A), lora_b) * (self.alpha / self.rank)

    def product(self) -> torch.Tensor:
        """Return the change of the weight by the adapter, [out, in]."""
        return (self.lora_B * self.block_mask) @ self.lora_A * (self.alpha / self.rank)

    @property
    def nbytes(self) -> int:
        return self.lora_A.nbytes + self.lora_B.nbytes


Adapter = Callable[[torch.Tensor], torch.Tensor]  # its change, by the input of its layer


class Linear(nn.Module):
    """A layer y = x Wᵀ + b with W [out, in]. Gradients flow."""

    bias: nn.Parameter | None

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    def forward(self, x: torch.Tensor, adapter: Adapter | None = None) -> torch.Tensor:
        y = F.linear(x, self.weight, self.bias)
        return y if adapter is None else y + adapter(x).to(y.dtype)

    def rows(self, channels: torch.Tensor) -> "Linear | QuantizedLinear":
        """Return a layer with only some of the output channels, without their bias."""
        return Linear(self.weight.detach()[channels])

    @property
    def shape(self) -> torch.Size:
        return self.weight.shape

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes + (0 if self.bias is None else self.bias.nbytes)


class Shaped(Protocol):
    """Anything with the shape of a weight [out, in], dense or packed."""

    @property
    def shape(self) -> torch.Size:
        """The numbers of output and input channels."""


class QuantizedLinear(nn.Module, ABC):
    """A layer y = x Wᵀ + b with W [out, in] rounded to a few bits: the base of all such layers.

    Gradients flow through x, as through a dense layer with the rounded weight. The weight itself is frozen.
    """

    bias: torch.Tensor | None

    def __init__(self, weight: "Shaped", bias: torch.Tensor | None = None) -> None:
        super().__init__()
        self.shape = weight.shape
        self.bias = bias

    def forward(self, x: torch.Tensor, adapter: Adapter | None = None) -> torch.Tensor:
        if x.requires_grad:
            apply: Any = _StraightThrough.apply  # torch has no type hints for it
            y: torch.Tensor = apply(x, self)
        else:
            y = self.compute(x)
        return y if adapter is None else y + adapter(x).to(y.dtype)

    @abstractmethod
    def compute(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the product, [..., in] -> [..., out] in the precision of x, without a gradient."""

    def rows(self, channels: torch.Tensor) -> "Linear | QuantizedLinear":
        """Return a layer with only some of the output channels, without their bias."""
        return type(self)(self.weight[channels])

    @property
    @abstractmethod
    def weight(self) -> torch.Tensor:
        """The rounded weight [out, in], unpacked at each access."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of the layer."""


LayerClass = type[Linear] | type[QuantizedLinear]


class _StraightThrough(torch.autograd.Function):
    """A product with a packed weight, with a backward pass, because the kernels themselves compute no gradients."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor, layer: QuantizedLinear) -> torch.Tensor:
        context.layer = layer
        return layer.compute(x)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient @ context.layer.weight.to(gradient.dtype), None


@dataclass(frozen=True)
class PackedWeight:
    """A packed weight [out, in] of the compiled library, of `nbytes` bytes. `unpack` returns its numbers in fp32.

    `rows(ids)` returns some rows in fp32, and does not work for interleaved rows.
    """

    shape: torch.Size
    nbytes: int
    unpack: Callable[[], npt.NDArray[np.float32]]
    rows: Callable[[Sequence[int]], npt.NDArray[np.float32]]


class PackedLinear(QuantizedLinear):
    """A layer on a CPU with a packed weight of the compiled library. Each product first makes the whole weight dense.

    It is used to train a drafter for a quantized target, and to test the library. It takes at least as long as a dense
    layer; decoding uses the packed weight directly. Activations are not rounded.
    """

    def __init__(self, weight: PackedWeight, bias: torch.Tensor | None = None) -> None:
        nn.Module.__init__(self)
        self.packed, self.shape, self.bias = weight, weight.shape, bias

    def compute(self, x: torch.Tensor) -> torch.Tensor:
        if not x.numel():  # losses ask in this way how wide a head is
            return x.new_empty(*x.shape[:-1], self.shape[0])
        return F.linear(x, self.weight, self.bias)

    def rows(self, channels: torch.Tensor) -> "Linear | QuantizedLinear":
        return Linear(torch.from_numpy(self.packed.rows(channels.tolist())))

    @property
    def weight(self) -> torch.Tensor:
        return torch.from_numpy(self.packed.unpack())

    @property
    def nbytes(self) -> int:
        return self.packed.nbytes + (0 if self.bias is None else self.bias.nbytes)
