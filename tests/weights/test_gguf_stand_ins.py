"""Blocks of one type that replace those of another."""

import numpy as np
import pytest
from each import each
from gguf_files import stored

from localspec.weights.gguf_file import BLOCKS, floats
from localspec.weights.matrices import BlockMatrix
from localspec.weights.packed_file import RECORDS
from localspec.weights.recipe import STAND_INS, stand_in

BY_NAME = {block.name: block for block in BLOCKS.values()}
# The energy of the error, as a part of that of the weights. Q8_0 made of any weights has 3e-5, Q5_0 has 1.5e-3.
MOST_LOST = {
    "TQ1_0": 1e-4, "TQ2_0": 1e-4, "IQ1_S": 2e-4, "IQ1_M": 2e-3, "IQ2_XXS": 2e-3, "IQ2_XS": 2e-3, "IQ2_S": 2e-3,
    "IQ3_XXS": 5e-4, "IQ3_S": 1e-4, "NVFP4": 2e-3, "F16": 5e-5, "BF16": 5e-5, "F32": 5e-5,
}  # fmt: skip


def lost(numbers: np.ndarray, kind: str) -> float:
    again = BlockMatrix.empty(*numbers.shape, kind)
    again.fill_rounded(numbers)
    return float(np.square(again.numbers() - numbers).sum() / np.square(numbers).sum())


def test_every_type_that_is_read_has_kernels_or_a_stand_in():
    assert STAND_INS.keys() == BY_NAME.keys() - RECORDS.keys()


@each("kind", STAND_INS)
def test_little_of_a_type_is_lost_in_the_blocks_that_stand_in_for_it(kind):
    weights = np.random.default_rng(1).normal(0, 0.05, (16, 1024)).astype(np.float32)
    numbers = floats(BY_NAME[kind], stored(kind, weights).content).reshape(weights.shape)
    assert lost(numbers, STAND_INS[kind]) <= MOST_LOST[kind]


@pytest.mark.parametrize(
    ("kind", "columns", "becomes"),
    [("F16", 896, "Q8_0"), ("F32", 576, "Q8_0"), ("BF16", 40, None), ("IQ2_XS", 1536, STAND_INS["IQ2_XS"])],
)
def test_rows_decide_what_fits(kind, columns, becomes):
    assert stand_in(kind, columns) == becomes
