"""Weights that are rounded to blocks: the same bits everywhere, with less error than a plain search, and no NaN."""

import hashlib

import gguf
import numpy as np
import pytest
from each import each
from native.engine import isas, using
from native.oracles import rounded

from localspec.errors import LocalspecError
from localspec.machine.library import BLOCK_TYPES, library
from localspec.weights.matrices import BlockMatrix
from localspec.weights.packed_file import RECORDS, Tensor, bits

TYPES = ("Q4_K", "Q6_K", "Q4_0", "Q5_0", "Q8_0")


def weights(rows: int = 40, inputs: int = 512, seed: int = 0) -> np.ndarray:
    """Return weights whose rows differ in scale; some are zeros."""
    random = np.random.default_rng(seed)
    found = random.standard_normal((rows, inputs)) * np.exp(random.standard_normal((rows, 1))) + 0.05
    found[3, 32:64], found[5] = 0, 0
    return found.astype(np.float32)


def packed(of: np.ndarray, type: str, importance: np.ndarray | None = None) -> BlockMatrix:  # noqa: A002
    matrix = BlockMatrix.empty(*of.shape, type)
    matrix.fill_rounded(of, importance)
    return matrix


def error(of: np.ndarray, numbers: np.ndarray, importance: np.ndarray | float = 1.0) -> float:
    return float((importance * (of - numbers) ** 2).sum())


@each("type", TYPES)
@each("scale", [1.0, 1e-4, 300.0])
def test_the_error_is_less_than_that_of_a_search_in_numpy(type, scale):  # noqa: A002
    given = weights() * np.float32(scale)
    theirs = gguf.quants.dequantize(rounded(given, type), gguf.GGMLQuantizationType[type])
    most = {"Q4_K": 0.95, "Q6_K": 1.0, "Q4_0": 0.95, "Q5_0": 0.95, "Q8_0": 1.001}[type]
    assert error(given, packed(given, type).numbers()) < most * error(given, theirs)


@each("type", ["Q4_K", "Q6_K", "Q4_0", "Q5_0"])
def test_importance_moves_the_error_to_what_counts_less(type):  # noqa: A002
    given, importance = weights(), np.random.default_rng(3).random(512, dtype=np.float32) ** 4
    plain, weighed = packed(given, type).numbers(), packed(given, type, importance).numbers()
    assert error(given, weighed, importance) < 0.97 * error(given, plain, importance)


@each("type", ["Q4_0", "Q5_0", "Q8_0"])
def test_weights_in_blocks_are_found_again(type):  # noqa: A002
    """A number that is the largest of its block has the whole scale, as in files that llama.cpp wrote."""
    given = weights()
    first = gguf.quants.dequantize(rounded(given, type), gguf.GGMLQuantizationType[type])
    again = packed(first, type).numbers()
    assert error(first, again) <= 1e-3 * error(given, first)


@pytest.mark.slow
@each("type", TYPES)
def test_every_instruction_set_rounds_to_the_same_bytes(type):  # noqa: A002
    given, importance, found = weights(37, 768), np.random.default_rng(1).random(768, dtype=np.float32), {}
    given[7, 200], given[9, 1:9] = 1e5, 1e-30
    half = given.clip(-6e4, 6e4).astype(np.float16)
    for isa in isas():
        digest = hashlib.sha256()
        with using(isa):
            for source in (given, half, (given.view(np.uint32) >> 16).astype(np.uint16)):
                for counts in (None, importance):
                    digest.update(packed(source, type, counts).data)
        found[isa] = digest.hexdigest()
    assert len(found) > 1 and len(set(found.values())) == 1, found


@each("type", TYPES)
def test_a_matrix_is_the_same_in_pieces(type):  # noqa: A002
    given = weights(70)
    whole, size = packed(given, type).data, packed(given[:16], type).data.size
    for first in range(0, 70, 16):
        piece = packed(np.ascontiguousarray(given[first : first + 16]), type).data
        assert np.array_equal(piece, whole[first // 16 * size :][:size])


@each("type", TYPES)
@each("value", [np.nan, np.inf, -np.inf])
def test_a_weight_that_is_no_number_is_refused(type, value):  # noqa: A002
    given = weights()
    given[21, 300] = value
    with pytest.raises(LocalspecError, match="Row 21 has a weight that is NaN or inf"):
        packed(given, type)


@each("type", TYPES)
@each("value", [3e38, 1e-44, 0.0])
def test_the_largest_and_the_smallest_weights_stay_numbers(type, value):  # noqa: A002
    found = packed(np.full((16, 256), value, np.float32), type).numbers()
    assert np.isfinite(found).all() and (found >= 0).all()


def test_nothing_is_rounded_to_other_types():
    with pytest.raises(LocalspecError, match="not rounded to blocks of type 10"):
        packed(weights(), "Q2_K")


@each("type", BLOCK_TYPES)
def test_a_part_has_the_bytes_that_the_library_computes_with(type):  # noqa: A002
    assert RECORDS.keys() == BLOCK_TYPES.keys()
    for out in (1, 15, 16, 17, 320):
        for inputs in (256, 512, 768, *(() if RECORDS[type][0] == 256 else (32, 64, 96, 160))):
            assert Tensor("blocks", type, out, inputs).bytes == library().ls_blocks_bytes(
                BLOCK_TYPES[type], out, inputs
            )
    assert (bits("Q4_K"), bits("Q5_0"), bits("Q8_0")) == (4.5, 5.5, 8.5)
