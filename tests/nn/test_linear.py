"""The packed linear layer of CPUs: our library's numbers, made dense for each product, and gradients through them."""

import gc
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from each import each
from quantized_layers import adapter_acts_in_its_own_forward_alone, error, gaussian, gradient_is_that_of_a_dense_layer

from localspec.machine import compiled
from localspec.native.matrix import PackedMatrix
from localspec.nn.linear import Linear, PackedLinear, PackedWeight

pytestmark = pytest.mark.skipif(compiled.library() is None, reason="the library is not built")
OUT, IN = 301, 255  # no multiples of what a kernel works on at once
ERRORS = {("int8", 64): (0.001, 0.012), ("int8", 32): (0.001, 0.012), ("int4", 32): (0.04, 0.11)}  # of Gaussian weights
Make = Callable[..., PackedLinear]


@pytest.fixture(params=ERRORS, ids=lambda form: "-".join(map(str, form)))
def form(request: pytest.FixtureRequest) -> tuple[str, int]:
    return request.param


@pytest.fixture
def layer(form: tuple[str, int]) -> Make:
    def make(bias: bool = False) -> PackedLinear:
        matrix = PackedMatrix.pack(gaussian(OUT, IN, seed=1).numpy(), *form)
        weight = PackedWeight(torch.Size((OUT, IN)), matrix.data.nbytes, matrix.unpack)
        return PackedLinear(weight, gaussian(OUT, seed=2) if bias else None)

    return make


biases = each("bias", [False, True])


@biases
def test_it_multiplies_by_the_numbers_that_the_library_computes_with(layer, form, bias):
    made, x = layer(bias), gaussian(40, IN)
    least, most = ERRORS[form]
    assert least < error(made.weight, gaussian(OUT, IN, seed=1)) < most
    assert torch.equal(made(x), F.linear(x, made.weight, made.bias)), "activations are as they are"
    assert made(x[None]).shape == (1, 40, OUT)
    assert made.shape == (OUT, IN)
    assert made(x[:0]).shape == (0, OUT)


@biases
@each("shape", [(7, IN), (2, 5, IN)])
def test_the_gradient_is_that_of_a_dense_layer_with_the_same_numbers(layer, shape, bias):
    gradient_is_that_of_a_dense_layer(layer(bias), shape)


def test_no_gradient_is_made_where_none_is_asked_for(layer):
    made = layer(True)
    assert not made(gaussian(3, IN)).requires_grad
    assert not list(made.parameters()), "weight and bias are frozen"
    with torch.no_grad():
        assert not made(gaussian(3, IN).requires_grad_()).requires_grad


def test_an_adapter_acts_in_its_own_forward_alone_and_learns(layer):
    adapter_acts_in_its_own_forward_alone(layer())


@pytest.mark.slow
def test_it_holds_what_is_packed_and_no_dense_weight(layer, form):
    made, x = layer(True), gaussian(3, IN).requires_grad_()
    y = made(x)
    gc.collect()
    dense = [one for one in gc.get_objects() if isinstance(one, torch.Tensor | np.ndarray) and one.shape == (OUT, IN)]
    assert not dense, "not even for the gradient"
    y.sum().backward()
    packing, group = form
    whole = 320 * 256  # padded to whole panels and groups
    assert made.nbytes == whole // (1 if packing == "int8" else 2) + 2 * whole // group + 4 * OUT


def test_some_rows_are_a_dense_layer_of_the_same_numbers(layer):
    made, x, channels = layer(), gaussian(4, IN), torch.tensor([300, 0, 17])
    rows = made.rows(channels)
    assert isinstance(rows, Linear) and rows.shape == (3, IN)
    torch.testing.assert_close(rows(x), made(x)[:, channels])
