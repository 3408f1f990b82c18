"""What the names of number formats and packings mean: torch's types, and our classes of linear layers."""

import torch

from localspec.errors import UsageMistake
from localspec.nn.linear import LayerClass, Linear
from localspec.nn.linear_bitsandbytes import LLMInt8Linear, NF4Linear
from localspec.nn.linear_invariant import InvariantLinear
from localspec.nn.linear_mps import Int4WeightOnlyLinear, Int8WeightOnlyLinear

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_CLASSES: dict[tuple[str, str], LayerClass] = {
    ("int8", "cuda"): LLMInt8Linear,
    ("nf4", "cuda"): NF4Linear,
    ("int8", "mps"): Int8WeightOnlyLinear,
    ("int4", "mps"): Int4WeightOnlyLinear,
}


def linear_class(quantize: str, device: str, threshold: float = 0.0, exact: bool = False) -> LayerClass:
    """Returns the class of a model's linear layers; `quantize` is none, int8, int4 or nf4.

    With `exact` rows of dense ones on CUDA do not depend on each other. `threshold` is that of LLM.int8 on CUDA. Raises
    UsageMistake for a packing that the device does not have.
    """
    if quantize == "none":
        return InvariantLinear if exact and torch.device(device).type == "cuda" else Linear
    if threshold and (quantize, torch.device(device).type) == ("int8", "cuda"):
        return type("LLMInt8Linear", (LLMInt8Linear,), {"threshold": threshold})
    if found := _CLASSES.get((quantize, torch.device(device).type)):
        return found
    raise UsageMistake(f"There is no {quantize} for {device}; use --quantize none.")


def lm_head_class(quantize: str, device: str, exact: bool = False) -> LayerClass:
    """Returns the class of the head: dense on CUDA, where rounding it costs more quality than its memory is worth."""
    return linear_class("none" if torch.device(device).type == "cuda" else quantize, device, exact=exact)
