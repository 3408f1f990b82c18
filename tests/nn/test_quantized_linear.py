"""Linear layers in few bits: bitsandbytes' reference kernels, those for Apple's GPUs on a CPU, and our library's.

The inputs of Apple's operators are checked here; they never ran on a Mac. The kernels for NVIDIA do not run here.
"""

import gc
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from each import each
from quantized_layers import adapter_acts_in_its_own_forward_alone, error, gaussian, gradient_is_that_of_a_dense_layer

from localspec.machine import compiled
from localspec.nn import linear_bitsandbytes, linear_mps
from localspec.nn.linear import Linear, LoraAdapter, PackedLinear, PackedWeight, QuantizedLinear
from localspec.nn.linear_bitsandbytes import LLMInt8Linear, NF4Linear
from localspec.nn.linear_mps import Int4WeightOnlyLinear, Int8WeightOnlyLinear, WeightOnlyLinear, _levels
from localspec.weights.matrices import PackedMatrix

OUT, IN = 96, 128
ODD = (301, 255)  # no multiples of what a kernel works on at once
LIBRARY = pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed")
COMPILED = pytest.mark.skipif(compiled.library() is None, reason="the library is not built")
THEIRS = [pytest.param(kind, marks=LIBRARY) for kind in (LLMInt8Linear, NF4Linear)]
APPLES = [Int8WeightOnlyLinear, Int4WeightOnlyLinear]
FORMS = [("int8", 64), ("int8", 32)]
OURS = [pytest.param(form, marks=COMPILED) for form in FORMS]
# Of Gaussian weights and activations: more than nothing, less than
ERRORS: dict[Any, tuple[float, float]] = {
    LLMInt8Linear: (0.002, 0.02), NF4Linear: (0.05, 0.13), Int8WeightOnlyLinear: (0.002, 0.012),
    Int4WeightOnlyLinear: (0.04, 0.11), ("int8", 64): (0.001, 0.012), ("int8", 32): (0.001, 0.012),
}  # fmt: skip
SHAPES: dict[Any, list[tuple[int, int]]] = {
    **{key: [(OUT, IN), (64, 48), (301, 254), (3, 64)] for key in (LLMInt8Linear, NF4Linear)},
    **{key: [(OUT, IN), (48, 40), (301, 255), (3, 5)] for key in APPLES},
    **{key: [ODD] for key in FORMS},
}
every_kind = pytest.mark.parametrize("kind", [*THEIRS, *APPLES, *OURS], ids=str)
theirs = pytest.mark.parametrize("kind", THEIRS)
apples = each("kind", APPLES)
biases = each("bias", [False, True])
precisions = each("precision", [torch.float32, torch.bfloat16, torch.float16])


def made(
    kind: Any, bias: bool = False, precision: torch.dtype = torch.float32, out: int = OUT, inner: int = IN
) -> QuantizedLinear:
    """Return a layer of Gaussian weights: of a class, or of a form of our library's."""
    weight, added = gaussian(out, inner, seed=1), gaussian(out, seed=2).to(precision) if bias else None
    if isinstance(kind, tuple):
        matrix = PackedMatrix.pack(weight.numpy(), *kind)
        return PackedLinear(
            PackedWeight(torch.Size((out, inner)), matrix.data.nbytes, matrix.unpack, matrix.rows), added
        )
    return kind(weight.to(precision), added)


@every_kind
@biases
@precisions
def test_the_product_is_the_dense_one_as_near_as_so_few_bits_come(kind, bias, precision):
    if isinstance(kind, tuple) and precision != torch.float32:
        return  # it is made dense in the precision of its input
    for out, inner in SHAPES[kind]:
        layer, x = made(kind, bias, precision, out, inner), gaussian(40, inner).to(precision)
        weight, added = gaussian(out, inner, seed=1), gaussian(out, seed=2) if bias else None
        y, (least, most) = layer(x), ERRORS[kind]
        assert (y.dtype, y.shape) == (precision, (40, out)) and layer.weight.shape == layer.shape == (out, inner)
        assert error(y, F.linear(x.float(), weight, added)) < most + 0.005
        assert inner < IN or least < error(layer.weight, weight) < most
        if kind not in (LLMInt8Linear, NF4Linear):  # which round their input, too, or multiply in another precision
            exact = 1e-5 if precision == torch.float32 else 0.01
            assert error(y, F.linear(x.float(), layer.weight.float(), added)) < exact, "by this weight it is multiplied"
        assert torch.equal(layer(x.view(2, 4, 5, inner)).view(40, out), y)
        turned = gaussian(inner, 4).to(precision).T
        assert kind not in APPLES or torch.equal(layer(turned), layer(turned.contiguous()))
    ours = layer(torch.eye(inner, dtype=precision)).float() - (0.0 if added is None else added.to(precision).float())
    assert torch.allclose(ours, layer.weight.T.float(), rtol=0.02, atol=0.02)


@every_kind
@biases
@each("shape", [(7, IN), (2, 5, IN)])
def test_the_gradient_is_that_of_a_dense_layer_with_the_rounded_weight(kind, bias, shape):
    gradient_is_that_of_a_dense_layer(made(kind, bias), shape)


@every_kind
def test_an_adapter_acts_only_in_its_own_forward_and_learns(kind):
    adapter_acts_in_its_own_forward_alone(made(kind))


@theirs
def test_what_comes_out_and_its_gradient_have_the_precision_of_what_goes_in(kind):
    layer, x = made(kind, True, torch.bfloat16), gaussian(3, IN).bfloat16().requires_grad_()
    layer(x).float().sum().backward()
    assert x.grad is not None and x.grad.dtype == torch.bfloat16
    assert error(x.grad, layer.weight.float().sum(0).expand(3, -1)) < 0.02
    adapter = LoraAdapter(IN, OUT, [(0, OUT)], 4, 8.0)
    assert made(kind, precision=torch.bfloat16)(gaussian(3, IN).bfloat16(), adapter).dtype == torch.bfloat16


@pytest.mark.parametrize("kind", [*THEIRS, *APPLES])
@precisions
def test_zeros_equal_tiny_and_far_weights(kind, precision):
    weight, x = gaussian(OUT, IN, seed=1).to(precision), gaussian(9, IN).to(precision)
    weight[0], weight[1], weight[2] = 0.0, 0.5, 0.5 + weight[2] * 1e-3
    weight[3] *= 1e-3
    layer = kind(weight)
    assert layer(x).isfinite().all()
    assert float(layer.weight[0].abs().max()) < 1e-4 and float(layer(x)[:, 0].abs().max()) < 1e-3
    if kind in APPLES:
        assert torch.allclose(layer.weight[1:3].float(), weight[1:3].float(), rtol=0.01)
        assert error(layer.weight[3], weight[3]) < (0.2 if kind is Int4WeightOnlyLinear else 0.03)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [pytest.param(LLMInt8Linear, marks=LIBRARY), Int8WeightOnlyLinear])
def test_eight_bits_have_one_scale_an_output_channel(kind):
    weight = gaussian(OUT, IN, seed=1)
    rounded = weight.half().float() if kind is LLMInt8Linear else weight
    steps = made(kind).weight / (rounded.abs().amax(1, keepdim=True) / 127)
    assert torch.allclose(steps, steps.round(), atol=2e-3)
    assert torch.equal(steps.abs().amax(1).round(), torch.full((OUT,), 127.0))


@LIBRARY
def test_nf4_has_sixteen_levels_of_one_scale_a_block():
    weight = made(NF4Linear).weight.view(-1, 64)
    levels = weight / weight.abs().amax(1, keepdim=True)
    assert len(torch.unique(levels.mul(1e4).round())) <= 2 * 16, "either end of the levels is the largest of its block"
    largest = gaussian(OUT, IN, seed=1).view(-1, 64).abs().amax(1)
    assert error(weight.abs().amax(1), largest) < 0.02, "scales in eight bits"
    assert not torch.equal(weight.abs().amax(1), largest)


# -- memory ------------------------------------------------------------------------------------------------------------


def held(*parts: Any) -> int:
    return sum(tensor.nbytes for part in parts for tensor in vars(part).values() if torch.is_tensor(tensor))


@LIBRARY
def test_what_bitsandbytes_takes_in_memory():
    assert made(LLMInt8Linear).nbytes == OUT * IN + 4 * OUT
    assert made(LLMInt8Linear, True, torch.bfloat16).nbytes == made(LLMInt8Linear).nbytes + 2 * OUT
    blocks = 1024 * 1024 // 64
    codes = 4 * (16 + 256 + 1)  # levels of the weights, levels of the scales, and the mean of these
    layer = made(NF4Linear, out=1024, inner=1024)
    assert layer.nbytes == 1024 * 1024 // 2 + blocks + 4 * blocks // 256 + codes
    assert layer.nbytes * 8 / 1024**2 < 4.2, "bits a weight"
    assert layer.nbytes == held(layer, layer.state, layer.state.state2), "nothing else is held"
    assert made(NF4Linear, True).nbytes == made(NF4Linear).nbytes + 4 * OUT


def test_what_apples_layers_take_in_memory():
    int8, int4 = APPLES
    assert made(int8).nbytes == OUT * IN + 4 * OUT
    assert made(int8, True, torch.bfloat16).nbytes == OUT * IN + 2 * OUT + 2 * OUT
    assert made(int4).nbytes == OUT * IN // 2 + 2 * 4 * OUT * IN // 32
    assert made(int4, True, torch.bfloat16).nbytes == OUT * IN // 2 + 2 * 2 * OUT * IN // 32 + 2 * OUT
    layer = made(int4, True)
    assert layer.nbytes == held(layer), "nothing else is held"


@pytest.mark.slow
@COMPILED
@each("form", FORMS)
def test_ours_holds_what_is_packed_and_no_dense_weight(form):
    layer, x = made(form, True, out=ODD[0], inner=ODD[1]), gaussian(3, ODD[1]).requires_grad_()
    y = layer(x)
    gc.collect()
    dense = [one for one in gc.get_objects() if isinstance(one, torch.Tensor | np.ndarray) and one.shape == ODD]
    assert not dense, "not even for the gradient"
    y.sum().backward()
    whole = 320 * 256  # padded to whole panels and groups
    assert layer.nbytes == whole // (1 if form[0] == "int8" else 2) + 2 * whole // form[1] + 4 * ODD[0]


@COMPILED
@each("form", FORMS)
def test_of_ours_some_rows_are_a_dense_layer_and_nothing_asks_for_a_gradient(form):
    layer, x, channels = made(form, True), gaussian(4, IN), torch.tensor([90, 0, 17])
    rows = layer.rows(channels)
    assert isinstance(rows, Linear) and rows.shape == (3, IN)
    torch.testing.assert_close(rows(x) + layer.bias[channels], layer(x)[:, channels])
    assert layer(x[:0]).shape == (0, OUT) and not layer(x).requires_grad
    assert not list(layer.parameters()), "weight and bias are frozen"
    with torch.no_grad():
        assert not layer(x.requires_grad_()).requires_grad


# -- bitsandbytes ------------------------------------------------------------------------------------------------------


@LIBRARY
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


@LIBRARY
def test_by_default_no_outliers_are_looked_for(monkeypatch):
    """The search would make the host wait for the device."""
    asked = []
    layer = made(LLMInt8Linear)
    quantise = torch.ops.bitsandbytes.int8_vectorwise_quant

    class Watched:
        def __getattr__(self, name: str) -> object:
            return getattr(torch.ops.bitsandbytes, name) if name != "int8_vectorwise_quant" else self.quantise

        def quantise(self, x: torch.Tensor, threshold: float) -> object:
            asked.append((threshold, x.is_contiguous()))
            return quantise(x, threshold)

    watched = Watched()

    class Torch:
        class ops:  # noqa: N801
            bitsandbytes = watched

    monkeypatch.setattr(linear_bitsandbytes, "torch", Torch)
    layer(gaussian(3, IN))
    layer(gaussian(IN, 3).T)
    assert asked == [(0.0, True)] * 2, "and the kernel for NVIDIA reads rows one behind the other"


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
@LIBRARY
def test_the_library_is_loaded_with_the_first_layer_and_may_fetch_nothing():
    """On a CPU with AVX512-BF16 it would search the network for a kernel, if `kernels` is installed."""
    result = subprocess.run([sys.executable, "-c", LOADS], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


# -- Apple's -----------------------------------------------------------------------------------------------------------


def test_four_bits_reach_from_the_least_to_the_largest_of_each_group():
    weight = gaussian(OUT, IN, seed=1) + 3.0  # all of one sign: without a zero point half of the levels are wasted
    ours, groups = Int4WeightOnlyLinear(weight).weight.reshape(-1, 32), weight.view(-1, 32)
    least, most = groups.amin(1, keepdim=True), groups.amax(1, keepdim=True)
    step = (most - least) / 15
    assert torch.allclose(ours.amin(1, keepdim=True), least, atol=1e-5)
    assert torch.allclose(ours.amax(1, keepdim=True), most, atol=1e-5)
    assert ((ours - groups).abs() <= 0.5001 * step).all()
    levels = (ours - least) / step
    assert torch.allclose(levels, levels.round(), atol=1e-3)


@precisions
def test_scales_are_rounded_before_the_weights_so_that_no_error_is_added(precision):
    """Half a step of the rounded scale; in 16 bits the zero is rounded too, by some hundredths of a step."""
    weight, exact = gaussian(OUT, IN, seed=1).to(precision), precision == torch.float32
    for kind, slack in ((Int8WeightOnlyLinear, 1e-3), (Int4WeightOnlyLinear, 1e-3 if exact else 0.1)):
        layer = kind(weight)
        scales = layer.scales if kind is Int8WeightOnlyLinear else layer.scales[..., 0].T.repeat_interleave(32, 1)
        steps = (layer.weight.float() - weight.float()).abs() / scales.float().view(OUT, -1)
        # A scale that was rounded down leaves the largest of its channel beyond the last step.
        largest = weight.float().abs() > 126.4 * scales.float().view(OUT, -1)
        assert float(steps[~largest].max()) < 0.5 + slack
        assert float(steps.max()) < (0.5 + slack if exact else 0.85)


def test_levels_are_counted_from_where_a_rounded_zero_lies():
    weight = (gaussian(OUT, IN, seed=1) + 30.0).bfloat16()  # far from nought, where bf16 is coarse
    levels, scales, zeros = _levels(weight)
    assert (scales.dtype, zeros.dtype) == (torch.bfloat16, torch.bfloat16)
    steps = scales.float().repeat_interleave(32, 1)
    rounded = zeros.float().repeat_interleave(32, 1) + (levels.float() - 8) * steps
    inner = (levels > 0) & (levels < 15)  # the ends may lie beyond the last level
    assert float(((rounded - weight.float()).abs() / steps)[inner].max()) < 0.501


@apples
def test_weights_are_rounded_some_at_a_time(monkeypatch, kind):
    usual, x = made(kind, inner=160), gaussian(4, 160)
    for piece in (1, 5 * 160, 10**9):
        monkeypatch.setattr(linear_mps, "PIECE", piece)
        assert torch.equal(made(kind, inner=160)(x), usual(x))


class Elsewhere(torch.Tensor):
    """A tensor that claims to be on another device."""

    device = torch.device("mps")


def test_apples_operator_is_given_pairs_of_levels_the_first_one_high(monkeypatch):
    """PyTorch #129940: uint8 [out, in / 2], of each pair the even channel in the upper half."""
    given: list[torch.Tensor] = []

    class Operators:
        @staticmethod
        def _convert_weight_to_int4pack(pairs: torch.Tensor, tiles: int) -> torch.Tensor:
            given.append(pairs.as_subclass(torch.Tensor))
            assert tiles in (2, 4, 8) and pairs.shape[1] * 2 % (16 * tiles) == 0 and len(pairs) % 8 == 0
            return pairs

    monkeypatch.setattr(torch.ops, "aten", Operators)
    weight = gaussian(OUT, IN, seed=1)
    Int4WeightOnlyLinear(weight.as_subclass(Elsewhere))
    levels = _levels(weight)[0]
    assert given[0].dtype == torch.uint8
    assert torch.equal(given[0] >> 4, levels[:, ::2]) and torch.equal(given[0] & 15, levels[:, 1::2])


@pytest.mark.parametrize("kind", APPLES)
def test_apples_kernels_are_given_whole_squares_in_one_precision(monkeypatch, kind):
    """Apple's kernels refuse other inputs, which those for CPUs accept."""
    seen = []
    multiply = kind.multiply

    def watched(layer: WeightOnlyLinear, rows: torch.Tensor) -> torch.Tensor:
        y = multiply(layer, rows)
        seen.append((rows.shape[1] % 32, y.shape[1] % 32, rows.dtype, layer.scales.dtype, rows.is_contiguous()))
        return y

    monkeypatch.setattr(kind, "multiply", watched)
    for out, inner in SHAPES[kind]:
        layer = made(kind, True, torch.bfloat16, out, inner)
        assert layer(gaussian(inner, 4).T).dtype == torch.float32, "what goes in says what comes out"
    assert seen == [(0, 0, torch.bfloat16, torch.bfloat16, True)] * len(SHAPES[kind])
