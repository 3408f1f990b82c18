"""Which cases of a large test `make check` runs; `make test` runs them all."""

from collections.abc import Container, Iterable
from typing import Any

import pytest


def cases(every: Iterable[Any], fast: Container[Any]) -> list[Any]:
    """All of them, for `parametrize`; those that are not in `fast` are slow."""
    return [case if case in fast else pytest.param(case, marks=pytest.mark.slow) for case in every]
