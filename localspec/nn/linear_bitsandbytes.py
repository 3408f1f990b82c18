"""Quantized linear layers through bitsandbytes: LLM.int8 and NF4, for NVIDIA.

bitsandbytes takes seconds to import, so it is imported when the first layer is made.
"""

import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import torch
import torch.nn.functional as F

from localspec.nn import kernel_checks, row_kernels
from localspec.nn.linear import QuantizedLinear
from localspec.nn.states import AT_ONCE

BLOCK, SCALES = row_kernels.BLOCK, 256  # weights that share a scale in NF4, and scales that share one themselves


class LLMInt8Linear(QuantizedLinear):
    """LLM.int8 (Dettmers et al. 2022): W has one scale per output channel, and x, in fp16, one scale per row.

    Input channels in which any activation reaches `threshold` (6.0 in the paper) are computed in the precision of x.
    The CPU then waits for the device at every layer, so with the default (0.0) there are no such channels.
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


@dataclass(frozen=True)
class PackedNF4:
    """A matrix [out, in] packed in NF4. `parts` are its tensors, by the suffixes of bitsandbytes' tensor names."""

    shape: torch.Size
    parts: Mapping[str, torch.Tensor]


class NF4Linear(QuantizedLinear):
    """NF4 (QLoRA, §3): four bits with the levels of a normal distribution, and one scale in eight bits per block.

    Rows are padded with zeros to whole blocks, so that no scale belongs to two rows.
    """

    def __init__(self, weight: torch.Tensor | PackedNF4, bias: torch.Tensor | None = None) -> None:
        super().__init__(weight, bias)
        self.padding = -weight.shape[1] % BLOCK  # columns of zeros after those of the weight
        if isinstance(weight, PackedNF4):
            parts = dict(weight.parts)
            packed = parts.pop("")
            state = _functional().QuantState.from_dict(parts, packed.device)
        else:
            weight = F.pad(weight, (0, self.padding)) if self.padding else weight
            packed, state = _functional().quantize_4bit(
                weight.contiguous(), blocksize=BLOCK, compress_statistics=True, quant_type="nf4"
            )
        self.packed, self.state = packed, state  # or, if our own kernels read it, in their order:
        self.tiled: row_kernels.TiledNF4 | None = None
        if state.state2.blocksize == SCALES and kernel_checks.trouble(packed.device) is None:
            self.packed, state.absmax = row_kernels.tiled(packed, state.absmax, self.shape[0])
            tables = state.state2.code, state.state2.absmax, state.offset, state.code
            self.tiled = row_kernels.TiledNF4(self.packed, state.absmax, *tables)

    def compute(self, x: torch.Tensor) -> torch.Tensor:
        bias = None if self.bias is None else self.bias.to(x.dtype)
        if self.padding:
            x = F.pad(x, (0, self.padding))
        rows = x.reshape(-1, x.shape[-1])
        if self.tiled is not None and len(rows) and row_kernels.multiplies(rows):
            if len(rows) <= AT_ONCE:
                return row_kernels.nf4(rows, self.tiled, bias, self.shape[0]).view(*x.shape[:-1], -1)
            return F.linear(x, row_kernels.nf4_dense(self.tiled, self.shape[0], x.dtype), bias)
        packed, state = self._as_packed()
        scales = state.state2
        product: torch.Tensor = torch.ops.bitsandbytes.gemm_4bit(
            x, packed, list(state.shape), scales.absmax, BLOCK, "nf4", bias, state.absmax, scales.code, state.offset
        )
        return product

    def _as_packed(self) -> tuple[torch.Tensor, Any]:
        """Return the packed matrix and its scales in the order of bitsandbytes."""
        if self.tiled is None:
            return self.packed, self.state
        state = copy(self.state)
        packed, state.absmax = row_kernels.untiled(self.tiled.packed, self.tiled.scales, self.shape[0])
        return packed, state

    @property
    def weight(self) -> torch.Tensor:
        if self.tiled is not None and self.state.dtype in row_kernels.FORMATS:
            weight = row_kernels.nf4_dense(self.tiled, self.shape[0], self.state.dtype)
        else:
            weight = _functional().dequantize_4bit(*self._as_packed())
        return weight[:, : self.shape[1]]

    def parts(self) -> dict[str, torch.Tensor]:
        """Return the packed matrix in the form of `PackedNF4`."""
        packed, state = self._as_packed()
        return {"": packed, **{f".{name}": part for name, part in state.as_dict(packed=True).items()}}

    @property
    def nbytes(self) -> int:
        state = self.state
        codes = (state.absmax, state.code, state.offset, state.state2.absmax, state.state2.code)
        return sum(tensor.nbytes for tensor in (self.packed, self.bias, *codes) if tensor is not None)


@cache
def _functional() -> Any:
    """Import bitsandbytes.functional, including all its operators."""
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # users cannot act on its messages below this level
    with _without("kernels"):
        from bitsandbytes import functional
    return functional


def adamw_8bit() -> Any:
    """Return the class AdamW with moments in eight bits, which is used like torch's class."""
    _functional()
    with _without("kernels"):
        from bitsandbytes import optim
    return optim.AdamW8bit


@contextmanager
def _without(module: str) -> Iterator[None]:
    """Make imports of a module fail in this context. With `kernels`, bitsandbytes would run code from the network."""
    missing = object()
    modules: dict[str, Any] = sys.modules
    former = modules.get(module, missing)
    modules[module] = None  # import then treats the module as missing
    try:
        yield
    finally:
        del modules[module]
        if former is not missing:
            modules[module] = former
