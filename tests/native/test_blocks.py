"""Matrices in GGUF's blocks: weights are those of `gguf`, and products the integer arithmetic that numpy does here."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import pytest
from each import each
from gguf import GGMLQuantizationType, dequantize
from gguf.constants import GGML_QUANT_SIZES
from native.engine import Pool, isas, linear, using

from localspec.errors import LocalspecError
from localspec.machine.library import BLOCK_TYPES, address, check, int32, library
from localspec.weights.matrices import BlockMatrix, BlockStack

F32 = np.float32
ONE, TWO = Pool(1), Pool(2)
UNEVEN = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113])
E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12])
TWO_BITS, EIGHT = (0, 2, 4, 6), tuple(range(8))


def half(b: np.ndarray, at: int) -> np.ndarray:
    return b[:, at : at + 2].copy().view(np.float16).astype(F32)


def bits(b: np.ndarray, run: int, shifts: Sequence[int], mask: int) -> np.ndarray:
    """Return of each `run` of bytes first all numbers at the first shift, then those at the second."""
    found = b.reshape(len(b), -1, 1, run).astype(int) >> np.reshape(shifts, (-1, 1)) & mask
    return found.reshape(len(b), -1)


def nibbles(b: np.ndarray, run: int = 16) -> np.ndarray:
    return bits(b, run, (0, 4), 15)


def fifths(b: np.ndarray) -> np.ndarray:
    return np.unpackbits(b, axis=1, bitorder="little").astype(int) << 4


def six_bits(b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    low, high, both = np.split(b[:, 4:16], 3, axis=1)
    scales = np.concatenate([low & 63, both & 15 | low >> 2 & 48], 1)
    minima = np.concatenate([high & 63, both >> 4 | high >> 2 & 48], 1)
    return half(b, 0) * scales.astype(F32), -half(b, 2) * minima.astype(F32)


def third_bits(b: np.ndarray) -> np.ndarray:
    scales = nibbles(b[:, 96:104], 8) | bits(b[:, 104:108], 4, TWO_BITS, 3) << 4
    return half(b, 108) * (scales - 32).astype(F32)


def uneven_scales(b: np.ndarray) -> np.ndarray:
    high = b[:, 2:4].copy().view(np.uint16).astype(int) >> 2 * np.arange(8) & 3
    return half(b, 0) * ((nibbles(b[:, 4:8], 1) | high << 4) - 32).astype(F32)


def powers(b: np.ndarray) -> np.ndarray:
    e = b[:, :1].astype(np.uint32)
    return np.where(e < 2, np.uint32(0x200000) << e, (e - 1) << 23).astype(np.uint32).view(F32)


class Form(NamedTuple):
    """A type: which fields are fp16 scales, and a function that reads integers, scales and minima from bytes."""

    halves: tuple[int, ...]
    integers: Callable[[np.ndarray], np.ndarray]
    scales: Callable[[np.ndarray], np.ndarray]
    minima: Callable[[np.ndarray], np.ndarray] | None = None


FORMS = {
    "Q4_0": Form((0,), lambda b: nibbles(b[:, 2:]) - 8, lambda b: half(b, 0)),
    "Q4_1": Form((0, 2), lambda b: nibbles(b[:, 4:]), lambda b: half(b, 0), lambda b: half(b, 2)),
    "Q5_0": Form((0,), lambda b: (nibbles(b[:, 6:]) | fifths(b[:, 2:6])) - 16, lambda b: half(b, 0)),
    "Q5_1": Form((0, 2), lambda b: nibbles(b[:, 8:]) | fifths(b[:, 4:8]), lambda b: half(b, 0), lambda b: half(b, 2)),
    "Q8_0": Form((0,), lambda b: b[:, 2:].view(np.int8).astype(int), lambda b: half(b, 0)),
    "Q2_K": Form(
        (80, 82),
        lambda b: bits(b[:, 16:80], 32, TWO_BITS, 3),
        lambda b: half(b, 80) * (b[:, :16] & 15).astype(F32),
        lambda b: -half(b, 82) * (b[:, :16] >> 4).astype(F32),
    ),
    "Q3_K": Form(
        (108,),
        lambda b: (bits(b[:, 32:96], 32, TWO_BITS, 3) | bits(b[:, :32], 32, EIGHT, 1) << 2) - 4,
        third_bits,
    ),
    "Q4_K": Form((0, 2), lambda b: nibbles(b[:, 16:], 32), lambda b: six_bits(b)[0], lambda b: six_bits(b)[1]),
    "Q5_K": Form(
        (0, 2),
        lambda b: nibbles(b[:, 48:], 32) | bits(b[:, 16:48], 32, EIGHT, 1) << 4,
        lambda b: six_bits(b)[0],
        lambda b: six_bits(b)[1],
    ),
    "Q6_K": Form(
        (208,),
        lambda b: (nibbles(b[:, :128], 64) | bits(b[:, 128:192], 32, TWO_BITS, 3) << 4) - 32,
        lambda b: half(b, 208) * b[:, 192:208].view(np.int8).astype(F32),
    ),
    "IQ4_NL": Form((0,), lambda b: UNEVEN[nibbles(b[:, 2:])], lambda b: half(b, 0)),
    "IQ4_XS": Form((0,), lambda b: UNEVEN[nibbles(b[:, 8:])], uneven_scales),
    "MXFP4": Form((), lambda b: E2M1[nibbles(b[:, 1:])], powers),
}
SMALL = [name for name in FORMS if GGML_QUANT_SIZES[GGMLQuantizationType[name]][0] == 32]


def random_rows(name: str, out: int, inputs: int, extreme: bool = False) -> np.ndarray:
    """Return rows of random bits, with scales that are finite; extreme ones are of any size."""
    rng, (weights, size) = np.random.default_rng(0), GGML_QUANT_SIZES[GGMLQuantizationType[name]]
    blocks = rng.integers(0, 256, (out * inputs // weights, size), np.uint8)
    if extreme:
        blocks[rng.random(len(blocks)) < 0.2] = 255
        blocks[rng.random(len(blocks)) < 0.2] = 0x80
    for at in FORMS[name].halves:
        numbers = rng.uniform(-0.1, 0.1, (len(blocks), 1)).astype(np.float16)
        if extreme:
            numbers = rng.integers(0, 2**16, (len(blocks), 1), np.uint16).view(np.float16)
            numbers = np.where(np.isfinite(numbers), numbers, np.float16(65504))
        blocks[:, at : at + 2] = numbers.view(np.uint8)
    if name == "MXFP4" and not extreme:
        blocks[:, 0] = rng.integers(100, 130, len(blocks))
    return blocks.reshape(out, -1)


def random_inputs(rows: int, inputs: int) -> np.ndarray:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((rows, inputs), F32) * np.exp(rng.standard_normal((rows, 1), F32) * 3)
    x[:, rng.integers(0, inputs, 4)] *= 50
    return x


def weights_of(name: str, rows: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):
        return dequantize(rows, GGMLQuantizationType[name])


def fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Return a * b + c, rounded once: the sum is rounded to odd in double first."""
    product, c = a.astype(np.float64) * b, c.astype(np.float64)
    total = product + c
    part = total - product
    error = (product - (total - part)) + (c - part)
    even = (error != 0) & np.isfinite(error) & (total.view(np.int64) & 1 == 0)
    moved = total.view(np.int64) + np.where(even, np.where((error > 0) == (total > 0), 1, -1), 0)
    return moved.view(np.float64).astype(F32)


def rounded(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs as integers [rows, groups, 32], and their scales [rows, groups]."""
    x = x.reshape(len(x), -1, 32)
    top = np.abs(x).max(-1, initial=1e-30)
    finite = np.isfinite(top)
    scaled = np.rint(x * np.where(finite, F32(127) / top, F32(0))[..., None])
    return np.where(np.isfinite(scaled), scaled, 0).astype(int), np.where(finite, top / F32(127), F32(np.nan))


def expected(name: str, rows: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return the sums [rows, out] in the order that block_kernels.h defines."""
    form, out = FORMS[name], len(rows)
    blocks = rows.reshape(-1, GGML_QUANT_SIZES[GGMLQuantizationType[name]][1])
    integers, scales = form.integers(blocks), form.scales(blocks)
    runs = integers.size // scales.size  # inputs that share a scale
    integers, scales = integers.reshape(out, -1, 32 // runs, runs), scales.reshape(out, -1, 32 // runs)
    minima = form.minima(blocks).reshape(scales.shape) if form.minima else None
    whole = integers.astype(F32) * scales[..., None] + (0 if minima is None else minima[..., None])
    assert same(whole.reshape(out, -1), weights_of(name, rows))
    given, steps = rounded(x)
    given = given.reshape(len(x), -1, 32 // runs, runs)
    acc = np.zeros((len(x), out), F32)
    for g in range(given.shape[1]):
        sums = np.einsum("rpi,opi->pro", given[:, g], integers[:, g]).astype(F32)
        totals, s = given[:, g].sum(-1).astype(F32), steps[:, g, None]
        scale, minimum = scales[:, g].T[:, None], None if minima is None else minima[:, g].T[:, None]
        t = sums[0] * scale[0]
        if runs == 32:
            acc = fma(t, s, acc)
            acc = acc if minimum is None else fma(minimum[0], s * totals[:, :1], acc)
        else:
            acc = fma(fma(sums[1], scale[1], t), s, acc)
            if minimum is not None:
                u = fma(minimum[1], -totals[:, 1:], minimum[0] * -totals[:, :1])
                acc = fma(u, -s, acc)
    return acc


def multiply(matrix: BlockMatrix, x: np.ndarray, pool: Pool) -> np.ndarray:
    return linear(BlockStack((matrix,)), x, pool=pool)


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Return whether two arrays hold the same numbers; NaN equals NaN."""
    return a.shape == b.shape and np.array_equal(a, b, equal_nan=True)


@each("name", FORMS)
def test_weights_are_those_of_gguf_and_take_the_bytes_of_the_file(name):
    widths = (32, 96, 576, 896) if name in SMALL else (256, 768)
    for out, inputs in [(1, widths[0]), (16, widths[1]), (37, widths[-1])]:
        for extreme in (False, True):
            rows = random_rows(name, out, inputs, extreme)
            matrix = BlockMatrix.pack(rows, inputs, name)
            for isa in isas():
                with using(isa):
                    assert same(BlockStack((matrix,)).rows(range(out)), weights_of(name, rows)), isa
    rows = random_rows(name, 32, 1024)
    packed, stored = BlockMatrix.pack(rows, 1024, name).data.nbytes, rows.nbytes
    assert stored <= packed <= stored * (1.02 if name in ("Q6_K", "Q3_K") else 1)


@each("name", FORMS)
def test_products_are_exactly_the_integer_arithmetic(name):
    for out, inputs in [(5, 512), (32, 576 if name in SMALL else 768), (48, 896 if name in SMALL else 256)]:
        rows, x = random_rows(name, out, inputs), random_inputs(11, inputs)
        got = multiply(BlockMatrix.pack(rows, inputs, name), x, ONE)
        assert same(got, expected(name, rows, x)), (out, inputs)
        weights = weights_of(name, rows).astype(np.float64)
        lost = np.repeat(rounded(x)[1], 32, 1) / 2 @ np.abs(weights).T  # half a step of each input
        assert (np.abs(got - x @ weights.T) <= lost * 1.001).all()


@pytest.mark.filterwarnings("ignore:(overflow|invalid):RuntimeWarning")
@each("name", FORMS)
def test_extreme_blocks_and_inputs_have_a_defined_result(name):
    rows, x = random_rows(name, 33, 1024, extreme=True), random_inputs(7, 1024)
    x[1], x[2, 40:90], x[3, 7], x[4, 9], x[5] = 0, 0, np.nan, -np.inf, 1e37 * np.sign(x[5])
    want, matrix = expected(name, rows, x), BlockMatrix.pack(rows, 1024, name)
    assert np.isnan(want[3:5]).all() and not want[1].any()
    for isa in isas():
        with using(isa):
            assert same(multiply(matrix, x, ONE), want), isa


@each("name", FORMS)
def test_every_instruction_set_gives_the_same_bits_and_rows_are_independent(name):
    inputs = 896 if name in SMALL else 768
    matrix = BlockMatrix.pack(random_rows(name, 75, inputs), inputs, name)
    x = random_inputs(300, inputs)
    first = multiply(matrix, x, ONE)
    assert np.array_equal(first, multiply(matrix, x, TWO))
    for isa in isas():
        with using(isa):
            for rows in (1, 2, 3, 4, 5, 6, 7, 8, 13):
                for threads in (ONE, TWO):
                    assert np.array_equal(first[:rows], multiply(matrix, x[:rows], threads)), (isa, rows)
            assert np.array_equal(first[40:60], multiply(matrix, x[40:60], TWO)), isa


@each("name", [name for name in FORMS if FORMS[name].halves])
def test_a_scale_that_is_no_number_is_refused(name):
    for bad in (np.nan, np.inf, -np.inf):
        for at in FORMS[name].halves:
            rows = random_rows(name, 20, 512)
            rows[18, at : at + 2] = np.array([bad], np.float16).view(np.uint8)
            with pytest.raises(LocalspecError, match="Row 18 "):
                BlockMatrix.pack(rows, 512, name)


def test_widths_and_sizes_that_are_not_possible_are_refused():
    assert list(BLOCK_TYPES) == list(FORMS)
    for name, inputs in [("Q4_K", 576), ("Q4_0", 40), ("Q6_K", 0)]:
        with pytest.raises(LocalspecError, match=str(inputs)):
            BlockMatrix.empty(16, inputs, name)
    with pytest.raises(LocalspecError, match="0 x 256"):
        BlockMatrix.empty(0, 256, "Q4_K")


def test_mistakes_are_sentences():
    matrix = BlockMatrix.pack(random_rows("Q4_0", 16, 64), 64, "Q4_0")
    stack, x, y = BlockStack((matrix,)), np.zeros((1, 64), F32), np.zeros((16, 64), F32)
    wrong = [stack.struct() for _ in range(6)]
    wrong[0].parts[0].type, wrong[1].parts[0].data, wrong[2].parts[0].data = 9, matrix.data.ctypes.data + 32, None
    wrong[3].out, wrong[4].num_parts, wrong[5].num_parts = 17, 0, 5
    ids = int32([0])
    for struct, sentence in zip(
        wrong,
        ["type 9", "multiple of 64", "no weights", "16 rows together, and not 17", "0 parts", "5 parts"],
        strict=True,
    ):
        with pytest.raises(LocalspecError, match=sentence):
            check(library().ls_linear(ONE.handle, struct, 1, address(x), address(y), 0))
        with pytest.raises(LocalspecError, match=sentence):
            check(library().ls_rows(struct, 1, address(ids), address(y)))
    for row in (-1, 16):
        with pytest.raises(LocalspecError, match=f"no row {row}; there are 16"):
            stack.rows([row])
    with pytest.raises(LocalspecError, match="by rows"):
        check(library().ls_unpack(stack.struct(), 0, address(y)))
    for parts in ((), (matrix,) * 5, (matrix, BlockMatrix.empty(16, 32, "Q4_0"))):
        with pytest.raises(LocalspecError, match="1 to 4 parts of the same width"):
            BlockStack(parts).struct()
    rows = random_rows("Q4_0", 16, 64)
    for given, sentence in [
        ((rows[:15],), "16 rows have 576 bytes, and not 540"),
        ((rows, 0, 2), "no panels 0 to 2; there are 1"),
        ((rows, -1, 1), "no panels -1 to 1"),
        ((rows, 0, 1, 6), "whole heads of 6"),
        ((rows, 0, 1, 1), "whole heads of 1"),
    ]:
        with pytest.raises(LocalspecError, match=sentence):
            matrix.fill(*given)


def test_a_stack_is_its_parts_one_after_another():
    names, rows = ("Q4_K", "Q6_K", "Q8_0"), (37, 20, 5)
    parts = [
        BlockMatrix.pack(random_rows(name, count, 768), 768, name) for name, count in zip(names, rows, strict=True)
    ]
    stack, x = BlockStack(tuple(parts)), random_inputs(11, 768)
    bias = np.random.default_rng(2).standard_normal(62, F32)
    want = np.concatenate([multiply(part, x, ONE) for part in parts], 1) + bias
    assert stack.out == 62 and stack.nbytes == sum(part.data.nbytes for part in parts)
    for isa in isas():
        with using(isa):
            for pool in (ONE, TWO):
                assert np.array_equal(linear(stack, x, bias, pool=pool), want)
            silu = linear(stack, x, bias, "silu")
            with np.errstate(over="ignore"):
                assert np.allclose(silu, want / (1 + np.exp(-want)), rtol=1e-5, atol=1e-5)
    ids = [61, 36, 37, 0, 56]
    each_row = np.concatenate([BlockStack((part,)).rows(range(part.out)) for part in parts])
    assert np.array_equal(stack.rows(ids), each_row[ids])


@each("name", ["Q4_0", "Q5_1", "Q6_K", "MXFP4"])
def test_threads_fill_panels_of_rows_that_lie_in_pairs(name):
    rows, heads = random_rows(name, 3 * 24, 512), 24
    moved = rows.reshape(3, heads // 2, 2, -1).swapaxes(1, 2).reshape(rows.shape)
    want = BlockMatrix.pack(np.ascontiguousarray(moved), 512, name)
    assert np.array_equal(BlockMatrix.pack(rows, 512, name, heads).data, want.data)
    matrix, shifted = BlockMatrix.empty(72, 512, name), np.zeros(rows.nbytes + 1, np.uint8)
    shifted[1:] = rows.reshape(-1)  # a file's rows begin anywhere
    assert matrix.panels == 5 and matrix.data.ctypes.data % 64 == 0
    with ThreadPoolExecutor(3) as pool:
        given = shifted[1:].reshape(rows.shape)
        list(pool.map(lambda panel: matrix.fill(given, panel, panel + 1, heads), range(5)))
    assert np.array_equal(matrix.data, want.data)
