"""Rounding of weights to blocks in numpy, the reference for the library."""

import gguf
import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

Floats = npt.NDArray[np.float32]


def rounded(numbers: Floats, name: str) -> Bytes:
    """Return rows of blocks of the type `name` that are near to rows of numbers."""
    with np.errstate(all="ignore"):  # zeros are divided by zero
        if name == "Q4_K":
            return _q4_k(numbers.reshape(-1, 8, 32)).reshape(len(numbers), -1)
        if name == "Q6_K":
            return _q6_k(numbers.reshape(-1, 16, 16)).reshape(len(numbers), -1)
        found: Bytes = gguf.quants.quantize(numbers, gguf.GGMLQuantizationType[name])
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
