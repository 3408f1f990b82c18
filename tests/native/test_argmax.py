"""The head's pick of the likeliest token: only ids of the vocabulary, and the first of equals, on every path."""

import numpy as np
from each import each

from localspec.families.architecture import TransformerConfig
from localspec.families.rope import Rope
from localspec.machine.library import address, check, library
from localspec.native.model import NativeModel
from localspec.native.threads import Threads
from localspec.weights.matrices import PackedMatrix

GROUPS = {"fp32": 0, "bf16": 0, "int8": 64}


def head(weights, packing="int8", threads=1):
    """Return a model that is only a head [vocab, hidden]."""
    vocab, hidden = weights.shape
    sizes = TransformerConfig("llama", vocab, hidden, 1, 1, 1, 2, 1e-6, (), False, False, False, False, False)
    packed = PackedMatrix.pack(weights, packing, GROUPS[packing])
    return NativeModel(sizes, Rope(np.ones(1, np.float32), 1.0), {"lm_head.weight": packed}, Threads(threads), "fp32")


def likeliest(model, states):
    logits = np.empty((len(states), model.sizes.vocab_size), np.float32)
    argmax = np.empty(len(states), np.int32)
    handles = model.handle, model.threads.handle
    check(library().ls_head(*handles, len(states), address(states), address(logits), address(argmax)))
    return logits, argmax


@each("packing", GROUPS)
@each("vocab", [1, 31, 33, 300])
def test_channels_that_only_fill_a_panel_are_no_tokens(packing, vocab):
    random = np.random.default_rng(vocab)
    model = head(-1 - random.random((vocab, 64), np.float32), packing)
    for rows in (1, 8, 9):
        logits, argmax = likeliest(model, 1 + random.random((rows, 64), np.float32))
        assert (logits < 0).all() and argmax.tolist() == logits.argmax(1).tolist()


@each("same", [(3, 9), (3, 31), (9, 40), (31, 32), (0, 299)])
def test_of_equals_the_first_is_the_likeliest(same):
    weights = np.random.default_rng(0).standard_normal((300, 64)).astype(np.float32)
    weights[same[0]] = weights[same[1]] = 3
    for rows in (1, 9):
        logits, argmax = likeliest(head(weights), np.ones((rows, 64), np.float32))
        assert (logits[:, same[0]] == logits[:, same[1]]).all() and (argmax == same[0]).all()


@each("threads", [1, 2, 5])
def test_of_equals_in_the_parts_of_several_threads_the_first_is_the_likeliest(threads):
    model, states = head(np.ones((32 * 60, 2048), np.float32), threads=threads), np.ones((3, 2048), np.float32)
    for _ in range(30):  # the parts of each thread vary by chance
        assert likeliest(model, states)[1].tolist() == [0, 0, 0]
