"""The tests of decoding/ on the CPU engine in fp32: losslessness, and distributions of samples."""

from decoding import test_lossless
from decoding.test_lossless import *  # noqa: F403
from native_models import read_native

test_lossless.read = read_native  # this copy of the file makes its own models with it
