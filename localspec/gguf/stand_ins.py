"""The block types that weights are put into where no kernel multiplies by the blocks of their own type.

Weights of a coarse type lie on a grid. The search below finds that grid again, so finer blocks repeat most types to
within a thousandth of their energy. `research/stand_in_table.py` measures what is lost.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from localspec.gguf.blocks import BLOCKS, Block, Floats

STAND_INS: Mapping[str, str] = {
    "TQ1_0": "Q4_K", "TQ2_0": "Q4_K", "IQ1_S": "Q4_K", "IQ1_M": "Q5_K", "IQ2_XXS": "Q4_K", "IQ2_XS": "Q5_K",
    "IQ2_S": "Q5_K", "IQ3_XXS": "Q4_K", "IQ3_S": "Q4_K", "NVFP4": "Q5_K", "F16": "Q8_0", "BF16": "Q8_0", "F32": "Q8_0",
}  # fmt: skip
_BY_NAME = {block.name: block for block in BLOCKS.values()}
_K_BITS = {"Q4_K": 4, "Q5_K": 5}
_GROUPS, _GROUP = 8, 32  # of a block of those
_SIX_BITS = 63


def stand_in(name: str, columns: int) -> Block | None:
    """Return the block type for weights of the type `name` in rows of so many.

    Rows that the type in the table does not divide are put into Q8_0. None where that does not divide them either.
    """
    fitting = (_BY_NAME[kind] for kind in (STAND_INS[name], "Q8_0"))
    return next((block for block in fitting if columns % block.weights == 0), None)


def requantised(numbers: Floats, name: str) -> npt.NDArray[np.uint8]:
    """Return the bytes of blocks of the type `name`, one after another, that are nearest to these numbers.

    `name` is Q8_0, Q4_K or Q5_K. Numbers that are not finite become some number.
    """
    with np.errstate(all="ignore"):  # zeros are divided by zero, and a hostile file has numbers that are not finite
        if bits := _K_BITS.get(name):
            return _k_blocks(numbers.reshape(-1, _GROUPS, _GROUP), bits).reshape(-1)
        from gguf import GGMLQuantizationType, quants

        found: npt.NDArray[np.uint8] = quants.quantize(numbers.reshape(1, -1), GGMLQuantizationType[name]).reshape(-1)
        return found


def _k_blocks(groups: Floats, bits: int) -> npt.NDArray[np.uint8]:
    """Return [blocks, bytes] in Q4_K or Q5_K for [blocks, 8, 32]: number = scale x integer - minimum, in each group."""
    most = 2**bits - 1
    lowest = np.minimum(groups.min(-1, keepdims=True), 0)
    steps = _grid(groups - lowest, most)
    scale, scales = _six_bits(steps[..., 0])
    minimum, minima = _six_bits(-lowest[..., 0])
    whole = (groups + (minimum * minima)[..., None]) / (scale * scales)[..., None]
    integers = np.nan_to_num(np.rint(whole)).clip(0, most).astype(np.uint8)
    parts = [scale.astype("<f2").view(np.uint8), minimum.astype("<f2").view(np.uint8), _together(scales, minima)]
    if bits == 5:
        fifth = (integers >> 4) << np.arange(_GROUPS, dtype=np.uint8)[:, None]  # a bit for each group
        parts.append(np.bitwise_or.reduce(fifth, axis=1))
    low = integers & 15
    return np.concatenate([*parts, (low[:, ::2] | low[:, 1::2] << 4).reshape(len(groups), -1)], axis=1)


def _grid(above: Floats, most: int) -> Floats:
    """Return the step [blocks, 8, 1] for groups of numbers from zero up, of which the largest is some integer then."""
    largest: Floats = above.max(-1, keepdims=True)
    best, found = np.full_like(largest, np.inf), largest
    for integer in range(most, most // 2, -1):
        step = largest / np.float32(integer)
        away = np.square(np.rint(above / step) * step - above).sum(-1, keepdims=True)
        found = np.where(away < best, step, found)
        best = np.fmin(away, best)
    return found


def _six_bits(numbers: Floats) -> tuple[Floats, Floats]:
    """Return one scale in fp16 and eight integers of 6 bits, as floats, for each row of [blocks, 8]."""
    largest = numbers.max(-1, keepdims=True)
    best, scale, integers = np.full_like(largest, np.inf), np.zeros_like(largest), np.zeros_like(numbers)
    for integer in range(_SIX_BITS, _SIX_BITS // 2, -1):
        tried = (largest / np.float32(integer)).astype(np.float16).astype(np.float32)
        whole = np.nan_to_num(np.rint(numbers / tried)).clip(0, _SIX_BITS)
        away = np.square(whole * tried - numbers).sum(-1, keepdims=True)
        scale, integers = np.where(away < best, tried, scale), np.where(away < best, whole, integers)
        best = np.fmin(away, best)
    return scale, integers


def _together(scales: Floats, minima: Floats) -> npt.NDArray[np.uint8]:
    """Return the 12 bytes of eight scales and minima of 6 bits, as ggml has them."""
    (first, last), (low, high) = (np.split(one.astype(np.uint8), 2, axis=1) for one in (scales, minima))
    return np.concatenate([first | last >> 4 << 6, low | high >> 4 << 6, last & 15 | (high & 15) << 4], axis=1)
