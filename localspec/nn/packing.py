"""Translates number formats and packings into torch's types and localspec's classes of linear layers."""

import torch
import torch.nn.functional as F

from localspec.errors import UsageMistake
from localspec.nn import kernel_checks, row_kernels
from localspec.nn.linear import Adapter, LayerClass, Linear
from localspec.nn.linear_bitsandbytes import LLMInt8Linear, NF4Linear
from localspec.nn.linear_mps import Int4WeightOnlyLinear, Int8WeightOnlyLinear
from localspec.nn.states import AT_ONCE

# Rows of every product: libraries choose a kernel by their number, and each rounds differently.
ROWS = 16


class InvariantLinear(Linear):
    """A layer y = x Wᵀ + b with W [out, in]. No row's result depends on other rows.

    A prompt of more than 128 rows is left to torch's library, which computes it in the same way each time.
    """

    def forward(self, x: torch.Tensor, adapter: Adapter | None = None) -> torch.Tensor:
        rows = x.reshape(-1, x.shape[-1])
        if x.requires_grad or not 0 < len(rows) <= AT_ONCE:
            return super().forward(x, adapter)
        if kernel_checks.serve(rows, self.weight) and row_kernels.multiplies(rows) and rows.dtype == self.weight.dtype:
            y = row_kernels.dense(rows, self.weight, self.bias)
        else:
            y = torch.cat(
                [
                    F.linear(F.pad(part, (0, 0, 0, ROWS - len(part))), self.weight, self.bias)[: len(part)]
                    for part in torch.split(rows, ROWS)
                ]
            )
        y = y.view(*x.shape[:-1], -1)
        return y if adapter is None else y + adapter(x).to(y.dtype)

    def rows(self, channels: torch.Tensor) -> "Linear":
        return InvariantLinear(self.weight.detach()[channels])


DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_CLASSES: dict[tuple[str, str], LayerClass] = {
    ("int8", "cuda"): LLMInt8Linear,
    ("nf4", "cuda"): NF4Linear,
    ("int8", "mps"): Int8WeightOnlyLinear,
    ("int4", "mps"): Int4WeightOnlyLinear,
}


def linear_class(quantize: str, device: str, threshold: float = 0.0, exact: bool = False) -> LayerClass:
    """Return the class of a model's linear layers; `quantize` is `none`, int8, int4 or nf4.

    With `exact`, rows of dense layers on CUDA do not affect each other. `threshold` is that of LLM.int8, on CUDA.
    Raises UsageMistake for a packing that the device does not support.
    """
    if quantize == "none":
        return InvariantLinear if exact and torch.device(device).type == "cuda" else Linear
    if threshold and (quantize, torch.device(device).type) == ("int8", "cuda"):
        return type("LLMInt8Linear", (LLMInt8Linear,), {"threshold": threshold})
    if layer_class := _CLASSES.get((quantize, torch.device(device).type)):
        return layer_class
    raise UsageMistake(f"{quantize} is not supported on {device}; use --quantize none.")


def lm_head_class(quantize: str, device: str, exact: bool = False) -> LayerClass:
    """Return the class of the head.

    On CUDA the head is dense: rounding it would cost too much quality for the memory it saves.
    """
    return linear_class("none" if torch.device(device).type == "cuda" else quantize, device, exact=exact)
