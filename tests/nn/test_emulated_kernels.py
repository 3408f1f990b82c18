"""The results of our GPU kernels on a CPU: their sources, run thread by thread (`cuda_emulation.py`)."""

import os
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from cuda_emulation import emulate
from each import each
from golden import wording
from quantized_layers import error, gaussian
from slow_cases import seldom

from localspec.decoding.tree import DraftTree
from localspec.nn import cuda_kernels, kernel_checks, row_kernels
from localspec.nn.draft_layers import TorchLinear
from localspec.nn.linear import Linear
from localspec.nn.linear_bitsandbytes import NF4Linear
from localspec.nn.packing import DTYPES
from localspec.nn.rotary import apply_rope
from localspec.nn.target import Target

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the emulation takes turns by contexts of Linux")
NEAR = {"fp32": 1e-6, "bf16": 5e-3, "fp16": 6e-4}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of compiled kernels that the processes of this session share."""
    base = tmp_path_factory.getbasetemp()
    found = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "kernels"
    found.mkdir(exist_ok=True)
    return found


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    emulate(monkeypatch, folder)


@pytest.mark.slow
def test_the_trial_before_they_are_used_finds_nothing_wrong():
    assert kernel_checks._wrong(torch.device("cpu")) is None


@pytest.mark.slow
@each("dtype", ["bf16", "fp16"])
@each("sizes", [(1, 1, 8), (9, 33, 72), (17, 16, 264)])
def test_a_product_of_any_sizes(dtype, sizes):
    rows, out, inner = sizes
    x, weight, bias = (gaussian(*shape, seed=rows).to(DTYPES[dtype]) for shape in ((rows, inner), (out, inner), (out,)))
    for added in (None, bias):
        y = row_kernels.dense(x, weight, added)
        expected = F.linear(x.double(), weight.double(), None if added is None else added.double())
        assert error(y, expected) < NEAR[dtype]
        assert torch.equal(row_kernels.dense(x[-1:], weight, added), y[-1:])


@pytest.mark.slow
@each("dtype, sizes", [("bf16", (1, 1, 1)), ("fp16", (9, 40, 9)), ("bf16", (16, 49, 33)), ("fp16", (66, 17, 2))])
def test_a_product_in_nf4_of_any_sizes(monkeypatch, dtype, sizes):
    """More blocks of weights than warps, and fewer; channels that fill no tile; two tiles at a time, and an odd one."""
    rows, out, blocks = sizes
    monkeypatch.setattr(row_kernels, "WIDE", 0)
    packed, scales = (torch.randint(256, size, dtype=torch.uint8) for size in ((out * blocks * 32, 1), (out * blocks,)))
    levels, code, offset = torch.linspace(-1, 1, 16), gaussian(256, seed=1), torch.tensor(0.3)
    scale_scales = gaussian(-(-out * blocks // 256), seed=2).abs()
    weight = row_kernels.TiledNF4(*row_kernels.tiled(packed, scales, out), code, scale_scales, offset, levels)
    both = packed.view(out, -1, 1).long()
    unpacked = levels[torch.cat([both >> 4, both & 15], -1).view(out, -1)].to(DTYPES[dtype]).double()
    every = code[scales.long()] * scale_scales[torch.arange(out * blocks) // 256] + offset
    scaled = levels[torch.cat([both >> 4, both & 15], -1).view(out, -1)] * every.view(out, blocks).repeat_interleave(
        64, 1
    )
    dense = row_kernels.nf4_dense(weight, out, DTYPES[dtype])
    torch.testing.assert_close(dense, scaled.to(DTYPES[dtype]), rtol=2e-2 if dtype == "bf16" else 2e-3, atol=0)
    assert float((dense == scaled.to(DTYPES[dtype])).float().mean()) > 0.99
    unpacked *= every.view(out, blocks).repeat_interleave(64, 1)
    x, bias = (gaussian(*shape, seed=3).to(DTYPES[dtype]) for shape in ((rows, blocks * 64), (out,)))
    y = row_kernels.nf4(x, weight, bias, out)
    assert error(y, F.linear(x.double(), unpacked, bias.double())) < NEAR[dtype]
    assert torch.equal(row_kernels.nf4(x[-1:], weight, bias, out), y[-1:])


@pytest.mark.slow
@each("dtype, sizes", [("bf16", (2, 8, 1, 300)), ("fp16", (1, 80, 5, 255)), ("fp32", (1, 256, 17, 257))])
def test_attention_of_any_sizes(dtype, sizes):
    heads, width, rows, slots = sizes
    keys, values = gaussian(2, heads, slots + 30, width, seed=1).to(DTYPES[dtype])[:, None, :, :slots]
    queries = gaussian(1, heads, rows, width, seed=2).to(DTYPES[dtype])
    seen = torch.rand(rows, slots) < 0.5
    seen[::2, 256:], seen[1::2, :256], seen[:, 0] = False, slots < 256, True
    mask = torch.zeros(rows, slots).masked_fill_(~seen, float("-inf")).to(DTYPES[dtype])
    mixed = row_kernels.attention(queries, keys, values, mask)
    expected = F.scaled_dot_product_attention(queries.double(), keys.double(), values.double(), attn_mask=mask.double())
    assert error(mixed, expected) < max(1e-5, NEAR[dtype])
    assert torch.equal(row_kernels.attention(queries[:, :, -1:], keys, values, mask[-1:]), mixed[:, :, -1:])


@pytest.mark.slow
@each("dtype", DTYPES)
def test_what_stands_between_products(dtype):
    x, given = (gaussian(3, 2056, seed=seed).to(DTYPES[dtype]) for seed in (1, 2))
    weight = gaussian(2056, seed=3).to(DTYPES[dtype])
    total, normed = row_kernels.add_norm(x, given, weight, 1.0, 1e-6)
    assert torch.equal(total, x + given)
    assert error(normed, F.rms_norm(total.double(), (2056,), weight.double() + 1, 1e-6)) < NEAR[dtype]
    gate, up = torch.split(x[:, :272].contiguous(), 136, -1)
    for name, activation in (("silu", F.silu), ("gelu", lambda one: F.gelu(one, approximate="tanh"))):
        found = row_kernels.gated(torch.cat([gate, up], -1), name)
        assert error(found, activation(gate.double()) * up.double()) < 2 * NEAR[dtype]


@pytest.mark.slow
@each("start", [None, torch.tensor([4, 5, 6])])
@each("sizes", [(4, 2, 64, 64), (3, 1, 80, 32)])
def test_rows_are_rotated_and_put_in_their_places(start, sizes):
    heads, kv_heads, width, rotary = sizes
    qkv, angles = gaussian(3, heads + 2 * kv_heads, width, seed=1), gaussian(3, 1, rotary, seed=2)
    slots = torch.zeros(2, kv_heads, 20, width)
    placing = row_kernels.Placing(slots, 16, start, 4 if start is None else 0)
    queries = row_kernels.rotate_and_place(qkv, angles.cos(), angles.sin(), heads, kv_heads, placing)
    turned = apply_rope(qkv[None, :, : heads + kv_heads], angles.cos()[None], angles.sin()[None])[0]
    grouped = turned[:, :heads].view(3, kv_heads, -1, width).permute(1, 2, 0, 3).reshape(kv_heads, -1, width)
    expected = torch.zeros_like(slots)
    expected[0, :, 4:7] = turned[:, heads:].transpose(0, 1)
    expected[1, :, 4:7] = qkv[:, heads + kv_heads :].transpose(0, 1)
    torch.testing.assert_close(queries, grouped)
    torch.testing.assert_close(slots, expected)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_whole_model_says_what_it_says_without_them(monkeypatch, tiny, dtype):
    model = Target.load(tiny("qwen2-many-heads-mixed-window-tied").path, dtype=DTYPES[dtype], exact=True)
    tree = DraftTree([5, 6, 7, 8], [-1, 0, 0, 1])
    said = []
    for form, serves in (("eager", False), ("eager", True), ("static", True)):
        monkeypatch.setattr(kernel_checks, "serve", lambda x, *others, serves=serves: serves and x.numel() > 0)
        model.use_step_form(form)
        cache = model.cache(64)
        cache.fill(torch.Generator().manual_seed(0))
        cache.assume(30)
        said.append(torch.from_numpy(model.forward(tree, cache).logits.numpy()).clone())
    assert error(said[1], said[0]) < (1e-5 if dtype == "fp32" else 0.03)
    assert torch.equal(said[1], said[2])
    assert dtype == "bf16" or not torch.equal(said[0], said[1]), "they were not used"


@pytest.mark.slow
def test_matrices_of_drafters_are_packed_like_those_of_their_target(monkeypatch, tiny):
    monkeypatch.setattr("localspec.nn.target.linear_class", lambda *given: NF4Linear)
    monkeypatch.setattr("localspec.nn.target.lm_head_class", lambda *given: Linear)  # as on CUDA
    path = tiny("qwen2-many-heads-mixed-window-tied").path
    compute = Target.load(path, dtype=torch.bfloat16).compute
    weights, biases = gaussian(3, 300, 256, seed=1), gaussian(3, 300, seed=2)
    x = gaussian(3, 256, seed=3).bfloat16()
    alone = [compute.linear(one.numpy(), bias.numpy(), silu=True) for one, bias in zip(weights, biases, strict=True)]
    assert alone[0].nbytes < 0.3 * 2 * weights[0].numel()
    assert 0 < error(alone[0](x), F.silu(F.linear(x.float(), weights[0], biases[0]))) < 0.13
    each = compute.linears(weights.numpy(), biases.numpy(), silu=True)
    expected = torch.cat([layer(x[row : row + 1]) for row, layer in enumerate(alone)])
    assert torch.equal(each(x), expected) and torch.equal(each(x[:2]), expected[:2])
    assert isinstance(compute.linear(weights[0, :32].numpy()), TorchLinear), "too small to gain by it"
    dense = Target.load(path, dtype=torch.bfloat16)
    monkeypatch.setattr(kernel_checks, "trouble", lambda device: wording("there_is_no_compiler"))
    assert isinstance(dense.compute.linear(weights[0].numpy()), TorchLinear)


WRONG = [
    ("place / 16 + place % 4 / 2 * 8", "place / 16 + place % 4 / 2 * 4"),
    ("for (int other = 1; other < WARPS; other++)", "for (int other = 2; other < WARPS; other++)"),
    ("(squares / (parts * SEVERAL) + epsilon)", "(squares / parts + epsilon)"),
    ("fmaxf(found, weights[row][slot])", "weights[row][slot]"),
    ("__syncthreads();\n        const int row = tile * 8", "const int row = tile * 8"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("right", "wrong"), seldom(WRONG, WRONG[::3]))
def test_the_trial_sees_what_is_wrong(monkeypatch, right, wrong):
    source = cuda_kernels.source
    assert any(right in source(file) for file in ("linear_dense.cu", "layer.cu", "attention.cu"))
    monkeypatch.setattr(cuda_kernels, "source", lambda file: source(file).replace(right, wrong))
    assert kernel_checks._wrong(torch.device("cpu")) is not None
