"""The values of GGUF blocks, against the gguf package and by hand."""

import warnings

import gguf
import numpy as np
from each import each
from gguf_files import BLOCKS as WRITTEN

from localspec.weights.gguf_file import BLOCKS, NAMES, floats


def test_every_type_that_the_gguf_package_reads_is_read():
    for kind, (weights, size) in gguf.GGML_QUANT_SIZES.items():
        try:
            gguf.quants.dequantize(np.zeros(size, np.uint8), kind)
        except NotImplementedError:
            assert NAMES[kind] == kind.name and kind not in BLOCKS
        else:
            assert (BLOCKS[kind].name, BLOCKS[kind].weights, BLOCKS[kind].bytes) == (kind.name, weights, size)
    assert {name: (number, one.weights, one.bytes) for number, one in BLOCKS.items() for name in [one.name]} == WRITTEN


@each("number", BLOCKS)
def test_any_bytes_are_numbers_without_a_warning(number):
    """A hostile file has scales that are not finite."""
    content = np.random.default_rng(number).integers(0, 256, 50 * BLOCKS[number].bytes, dtype=np.uint8)
    for one in (content, np.full_like(content, 255)):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = floats(BLOCKS[number], one.tobytes())
        assert found.dtype == np.float32 and found.shape == (50 * BLOCKS[number].weights,)


def one(kind: str, content: bytes) -> list[float]:
    return floats(next(block for block in BLOCKS.values() if block.name == kind), content).tolist()


def test_blocks_by_hand():
    half, one_and_half = np.float16(0.5).tobytes(), np.float16(1.5).tobytes()
    assert one("Q8_0", half + bytes(range(16)) + bytes([255] * 16)) == [i / 2 for i in range(16)] + [-0.5] * 16
    assert one("Q4_0", half + bytes([0x10 + 8] * 16)) == [0.0] * 16 + [-3.5] * 16
    assert one("Q4_1", half + one_and_half + bytes([0xF1] * 16)) == [2.0] * 16 + [9.0] * 16
    assert one("Q5_0", half + bytes([1, 0, 0, 128]) + bytes(16)) == [0.0] + [-8.0] * 30 + [0.0]
    assert one("BF16", b"\x80\x3f") == [1.0] and one("F16", half) == [0.5] and one("F32", b"\0\0\x80\x3f") == [1.0]
    assert one("MXFP4", bytes([128]) + bytes([0x72] * 16)) == [2.0] * 16 + [12.0] * 16
    assert one("TQ2_0", bytes([0b10_01_00_10] * 64) + half) == 2 * ([0.5] * 32 + [-0.5] * 32 + [0.0] * 32 + [0.5] * 32)
    assert one("IQ4_NL", half + bytes([0xF0] * 16)) == [-63.5] * 16 + [56.5] * 16
    assert one("Q2_K", bytes([0x21] * 16) + bytes([0b11_11_11_11] * 64) + half + one_and_half) == [3 / 2 - 3.0] * 256
