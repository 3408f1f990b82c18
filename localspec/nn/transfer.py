"""Numbers on their way between main memory and a device, each way in one copy: a GPU is waited for once a step."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch


def uploaded(numbers: Sequence[int], device: torch.device | str) -> torch.Tensor:
    """Returns integers [n] on a device; a GPU is not waited for."""
    return moved(torch.tensor(numbers, dtype=torch.int64), device)


def moved(tensor: torch.Tensor, device: torch.device | str) -> torch.Tensor:
    """Returns a small tensor of main memory on a device; a GPU is not waited for."""
    if torch.device(device).type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def brought(*tensors: torch.Tensor) -> list[npt.NDArray[Any]]:
    """Returns tensors [rows, …] of int64, bool or fp32 in main memory, as arrays, by one copy."""
    packed = [tensor.flatten(1) for tensor in tensors]
    packed = [one.view(torch.int32).long() if one.dtype == torch.float32 else one.long() for one in packed]
    parts = np.split(torch.cat(packed, 1).cpu().numpy(), np.cumsum([one.shape[1] for one in packed])[:-1], 1)
    return [_as(part, tensor) for part, tensor in zip(parts, tensors, strict=True)]


def _as(numbers: npt.NDArray[Any], tensor: torch.Tensor) -> npt.NDArray[Any]:
    if tensor.dtype == torch.float32:
        numbers = numbers.astype(np.int32).view(np.float32)
    return numbers.astype(bool) if tensor.dtype == torch.bool else numbers.reshape(tensor.shape)
