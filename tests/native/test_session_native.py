"""The tests of decoding/ on the CPU engine in fp32: sessions, with every end of a reply."""

from decoding import test_session
from decoding.test_session import *  # noqa: F403
from native_models import read_native

test_session.read = read_native  # this copy of the file makes its own models with it


def test_the_weights_that_are_counted_are_the_stock_models(speller):
    """Panels are 32 channels wide, so an engine may hold more than there is, never less."""
    theirs = sum(weights.numel() * 4 for weights in speller.stock.parameters())
    assert theirs <= speller.target.nbytes < 1.5 * theirs
