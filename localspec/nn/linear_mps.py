"""Quantized linear layers for Apple's GPUs: weights in eight or four bits, activations unchanged.

The operators are torch's. The layers also run on a CPU, where the operators use another packing.
"""

from abc import abstractmethod

import torch
import torch.nn.functional as F

from localspec.nn.linear import QuantizedLinear

EDGE = 32  # the kernels take weights whose sides are multiples of this
GROUP = 32  # input channels that share a scale and a zero in four bits
PIECE = 2**18  # weights rounded at a time, so that rounding a large weight does not take twice its memory
TILES = 2  # the smallest value that the packing operator accepts; these kernels ignore it


class WeightOnlyLinear(QuantizedLinear):
    """A layer whose weight [out, in] is padded with zeros to multiples of `EDGE`, and packed for a kernel of torch."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        super().__init__(weight, bias)
        self.precision = weight.dtype
        rows, columns = weight.shape
        padding = (0, -columns % EDGE, 0, -rows % EDGE)
        self.packed, self.scales = self.pack(F.pad(weight, padding) if any(padding) else weight)

    @staticmethod
    @abstractmethod
    def pack(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the kernel's arguments: a packed weight, and scales in the precision of the weight."""

    @abstractmethod
    def multiply(self, rows: torch.Tensor) -> torch.Tensor:
        """Run the kernel: [rows, in] -> [rows, out], both padded, in the weight's precision."""

    def compute(self, x: torch.Tensor) -> torch.Tensor:
        outputs, inputs = self.shape
        rows = F.pad(x.reshape(-1, inputs).to(self.precision), (0, -inputs % EDGE)).contiguous()
        y = self.multiply(rows)[:, :outputs]
        if self.bias is not None:
            y = y + self.bias
        return y.reshape(*x.shape[:-1], outputs).to(x.dtype)

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in (self.packed, self.scales, self.bias) if tensor is not None)


class Int8WeightOnlyLinear(WeightOnlyLinear):
    """A layer with weights in eight bits, and one scale per output channel."""

    @staticmethod
    def pack(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return _per_channel(weight)

    def multiply(self, rows: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = torch.ops.aten._weight_int8pack_mm(rows, self.packed, self.scales)
        return y

    @property
    def weight(self) -> torch.Tensor:
        outputs, inputs = self.shape
        return self.packed[:outputs, :inputs].float() * self.scales[:outputs, None].float()


class Int4WeightOnlyLinear(WeightOnlyLinear):
    """A layer with weights in four bits: each group of input channels has sixteen evenly spaced levels, from its
    smallest to its largest weight."""

    @staticmethod
    def pack(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        parts = [_levels(part) for part in torch.split(weight, max(1, PIECE // weight.shape[1]))]
        levels, scales, zeros = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
        scales_and_zeros = torch.stack([scales.T, zeros.T], -1).contiguous()  # [groups, out, 2]
        if weight.device.type == "cpu":
            return torch.ops.aten._convert_weight_to_int4pack_for_cpu(levels.int(), TILES), scales_and_zeros
        pairs = levels[:, ::2] * 16 + levels[:, 1::2]
        return torch.ops.aten._convert_weight_to_int4pack(pairs, TILES), scales_and_zeros

    def multiply(self, rows: torch.Tensor) -> torch.Tensor:
        on_cpu, operators = rows.device.type == "cpu", torch.ops.aten
        kernel = operators._weight_int4pack_mm_for_cpu if on_cpu else operators._weight_int4pack_mm
        y: torch.Tensor = kernel(rows, self.packed, GROUP, self.scales)
        return y

    @property
    def weight(self) -> torch.Tensor:
        outputs, inputs = self.shape
        width = inputs + -inputs % EDGE
        # Each device packs in its own order, so the weights are recovered through the kernel.
        identity = torch.eye(width, dtype=self.precision, device=self.packed.device)
        return self.multiply(identity)[:inputs, :outputs].T


def _levels(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return a weight's levels, uint8 [out, in], and two arrays [out, groups]: the scale, and the value of level 8."""
    groups, limits = weight.float().view(len(weight), -1, GROUP), torch.finfo(weight.dtype)
    least, most = groups.amin(-1), groups.amax(-1)
    scales = ((most - least) / 15).clamp_min_(max(1e-30, limits.tiny * limits.eps)).to(weight.dtype)
    zeros = (least + 8 * scales.float()).to(weight.dtype)
    first = zeros.float() - 8 * scales.float()  # the value of level 0 after both were rounded
    levels = ((groups - first[..., None]) / scales.float()[..., None]).round_().clamp_(0, 15)
    return levels.to(torch.uint8).flatten(-2), scales, zeros


@torch.no_grad()
def _per_channel(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize a weight [out, in] with one scale per output channel. Return int8 [out, in] and scales [out]."""
    steps, scales = torch.empty_like(weight, dtype=torch.int8), weight.new_empty(len(weight))
    limits, channels = torch.finfo(weight.dtype), max(1, PIECE // weight.shape[1])
    least = max(1e-30, limits.tiny * limits.eps)  # a channel of zeros needs any scale other than zero
    for piece, piece_steps, piece_scales in zip(
        *(torch.split(part, channels) for part in (weight, steps, scales)), strict=True
    ):
        piece = piece.float()
        piece_scales.copy_((piece.abs().amax(1) / 127).clamp_min_(least))
        piece_steps.copy_((piece / piece_scales.float()[:, None]).round_().clamp_(-127, 127))
    return steps, scales
