"""LLM.int8 and NF4 on the device against dense layers: one layer of usual sizes, its gradient, and a whole model."""

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from gpu_models import DEMO, QUESTIONS, prompt_of
from quantized_layers import error, gaussian
from slow_cases import cases

from localspec.decoding.tree import DraftTree
from localspec.nn import packing
from localspec.nn import target as target_module
from localspec.nn.linear import QuantizedLinear
from localspec.nn.linear_bitsandbytes import LLMInt8Linear, NF4Linear
from localspec.nn.packing import DTYPES
from localspec.nn.target import Target

if find_spec("bitsandbytes") is None:
    pytest.skip("bitsandbytes is not installed", allow_module_level=True)

# Of Gaussian weights and activations: more than nothing, less than
ERRORS = {LLMInt8Linear: (0.002, 0.02), NF4Linear: (0.05, 0.13)}
kinds = pytest.mark.parametrize("kind", ERRORS)
dtypes = pytest.mark.parametrize("dtype", ["bf16", "fp16"])
SIZES = cases([(96, 128), (301, 254), (4096, 4096), (11008, 4096)], [(96, 128), (301, 254)])


@pytest.mark.slow
@kinds
@dtypes
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_the_product_is_the_dense_one_as_near_as_so_few_bits_come(
    device: str, kind: type[QuantizedLinear], dtype: str, sizes: tuple[int, int]
) -> None:
    out, inner = sizes
    if device == "cpu" and max(sizes) > 4096:
        pytest.skip("the largest layer takes seconds on a CPU, which has no other kernels for it")
    weight, bias = (
        gaussian(out, inner, seed=1).to(device, DTYPES[dtype]),
        gaussian(out, seed=2).to(device, DTYPES[dtype]),
    )
    layer, x = kind(weight, bias), gaussian(33, inner).to(device, DTYPES[dtype])
    least, most = ERRORS[kind]
    for rows in (1, 2, 4, 8, 16, 33):
        y = layer(x[:rows])
        assert (y.dtype, y.shape, y.device.type) == (DTYPES[dtype], (rows, out), device)
        assert least < error(y, F.linear(x[:rows].float(), weight.float(), bias.float())) < most
    assert layer.nbytes < 0.6 * weight.nbytes or inner < 256


@kinds
def test_rows_whose_bits_depend_on_others_are_detected(
    device: str, kind: type[QuantizedLinear], record_property: Callable[[str, object], None]
) -> None:
    """A fact for the report, not a promise; but a row is as accurate with other rows as without them."""
    layer, x = (
        kind(gaussian(512, 1024, seed=1).to(device, torch.bfloat16)),
        gaussian(33, 1024).to(device, torch.bfloat16),
    )
    alone = torch.cat([layer(x[row : row + 1]) for row in range(len(x))])
    differing = [rows for rows in range(2, 34) if not torch.equal(layer(x[:rows]), alone[:rows])]
    record_property("rows with other bits", str(differing or "none"))
    assert error(layer(x), alone) < 0.01


@kinds
def test_the_gradient_is_that_of_a_dense_layer_with_the_rounded_weight(
    device: str, kind: type[QuantizedLinear]
) -> None:
    layer = kind(gaussian(96, 128, seed=1).to(device, torch.bfloat16))
    ours, dense = (gaussian(7, 128).to(device, torch.bfloat16).requires_grad_() for _ in range(2))
    direction = gaussian(7, 96, seed=4).to(device, torch.bfloat16)
    (layer(ours) * direction).sum().backward()
    (F.linear(dense, layer.weight.to(torch.bfloat16)) * direction).sum().backward()
    assert ours.grad is not None and dense.grad is not None
    assert error(ours.grad, dense.grad) < 0.02


def as_on_cuda(find: Any, quantize: str, device: str, *more: float) -> Any:
    return find(quantize, "cuda", *more)


@pytest.mark.slow
@pytest.mark.parametrize(("quantize", "most"), [("int8", 0.1), ("nf4", 0.25)])
def test_a_whole_model_says_nearly_the_same(
    device: str, monkeypatch: pytest.MonkeyPatch, quantize: str, most: float
) -> None:
    dense = Target.load(DEMO, device=device, dtype=torch.bfloat16)
    for name in ("linear_class", "lm_head_class"):  # on a CPU, where nobody else has them, too
        monkeypatch.setattr(target_module, name, partial(as_on_cuda, getattr(packing, name)))
    packed = Target.load(DEMO, device=device, dtype=torch.bfloat16, quantize=quantize)
    assert packed.nbytes < dense.nbytes
    for question in QUESTIONS:
        tokens = prompt_of(dense, question)
        both = [
            torch.from_numpy(target.forward(DraftTree.chain(tokens), target.cache(len(tokens))).logits.numpy())
            for target in (dense, packed)
        ]
        assert 0 < error(both[1], both[0]) < most
        assert float((both[0].argmax(-1) == both[1].argmax(-1)).float().mean()) > 0.6
