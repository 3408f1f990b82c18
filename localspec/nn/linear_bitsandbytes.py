"""Packed linear layers through bitsandbytes: LLM.int8 for NVIDIA, and NF4 for NVIDIA and processors with AVX512-BF16.

The library is imported when the first layer is made, for that takes seconds.
"""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from functools import cache
from typing import Any, ClassVar

import torch
import torch.nn.functional as F

from localspec.nn.linear import QuantizedLinear

BLOCK = 64  # weights that share a scale in NF4
TOGETHER = 32  # output channels that its kernel for processors works on at once


class Int8(QuantizedLinear):
    """LLM.int8 (Dettmers et al. 2022): W with one scale an output channel, x in fp16 with one scale a row.

    Input channels in which any activation reaches `threshold` are computed in the precision of x, as in the paper's
    6.0; but the processor waits for the device then, at every layer, so by default (0.0) none are.
    """

    threshold: ClassVar[float] = 0.0

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        super().__init__(weight, bias)
        self.steps, self.scales, _ = _functional().int8_vectorwise_quant(weight.half().contiguous())

    def compute(self, x: torch.Tensor) -> torch.Tensor:
        rows, operators = x.reshape(-1, x.shape[-1]).contiguous(), torch.ops.bitsandbytes
        bias = None if self.bias is None else self.bias.to(x.dtype)
        steps, scales, outliers = operators.int8_vectorwise_quant(rows.half(), self.threshold)
        if outliers is None:
            y = operators.int8_scaled_mm(steps, self.steps, scales, self.scales, bias, x.dtype)
        else:
            y, _ = operators.int8_mixed_scaled_mm(rows, steps, self.steps, scales, self.scales, outliers, bias)
        product: torch.Tensor = y.view(*x.shape[:-1], -1)
        return product

    @property
    def weight(self) -> torch.Tensor:
        weight: torch.Tensor = _functional().int8_vectorwise_dequant(self.steps, self.scales)
        return weight

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in (self.steps, self.scales, self.bias) if tensor is not None)


class NF4(QuantizedLinear):
    """Four bits, the levels those of a normal distribution, one scale a block, scales in eight bits (QLoRA, §3).

    On a processor the scales are bf16, and the weights lie as its kernel reads them. Rows are filled up with zeros to
    whole blocks: with AVX-512 the library takes each row to begin with a scale of its own, though it packs across rows.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        super().__init__(weight, bias)
        functional, (outputs, inputs) = _functional(), weight.shape
        self.for_processor = weight.device.type == "cpu" and bool(functional.has_avx512bf16())
        rows = -outputs % TOGETHER if self.for_processor else 0
        self.columns = -inputs % BLOCK  # of zeros, behind those of the weight
        if rows or self.columns:
            weight = F.pad(weight, (0, self.columns, 0, rows))
        self.packed, self.state = functional.quantize_4bit(
            weight.contiguous(), blocksize=BLOCK, compress_statistics=not self.for_processor, quant_type="nf4"
        )
        if self.for_processor:
            self.packed, self.state = functional._convert_weight_packed_for_cpu(self.packed, self.state)

    def compute(self, x: torch.Tensor) -> torch.Tensor:
        bias = None if self.bias is None else self.bias.to(x.dtype)
        if self.columns:
            x = F.pad(x, (0, self.columns))
        if self.for_processor:
            y: torch.Tensor = _functional().gemv_4bit(x.contiguous(), self.packed, state=self.state)
            y = y[..., : self.shape[0]].contiguous()
            return y if bias is None else y.add_(bias)
        scales = self.state.state2
        product: torch.Tensor = torch.ops.bitsandbytes.gemm_4bit(
            x, self.packed, list(self.state.shape), scales.absmax, BLOCK, "nf4", bias,
            self.state.absmax, scales.code, self.state.offset,
        )  # fmt: skip
        return product

    @property
    def weight(self) -> torch.Tensor:
        packed, state = self.packed, self.state
        if self.for_processor:
            state = copy(state)  # which the way back would change
            packed, state = _functional()._convert_weight_packed_for_cpu_inverse(packed, state)
            state.absmax = state.absmax.T.flatten().float()
        weight: torch.Tensor = _functional().dequantize_4bit(packed, state)
        return weight[: self.shape[0], : self.shape[1]]

    @property
    def nbytes(self) -> int:
        state, held = self.state, [self.packed, self.bias, self.state.absmax, self.state.code]
        if state.nested:
            held += [state.offset, state.state2.absmax, state.state2.code]
        return sum(tensor.nbytes for tensor in held if tensor is not None)


@cache
def _functional() -> Any:
    """bitsandbytes.functional, with all its operators."""
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # nothing that it has to say below that is ours to act on
    with _without("kernels"):
        from bitsandbytes import functional
    return functional


@contextmanager
def _without(module: str) -> Iterator[None]:
    """Lets no import find a module: with `kernels`, bitsandbytes would fetch code from the network and run it."""
    missing = object()
    before = sys.modules.get(module, missing)
    sys.modules[module] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[module]
        if before is not missing:
            sys.modules[module] = before  # type: ignore[assignment]
