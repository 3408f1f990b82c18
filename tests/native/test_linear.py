"""Packed matrices and linear layers against numpy in float64."""

import numpy as np
import pytest
from each import each
from native.engine import POOL, Pool, isas, linear, using

from localspec.weights.matrices import PackedMatrix

FORMS = [("fp32", 0), ("bf16", 0), ("int8", 32), ("int8", 64), ("int8", 128)]
SIZES = [(5, 7), (64, 128), (99, 200), (33, 48), (320, 300)]
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def same_numbers_in_every_order():
    RNG.bit_generator.state = np.random.default_rng(0).bit_generator.state


def rounded_inputs(x: np.ndarray) -> np.ndarray:
    """Return inputs as int8 weights see them: the largest of 128 becomes 127."""
    out = np.empty_like(x)
    for start in range(0, x.shape[1], 128):
        part = x[:, start : start + 128]
        top = np.abs(part).max(1, keepdims=True)
        out[:, start : start + 128] = np.rint(part * (np.float32(127) / top)) * (top / np.float32(127))
    return out


@each("form, group", FORMS)
def test_products_are_those_of_the_unpacked_weights(form, group):
    for out, inputs in SIZES:
        weights, bias = RNG.standard_normal((out, inputs), np.float32), RNG.standard_normal(out, np.float32)
        packed = PackedMatrix.pack(weights, form, group)
        unpacked = packed.unpack().astype(np.float64)
        for rows in (1, 3, 8, 9, 70):
            x = RNG.standard_normal((rows, inputs), np.float32)
            want = (rounded_inputs(x) if group else x).astype(np.float64) @ unpacked.T + bias
            got = [linear(packed, x, bias, pool=pool) for pool in (POOL, Pool(3))]
            assert np.abs(got[0] - want).max() < 1e-5 * np.sqrt(inputs)
            assert np.array_equal(*got)
            silu = want / (1 + np.exp(-want))
            assert np.abs(linear(packed, x, bias, activation="silu") - silu).max() < 1e-5 * np.sqrt(inputs)


def test_gelu_is_that_by_tanh_in_the_same_bits_however_large_its_input():
    """With a single weight of 1 the output is the activation of the input."""
    x = np.concatenate([np.linspace(-12, 12, 4001), [-1e30, -1e4, -90.0, -0.0, 0.0, 1e-30, 90.0, 1e4, 1e30]])
    packed, rows = PackedMatrix.pack(np.ones((1, 1), np.float32), "fp32"), x.astype(np.float32)[:, None]
    want = x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * np.clip(x, -1e9, 1e9) ** 3))) / 2
    first = linear(packed, rows, activation="gelu")
    assert np.abs(first[:, 0] - want).max(initial=0, where=np.abs(x) < 20) < 1e-6
    assert np.allclose(first[:, 0], want, rtol=2e-6, atol=1e-6)
    for isa in isas():
        with using(isa):
            assert np.array_equal(first, linear(packed, rows, activation="gelu")), isa
    assert np.isnan(linear(packed, np.full((1, 1), np.nan, np.float32), activation="gelu")).all()


@pytest.mark.slow
@each("form, group", FORMS)
def test_every_instruction_set_gives_the_same_bits_and_rows_are_independent(form, group):
    for out, inputs in SIZES:
        packed = PackedMatrix.pack(RNG.standard_normal((out, inputs), np.float32), form, group)
        x = RNG.standard_normal((21, inputs), np.float32) * np.exp(RNG.standard_normal((21, 1), np.float32) * 4)
        first = linear(packed, x)
        for isa in isas():
            with using(isa):
                for rows in (1, 2, 3, 4, 5, 6, 7, 8, 13):
                    assert np.array_equal(first[:rows], linear(packed, x[:rows])), (isa, rows)
                assert np.array_equal(first, linear(packed, x)), isa


@each("source", [np.float16, np.uint16])
def test_every_type_of_number_is_packed_as_the_same_in_fp32(source):
    weights = RNG.standard_normal((40, 96)).astype(np.float16).astype(np.float32)
    given = weights.astype(source)
    if source is np.uint16:
        given = (weights.view(np.uint32) >> 16).astype(np.uint16)
        weights = (given.astype(np.uint32) << 16).view(np.float32)
    assert np.array_equal(PackedMatrix.pack(given, "fp32").unpack(), weights)
    bf16 = PackedMatrix.pack(given, "bf16").unpack()
    assert np.abs(bf16 - weights).max() <= 2**-8 * np.abs(weights).max()
    assert np.array_equal(PackedMatrix.pack(given, "int8", 32).data, PackedMatrix.pack(weights, "int8", 32).data)


@each("form", ["fp32", "int8"])
@each("half", [40, 48, 8])
def test_gate_and_up_are_interleaved_and_found_again(form, half):
    weights = RNG.standard_normal((2 * half, 64), np.float32)
    interleaved = PackedMatrix.pack(weights, form, 0 if form == "fp32" else 32, interleave=True)
    plain = PackedMatrix.pack(weights, form, 0 if form == "fp32" else 32)
    assert interleaved.data.nbytes == plain.data.nbytes
    assert np.array_equal(interleaved.unpack(interleave=True), plain.unpack())


def test_what_is_not_a_number_stays_visible():
    for form, group in FORMS:
        weights = RNG.standard_normal((40, 200), np.float32)
        packed = PackedMatrix.pack(weights, form, group)
        for bad in (np.nan, np.inf, -np.inf):
            x = RNG.standard_normal((3, 200), np.float32)
            x[1, 130] = bad
            for isa in isas():
                with using(isa):
                    y = linear(packed, x)
                assert not np.isfinite(y[1]).any() and np.isfinite(y[[0, 2]]).all(), (form, bad, isa)
        damaged = weights.copy()
        damaged[7, 9] = np.nan
        y = linear(PackedMatrix.pack(damaged, form, group), RNG.standard_normal((2, 200), np.float32))
        assert np.isnan(y[:, 7]).all() and np.isfinite(np.delete(y, 7, 1)).all()


def test_extreme_weights_and_inputs():
    tiny, huge = np.full((32, 64), 1e-30, np.float32), np.full((32, 64), 6e4, np.float32)
    assert np.abs(linear(PackedMatrix.pack(tiny, "int8", 32), np.ones((1, 64), np.float32))).max() < 1e-3
    assert np.allclose(
        linear(PackedMatrix.pack(huge, "int8", 32), np.full((1, 64), 1e20, np.float32)), 64 * 6e24, rtol=0.01
    )
    assert not linear(PackedMatrix.pack(huge, "int8", 32), np.zeros((2, 64), np.float32)).any()


def test_weights_so_small_or_so_large_that_fp16_has_no_such_scale():
    """A scale is never zero, which would lose the weights, nor inf, which would make every result NaN."""
    weights = RNG.uniform(-1, 1, (40, 64)).astype(np.float32)
    small = PackedMatrix.pack(weights * np.float32(2e-6), "int8", 32).unpack()
    assert np.abs(small).max() > 1e-7 and np.abs(small - weights * np.float32(2e-6)).max() < 4e-8
    large = PackedMatrix.pack(weights * np.float32(1e9), "int8", 32).unpack()
    assert np.isfinite(large).all() and (np.sign(large) == np.sign(weights))[np.abs(weights) > 0.1].all()
