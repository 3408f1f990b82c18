"""Int4 as earlier versions packed it, on a symmetric grid: the library reads it, and nothing writes it any more."""

import numpy as np

from localspec.weights.matrices import PackedMatrix

PANEL = 32


def packed(weights: np.ndarray, group: int = 32, interleave: bool = False) -> PackedMatrix:
    """Return weights [out, inputs] in panels: `group` inputs share a scale, whose largest weight is -8."""
    out, inputs = weights.shape
    order = np.arange(-(-out // PANEL) * PANEL)
    if interleave:  # 16 channels of gate, then the 16 of up that belong to them
        at = order // PANEL * 16 + order % 16
        order = np.where(at < out // 2, order // 16 % 2 * (out // 2) + at, out)
    whole = np.zeros((len(order), -(-inputs // group) * group), np.float32)
    there = order < out
    whole[there, :inputs] = weights[order[there]]
    grouped = whole.reshape(-1, PANEL, whole.shape[1] // group, group)
    largest = np.take_along_axis(grouped, np.abs(grouped).argmax(-1)[..., None], -1)
    scales = np.where(largest == 0, 1, largest / -8).clip(-65504, 65504).astype(np.float16)
    scales[scales == 0] = 2**-24
    steps = np.nan_to_num(np.clip(np.rint(grouped / scales.astype(np.float32)), -8, 7)).astype(np.int8) + 8
    halves = steps.astype(np.uint8).reshape(*steps.shape[:3], group // 8, 2, 4).transpose(0, 2, 3, 1, 5, 4)
    found = PackedMatrix.empty(out, inputs, "int4", group)
    of_record = [
        np.ascontiguousarray(scales[..., 0].swapaxes(1, 2)).view(np.uint8).reshape(*halves.shape[:2], -1),
        (halves[..., 0] | halves[..., 1] << 4).reshape(*halves.shape[:2], -1),
    ]
    found.data[:] = np.concatenate(of_record, axis=-1).reshape(-1)
    return found


def in_form(weights: np.ndarray, form: str, group: int = 0, interleave: bool = False) -> PackedMatrix:
    """Return weights in any form that the library computes panels in."""
    if form == "int4":
        return packed(weights, group, interleave)
    return PackedMatrix.pack(weights, form, group, interleave)
