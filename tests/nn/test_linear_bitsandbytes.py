"""LLM.int8 and NF4 as bitsandbytes computes them on a processor: the same operators, in its own reference kernels.

The kernels for NVIDIA run nowhere here.
"""

import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch
import torch.nn.functional as F
from each import each
from quantized_layers import adapter_acts_in_its_own_forward_alone, error, gaussian, gradient_is_that_of_a_dense_layer

from localspec.nn import linear_bitsandbytes
from localspec.nn.linear import LoraAdapter, QuantizedLinear
from localspec.nn.linear_bitsandbytes import LLMInt8Linear, NF4Linear

if find_spec("bitsandbytes") is None:  # importing it takes seconds, which other tests should not wait for
    pytest.skip("bitsandbytes is not installed", allow_module_level=True)


OUT, IN = 96, 128
# Of Gaussian weights and activations: more than nothing, less than
ERRORS = {LLMInt8Linear: (0.002, 0.02), NF4Linear: (0.05, 0.13)}
kinds = each("kind", [LLMInt8Linear, NF4Linear])
biases = each("bias", [False, True])
precisions = each("precision", [torch.float32, torch.bfloat16, torch.float16])


def made(
    kind: type[QuantizedLinear],
    bias: bool = False,
    precision: torch.dtype = torch.float32,
    out: int = OUT,
    inner: int = IN,
) -> QuantizedLinear:
    return kind(gaussian(out, inner, seed=1).to(precision), gaussian(out, seed=2).to(precision) if bias else None)


@kinds
@biases
@precisions
@each("out, inner", [(OUT, IN), (64, 48), (301, 254), (3, 64)])
def test_the_product_is_the_dense_one_as_near_as_so_few_bits_come(kind, bias, precision, out, inner):
    layer, x = made(kind, bias, precision, out, inner), gaussian(40, inner).to(precision)
    dense = F.linear(x.float(), gaussian(out, inner, seed=1), gaussian(out, seed=2) if bias else None)
    least, most = ERRORS[kind]
    y = layer(x)
    assert least < error(y, dense) < most
    assert (y.dtype, y.shape) == (precision, (40, out))
    assert layer(x.view(2, 4, 5, inner)).shape == (2, 4, 5, out)
    assert torch.equal(layer(x.view(2, 20, inner)).view(40, out), y)


@kinds
@biases
def test_the_weight_is_what_the_kernel_multiplies_by(kind, bias):
    layer, weight = made(kind, bias), gaussian(OUT, IN, seed=1)
    assert layer.weight.shape == layer.shape == (OUT, IN)
    least, most = ERRORS[kind]
    assert least < error(layer.weight, weight) < most
    ours = layer(torch.eye(IN)) - (0.0 if layer.bias is None else layer.bias)
    assert torch.allclose(ours, layer.weight.T, rtol=2e-3, atol=2e-3)


def test_int8_has_one_scale_an_output_channel():
    steps = made(LLMInt8Linear).weight / (gaussian(OUT, IN, seed=1).half().float().abs().amax(1, keepdim=True) / 127)
    assert torch.allclose(steps, steps.round(), atol=2e-3)
    assert torch.equal(steps.abs().amax(1).round(), torch.full((OUT,), 127.0))


def test_nf4_has_sixteen_levels_of_one_scale_a_block():
    weight = made(NF4Linear).weight.view(-1, 64)
    levels = weight / weight.abs().amax(1, keepdim=True)
    assert len(torch.unique(levels.mul(1e4).round())) <= 2 * 16, "either end of the levels is the largest of its block"
    largest = gaussian(OUT, IN, seed=1).view(-1, 64).abs().amax(1)
    assert error(weight.abs().amax(1), largest) < 0.02, "scales in eight bits"
    assert not torch.equal(weight.abs().amax(1), largest)


def test_what_it_takes_in_memory():
    assert made(LLMInt8Linear).nbytes == OUT * IN + 4 * OUT
    assert made(LLMInt8Linear, True, torch.bfloat16).nbytes == made(LLMInt8Linear).nbytes + 2 * OUT
    blocks = 1024 * 1024 // 64
    codes = 4 * (16 + 256 + 1)  # levels of the weights, levels of the scales, and the mean of these
    layer = made(NF4Linear, out=1024, inner=1024)
    assert layer.nbytes == 1024 * 1024 // 2 + blocks + 4 * blocks // 256 + codes
    assert layer.nbytes * 8 / 1024**2 < 4.2, "bits a weight"
    held = [tensor for tensor in [*vars(layer).values(), *vars(layer.state).values()] if torch.is_tensor(tensor)]
    held += [tensor for tensor in vars(layer.state.state2).values() if torch.is_tensor(tensor)]
    assert layer.nbytes == sum(tensor.nbytes for tensor in held), "nothing else is held"
    assert made(NF4Linear, True).nbytes == made(NF4Linear).nbytes + 4 * OUT


@kinds
def test_channels_of_zeros_give_zeros(kind):
    weight = gaussian(OUT, IN, seed=1)
    weight[3] = 0.0
    y = kind(weight)(gaussian(5, IN))
    assert y.isfinite().all() and float(y[:, 3].abs().max()) < 1e-3


# -- outliers ----------------------------------------------------------------------------------------------------------


@biases
def test_a_threshold_computes_input_channels_with_outliers_as_they_are(bias):
    layer, x = made(LLMInt8Linear, bias), gaussian(9, IN)
    x[:, [5, 77]] = 60.0 * x[:, [5, 77]].sign()
    right = F.linear(x, layer.weight, layer.bias)
    rest = F.linear(x.index_fill(1, torch.tensor([5, 77]), 0.0), layer.weight).norm()
    without = (layer(x) - right).norm() / rest
    layer.threshold = 6.0
    assert (layer(x) - right).norm() / rest < min(0.02, without / 5)
    assert layer(x.view(3, 3, IN)).shape == (3, 3, OUT)
    few = gaussian(9, IN).clamp(-5, 5)
    assert torch.allclose(layer(few), made(LLMInt8Linear, bias)(few), rtol=1e-4, atol=1e-3), (
        "where there are none, nothing changes"
    )
    assert LLMInt8Linear.threshold == 0.0, "others are not touched"


def test_by_default_no_outliers_are_looked_for(monkeypatch):
    """Looking makes the processor wait for the device."""
    asked = []
    quantise = torch.ops.bitsandbytes.int8_vectorwise_quant

    class Watched:
        def __getattr__(self, name: str) -> object:
            return getattr(torch.ops.bitsandbytes, name) if name != "int8_vectorwise_quant" else self.quantise

        def quantise(self, x: torch.Tensor, threshold: float) -> object:
            asked.append((threshold, x.is_contiguous()))
            return quantise(x, threshold)

    layer, watched = made(LLMInt8Linear), Watched()

    class Torch:
        class ops:  # noqa: N801
            bitsandbytes = watched

    monkeypatch.setattr(linear_bitsandbytes, "torch", Torch)
    layer(gaussian(3, IN))
    layer(gaussian(IN, 3).T)
    assert asked == [(0.0, True)] * 2, "and the kernel for NVIDIA reads rows one behind the other"


# -- gradients ---------------------------------------------------------------------------------------------------------


@kinds
@biases
@each("shape", [(7, IN), (2, 5, IN)])
def test_the_gradient_is_that_of_a_dense_layer_with_the_rounded_weight(kind, shape, bias):
    gradient_is_that_of_a_dense_layer(made(kind, bias), shape)


@kinds
def test_a_gradient_has_the_precision_of_what_it_is_for(kind):
    layer, x = made(kind, True, torch.bfloat16), gaussian(3, IN).bfloat16().requires_grad_()
    layer(x).float().sum().backward()
    assert x.grad is not None and x.grad.dtype == torch.bfloat16
    assert error(x.grad, layer.weight.float().sum(0).expand(3, -1)) < 0.02


@kinds
def test_an_adapter_acts_in_its_own_forward_alone_and_learns(kind):
    adapter_acts_in_its_own_forward_alone(made(kind))
    adapter = LoraAdapter(IN, OUT, [(0, OUT)], 4, 8.0)
    assert made(kind, precision=torch.bfloat16)(gaussian(3, IN).bfloat16(), adapter).dtype == torch.bfloat16


# -- the library -------------------------------------------------------------------------------------------------------

LOADS = """
import sys, types
own = sys.modules["kernels"] = types.ModuleType("kernels")
seen = []

class Watcher:
    def find_spec(self, name, path=None, target=None):
        if name == "bitsandbytes.backends.cpu.ops":  # which would look for it
            seen.append(sys.modules["kernels"])

sys.meta_path.insert(0, Watcher())
import torch
from localspec.nn import packing
assert "bitsandbytes" not in sys.modules, "before any layer is made"
packing.NF4Linear(torch.randn(64, 64))
assert "bitsandbytes" in sys.modules and sys.modules["kernels"] is own and seen == [None], seen
"""


@pytest.mark.slow
def test_the_library_is_loaded_with_the_first_layer_and_may_fetch_nothing():
    """On a processor with AVX512-BF16 it would look for a kernel in the network, where `kernels` is installed."""
    result = subprocess.run([sys.executable, "-c", LOADS], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
