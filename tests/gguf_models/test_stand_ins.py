"""Blocks that stand in for those of other types."""

import warnings

import numpy as np
import pytest
from each import each
from gguf_files import stored

from localspec.gguf.blocks import BLOCKS, floats
from localspec.gguf.stand_ins import STAND_INS, requantised, stand_in

BY_NAME = {block.name: block for block in BLOCKS.values()}
# The energy of the error, as a part of that of the weights. Q8_0 made of any weights has 3e-5, Q5_K has 1e-3.
MOST_LOST = {
    "TQ1_0": 1e-5, "TQ2_0": 1e-5, "IQ1_S": 1e-4, "IQ1_M": 1e-5, "IQ2_XXS": 2e-4, "IQ2_XS": 2e-4, "IQ2_S": 2e-4,
    "IQ3_XXS": 5e-4, "IQ3_S": 1e-4, "NVFP4": 1e-5, "F16": 5e-5, "BF16": 5e-5, "F32": 5e-5,
}  # fmt: skip


def lost(numbers: np.ndarray, kind: str) -> float:
    again = floats(BY_NAME[kind], requantised(numbers, kind))
    return float(np.square(again - numbers).sum() / np.square(numbers).sum())


@each("kind", STAND_INS)
def test_little_of_a_type_is_lost_in_the_blocks_that_stand_in_for_it(kind):
    weights = np.random.default_rng(1).normal(0, 0.05, (16, 1024)).astype(np.float32)
    numbers = floats(BY_NAME[kind], stored(kind, weights).content)
    assert lost(numbers, STAND_INS[kind]) <= MOST_LOST[kind]


def test_blocks_of_every_type_that_is_read_are_repeated_by_their_own_type():
    """So the bits lie where ggml looks for them, and scales and minima are found again."""
    weights = np.random.default_rng(2).normal(0, 0.05, 16384).astype(np.float32)
    for kind in ("Q8_0", "Q4_K", "Q6_K"):
        first = floats(BY_NAME[kind], requantised(weights, kind))
        assert lost(first, kind) < 2e-5, kind
        assert lost(weights, kind) < {"Q8_0": 5e-5, "Q4_K": 6e-3, "Q6_K": 4e-4}[kind]


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K", "Q6_K"])
def test_zeros_stay_and_what_is_not_finite_is_no_fault(kind):
    zeros = np.zeros(512, np.float32)
    assert not floats(BY_NAME[kind], requantised(zeros, kind)).any()
    for number in (np.nan, np.inf, -np.inf, 1e30, 1e-30):
        hostile = zeros.copy()
        hostile[[3, 300]] = number
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert len(requantised(hostile, kind)) == 512 // BY_NAME[kind].weights * BY_NAME[kind].bytes


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K", "Q6_K"])
def test_groups_of_one_number_stay(kind):
    for number in (0.5, -0.5, 0.03):
        assert lost(np.full(512, number, np.float32), kind) < 1e-5


def test_rows_that_are_no_whole_blocks_are_put_into_q8_0():
    assert stand_in("NVFP4", 1536) == BY_NAME["Q6_K"] and stand_in("NVFP4", 576) == BY_NAME["Q8_0"]
    assert stand_in("F16", 896) == BY_NAME["Q8_0"] and stand_in("BF16", 40) is None
