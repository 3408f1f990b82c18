"""Fixtures of the tests for GPUs. Without a GPU, the CPU rehearses the tests that are meaningful there."""

import gc
import os
from collections.abc import Callable, Iterator
from functools import cache

import pytest
import torch
from gpu_models import DEMO, WIDEST, Stock, stock_of

from localspec.decoding.exactness import Exactness
from localspec.nn import exactness
from localspec.nn.exactness import measure
from localspec.nn.packing import DTYPES
from localspec.nn.step_forms import find_step_form
from localspec.nn.target import Target


@pytest.fixture(scope="session")
def device() -> str:
    """Return the first GPU, or the device that the run book names."""
    return os.environ.get("LOCALSPEC_TEST_DEVICE") or ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def cuda(device: str) -> Iterator[str]:
    """Skip a test without a GPU, and free its memory afterwards."""
    if device != "cuda":
        pytest.skip("there is no GPU here")
    give_all_back()
    yield device
    give_all_back()


def give_all_back() -> None:
    """Free the card's unused memory: otherwise the memory of earlier tests would count."""
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()


@pytest.fixture(autouse=True)
def full_precision() -> None:
    """Compute products in full fp32, not in the 19 bits that a GPU may use instead."""
    torch.set_float32_matmul_precision("highest")


@pytest.fixture(scope="session")
def demo(device: str) -> Callable[..., Target]:
    """demo(dtype, exact, form): the demo model in torch; it comes with trained drafters, whose drafts are accepted.

    Its steps have the form that an engine would use here, or on a CPU static shapes, unless it is eager.
    """

    @cache
    def make(dtype: str = "fp32", exact: bool = False, form: str = "used") -> Target:
        target = Target.load(DEMO, device=device, dtype=DTYPES[dtype], exact=exact)
        if form == "used":
            target.use_step_form(find_step_form(target)[0] if device == "cuda" else "static")
        return target

    return make


@pytest.fixture(scope="session")
def found_of(demo: Callable[..., Target], device: str) -> Callable[[str, bool], Exactness]:
    """found_of(dtype, exact): the result of the self-test. It sets how far rows are filled up, so it runs first.

    On a CPU it leaves out trees wider than those of these tests.
    """

    @cache
    def find(dtype: str, exact: bool) -> Exactness:
        with pytest.MonkeyPatch.context() as patch:
            if device == "cpu":
                patch.setattr(exactness, "WIDE", ())
            return measure(demo(dtype, exact), WIDEST, exact)

    return find


@pytest.fixture(scope="session")
def stock(device: str) -> Stock:
    """Return the demo model as transformers reads it, in fp32."""
    return stock_of(DEMO, device)
