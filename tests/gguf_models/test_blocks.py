"""What blocks stand for, beside the gguf package, and by hand."""

import gguf
import numpy as np
from each import each

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


def one(kind: str, content: bytes) -> list[float]:
    return floats(next(block for block in BLOCKS.values() if block.name == kind), content).tolist()


def test_blocks_by_hand():
    half, one_and_half = np.float16(0.5).tobytes(), np.float16(1.5).tobytes()
    assert one("Q8_0", half + bytes(range(16)) + bytes([255] * 16)) == [i / 2 for i in range(16)] + [-0.5] * 16
    assert one("Q4_0", half + bytes([0x10 + 8] * 16)) == [0.0] * 16 + [-3.5] * 16
    assert one("Q4_1", half + one_and_half + bytes([0xF1] * 16)) == [2.0] * 16 + [9.0] * 16
    assert one("Q5_0", half + bytes([1, 0, 0, 128]) + bytes(16)) == [0.0] + [-8.0] * 30 + [0.0]
    assert one("BF16", b"\x80\x3f") == [1.0] and one("F16", half) == [0.5] and one("F32", b"\0\0\x80\x3f") == [1.0]
