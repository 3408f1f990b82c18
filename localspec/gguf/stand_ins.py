"""The block types that weights are put into where no kernel multiplies by the blocks of their own type.

Weights of a coarse type lie on a grid. The search below finds that grid again, so finer blocks repeat most types to
within a thousandth of their energy. `research/stand_in_table.py` measures what is lost.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from localspec.gguf.blocks import BLOCKS, Block, Floats

Bytes = npt.NDArray[np.uint8]

STAND_INS: Mapping[str, str] = {
    "TQ1_0": "Q4_K", "TQ2_0": "Q4_K", "IQ1_S": "Q4_K", "IQ1_M": "Q6_K", "IQ2_XXS": "Q6_K", "IQ2_XS": "Q6_K",
    "IQ2_S": "Q6_K", "IQ3_XXS": "Q4_K", "IQ3_S": "Q4_K", "NVFP4": "Q6_K", "F16": "Q8_0", "BF16": "Q8_0", "F32": "Q8_0",
}  # fmt: skip
_BY_NAME = {block.name: block for block in BLOCKS.values()}


def stand_in(name: str, columns: int) -> Block | None:
    """Return the block type for weights of the type `name` in rows of `columns`.

    Rows that the type in the table does not divide are put into Q8_0. None where that does not divide them either.
    """
    fitting = (_BY_NAME[kind] for kind in (STAND_INS[name], "Q8_0"))
    return next((block for block in fitting if columns % block.weights == 0), None)


def requantised(numbers: Floats, name: str) -> Bytes:
    """Return the bytes of blocks of the type `name`, one after another, that are near to these numbers.

    `name` is Q4_K, Q6_K or Q8_0.
    """
    with np.errstate(all="ignore"):  # zeros are divided by zero, and a hostile file has numbers that are not finite
        if name == "Q4_K":
            return _q4_k(numbers.reshape(-1, 8, 32)).reshape(-1)
        if name == "Q6_K":
            return _q6_k(numbers.reshape(-1, 16, 16)).reshape(-1)
        from gguf import GGMLQuantizationType, quants

        found: Bytes = quants.quantize(numbers.reshape(1, -1), GGMLQuantizationType[name]).reshape(-1)
        return found


def _q4_k(groups: Floats) -> Bytes:
    """Return [blocks, bytes] for [blocks, groups, numbers]: a number is scale x integer - minimum."""
    lowest = np.minimum(groups.min(-1, keepdims=True), 0)
    largest = groups.max(-1, keepdims=True) - lowest
    mean = groups.mean(-1, keepdims=True)
    step, found, least = largest / np.float32(15), lowest, np.full_like(lowest, np.inf)
    for integer in range(15, 7, -1):  # of the largest number; the line through the integers is the nearest one
        integers = np.rint((groups - lowest) * (integer / largest))
        middle = integers.mean(-1, keepdims=True)
        away = integers - middle
        slope = (away * groups).sum(-1, keepdims=True) / np.square(away).sum(-1, keepdims=True)
        start = np.minimum(mean - slope * middle, 0)
        error = np.square(integers * slope + start - groups).sum(-1, keepdims=True)
        better = error < least
        step, found = np.where(better, slope, step), np.where(better, start, found)
        least = np.where(better, error, least)
    scale, scales = _in_integers(step[..., 0], 63)
    minimum, minima = _in_integers(-found[..., 0], 63)
    whole = (groups + (minimum * minima)[..., None]) / (scale * scales)[..., None]
    integers = np.nan_to_num(np.rint(whole)).clip(0, 15).astype(np.uint8)
    halves = [*np.split(scales.astype(np.uint8), 2, axis=1), *np.split(minima.astype(np.uint8), 2, axis=1)]
    return np.concatenate([_fp16(scale), _fp16(minimum), _sixes(*halves), _pairs(integers)], axis=1)


def _sixes(scales: Bytes, more_scales: Bytes, minima: Bytes, more_minima: Bytes) -> Bytes:
    """Return the 12 bytes of eight scales and minima of 6 bits."""
    both = more_scales & 15 | (more_minima & 15) << 4
    return np.concatenate([scales | more_scales >> 4 << 6, minima | more_minima >> 4 << 6, both], axis=1)


def _pairs(runs: Bytes) -> Bytes:
    """Return bytes whose low four bits are a run's, and whose high four bits are those of the next run."""
    found: Bytes = (runs[:, ::2] | runs[:, 1::2] << np.uint8(4)).reshape(len(runs), -1)
    return found


def _q6_k(groups: Floats) -> Bytes:
    """Return [blocks, bytes] for [blocks, groups, numbers]: a number is scale x integer."""
    largest = np.abs(groups).max(-1, keepdims=True)
    step, least = np.zeros_like(largest), np.full_like(largest, np.inf)
    for integer in range(31, 15, -1):  # of the largest number
        integers = np.rint(groups * (integer / largest))
        slope = (integers * groups).sum(-1, keepdims=True) / np.square(integers).sum(-1, keepdims=True)
        error = np.square(integers * slope - groups).sum(-1, keepdims=True)
        better = error < least
        step, least = np.where(better, slope, step), np.where(better, error, least)
    scale, scales = _in_integers(step[..., 0], 127)
    whole = groups / (scale * scales)[..., None]
    integers = (np.nan_to_num(np.rint(whole)).clip(-32, 31) + 32).astype(np.uint8).reshape(-1, 2, 4, 32)
    low = integers & 15
    low = low[:, :, :2] | low[:, :, 2:] << 4
    high = np.bitwise_or.reduce(integers >> 4 << np.array([0, 2, 4, 6], np.uint8)[:, None], axis=2)
    parts = [low, high, scales.astype(np.uint8), _fp16(scale)]
    return np.concatenate([part.reshape(len(groups), -1) for part in parts], axis=1)


def _in_integers(numbers: Floats, most: int) -> tuple[Floats, Floats]:
    """Return one scale in fp16 and integers up to `most`, as floats, for each row of numbers from zero up."""
    largest = numbers.max(-1, keepdims=True)
    scale, integers, least = np.zeros_like(largest), np.zeros_like(numbers), np.full_like(largest, np.inf)
    for integer in range(most, most // 2, -1):  # of the largest number
        tried = (largest / np.float32(integer)).astype(np.float16).astype(np.float32)
        whole = np.nan_to_num(np.rint(numbers / tried)).clip(0, most)
        error = np.square(whole * tried - numbers).sum(-1, keepdims=True)
        better = error < least
        scale, integers = np.where(better, tried, scale), np.where(better, whole, integers)
        least = np.where(better, error, least)
    return scale, integers


def _fp16(numbers: Floats) -> Bytes:
    return numbers.astype("<f2").view(np.uint8)
