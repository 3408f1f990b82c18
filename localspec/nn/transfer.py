"""Transfers between main memory and a device, each in one copy, because a step should wait for a GPU only once."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch


def signed(word: int) -> int:
    """Return a 64-bit word as torch's int64."""
    return word - 2**64 if word >= 2**63 else word


def uploaded(numbers: Sequence[int] | Sequence[Sequence[int]], device: torch.device | str) -> torch.Tensor:
    """Return integers [n] or [n, m] on a device, without waiting for a GPU."""
    return moved(torch.tensor(numbers, dtype=torch.int64), device)


def moved(tensor: torch.Tensor, device: torch.device | str) -> torch.Tensor:
    """Copy a small tensor from main memory to a device, without waiting for a GPU."""
    if torch.device(device).type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def brought(*tensors: torch.Tensor) -> list[npt.NDArray[Any]]:
    """Copy tensors of int64, bool or fp32 to main memory, as arrays, by one copy of their 32-bit words."""
    words = [(tensor.int() if tensor.dtype == torch.bool else tensor).flatten().view(torch.int32) for tensor in tensors]
    flat: npt.NDArray[np.int32] = torch.cat(words).cpu().numpy()
    arrays, end = [], 0
    for tensor, part in zip(tensors, words, strict=True):
        start, end = end, end + part.numel()
        kind: Any = {torch.float32: np.float32, torch.bool: np.int32}.get(tensor.dtype, np.int64)
        numbers: npt.NDArray[Any] = flat[start:end].view(kind)
        arrays.append((numbers.astype(bool) if tensor.dtype == torch.bool else numbers).reshape(tensor.shape))
    return arrays
