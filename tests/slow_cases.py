"""Which cases of a large test `make check` runs; `make test` runs them all."""

from collections.abc import Container, Iterable
from itertools import product
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


def crossed(*axes: Iterable[Any], fast: Container[Any]) -> list[Any]:
    """Every combination of values, for `parametrize` with a name for each axis; those that are not in `fast` are slow."""
    every = product(*axes)
    return [combined if combined in fast else pytest.param(*combined, marks=pytest.mark.slow) for combined in every]


def some(every: Iterable[Any], fast: int) -> list[Any]:
    """All of them, for `parametrize`; so many of them, evenly spread, are fast. A tuple is a value for each name."""
    found = list(every)
    kept = {len(found) * n // fast for n in range(fast)}
    values = [one if isinstance(one, tuple) else (one,) for one in found]
    return [pytest.param(*value, marks=() if at in kept else pytest.mark.slow) for at, value in enumerate(values)]
