"""Decides whether localspec's own kernels for NVIDIA GPUs are used.

The kernels are tested before anything is computed with them.
"""

from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F

from localspec.errors import first_line, out_of_memory
from localspec.nn import row_kernels
from localspec.nn.rotary import apply_rope

LEAST_CAPABILITY = (8, 0)  # of a GPU: older ones do not multiply bf16
NEAR = 0.02  # largest relative difference of 16-bit results from more exact ones


_settled: dict[torch.device, str | None] = {}


def settle(device: torch.device, why_not: str | None) -> None:
    """Store the result of an earlier test of the kernels on a device, so that this process does not test them again.

    `why_not` is the reason not to use the kernels; None to use them.
    """
    _settled[device] = why_not
    trouble.cache_clear()


@cache
def trouble(device: torch.device) -> str | None:
    """Return the reason, in words, why the kernels are not used on a device; None if they are used."""
    if device in _settled:
        return _settled[device]
    try:
        return not_for(device) or tried(device)
    except MemoryError:
        return "there is no memory to try the kernels"


def not_for(device: torch.device) -> str | None:
    """Return the reason why the kernels do not support a device; None for a supported GPU."""
    if device.type != "cuda" or torch.version.hip is not None or not torch.cuda.is_available():
        return "the kernels need an NVIDIA GPU"
    if torch.cuda.get_device_capability(device) < LEAST_CAPABILITY:
        return "the kernels need a GPU of compute capability 8.0 or more"
    return None


def tried(device: torch.device) -> str | None:
    """Test the kernels on a supported GPU. Return what is wrong, or None. Raises MemoryError."""
    try:
        return _wrong(device)
    except (RuntimeError, OSError, AttributeError, ImportError, ValueError, TypeError) as error:
        if out_of_memory(error):
            raise MemoryError from error
        return first_line(error).rstrip(".")


def serve(x: torch.Tensor, *others: torch.Tensor) -> bool:
    """Return whether the kernels can compute with these tensors: on a GPU, not empty, and without gradients."""
    if not x.is_cuda or (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (x, *others))):
        return False
    return x.numel() > 0 and trouble(x.device) is None


@torch.inference_mode()
def _wrong(device: torch.device) -> str | None:
    """Run the tests of the kernels. Return what is wrong, in words, or None."""
    for name, (compute, expected) in {**_products(device), **_attention(device), **_between(device)}.items():
        together = compute(slice(None))
        if not float((together.float() - expected).norm() / expected.norm()) < NEAR:
            return f"the result of {name} is wrong"
        if not all(torch.equal(compute(slice(row, row + 1)), together[row : row + 1]) for row in range(len(together))):
            return f"the result of {name} for one row changes with the other rows"
    return None


# The computation of some rows, and the expected result of all rows.
Trials = dict[str, tuple[Callable[[slice], torch.Tensor], torch.Tensor]]


def _random(device: torch.device, *sizes: int) -> torch.Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(sum(sizes))).to(device)


def _products(device: torch.device) -> Trials:
    x, weight = _random(device, 11, 192).bfloat16(), _random(device, 40, 192).bfloat16()
    packed, scales = (torch.arange(size, device=device).mul(97).fmod(256).byte() for size in (40 * 96, 120))
    levels, code = torch.linspace(-1, 1, 16, device=device), torch.linspace(0, 1, 256, device=device)
    offset, halves = torch.full((), 0.1, device=device), torch.full((1,), 0.5, device=device)
    pairs = packed.view(40, 96, 1).long()
    unpacked = levels[torch.cat([pairs >> 4, pairs & 15], -1).view(40, 192)]
    unpacked = unpacked * (code[scales.long()] * 0.5 + offset).view(40, 3).repeat_interleave(row_kernels.BLOCK, 1)
    nf4 = row_kernels.TiledNF4(*row_kernels.tiled(packed, scales, 40), code, halves, offset, levels)
    dense = row_kernels.nf4_dense(nf4, 40, x.dtype)
    return {
        "a product": (lambda rows: row_kernels.dense(x[rows], weight, None), x.float() @ weight.float().T),
        "an NF4 product": (lambda rows: row_kernels.nf4(x[rows], nf4, None, 40), x.float() @ unpacked.T),
        "an NF4 matrix": (lambda rows: dense[rows], unpacked),
    }


def _attention(device: torch.device) -> Trials:
    queries, slots = _random(device, 1, 2, 6, 64), _random(device, 2, 1, 2, 300, 64)
    mask = torch.zeros(6, 300, device=device).masked_fill_(_random(device, 6, 300) > 0.5, float("-inf"))
    mask[:, 0] = 0.0

    def compute(rows: slice) -> torch.Tensor:
        return row_kernels.attention(queries[:, :, rows], slots[0], slots[1], mask[rows])[0].transpose(0, 1)

    expected = F.scaled_dot_product_attention(queries, slots[0], slots[1], attn_mask=mask)
    return {"attention": (compute, expected[0].transpose(0, 1))}


def _between(device: torch.device) -> Trials:
    x, added, weight = (_random(device, *sizes).bfloat16() for sizes in ((5, 96), (5, 96, 1), (96,)))
    added, wide = added[..., 0].contiguous(), (x + added[..., 0]).float()
    qkv, angles = _random(device, 5, 4, 32).bfloat16(), _random(device, 5, 1, 16)
    cos, sin = angles.cos().bfloat16(), angles.sin().bfloat16()

    def placed(rows: slice) -> torch.Tensor:
        slots = qkv.new_zeros(2, 1, 16, 32)
        some, start = qkv[rows].contiguous(), torch.full((1,), 3, device=device)
        placing = row_kernels.Placing(slots, 16, start, 2)
        turned = row_kernels.rotate_and_place(some, cos[rows].contiguous(), sin[rows].contiguous(), 2, 1, placing)
        cached = slots[:, 0, 5 : 5 + len(some)]
        return torch.cat([*turned.view(2, len(some), 32), *cached], -1)

    turned = apply_rope(qkv[None, :, :3], cos[None], sin[None])[0]
    return {
        "a norm": (
            lambda rows: row_kernels.add_norm(x[rows], added[rows], weight, 1.0, 1e-5)[1],
            F.rms_norm(wide, (96,), weight.float() + 1.0, 1e-5),
        ),
        "a gate": (
            lambda rows: row_kernels.gated(x[rows], "silu"), F.silu(x[:, :48].float()) * x[:, 48:].float(),
        ),
        "a rotation": (placed, torch.cat([turned, qkv[:, 3:]], 1).flatten(1).float()),
    }  # fmt: skip
