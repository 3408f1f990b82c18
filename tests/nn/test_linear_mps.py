"""Weights in eight and four bits for Apple's GPUs: the same layers on a CPU, whose operators pack differently.

What is given to Apple's own operators is looked at here; that they run was not seen.
"""

import torch
import torch.nn.functional as F
from each import each
from quantized_layers import adapter_acts_in_its_own_forward_alone, error, gaussian, gradient_is_that_of_a_dense_layer

from localspec.nn import linear_mps
from localspec.nn.linear_mps import Int4WeightOnlyLinear, Int8WeightOnlyLinear, WeightOnlyLinear, _levels

OUT, IN = 96, 128
ERRORS = {
    Int8WeightOnlyLinear: (0.002, 0.012),
    Int4WeightOnlyLinear: (0.04, 0.11),
}  # of Gaussian weights: more than nothing, less than
kinds = each("kind", [Int8WeightOnlyLinear, Int4WeightOnlyLinear])
biases = each("bias", [False, True])
precisions = each("precision", [torch.float32, torch.bfloat16, torch.float16])
shapes = each("out, inner", [(OUT, IN), (48, 40), (301, 255), (3, 5)])


def made(
    kind: type[WeightOnlyLinear],
    bias: bool = False,
    precision: torch.dtype = torch.float32,
    out: int = OUT,
    inner: int = IN,
) -> WeightOnlyLinear:
    return kind(gaussian(out, inner, seed=1).to(precision), gaussian(out, seed=2).to(precision) if bias else None)


@kinds
@biases
@precisions
@shapes
def test_the_product_is_the_dense_one_as_near_as_so_few_bits_come(kind, bias, precision, out, inner):
    layer, x = made(kind, bias, precision, out, inner), gaussian(40, inner).to(precision)
    weight, added = gaussian(out, inner, seed=1), gaussian(out, seed=2) if bias else None
    y, (least, most) = layer(x), ERRORS[kind]
    assert (y.dtype, y.shape) == (precision, (40, out))
    assert error(y, F.linear(x.float(), weight, added)) < most + 0.005
    assert layer.weight.shape == layer.shape == (out, inner)
    assert inner < IN or least < error(layer.weight, weight) < most
    kernel = 1e-5 if precision == torch.float32 else 0.01
    assert error(y, F.linear(x.float(), layer.weight.float(), added)) < kernel, "by this weight it is multiplied"
    assert torch.equal(layer(x.view(2, 4, 5, inner)).view(40, out), y)
    assert torch.equal(
        layer(gaussian(inner, 4).T.to(precision)), layer(gaussian(inner, 4).T.contiguous().to(precision))
    )


def test_eight_bits_have_one_scale_an_output_channel():
    scale = gaussian(OUT, IN, seed=1).abs().amax(1, keepdim=True) / 127
    steps = made(Int8WeightOnlyLinear).weight / scale
    assert torch.allclose(steps, steps.round(), atol=1e-4)
    assert torch.equal(steps.abs().amax(1).round(), torch.full((OUT,), 127.0))


def test_four_bits_reach_from_the_least_to_the_largest_of_each_group():
    weight = gaussian(OUT, IN, seed=1) + 3.0  # all of one sign: a scale alone would waste half of the levels
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
    """Half a step of the scale as it is kept; in 16 bits the zero is rounded too, by some hundredths of a step."""
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


@kinds
@each("piece", [10**9, 1, 5 * 160])
def test_weights_are_rounded_some_at_a_time(monkeypatch, kind, piece):
    usual, x = made(kind, inner=160), gaussian(4, 160)
    monkeypatch.setattr(linear_mps, "PIECE", piece)
    assert torch.equal(made(kind, inner=160)(x), usual(x))


@kinds
@precisions
def test_zeros_equal_tiny_and_far_weights(kind, precision):
    weight, x = gaussian(OUT, IN, seed=1).to(precision), gaussian(9, IN).to(precision)
    weight[0], weight[1], weight[2] = 0.0, 0.5, 0.5 + weight[2] * 1e-3
    weight[3] *= 1e-3
    layer = kind(weight)
    assert layer(x).isfinite().all()
    assert float(layer.weight[0].abs().max()) < 1e-4
    assert torch.allclose(layer.weight[1:3].float(), weight[1:3].float(), rtol=0.01)
    assert error(layer.weight[3], weight[3]) < (0.2 if kind is Int4WeightOnlyLinear else 0.03)


def test_what_it_takes_in_memory():
    assert made(Int8WeightOnlyLinear).nbytes == OUT * IN + 4 * OUT
    assert made(Int8WeightOnlyLinear, True, torch.bfloat16).nbytes == OUT * IN + 2 * OUT + 2 * OUT
    assert made(Int4WeightOnlyLinear).nbytes == OUT * IN // 2 + 2 * 4 * OUT * IN // 32
    assert made(Int4WeightOnlyLinear, True, torch.bfloat16).nbytes == OUT * IN // 2 + 2 * 2 * OUT * IN // 32 + 2 * OUT
    layer = made(Int4WeightOnlyLinear, True)
    held = [tensor for tensor in vars(layer).values() if torch.is_tensor(tensor)]
    assert layer.nbytes == sum(tensor.nbytes for tensor in held), "nothing else is held"


# -- what Apple's operators are given ----------------------------------------------------------------------------------


class Elsewhere(torch.Tensor):
    """A tensor that says it lies on another device."""

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


@kinds
@shapes
def test_kernels_are_given_whole_squares_in_one_precision(monkeypatch, kind, out, inner):
    """Apple's kernels refuse other inputs, which those for CPUs accept."""
    seen = []
    multiply = kind.multiply

    def watched(layer: WeightOnlyLinear, rows: torch.Tensor) -> torch.Tensor:
        y = multiply(layer, rows)
        seen.append((rows.shape[1] % 32, y.shape[1] % 32, rows.dtype, layer.scales.dtype, rows.is_contiguous()))
        return y

    monkeypatch.setattr(kind, "multiply", watched)
    layer = made(kind, True, torch.bfloat16, out, inner)
    assert layer(gaussian(inner, 4).T).dtype == torch.float32, "what goes in says what comes out"
    assert seen == [(0, 0, torch.bfloat16, torch.bfloat16, True)]


# -- gradients ---------------------------------------------------------------------------------------------------------


@kinds
@biases
@each("shape", [(7, IN), (2, 5, IN)])
def test_the_gradient_is_that_of_a_dense_layer_with_the_rounded_weight(kind, shape, bias):
    gradient_is_that_of_a_dense_layer(made(kind, bias), shape)


@kinds
def test_an_adapter_acts_in_its_own_forward_alone_and_learns(kind):
    adapter_acts_in_its_own_forward_alone(made(kind))
