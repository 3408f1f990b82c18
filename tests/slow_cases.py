"""Which cases of a large test `make check` runs, and which of the others `make test` does; `make test-all` runs them all."""

from collections.abc import Container, Iterable, Iterator
from itertools import cycle, product
from typing import Any

import pytest


def covering(*axes: Iterable[Any], fast: int | None = None) -> list[Any]:
    """For `parametrize` where every value of each axis must be met, and not with every value of the others.

    `covering("abc", [1, 2])` is [("a", 1), ("b", 2), ("c", 1)]. Those behind the first `fast` ones are slow, and every
    second of those long.
    """
    values = [list(axis) for axis in axes]
    found = [tuple(axis[n % len(axis)] for axis in values) for n in range(max(map(len, values)))]
    count = len(found) if fast is None else fast
    slow = _slow()
    return [*found[:count], *(pytest.param(*case, marks=next(slow)) for case in found[count:])]


def cases(every: Iterable[Any], fast: Container[Any]) -> list[Any]:
    """All of them, for `parametrize`; those that are not in `fast` are slow, and every second of those long."""
    found, slow = list(every), _slow()
    return [case if case in fast else pytest.param(case, marks=next(slow)) for case in found]


def crossed(*axes: Iterable[Any], fast: Container[Any]) -> list[Any]:
    """Every combination of values, for `parametrize` with a name for each axis; those that are not in `fast` are slow, and
    every second of those long.
    """
    found, slow = list(product(*axes)), _slow()
    return [combined if combined in fast else pytest.param(*combined, marks=next(slow)) for combined in found]


def some(every: Iterable[Any], fast: int) -> list[Any]:
    """All of them, for `parametrize`; so many of them, evenly spread, are fast, and every second of the others long. A
    tuple is a value for each name.
    """
    found, slow = list(every), _slow()
    kept = {len(found) * n // fast for n in range(fast)}
    values = [one if isinstance(one, tuple) else (one,) for one in found]
    return [pytest.param(*value, marks=() if at in kept else next(slow)) for at, value in enumerate(values)]


def _slow() -> Iterator[Any]:
    return cycle([[pytest.mark.slow], [pytest.mark.slow, pytest.mark.long]])
