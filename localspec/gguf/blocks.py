"""How GGUF stores weights: in blocks, of which a row is a whole number, and what numbers those stand for."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Block:
    """A type: its name in ggml, how many weights are in a block, and its bytes."""

    name: str
    weights: int
    bytes: int


BLOCKS: dict[int, Block] = {
    0: Block("F32", 1, 4), 1: Block("F16", 1, 2), 30: Block("BF16", 1, 2),
    2: Block("Q4_0", 32, 18), 3: Block("Q4_1", 32, 20), 6: Block("Q5_0", 32, 22), 7: Block("Q5_1", 32, 24),
    8: Block("Q8_0", 32, 34), 10: Block("Q2_K", 256, 84), 11: Block("Q3_K", 256, 110), 12: Block("Q4_K", 256, 144),
    13: Block("Q5_K", 256, 176), 14: Block("Q6_K", 256, 210), 16: Block("IQ2_XXS", 256, 66),
    17: Block("IQ2_XS", 256, 74), 18: Block("IQ3_XXS", 256, 98), 19: Block("IQ1_S", 256, 50),
    20: Block("IQ4_NL", 32, 18), 21: Block("IQ3_S", 256, 110), 22: Block("IQ2_S", 256, 82),
    23: Block("IQ4_XS", 256, 136), 29: Block("IQ1_M", 256, 56), 34: Block("TQ1_0", 256, 54),
    35: Block("TQ2_0", 256, 66), 39: Block("MXFP4", 32, 17), 40: Block("NVFP4", 64, 36),
}  # fmt: skip
# Types that no weights are stored in, or that the package gguf does not read, for a sentence about them.
NAMES = {9: "Q8_1", 15: "Q8_K", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 41: "Q1_0", 42: "Q2_0"}


def floats(block: Block, stored: Any) -> Floats:
    """Return the numbers that whole blocks stand for, one after another, as ggml's dequantize_row finds them."""
    from gguf import GGMLQuantizationType, quants

    with np.errstate(all="ignore"):  # a hostile file has scales that are not finite
        numbers = quants.dequantize(np.frombuffer(stored, np.uint8), GGMLQuantizationType[block.name])
    return numbers.reshape(-1)
