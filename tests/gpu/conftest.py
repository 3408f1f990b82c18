"""Where the tests for GPUs compute: on one where there is one; else on the CPU, which rehearses what means something there."""

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
    """Return the first GPU, where there is one; or what the run book says."""
    return os.environ.get("LOCALSPEC_TEST_DEVICE") or ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def cuda(device: str) -> Iterator[str]:
    """Skips a test where there is no GPU, and gives back what it took there."""
    if device != "cuda":
        pytest.skip("there is no GPU here")
    give_all_back()
    yield device
    give_all_back()


def give_all_back() -> None:
    """Leaves on the card only what is in use: what tests before it let go of would count for this one."""
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()


@pytest.fixture(autouse=True)
def full_precision() -> None:
    """Products in fp32 are products of fp32, and not of the 19 bits that a GPU may take in their place."""
    torch.set_float32_matmul_precision("highest")


@pytest.fixture(scope="session")
def demo(device: str) -> Callable[..., Target]:
    """demo(dtype, exact, form): the demo model in torch; it comes with trained drafters, whose drafts are accepted.

    Its steps are in the form in which an engine would have them here, or on a CPU in static shapes, unless it is eager.
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
    """found_of(dtype, exact): what the self-test finds. It sets how far rows are filled up, so it comes before any text.

    A CPU leaves out trees that are wider than those of these tests.
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
