"""What the names of number formats and packings mean: torch's types, and our kinds of linear layers."""

import torch

from localspec.errors import UsageMistake
from localspec.nn.linear import Int8Linear, LayerClass, Linear
from localspec.nn.linear_bitsandbytes import NF4, Int8
from localspec.nn.linear_mps import WeightInt4, WeightInt8

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_KINDS: dict[tuple[str, str], LayerClass] = {
    ("int8", "cpu"): Int8Linear,
    ("nf4", "cpu"): NF4,
    ("int8", "cuda"): Int8,
    ("nf4", "cuda"): NF4,
    ("int8", "mps"): WeightInt8,
    ("int4", "mps"): WeightInt4,
}


def linear_class(quantize: str, device: str, threshold: float = 0.0) -> LayerClass:
    """The linear layers of a model: `quantize` is none, int8, int4 or nf4. Raises UsageMistake for a pair without.

    `threshold` is that of `Int8`.
    """
    if quantize == "none":
        return Linear
    if threshold and (quantize, torch.device(device).type) == ("int8", "cuda"):
        return type("Int8", (Int8,), {"threshold": threshold})
    if kind := _KINDS.get((quantize, torch.device(device).type)):
        return kind
    raise UsageMistake(f"There is no {quantize} for {device}; use --quantize none.")


def lm_head_class(quantize: str, device: str) -> LayerClass:
    """That of the head: dense on CUDA, where rounding it costs more quality than its memory is worth."""
    return Linear if torch.device(device).type == "cuda" else linear_class(quantize, device)
