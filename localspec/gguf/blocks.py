"""How GGUF stores weights: in blocks with a scale, and what numbers those stand for.

A row is a whole number of blocks. Each `floats` below is the arithmetic of ggml's dequantize_row of that type, in fp32
and in its order, so that the numbers are the same in every bit. Names as in ggml: d is a scale, m a minimum.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Block:
    """A type: how many weights are in a block, its bytes, and `floats`: bytes [blocks, bytes] -> [blocks, weights]."""

    name: str
    weights: int
    bytes: int
    floats: Callable[[Bytes], Floats]


def _half(blocks: Bytes, at: int) -> Floats:
    """The fp16 number at a byte of each block, as [blocks, 1]."""
    return blocks[:, at : at + 2].copy().view(np.float16).astype(np.float32)


def _nibbles(stored: Bytes, run: int) -> Bytes:
    """Two numbers of 4 bits a byte: of each `run` of bytes first all low ones, then all high ones."""
    runs = stored.reshape(len(stored), -1, 1, run)
    found: Bytes = runs >> np.array([0, 4], np.uint8).reshape(2, 1) & np.uint8(15)
    return found.reshape(len(stored), -1)


def _fifth_bits(stored: Bytes) -> Bytes:
    """32 bits, the lowest first, as 16 each."""
    found: Bytes = np.unpackbits(stored, axis=1, bitorder="little") * np.uint8(16)
    return found


def _q4_0(blocks: Bytes) -> Floats:
    return (_nibbles(blocks[:, 2:], 16).astype(np.float32) - 8) * _half(blocks, 0)


def _q4_1(blocks: Bytes) -> Floats:
    return _nibbles(blocks[:, 4:], 16) * _half(blocks, 0) + _half(blocks, 2)


def _q5_0(blocks: Bytes) -> Floats:
    numbers = _nibbles(blocks[:, 6:], 16) | _fifth_bits(blocks[:, 2:6])
    return (numbers.astype(np.float32) - 16) * _half(blocks, 0)


def _q5_1(blocks: Bytes) -> Floats:
    numbers = _nibbles(blocks[:, 8:], 16) | _fifth_bits(blocks[:, 4:8])
    return numbers * _half(blocks, 0) + _half(blocks, 2)


def _q8_0(blocks: Bytes) -> Floats:
    return blocks[:, 2:].view(np.int8) * _half(blocks, 0)


def _scales(blocks: Bytes) -> tuple[Floats, Floats]:
    """Scales and minima of the 8 runs of 32 in a block of Q4_K or Q5_K: 6 bits each, times those of the block."""
    low, high, both = np.split(blocks[:, 4:16], 3, axis=1)
    scales = np.concatenate([low & 63, both & 15 | low >> 2 & 48], axis=1)
    minima = np.concatenate([high & 63, both >> 4 | high >> 2 & 48], axis=1)
    return scales * _half(blocks, 0), minima * _half(blocks, 2)


def _runs(numbers: Bytes, scales: Floats, minima: Floats) -> Floats:
    runs = numbers.reshape(*scales.shape, -1)
    return (scales[..., None] * runs - minima[..., None]).reshape(len(numbers), -1)


def _q4_k(blocks: Bytes) -> Floats:
    return _runs(_nibbles(blocks[:, 16:], 32), *_scales(blocks))


def _q5_k(blocks: Bytes) -> Floats:
    bits = blocks[:, 16:48, None] >> np.arange(8, dtype=np.uint8) & 1  # bit n of byte i: number i of run n
    fifth: Bytes = bits.transpose(0, 2, 1).reshape(len(blocks), -1).astype(np.uint8) * np.uint8(16)
    return _runs(_nibbles(blocks[:, 48:], 32) | fifth, *_scales(blocks))


def _q6_k(blocks: Bytes) -> Floats:
    high = blocks[:, 128:192].reshape(len(blocks), 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8).reshape(4, 1)
    numbers = _nibbles(blocks[:, :128], 64) | (high & 3).reshape(len(blocks), -1) << 4
    scales = _half(blocks, 208) * blocks[:, 192:208].view(np.int8)
    runs = (numbers.astype(np.float32) - 32).reshape(len(blocks), 16, 16)
    return (runs * scales[..., None]).reshape(len(blocks), -1)


def _f32(blocks: Bytes) -> Floats:
    return blocks.view("<f4").astype(np.float32, copy=False)


def _f16(blocks: Bytes) -> Floats:
    return blocks.view("<f2").astype(np.float32)


def _bf16(blocks: Bytes) -> Floats:
    return (blocks.view("<u2").astype(np.uint32) << 16).view(np.float32)


BLOCKS: dict[int, Block] = {
    0: Block("F32", 1, 4, _f32), 1: Block("F16", 1, 2, _f16), 30: Block("BF16", 1, 2, _bf16),
    2: Block("Q4_0", 32, 18, _q4_0), 3: Block("Q4_1", 32, 20, _q4_1), 6: Block("Q5_0", 32, 22, _q5_0),
    7: Block("Q5_1", 32, 24, _q5_1), 8: Block("Q8_0", 32, 34, _q8_0), 12: Block("Q4_K", 256, 144, _q4_k),
    13: Block("Q5_K", 256, 176, _q5_k), 14: Block("Q6_K", 256, 210, _q6_k),
}  # fmt: skip
# Types that others write and localspec does not read, for a sentence about them.
NAMES = {
    9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S",
    20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64",
    29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
}  # fmt: skip


def floats(block: Block, stored: Any) -> Floats:
    """The numbers that whole blocks stand for, one after another."""
    return block.floats(np.frombuffer(stored, np.uint8).reshape(-1, block.bytes)).reshape(-1)


def q8_0(numbers: Floats) -> Bytes:
    """Return numbers, of which 32 share a scale, rounded to Q8_0 as ggml's quantize_row_q8_0_ref does it, as bytes."""
    groups = numbers.reshape(-1, 32)
    scale = np.abs(groups).max(axis=1, keepdims=True) / np.float32(127)
    inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale > 0)
    with np.errstate(invalid="ignore", over="ignore"):  # whoever packs the blocks refuses a scale that is no number
        steps = groups * inverse
        whole = np.trunc(steps)
        whole += np.copysign(np.abs(steps - whole) >= 0.5, steps)  # half away from zero
        blocks = np.concatenate([scale.astype("<f2").view(np.uint8), whole.astype(np.int8).view(np.uint8)], axis=1)
    return blocks.reshape(-1)
