"""The operations between a layer's products on an NVIDIA GPU: one kernel each, where torch needs several."""

from dataclasses import dataclass

import torch

from localspec.nn.cuda_kernels import Kernel, compiled

THREADS = 256
MOST_HELD = 16  # parts of 16 bytes of a row in a thread's registers
SMALL = {torch.float32: 4, torch.bfloat16: 8, torch.float16: 8}  # numbers in 16 bytes


@dataclass(frozen=True)
class Placing:
    """The places of new rows in a cache.

    It has keys and values [2, num_kv_heads, slots, head_dim], the slots that attention reads, and the first slot:
    `start` on the device, if given, plus `length`.
    """

    slots: torch.Tensor
    visible: int
    start: torch.Tensor | None
    length: int


def fits(x: torch.Tensor) -> bool:
    """Return whether the kernel can norm rows of this width."""
    each = SMALL.get(x.dtype)
    return each is not None and x.shape[-1] % 8 == 0 and x.shape[-1] <= MOST_HELD * THREADS * each


def add_norm(
    x: torch.Tensor, given: torch.Tensor | None, weight: torch.Tensor, offset: float, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return x plus `given`, if there is one, and the norm of that sum (RMSNorm, with `offset` added to the weight)."""
    # A single row of heads among others is contiguous, and the norm of a row must not depend on that.
    x, given, parts = x.contiguous(), None if given is None else given.contiguous(), x.shape[-1] // SMALL[x.dtype]
    total, normed = x if given is None else torch.empty_like(x), torch.empty_like(x)
    kernel = _kernel(x, "add_norm", HELD=-(-parts // THREADS))
    grid = (x.numel() // x.shape[-1], 1, 1)
    kernel(grid, THREADS, x, given, weight, total, normed, parts, float(offset), float(epsilon))
    return total, normed


def gated(both: torch.Tensor, activation: str) -> torch.Tensor:
    """Return the product of the second half of the channels and the activation of the first half.

    `activation` is silu or gelu.
    """
    rows, parts = both.numel() // both.shape[-1], both.shape[-1] // 2 // SMALL[both.dtype]
    out = both.new_empty(*both.shape[:-1], both.shape[-1] // 2)
    kernel = _kernel(both, "gated", GELU=int(activation == "gelu"))
    kernel((-(-rows * parts // THREADS), 1, 1), THREADS, both, out, rows, parts)
    return out


def rotate_and_place(
    qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, heads: int, kv_heads: int, placing: Placing
) -> torch.Tensor:
    """Rotate queries and keys of qkv [rows, heads + 2 * kv_heads, head_dim] as `apply_rope` does.

    Write keys and values into a cache, and return the queries, [kv_heads, heads per key head * rows, head_dim].
    """
    (rows, every, width), slots = qkv.shape, placing.slots
    grouped = qkv.new_empty(kv_heads, heads // kv_heads * rows, width)
    _kernel(qkv, "rotate_and_place", HEAD=width)(
        (rows, every, 1), min(THREADS, -(-width // 32) * 32), qkv, cos, sin, placing.start, placing.length, grouped,
        slots[0], slots[1], rows, heads, kv_heads, cos.shape[-1], slots.stride(1),
    )  # fmt: skip
    return grouped


def _kernel(x: torch.Tensor, name: str, **defined: int) -> Kernel:
    formats = {"FP16": int(x.dtype == torch.float16), "FP32": int(x.dtype == torch.float32)}
    given = {"HELD": 1, "HEAD": 8, "GELU": 0, "THREADS": THREADS, "TILES": 1, "WARPS": 1, **formats, **defined}
    return compiled(x.device, "layer.cu", name, **given)
