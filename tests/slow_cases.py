"""Which cases of a large test `make check` runs; `make test` runs them all."""

from collections.abc import Container, Iterable
from typing import Any

import pytest


def covering(*axes: Iterable[Any], fast: int | None = None) -> list[Any]:
    """For `parametrize` where every value of each axis must be met, and not with every value of the others.

    `covering("abc", [1, 2])` is [("a", 1), ("b", 2), ("c", 1)]. Those behind the first `fast` ones are slow.
    """
    values = [list(axis) for axis in axes]
    found = [tuple(axis[n % len(axis)] for axis in values) for n in range(max(map(len, values)))]
    count = len(found) if fast is None else fast
    return [*found[:count], *(pytest.param(*case, marks=pytest.mark.slow) for case in found[count:])]


def cases(every: Iterable[Any], fast: Container[Any]) -> list[Any]:
    """All of them, for `parametrize`; those that are not in `fast` are slow."""
    return [case if case in fast else pytest.param(case, marks=pytest.mark.slow) for case in every]
