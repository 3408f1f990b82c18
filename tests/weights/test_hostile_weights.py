"""Packed files whose tensors do not match their config.json: an error, and nothing is read past their end."""

from dataclasses import replace

import numpy as np
import pytest
from each import each
from golden import matching

from localspec.errors import LocalspecError
from localspec.events import Reporter
from localspec.families.rope import Rope
from localspec.models.registry import resolve
from localspec.native.model import NativeModel
from localspec.native.target import NativeTarget
from localspec.native.threads import Threads
from localspec.paths import Paths
from localspec.weights.opened import PackedModel, write
from localspec.weights.opening import load
from localspec.weights.packed_file import Header, Tensor

LAYER = "layers.0."


def vector(size, format="fp32", out=1):  # noqa: A002
    return Tensor("rows", format, out, size)


def other(change):
    return lambda tensor: replace(tensor, **change)


# name of a tensor -> its new value, made from its old one (None: the tensor is added)
CASES = {
    "a bias of one number": (f"{LAYER}gate_up_proj.bias", lambda _: vector(1)),
    "a bias that its family does not have": (f"{LAYER}o_proj.bias", lambda _: vector(48)),
    "a norm of queries": (f"{LAYER}q_norm", lambda _: vector(1)),
    "a layer too many": ("layers.9.input_layernorm", lambda _: vector(48)),
    "an unknown tensor": ("more", lambda _: vector(1)),
    "a norm in bf16": ("norm", other({"format": "bf16"})),
    "a norm in panels": ("norm", other({"layout": "panels"})),
    "a norm on end": ("norm", lambda tensor: vector(1, out=tensor.inputs)),
    "a short norm": (f"{LAYER}input_layernorm", lambda _: vector(1)),
    "an embedding in panels": ("embed_tokens", other({"layout": "panels"})),
    "an embedding in int8": ("embed_tokens", other({"layout": "panels", "format": "int8", "group": 32})),
    "a matrix in rows": (f"{LAYER}down_proj.weight", other({"layout": "rows", "format": "bf16", "group": 0})),
    "a matrix on end": (f"{LAYER}down_proj.weight", lambda one: replace(one, out=one.inputs, inputs=one.out)),
    "a short matrix": (f"{LAYER}down_proj.weight", lambda one: replace(one, out=one.out - 1)),
    "a short head": ("lm_head.weight", lambda one: replace(one, out=one.out - 32)),
    "a recurrent layer that its family does not have": (f"{LAYER}delta.A_log", lambda _: vector(4)),
}
BLOCK_CASES = {
    "a part without a row": (f"{LAYER}o_proj.weight 0", lambda one: replace(one, out=one.out - 1)),
    "a part too many": (f"{LAYER}o_proj.weight 1", lambda _: Tensor("blocks", "Q4_K", 16, 256)),
    "more parts than can be": (f"{LAYER}qkv_proj.weight 4", lambda _: Tensor("blocks", "Q4_K", 16, 256)),
    "a part that is no number": (f"{LAYER}o_proj.weight x", lambda _: Tensor("blocks", "Q4_K", 16, 256)),
    "a part of another width": (f"{LAYER}qkv_proj.weight 1", lambda one: replace(one, inputs=2 * one.inputs)),
    "a gate that is not as wide as up": (f"{LAYER}gate_up_proj.weight 0", lambda one: replace(one, out=one.out - 16)),
    "panels as well": (f"{LAYER}down_proj.weight", lambda _: Tensor("panels", "int8", 256, 640, 64)),
    "a short head": ("lm_head.weight 0", lambda one: replace(one, out=one.out - 16)),
    "a norm in blocks": ("norm 0", lambda _: Tensor("blocks", "Q4_K", 1, 256)),
}
RECURRENT_CASES = {
    "attention in a recurrent layer": (f"{LAYER}qkv_proj.weight", lambda _: Tensor("panels", "int8", 96, 48, 32)),
    "a short convolution": (f"{LAYER}delta.conv", lambda one: replace(one, inputs=one.inputs - 1)),
    "a convolution in panels": (f"{LAYER}delta.conv", other({"layout": "panels"})),
    "a convolution in bf16": (f"{LAYER}delta.conv", other({"format": "bf16"})),
    "too few heads": (f"{LAYER}delta.dt_bias", lambda _: vector(3)),
    "a short norm of values": (f"{LAYER}delta.value_norm", lambda _: vector(4)),
    "a short projection": (f"{LAYER}delta.in_proj.weight", lambda one: replace(one, out=one.out - 1)),
    "values of another width": (f"{LAYER}delta.out_proj.weight", lambda one: replace(one, inputs=one.inputs + 1)),
}


@pytest.fixture
def whole(tiny, tmp_path):
    path = tiny("llama-grouped-dynamic").path
    return load(path, "int8", "tiny", 1, Reporter(), Paths(tmp_path))


@pytest.fixture
def blocks(tmp_path):
    return load(resolve("demo").path, "int4", "tiny", 1, Reporter(), Paths(tmp_path))


@pytest.fixture
def recurrent(tiny, tmp_path):
    path = tiny("qwen3_5-grouped-shared-keys-interval").path
    return load(path, "int8", "tiny", 1, Reporter(), Paths(tmp_path))


def rewritten(whole, tensors, to):
    """Return the file with these tensors replaced, with correct digests; new tensors are zeros."""
    texts = {name: section.bytes for name, section in whole.header.texts.items()}
    header = Header.plan(whole.header.origin, "int8", whole.header.parameters, tensors, texts)

    def fill(name, section, first, into):
        there = whole.header.sections.get(name)
        if there is not None and there.bytes == section.bytes:
            into[:] = whole.view(name)[first : first + len(into)]

    write(to, header, fill, 1, lambda done, total: None)
    return to


@pytest.mark.slow
@pytest.mark.parametrize("of", ["whole", "recurrent", "blocks"])
def test_a_tensor_that_contradicts_the_config_is_a_sentence(request, tmp_path, of):
    whole = request.getfixturevalue(of)
    tensors = {name: section.tensor for name, section in whole.header.tensors.items()}
    for place, becomes in {"whole": CASES, "recurrent": RECURRENT_CASES, "blocks": BLOCK_CASES}[of].values():
        file = rewritten(whole, {**tensors, place: becomes(tensors.get(place))}, tmp_path / "model.packed")
        said = f"The packed file of tiny .*{place.partition(' ')[0]}.*; delete that file, and localspec makes it again"
        with pytest.raises(LocalspecError, match=said):
            _ = PackedModel.open(file).sizes
        with pytest.raises(LocalspecError, match=matching("packed_file_of_tiny")):
            NativeTarget.open(file)
    file = rewritten(whole, tensors, tmp_path / "model.packed")
    assert NativeTarget.open(file).vocab_size == whole.sizes.vocab_size, "written as it was, it is read"


@pytest.mark.parametrize(
    ("of", "names"),
    [
        ("whole", ["norm", f"{LAYER}input_layernorm", f"{LAYER}k_norm", f"{LAYER}gate_up_proj.bias"]),
        ("recurrent", [f"{LAYER}delta.{name}" for name in ("conv", "dt_bias", "A_log", "value_norm")]),
    ],
)
def test_a_model_is_not_made_of_vectors_that_it_would_read_past(request, of, names):
    model = request.getfixturevalue(of)
    sizes, rope = model.sizes, Rope.of(model.config, model.config.contexts[0])

    def refused(name, given, said):
        with pytest.raises(LocalspecError, match=said):
            NativeModel(sizes, rope, {**model.tensors, name: given}, Threads(1), "fp16")

    for given in (np.zeros(1, np.float32), np.zeros(24, np.uint16), np.zeros((2, 8), np.float32)):
        for name in names:
            refused(name, given, rf"{name} is .* instead of float32 \[")
    refused("embed_tokens", np.asarray(model.tensors["embed_tokens"])[1:], "embed_tokens has the shape")


@each("window", [2**31 - 1, 2**31, 2**40])
def test_a_window_longer_than_any_text_is_ignored(whole, window):
    config, tokens = whole.config, [*range(3, 40)]
    rope, weights = Rope.of(config, config.contexts[0]), whole.tensors

    def logits(sliding):
        sizes = replace(whole.sizes, sliding_windows=(sliding,) * whole.sizes.num_layers)
        model = NativeModel(sizes, rope, weights, Threads(1), "fp16")
        return model.forward(tokens, None, model.cache(64))[1]

    assert np.array_equal(logits(window), logits(None)) and not np.array_equal(logits(9), logits(None))
