"""Numbers on their way between main memory and a device, each way in one copy: a GPU is waited for once a step."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch


def signed(word: int) -> int:
    """Returns 64 bits as the int64 that torch has for them."""
    return word - 2**64 if word >= 2**63 else word


def uploaded(numbers: Sequence[int], device: torch.device | str) -> torch.Tensor:
    """Returns integers [n] on a device; a GPU is not waited for."""
    return moved(torch.tensor(numbers, dtype=torch.int64), device)


def moved(tensor: torch.Tensor, device: torch.device | str) -> torch.Tensor:
    """Returns a small tensor of main memory on a device; a GPU is not waited for."""
    if torch.device(device).type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def brought(*tensors: torch.Tensor) -> list[npt.NDArray[Any]]:
    """Returns tensors of int64, bool or fp32 in main memory, as arrays, by one copy."""
    flat = [tensor.flatten() for tensor in tensors]
    flat = [one.view(torch.int32).long() if one.dtype == torch.float32 else one.long() for one in flat]
    parts = np.split(torch.cat(flat).cpu().numpy(), np.cumsum([len(one) for one in flat])[:-1])
    return [_as(part, tensor) for part, tensor in zip(parts, tensors, strict=True)]


def _as(numbers: npt.NDArray[Any], tensor: torch.Tensor) -> npt.NDArray[Any]:
    if tensor.dtype == torch.float32:
        numbers = numbers.astype(np.int32).view(np.float32)
    elif tensor.dtype == torch.bool:
        numbers = numbers.astype(bool)
    return numbers.reshape(tensor.shape)
