"""The tiny models of the whole suite on the CPU engine in fp32, so that tests of decoding/ run on them unchanged."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from native_models import native_target, read_native
from tiny_models import Tiny

from localspec.machine import compiled


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if compiled.library() is None:
        for item in items:
            if {"native", "weights"} & {*item.path.parts}:
                item.add_marker(pytest.mark.skip(reason=compiled.missing()))


@pytest.fixture(scope="session")
def tiny(tiny: Callable[[str], Tiny]) -> Callable[..., Tiny]:
    """tiny(name, packing): that model with a target of the CPU engine."""

    @cache
    def make(name: str, packing: str = "fp32") -> Any:
        model = tiny(name)
        return replace(model, target=native_target(model.path, model.stock, packing))

    return make


@pytest.fixture
def own_read() -> Callable[..., Any]:
    return read_native
