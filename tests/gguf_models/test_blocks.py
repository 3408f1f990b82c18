"""What blocks stand for, beside the gguf package, and by hand."""

import gguf
import numpy as np
from each import each
from gguf_files import BLOCKS as SIZES
from gguf_files import stored

from localspec.gguf.blocks import BLOCKS, floats


@each("number", BLOCKS)
def test_blocks_are_what_the_gguf_package_reads(number):
    block, theirs = BLOCKS[number], gguf.GGMLQuantizationType(number)
    assert (theirs.name, gguf.GGML_QUANT_SIZES[theirs]) == (block.name, (block.weights, block.bytes))
    random = np.random.default_rng(number)
    if block.weights > 1:
        content = random.integers(0, 256, (4, 50 * block.bytes), dtype=np.uint8)  # any bits: NaN and inf among them
    else:
        content = gguf.quants.quantize(random.normal(size=(4, 512)).astype(np.float32), theirs).view(np.uint8)
    with np.errstate(all="ignore"):
        expected = gguf.quants.dequantize(content, theirs).astype(np.float32)
        assert np.array_equal(floats(block, content.tobytes()), expected.reshape(-1), equal_nan=True)


def test_types_have_the_sizes_that_the_tests_write():
    assert {number: (block.name, block.weights, block.bytes) for number, block in BLOCKS.items()} == {
        number: (name, weights, size) for name, (number, weights, size) in SIZES.items()
    }


def one(kind: str, content: bytes) -> list[float]:
    return floats(next(block for block in BLOCKS.values() if block.name == kind), content).tolist()


def test_blocks_by_hand():
    half, one_and_half = np.float16(0.5).tobytes(), np.float16(1.5).tobytes()
    assert one("Q8_0", half + bytes(range(16)) + bytes([255] * 16)) == [i / 2 for i in range(16)] + [-0.5] * 16
    assert one("Q4_0", half + bytes([0x10 + 8] * 16)) == [0.0] * 16 + [-3.5] * 16
    assert one("Q4_1", half + one_and_half + bytes([0xF1] * 16)) == [2.0] * 16 + [9.0] * 16
    assert one("Q5_0", half + bytes([1, 0, 0, 128]) + bytes(16)) == [0.0] + [-8.0] * 30 + [0.0]
    assert one("BF16", b"\x80\x3f") == [1.0] and one("F16", half) == [0.5] and one("F32", b"\0\0\x80\x3f") == [1.0]


@each("kind", SIZES)
def test_weights_of_chance_are_about_as_large_as_was_asked_for(kind):
    weights = np.random.default_rng(0).normal(0, 0.1, (8, 512)).astype(np.float32)
    written = stored(kind, weights)
    found = np.array(one(kind, written.content))
    assert np.isfinite(found).all() and 0.02 < found.std() < 0.5
