"""Linear layers: dense ones in the precision of their weight, the base of quantized ones, and int8 on a CPU.

A forward may bring a LoRA adapter along, which acts in that forward and in no other.
"""

import warnings
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import nn

from localspec.models.stored_names import use_stored_names

OUTLIER = 6.0  # an activation this many times the root mean square of its row (LLM.int8, §3.2)
MOST_OUTLIERS = 32  # input channels of one layer
PIECE = 2**18  # weights that are rounded at a time, so that rounding a large weight does not take twice its memory


class LoraAdapter(nn.Module):
    """What an adapter adds to a linear layer: (alpha / rank) B A x (LoRA, Hu et al. 2022).

    Our layers are several projections stacked; `blocks` are the rows [start, end) of those that are adapted, each with
    a pair of its own, so that what is trained here is what the projections' own adapters would be:

        lora_A [blocks * rank, in]    lora_B [out, blocks * rank]    q │ ■ · ·
                                                                     k │ · ■ ·
                                                                     v │ · · ■

    `lora_B` starts at zero, where the adapter changes nothing.
    """

    block_mask: torch.Tensor

    def __init__(self, inputs: int, outputs: int, blocks: Sequence[tuple[int, int]], rank: int, alpha: float) -> None:
        super().__init__()
        self.blocks, self.rank, self.alpha = tuple(blocks), rank, alpha
        self.lora_A = nn.Parameter(torch.empty(len(blocks) * rank, inputs))
        self.lora_B = nn.Parameter(torch.zeros(outputs, len(blocks) * rank))
        nn.init.kaiming_uniform_(self.lora_A, a=5**0.5)
        block_mask = torch.zeros(outputs, len(blocks) * rank)
        for block, (start, end) in enumerate(blocks):
            block_mask[start:end, block * rank : (block + 1) * rank] = 1.0
        self.register_buffer("block_mask", block_mask, persistent=False)
        use_stored_names(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # Masked again where it learns, so that no gradient reaches what lies outside the blocks.
        lora_b = self.lora_B * self.block_mask if self.lora_B.requires_grad else self.lora_B
        return F.linear(F.linear(x.to(self.lora_A.dtype), self.lora_A), lora_b) * (self.alpha / self.rank)

    def product(self) -> torch.Tensor:
        """Returns the change of the weight that the adapter amounts to, [out, in]."""
        return (self.lora_B * self.block_mask) @ self.lora_A * (self.alpha / self.rank)

    @property
    def nbytes(self) -> int:
        return self.lora_A.nbytes + self.lora_B.nbytes


Adapter = Callable[[torch.Tensor], torch.Tensor]  # what it adds, by the input of its layer


class Linear(nn.Module):
    """y = x Wᵀ + b with W [out, in]; gradients flow."""

    computes_in: ClassVar[torch.dtype | None] = None  # None: what the weights are in
    bias: nn.Parameter | None

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    def forward(self, x: torch.Tensor, adapter: Adapter | None = None) -> torch.Tensor:
        y = F.linear(x, self.weight, self.bias)
        return y if adapter is None else y + adapter(x).to(y.dtype)

    @property
    def shape(self) -> torch.Size:
        return self.weight.shape

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes + (0 if self.bias is None else self.bias.nbytes)


class QuantizedLinear(nn.Module):
    """y = x Wᵀ + b with W [out, in] rounded to a few bits when it is made: the base of all such layers.

    Gradients flow through x, as through a dense layer with the rounded weight.
    """

    computes_in: ClassVar[torch.dtype | None] = None  # None: what the weights were in
    bias: torch.Tensor | None

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        super().__init__()
        self.shape = weight.shape
        self.bias = bias

    def forward(self, x: torch.Tensor, adapter: Adapter | None = None) -> torch.Tensor:
        if x.requires_grad:
            apply: Any = _StraightThrough.apply  # torch gives it no types
            y: torch.Tensor = apply(x, self)
        else:
            y = self.compute(x)
        return y if adapter is None else y + adapter(x).to(y.dtype)

    def compute(self, x: torch.Tensor) -> torch.Tensor:
        """Computes the product, [..., in] -> [..., out] in the precision of x, without a gradient."""
        raise NotImplementedError

    @property
    def weight(self) -> torch.Tensor:
        """The rounded weight [out, in], made anew each time."""
        raise NotImplementedError

    @property
    def nbytes(self) -> int:
        """Bytes that the layer holds."""
        raise NotImplementedError


LayerClass = type[Linear] | type[QuantizedLinear]


class _StraightThrough(torch.autograd.Function):
    """Kernels for packed weights return no gradient, without complaint; this gives that of the rounded weight."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor, layer: QuantizedLinear) -> torch.Tensor:
        context.layer = layer
        return layer.compute(x)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient @ context.layer.weight.to(gradient.dtype), None


class Int8Linear(QuantizedLinear):
    """int8 on a CPU: W has one scale per output channel, x one scale per row; fp32 in, fp32 out.

    One scale for all rows, which torch's own dynamic layers use, would make a row depend on the rows beside it; here a
    row gives bit for bit what it gives alone. Input channels named by `protect` are computed in fp32.
    """

    computes_in = torch.float32

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        super().__init__(weight, None if bias is None else bias.float())
        self.packed = _pack(weight)
        self.outliers: torch.Tensor | None = None  # channels, and their columns of the rounded weight
        self.columns: torch.Tensor | None = None

    def compute(self, x: torch.Tensor) -> torch.Tensor:
        rest = x if self.outliers is None else x.index_fill(-1, self.outliers, 0.0)
        # A row of zeros has no scale; any other than zero serves it.
        scale = rest.abs().amax(-1, keepdim=True).clamp_min_(1e-30)
        steps, zero = activation_steps()
        # Here a row is only scaled to ±1; the operator rounds it to `steps` on either side of `zero`.
        y: torch.Tensor = _multiply(rest / scale, 1 / steps, zero, self.packed)
        y = y.mul_(scale) if self.bias is None else torch.addcmul(self.bias, y, scale)
        if self.outliers is not None and self.columns is not None:
            y += _few_columns(x.index_select(-1, self.outliers), self.columns)
        return y

    def protect(self, channels: torch.Tensor) -> None:
        """Computes these input channels in fp32 from now on, for every row alike."""
        self.outliers = channels if len(channels) else None
        self.columns = self.weight[:, channels].contiguous() if len(channels) else None

    @property
    def weight(self) -> torch.Tensor:
        weight: torch.Tensor = torch.ops.quantized.linear_unpack(self.packed)[0].dequantize()
        return weight

    @property
    def nbytes(self) -> int:
        rows, columns = self.shape
        kept = [tensor.nbytes for tensor in (self.bias, self.columns) if tensor is not None]
        return rows * columns + 12 * rows + sum(kept)  # a row: scale, zero point and sum, four bytes each


def outliers(x: torch.Tensor) -> torch.Tensor:
    """Returns the channels of x [..., channels] that stand out in at least a quarter of the rows, in ascending order.

    There are none where a typical row's scale would not be halved without them: they would cost time for nothing.
    """
    rows = x.reshape(-1, x.shape[-1]).float().abs()
    # The root mean square without the largest values, which would otherwise raise it and so not stand out.
    ordinary = rows.sort(-1).values[:, : -(-rows.shape[1] * 63 // 64)]
    spread = ordinary.pow(2).mean(-1, keepdim=True).sqrt().clamp_min(1e-30)
    often = (rows > OUTLIER * spread).float().mean(0)
    found = torch.nonzero(often >= 0.25).flatten()
    size = (rows / spread).mean(0)[found]
    found = found[size.argsort(descending=True)[:MOST_OUTLIERS]].sort().values
    with_them, without = rows.amax(-1), rows.index_fill(-1, found, 0.0).amax(-1)
    return found if (with_them / without.clamp_min(1e-30)).median() >= 2 else found[:0]


@cache
def activation_steps() -> tuple[int, int]:
    """Returns (steps on either side of zero, the zero) of an activation: (127, 128), or (63, 64) in seven bits.

    CPUs without VNNI add two products in 16 bits, which eight-bit activations overflow without complaint. The kernel
    itself is asked what it does, with the largest numbers there are.
    """
    packed = _pack(torch.ones(64, 256))
    y = _multiply(torch.ones(1, 256), 1 / 127, 128, packed)
    return (127, 128) if bool((y - 256).abs().max() < 0.01) else (63, 64)


@torch.no_grad()
def per_channel(weight: torch.Tensor, precision: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Rounds a weight [out, in] to steps of one scale per output channel: returns int8 [out, in] and scales [out]."""
    steps, scales = torch.empty_like(weight, dtype=torch.int8), weight.new_empty(len(weight), dtype=precision)
    limits, channels = torch.finfo(precision), max(1, PIECE // weight.shape[1])
    least = max(1e-30, limits.tiny * limits.eps)  # a channel of zeros has no scale; any other than zero serves it
    for piece, piece_steps, piece_scales in zip(
        *(torch.split(part, channels) for part in (weight, steps, scales)), strict=True
    ):
        piece = piece.float()
        piece_scales.copy_((piece.abs().amax(1) / 127).clamp_min_(least))
        piece_steps.copy_((piece / piece_scales.float()[:, None]).round_().clamp_(-127, 127))
    return steps, scales


_multiply = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32


def _pack(weight: torch.Tensor) -> Any:
    if torch.backends.quantized.engine != "x86" and "x86" in torch.backends.quantized.supported_engines:
        torch.backends.quantized.engine = "x86"
    steps, scale = per_channel(weight, torch.float32)
    zero = torch.zeros(len(scale), dtype=torch.long)
    with warnings.catch_warnings():  # torch says that it will drop quantized tensors
        warnings.simplefilter("ignore", UserWarning)
        quantized = torch._make_per_channel_quantized_tensor(steps, scale.double(), zero, 0)
        del steps  # it was copied, and is copied once more below
        return torch.ops.quantized.linear_prepack(quantized, None)


def _few_columns(x: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """Computes x columnsᵀ for a few channels, with a multiple of four rows: fewer would take another path."""
    rows = x.reshape(-1, x.shape[-1])
    padded = F.pad(rows, (0, 0, 0, -len(rows) % 4))
    return F.linear(padded, columns)[: len(rows)].view(*x.shape[:-1], -1)
