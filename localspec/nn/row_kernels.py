"""Kernels for NVIDIA GPUs, such as products and attention, in which no row changes the bits of another row's result.

In NF4, eight rows take as long as one, and sixteen take a third longer.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F

from localspec.nn.cuda_kernels import Kernel, compiled

ROWS = 64  # at most in one call
PAGE = 256  # slots that attention sums at once
BLOCK = 64  # weights in NF4 that share a scale
CHANNELS = 16  # computed by a tensor core at a time
WARPS = 8  # of a block; they divide the inputs, so the bits depend on their number
AHEAD = 2  # pieces of 16-bit weights that a thread loads ahead
BLOCKS = 3  # per multiprocessor, if a block's preparation serves several channels: as many as fit
SHARED = 38 * 1024  # bytes of shared memory of such a block, including CUDA's share
WIDE = 128  # channels per multiprocessor from which there are enough blocks for all
THREADS = 256  # of attention, and of the operations between products
FORMATS = (torch.bfloat16, torch.float16)


def multiplies(x: torch.Tensor) -> bool:
    """Return whether the kernels can multiply rows like these [rows, in]."""
    return x.dtype in FORMATS and x.shape[1] % 8 == 0


def dense(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Return x Wᵀ + b for x [rows, in] and W [out, in], both in the same 16-bit format."""

    def product(x: torch.Tensor, y: torch.Tensor) -> None:
        kernel, out = _linear(x, "linear_dense", AHEAD=AHEAD), len(weight)
        kernel((-(-out // CHANNELS), 1, 1), 32 * WARPS, weight, x, bias, y, len(x), x.shape[1] // 8, out)

    return _in_parts(x, len(weight), product)


@dataclass(frozen=True)
class TiledNF4:
    """A weight [out, in] in NF4, arranged for the kernel `linear_nf4`.

    `packed` [tiles, blocks, 8, 4, 2, 8] and `scales` [tiles, blocks, 8, 2] are bytes, with 16 channels per tile.
    `scale_code` is the table of values of a scale byte. Each number in `scale_scales` multiplies 256 scales, in the
    order of bitsandbytes; `offset` is added to all scales.
    """

    packed: torch.Tensor
    scales: torch.Tensor
    scale_code: torch.Tensor
    scale_scales: torch.Tensor
    offset: torch.Tensor
    levels: torch.Tensor


def tiled(packed: torch.Tensor, scales: torch.Tensor, out: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Put the bytes and scales of a matrix with `out` rows from bitsandbytes' order into the order of `TiledNF4`.

    Rows are padded with zeros to a multiple of 16.
    """
    blocks = scales.numel() // out
    packed = F.pad(packed.view(out, blocks * BLOCK // 2), (0, 0, 0, -out % CHANNELS))
    scales = F.pad(scales.view(out, blocks), (0, 0, 0, -out % CHANNELS))
    packed = packed.view(-1, 2, 8, blocks, 4, 8).permute(0, 3, 2, 4, 1, 5)
    return packed.contiguous(), scales.view(-1, 2, 8, blocks).permute(0, 3, 2, 1).contiguous()


def untiled(packed: torch.Tensor, scales: torch.Tensor, out: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Undo `tiled` for a matrix with `out` rows: return bytes [n, 1] and scales [m] in bitsandbytes' order."""
    blocks = packed.shape[1]
    packed = packed.permute(0, 4, 2, 1, 3, 5).reshape(-1, blocks * BLOCK // 2)[:out]
    scales = scales.permute(0, 3, 2, 1).reshape(-1, blocks)[:out]
    return packed.reshape(-1, 1), scales.reshape(-1)


def nf4(x: torch.Tensor, weight: TiledNF4, bias: torch.Tensor | None, out: int) -> torch.Tensor:
    """Return x Wᵀ + b for x [rows, in] and W in NF4 [out, in], where `in` is a multiple of 64."""

    def product(x: torch.Tensor, y: torch.Tensor) -> None:
        tiles = _tiles(x)
        # With two times 16 channels, rows, which come from a cache that all blocks share, are read once.
        tall = 2 if tiles == 8 or (tiles == 2 and out >= WIDE * _multiprocessors(x.device)) else 1
        blocks = min(-(-out // (CHANNELS * tall)), _blocks(x.device) * _multiprocessors(x.device))
        kernel = _linear(x, "linear_nf4", TALL=tall)
        kernel(
            (blocks, 1, 1), 32 * WARPS, weight.packed, weight.scales, weight.scale_code, weight.scale_scales,
            weight.offset, weight.levels, x, bias, y, len(x), x.shape[1] // BLOCK, out,
        )  # fmt: skip

    return _in_parts(x, out, product)


def nf4_dense(weight: TiledNF4, out: int, dtype: torch.dtype) -> torch.Tensor:
    """Unpack W [out, in] into one of the 16-bit formats, including the columns that pad its last block."""
    tiles, blocks = weight.packed.shape[:2]
    dense = weight.packed.new_empty(out, blocks * BLOCK, dtype=dtype)
    kernel = _linear(dense[:1], "linear_nf4", "nf4_dense", TALL=1)
    kernel(
        (-(-tiles * blocks // WARPS), 1, 1), 32 * WARPS, weight.packed, weight.scales, weight.scale_code,
        weight.scale_scales, weight.offset, weight.levels, dense, blocks, out,
    )  # fmt: skip
    return dense


def attention(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, scale: float | None = None
) -> torch.Tensor:
    """Compute `attention.invariant` in the precision of the keys, with all sums in fp32.

    The cache is read in pages of `PAGE` slots. A row's ancestors must be in the same pages as in plain decoding.
    """
    (heads, rows, width), slots, device = queries.shape[1:], keys.shape[2], keys.device
    queries, mask, pages = queries.to(keys.dtype).contiguous(), mask.to(keys.dtype).contiguous(), -(-slots // PAGE)
    at_once = 4 if rows <= 4 else 16 if width <= 256 else 8
    formats = {"FP16": int(keys.dtype == torch.float16), "FP32": int(keys.dtype == torch.float32), "HEAD": width}
    constants = {**formats, "ROWS": at_once, "PAGE": PAGE, "THREADS": THREADS, "TILES": 1, "WARPS": WARPS}
    mixed = queries.new_empty(heads, pages, rows, width, dtype=torch.float32)
    greatest, totals = (queries.new_empty(heads, pages, rows, dtype=torch.float32) for _ in range(2))
    factor = width**-0.5 if scale is None else scale
    compiled(device, "attention.cu", "attend", **constants)(
        (heads, pages, -(-rows // at_once)), THREADS, queries, keys, values, mask, mixed, greatest, totals, rows, slots,
        keys.stride(1), float(factor),
    )  # fmt: skip
    out = torch.empty_like(queries)
    add = compiled(device, "attention.cu", "add_pages", **constants)
    add((heads, rows, 1), min(THREADS, max(32, width)), mixed, greatest, totals, out, rows, pages)
    return out


def heads_fit(head_dim: int) -> bool:
    """Return whether `attention` supports heads of this many channels."""
    return head_dim % 8 == 0 and head_dim <= 2 * THREADS


def attends(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> bool:
    """Return whether `attention` can compute with these tensors."""
    width = keys.shape[3]
    same_layout = keys.stride() == values.stride() and keys.stride()[2:] == (width, 1) and keys.dtype == values.dtype
    return same_layout and keys.dtype in (torch.float32, *FORMATS) and heads_fit(width) and queries.shape[2] > 0


def _in_parts(x: torch.Tensor, out: int, product: Callable[[torch.Tensor, torch.Tensor], None]) -> torch.Tensor:
    x, y = x.contiguous(), x.new_empty(len(x), out)
    for first in range(0, len(x), ROWS):
        product(x[first : first + ROWS], y[first : first + ROWS])
    return y


def _tiles(x: torch.Tensor) -> int:
    """Return the number of tiles of eight rows that cover these rows."""
    return next(tiles for tiles in (1, 2, 4, 8) if 8 * tiles >= len(x))


def _linear(x: torch.Tensor, file: str, name: str = "", **defined: int) -> Kernel:
    constants = {"FP16": int(x.dtype == torch.float16), "FP32": 0, "TILES": _tiles(x), "WARPS": WARPS, **defined}
    return compiled(x.device, f"{file}.cu", name or file, **constants)


@cache
def _blocks(device: torch.device) -> int:
    """Return how many blocks of a kernel a multiprocessor runs at once. More blocks would wait and double the time."""
    memory = getattr(torch.cuda.get_device_properties(device), "shared_memory_per_multiprocessor", 2 * SHARED)
    return max(1, min(BLOCKS, memory // SHARED))


@cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


# -- between products: one kernel each, where torch needs several ------------------------------------------------------

MOST_HELD = 16  # parts of 16 bytes of a row in a thread's registers
SMALL = {torch.float32: 4, torch.bfloat16: 8, torch.float16: 8}  # numbers in 16 bytes


@dataclass(frozen=True)
class Placing:
    """The places of new rows in a cache.

    `slots` has keys and values [2, num_kv_heads, slots, head_dim]; attention reads the first `visible` slots. The first
    new row goes to slot `length`, plus the number in `start` (on the device) if that is given.
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
    x: torch.Tensor, added: torch.Tensor | None, weight: torch.Tensor, offset: float, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return x plus `added`, if not None, and the norm of this sum (RMSNorm, with `offset` added to the weight)."""
    # A single row of heads among others is contiguous, and the norm of a row must not depend on that.
    x, added, parts = x.contiguous(), None if added is None else added.contiguous(), x.shape[-1] // SMALL[x.dtype]
    total, normed = x if added is None else torch.empty_like(x), torch.empty_like(x)
    kernel = _kernel(x, "add_norm", HELD=-(-parts // THREADS))
    grid = (x.numel() // x.shape[-1], 1, 1)
    kernel(grid, THREADS, x, added, weight, total, normed, parts, float(offset), float(epsilon))
    return total, normed


def gated(gate_up: torch.Tensor, activation: str) -> torch.Tensor:
    """Return the product of the second half of the channels and the activation of the first half.

    `activation` is silu or gelu.
    """
    rows, parts = gate_up.numel() // gate_up.shape[-1], gate_up.shape[-1] // 2 // SMALL[gate_up.dtype]
    out = gate_up.new_empty(*gate_up.shape[:-1], gate_up.shape[-1] // 2)
    kernel = _kernel(gate_up, "gated", GELU=int(activation == "gelu"))
    kernel((-(-rows * parts // THREADS), 1, 1), THREADS, gate_up, out, rows, parts)
    return out


def rotate_and_place(
    qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, heads: int, kv_heads: int, placing: Placing
) -> torch.Tensor:
    """Rotate queries and keys of qkv [rows, heads + 2 * kv_heads, head_dim] as `apply_rope` does.

    Write keys and values into a cache, and return the queries, [kv_heads, heads per key head * rows, head_dim].
    """
    (rows, all_heads, width), slots = qkv.shape, placing.slots
    grouped = qkv.new_empty(kv_heads, heads // kv_heads * rows, width)
    _kernel(qkv, "rotate_and_place", HEAD=width)(
        (rows, all_heads, 1), min(THREADS, -(-width // 32) * 32), qkv, cos, sin, placing.start, placing.length, grouped,
        slots[0], slots[1], rows, heads, kv_heads, cos.shape[-1], slots.stride(1),
    )  # fmt: skip
    return grouped


def _kernel(x: torch.Tensor, name: str, **defined: int) -> Kernel:
    formats = {"FP16": int(x.dtype == torch.float16), "FP32": int(x.dtype == torch.float32)}
    constants = {"HELD": 1, "HEAD": 8, "GELU": 0, "THREADS": THREADS, "TILES": 1, "WARPS": 1, **formats, **defined}
    return compiled(x.device, "layer.cu", name, **constants)
