"""The tiny models of the whole suite, on the CPU engine in fp32: tests of decoding/ run on them as they are."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from native_models import native_target
from tiny_models import CONFIGS, NATIVE, Tiny

from localspec.machine import compiled


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out families that torch alone computes, which tests of other folders are given too."""
    left_out = [item for item in items if "native" in item.path.parts and _of_torch(item)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
    if compiled.library() is None:
        for item in items:
            if "native" in item.path.parts:
                item.add_marker(pytest.mark.skip(reason=compiled.missing()))


def _of_torch(item: pytest.Item) -> bool:
    params = item.callspec.params.values() if isinstance(item, pytest.Function) and hasattr(item, "callspec") else ()
    return any(isinstance(one, str) and one in CONFIGS and one not in NATIVE for one in params)


@pytest.fixture(scope="session")
def tiny(tiny: Callable[[str], Tiny]) -> Callable[..., Tiny]:
    """tiny(name, packing): that model with a target of the CPU engine."""

    @cache
    def make(name: str, packing: str = "fp32") -> Any:
        model = tiny(name)
        return replace(model, target=native_target(model.path, model.stock, packing))

    return make
