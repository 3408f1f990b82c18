"""Every family and switch against the stock model in fp32, on every instruction set of this machine."""

import ctypes

import numpy as np
import pytest
import torch
from each import each
from native.engine import POOL, Model, Pool, Text, isas, stock_logits, using
from native.stock_models import stock_of
from slow_cases import cases
from tiny_models import CONFIGS, FAMILIES, FROM_GGUF, LATER, MIXTURES, RECURRENT, RECURRENT_MIXTURES

from localspec.machine.library import Request, address, check, int32, library
from localspec.native.model import as_fine

TWO = Pool(2)
# Each instruction set reads token by token and all at once, one of both in two threads.
FORMS = [
    *((isa, (POOL, TWO)[(at + (chunk == 1)) % 2], chunk) for at, isa in enumerate(isas()) for chunk in (1, 60)),
    (isas()[-1], TWO, 7),
]


@pytest.mark.parametrize(
    "name",
    cases(
        [*FAMILIES, *RECURRENT, *MIXTURES, *FROM_GGUF, *RECURRENT_MIXTURES],
        [*FAMILIES[:2], *list(RECURRENT)[:1]],
    ),
)
def test_logits_are_the_stock_models_and_the_same_bits_however_they_are_computed(name):
    assert_is_the_stock_model(name, FORMS)


@pytest.mark.slow
@each("name", [*MIXTURES, *FROM_GGUF, *RECURRENT_MIXTURES])
def test_logits_of_mixtures_are_the_stock_models(name):
    assert_is_the_stock_model(name, [FORMS[0], FORMS[-1]])


@pytest.mark.slow
@each("name", [name for name in CONFIGS if name not in FAMILIES])
def test_every_switch_of_a_family_gives_the_stock_models_logits(name):
    assert_is_the_stock_model(name, [FORMS[0], FORMS[-1]])


def assert_is_the_stock_model(name, forms):
    config = {**CONFIGS, **RECURRENT, **MIXTURES, **FROM_GGUF, **RECURRENT_MIXTURES}[name]()
    stock = stock_of(config, seed=0)
    tokens = np.random.default_rng(0).integers(0, config.vocab_size, 60).tolist()
    want = stock_logits(stock, tokens)
    model = Model(stock, context=getattr(config, "original_max_position_embeddings", 128))
    first = None
    for isa, pool, chunk in forms:
        with using(isa):
            text = Text(model, pool)
            got = text.read(tokens, chunk)
        assert text.argmax.tolist() == got[-len(text.argmax) :].argmax(-1).tolist()
        first = got if first is None else first
        assert np.array_equal(first, got), (isa, chunk)
    assert np.abs(first - want).max() < 1e-4 * np.abs(want).max()
    assert (first.argmax(-1) == want.argmax(-1)).all()


@pytest.mark.slow
@each("name", LATER)
@each("form", ["fp32", "int8"])
def test_unrequested_states_and_the_head_by_itself_change_no_bit_of_the_logits(name, form):
    """If logits are scaled, the head does not read the states themselves, on either path."""
    config = CONFIGS[name]()
    model = Model(stock_of(config, seed=0), form, context=128)
    tokens = np.random.default_rng(0).integers(0, config.vocab_size, 60).tolist()
    text, alone, numbers = Text(model, TWO), Text(model, TWO), int32(tokens)
    want = text.forward(tokens)
    logits = np.empty((2, config.vocab_size), np.float32)
    request = Request(60, address(numbers), None, None, None, None, 0, None, None, address(logits), None, 58)
    check(library().ls_forward(model.handle, alone.cache, TWO.handle, ctypes.byref(request)))
    assert np.array_equal(logits, want[58:])
    again = np.empty((60, config.vocab_size), np.float32)
    check(library().ls_head(model.handle, TWO.handle, 60, address(text.hidden), address(again), None))
    assert np.array_equal(again, want)


@pytest.mark.slow
@each("head_dim", [40, 64, 80, 128, 256])
def test_heads_of_real_width_are_the_stock_models(head_dim):
    """Half of 40 channels, or of 80, is no whole number of vectors; tiny models' heads are one or two. 256 is Gemma's."""
    config = CONFIGS["gemma3-grouped-mixed-window-linear" if head_dim == 256 else "llama-grouped-dynamic"]()
    config.head_dim = head_dim
    stock = stock_of(config, seed=1)
    tokens = np.random.default_rng(1).integers(0, config.vocab_size, 40).tolist()
    want, first = stock_logits(stock, tokens), None
    for isa, pool, chunk in ((isa, TWO, chunk) for isa in isas() for chunk in (3, 40)):
        with using(isa):
            got = Text(Model(stock, context=128), pool).read(tokens, chunk)
        first = got if first is None else first
        assert np.array_equal(first, got), (isa, chunk)
    assert np.abs(first - want).max() < 1e-4 * np.abs(want).max()


@each("width", [640, 1152, 2560, 3840, 5376])
def test_gemma_s_scale_of_embeddings_is_rounded_as_torch_rounds_it(width):
    """For all sizes of Gemma 3: truncation instead of rounding would change three of the five."""
    table = np.empty((1, width), np.uint16)
    assert as_fine(width**0.5, table) == float(torch.tensor(width**0.5, dtype=torch.bfloat16))
    assert as_fine(width**0.5, table.astype(np.float32)) == width**0.5
