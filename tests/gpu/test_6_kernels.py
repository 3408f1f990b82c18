"""Our own kernels on the device: as accurate as their format allows, and no row's bits depend on other rows."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from gpu_models import DEMO, MAKERS, QUESTIONS, prompt_of
from quantized_layers import error, gaussian
from session_replies import reply
from slow_cases import cases

from localspec.decoding.budget import Budget
from localspec.decoding.session import Session
from localspec.drafters.autoregressive import Autoregressive
from localspec.models.drafter_kinds import kinds
from localspec.nn import cuda_kernels, kernel_checks, row_kernels
from localspec.nn.attention import invariant
from localspec.nn.exactness import measure
from localspec.nn.linear_bitsandbytes import NF4Linear, PackedNF4
from localspec.nn.packing import DTYPES, InvariantLinear
from localspec.nn.step_forms import find_step_form
from localspec.nn.target import Target

ROWS = (1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 64, 65, 100)
SIZES = cases([(40, 72), (768, 256), (301, 248), (4096, 11008), (22016, 4096)], [(40, 72)])
HEADS = cases([(8, 1, 32), (4, 4, 128), (2, 3, 80), (1, 2, 256), (1, 1, 512)], [(8, 1, 32)])
NEAR = {"bf16": 4e-3, "fp16": 5e-4}
pytestmark = pytest.mark.usefixtures("served")


@pytest.fixture
def served(cuda: str) -> None:
    """Skip on a card that is too old for the kernels; fail if they are wrong."""
    if torch.cuda.get_device_capability() < kernel_checks.LEAST_CAPABILITY:
        pytest.skip("the kernels need a GPU of compute capability 8.0 or more")
    assert kernel_checks.trouble(torch.device("cuda", torch.cuda.current_device())) is None


@pytest.mark.slow
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("biased", [False, True])
def test_a_product(cuda: str, sizes: tuple[int, int], dtype: str, biased: bool) -> None:
    weight = gaussian(*sizes, seed=1).to(cuda, DTYPES[dtype])
    bias = gaussian(sizes[0], seed=2).to(cuda, DTYPES[dtype]) if biased else None
    x = gaussian(max(ROWS), sizes[1], seed=3).to(cuda, DTYPES[dtype])
    for layer in (InvariantLinear(weight, bias), NF4Linear(weight, bias)):
        y = layer(x)
        assert (
            error(y, F.linear(x.double(), layer.weight.double(), None if bias is None else bias.double())) < NEAR[dtype]
        )
        assert all(torch.equal(layer(x[:rows]), y[:rows]) for rows in ROWS)


@pytest.mark.slow
def test_in_fp32_rows_do_not_depend_on_each_other_either(cuda: str) -> None:
    layer, x = InvariantLinear(gaussian(300, 200, seed=1).to(cuda)), gaussian(max(ROWS), 200, seed=3).to(cuda)
    y = layer(x)
    assert error(y, F.linear(x, layer.weight)) < 1e-6
    assert all(torch.equal(layer(x[:rows]), y[:rows]) for rows in ROWS)


def test_nf4_is_the_same_matrix_in_its_own_order(cuda: str) -> None:
    layer = NF4Linear(gaussian(301, 254, seed=1).to(cuda, torch.bfloat16))
    assert layer.tiled is not None
    told = layer.parts()
    again = NF4Linear(PackedNF4(layer.shape, told))
    assert torch.equal(again.weight, layer.weight)
    assert all(torch.equal(part, told[name]) for name, part in again.parts().items())


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", HEADS, ids=str)
def test_attention(cuda: str, dtype: str, sizes: tuple[int, int, int]) -> None:
    """Masked slots between the ancestors of a row change nothing, as long as the ancestors stay in their pages."""
    kv_heads, group, width = sizes
    page = row_kernels.PAGE
    slots = 2 * page + 150
    keys, values = gaussian(2, 1, kv_heads, slots, width, seed=1).to(cuda, DTYPES[dtype])
    queries = gaussian(1, kv_heads, group, 20, width, seed=2).to(cuda, DTYPES[dtype])

    def of(rows: int, seen: torch.Tensor) -> torch.Tensor:
        some = queries[:, :, :, :rows].reshape(1, kv_heads, group * rows, width)
        mask = torch.zeros(rows, len(seen), device=cuda).masked_fill_(~seen, float("-inf")).repeat(group, 1)
        found = invariant(some, keys[:, :, : len(seen)], values[:, :, : len(seen)], mask.to(keys.dtype))
        return found.view(kv_heads, group, rows, width)

    seen = torch.rand(slots, generator=torch.Generator().manual_seed(3)).to(cuda) < 0.7
    every = of(20, seen)
    plain = F.scaled_dot_product_attention(
        queries.view(1, kv_heads, -1, width).double(), keys.double(), values.double(),
        attn_mask=torch.zeros(1, slots, device=cuda).masked_fill_(~seen, float("-inf")).double(),
    )  # fmt: skip
    assert error(every.reshape(plain.shape), plain) < (1e-5 if dtype == "fp32" else NEAR[dtype])
    assert all(torch.equal(of(rows, seen), every[:, :, :rows]) for rows in (1, 3, 4, 5, 16, 17))
    # The visible slots of each page moved together, without gaps: the same numbers in other places.
    order = torch.cat(
        [
            first + torch.cat([*(part := seen[first : first + page]).nonzero().T, *(~part).nonzero().T])
            for first in range(0, slots, page)
        ]
    )
    keys, values, seen = keys[:, :, order], values[:, :, order], seen[order]
    last = int(seen.nonzero()[-1]) + 1
    assert torch.equal(of(20, seen), every) and torch.equal(of(20, seen[:last]), every)


def test_a_norm_of_some_heads(cuda: str) -> None:
    """Heads lie next to each other only if there is one row."""
    heads, weight = gaussian(5, 4, 64, seed=1).to(cuda)[:, 1:3], gaussian(64, seed=2).to(cuda)
    both = row_kernels.add_norm(heads, None, weight, 0.0, 1e-6)[1]
    assert error(both, F.rms_norm(heads, (64,), weight, 1e-6)) < 1e-6
    assert torch.equal(row_kernels.add_norm(heads[:1], None, weight, 0.0, 1e-6)[1], both[:1])


@pytest.mark.slow
@pytest.mark.parametrize("quantize", ["none", "int8", "nf4"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_exact_form_is_exact(
    cuda: str, quantize: str, dtype: str, record_property: Callable[[str, object], None]
) -> None:
    if quantize != "none" and dtype == "fp32":
        pytest.skip("packed models compute in 16 bits")
    target = Target.load(DEMO, device=cuda, dtype=DTYPES[dtype], quantize=quantize, exact=True)
    assert find_step_form(target) == ("captured", None)
    found = measure(target, 17, True)
    record_property("exact form", f"{dtype}, {quantize}: rows by {found.multiple}")
    assert found.bitwise


def test_what_learns_gets_a_gradient(cuda: str) -> None:
    """The norm of the first layer learns, too, although its input needs no gradient."""
    target = Target.load(DEMO, device=cuda)
    layers = target.transformer.layers.requires_grad_(True)
    tokens = torch.arange(12, device=cuda)
    target.forward_tensors(tokens, tokens, tokens[:, None] >= tokens).logits.square().sum().backward()
    assert all(one.grad is not None and bool(one.grad.any()) for one in layers.parameters())


def test_what_was_compiled_is_read_by_the_next_process(
    cuda: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def again() -> torch.Tensor:
        cuda_kernels.compiled.cache_clear()
        cuda_kernels._module.cache_clear()
        return row_kernels.gated(torch.arange(96, device=cuda).view(2, 48).bfloat16(), "silu")

    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))
    first = again()
    monkeypatch.setattr(cuda_kernels, "_compiler", lambda: pytest.fail("it was compiled"))
    assert torch.equal(again(), first)


def test_trouble_with_them_leaves_a_model_that_speaks(cuda: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If they cannot be compiled, the libraries compute."""
    monkeypatch.setattr(kernel_checks, "_settled", {})  # settled by an earlier engine
    kernel_checks.trouble.cache_clear()
    monkeypatch.setattr("localspec.nn.cuda_kernels.SHARED", "missing")
    cuda_kernels.compiled.cache_clear()
    cuda_kernels._module.cache_clear()
    try:
        assert kernel_checks.trouble(torch.device(cuda, torch.cuda.current_device())) is not None
        target = Target.load(DEMO, device=cuda, dtype=torch.bfloat16, quantize="nf4")
        assert find_step_form(target) == ("captured", None)
    finally:
        kernel_checks.trouble.cache_clear()


@pytest.mark.slow
@pytest.mark.parametrize("kind", cases(kinds("weights"), ["medusa"]))
def test_drafters_of_a_target_in_nf4_are_packed_too_and_change_no_token(cuda: str, kind: str) -> None:
    target = Target.load(DEMO, device=cuda, dtype=torch.bfloat16, quantize="nf4", exact=True)
    target.use_step_form(find_step_form(target)[0])
    assert measure(target, 13, True).bitwise
    drafter, beside = MAKERS[kind](target), MAKERS[kind](Target.load(DEMO, device=cuda, dtype=torch.bfloat16))
    assert drafter.nbytes < beside.nbytes or kind in ("s3d", "semi"), "adapters, and matrices that are small here"
    for question in QUESTIONS:
        prompt = prompt_of(target, question)
        plain, _ = reply(Session(target, Autoregressive(), Budget(0)), prompt, 40)
        assert reply(Session(target, drafter, Budget(12)), prompt, 40)[0] == plain
