"""Packed linear layers: inputs, models, and checks that every kind must pass."""

from pathlib import Path

import torch
import torch.nn.functional as F

from localspec.native.target import NativeTarget
from localspec.native.threads import Threads
from localspec.nn.linear import LoraAdapter, QuantizedLinear
from localspec.nn.target import Target
from localspec.training.target import torch_target


def packed_target(path: Path, packing: str = "int8") -> Target:
    """Return a model for training whose weights our library packed."""
    return torch_target(NativeTarget.open(path, packing=packing, threads=Threads(1)))


def gaussian(*shape: int, seed: int = 0) -> torch.Tensor:
    """Return Gaussian numbers, the same each time."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def error(ours: torch.Tensor, right: torch.Tensor) -> float:
    """Return the relative error."""
    return float((ours.float() - right.float()).norm() / right.float().norm())


def gradient_is_that_of_a_dense_layer(layer: QuantizedLinear, inputs: tuple[int, ...]) -> None:
    """Assert that the gradient for x of this shape is that of a dense layer with the rounded weight."""
    direction = gaussian(*inputs[:-1], layer.shape[0], seed=4)
    ours, dense = (gaussian(*inputs).requires_grad_() for _ in range(2))
    y = layer(ours)
    assert torch.equal(y.detach(), layer(gaussian(*inputs))), "asking for a gradient changes no value"
    (y * direction).sum().backward()
    (F.linear(dense, layer.weight, layer.bias) * direction).sum().backward()
    assert dense.grad is not None and ours.grad is not None
    assert torch.allclose(ours.grad, dense.grad, rtol=1e-5, atol=1e-5)


def adapter_acts_in_its_own_forward_alone(layer: QuantizedLinear) -> None:
    """Check that an adapter acts in its own forward only, and learns there."""
    outputs, inputs = layer.shape
    x, adapter = gaussian(3, inputs), LoraAdapter(inputs, outputs, [(0, outputs)], 4, 8.0)
    torch.nn.init.normal_(adapter.lora_B)
    assert torch.allclose(layer(x, adapter), layer(x) + adapter(x))
    layer(x, adapter).sum().backward()
    assert adapter.lora_A.grad is not None and adapter.lora_A.grad.abs().sum() > 0
