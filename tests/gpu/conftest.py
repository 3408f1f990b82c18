"""Where the tests for GPUs compute: on one where there is one; else on the CPU, which rehearses what means something there."""

from collections.abc import Callable, Iterator
from functools import cache

import pytest
import torch
from gpu_models import DEMO, Stock, stock_of

from localspec.nn.packing import DTYPES
from localspec.nn.target import Target


@pytest.fixture(scope="session")
def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture
def cuda(device: str) -> Iterator[str]:
    """Skips a test where there is no GPU, and gives back what it took there."""
    if device != "cuda":
        pytest.skip("there is no GPU here")
    torch.cuda.empty_cache()
    yield device
    torch.cuda.empty_cache()


@pytest.fixture(autouse=True)
def full_precision() -> None:
    """Products in fp32 are products of fp32, and not of the 19 bits that a GPU may take in their place."""
    torch.set_float32_matmul_precision("highest")


@pytest.fixture(scope="session")
def demo(device: str) -> Callable[..., Target]:
    """demo(dtype, exact): the demo model in torch; it comes with trained drafters, whose drafts are accepted."""

    @cache
    def make(dtype: str = "fp32", exact: bool = False) -> Target:
        return Target.load(DEMO, device=device, dtype=DTYPES[dtype], exact=exact)

    return make


@pytest.fixture(scope="session")
def stock(device: str) -> Stock:
    """The demo model as transformers reads it, in fp32."""
    return stock_of(DEMO, device)
